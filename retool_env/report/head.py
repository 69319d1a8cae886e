"""What our pages begin with: a head whose Content-Security-Policy lets nothing be loaded or run but the page's own."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from retool_env.report.visible import visible_html


def page_head(begin: str, title: str, sheet: str, script: str = "") -> str:
    """Returns a page up to its ``<body>``.

    Args:
        begin: The page's first lines, which tell whose page it is.
        title: Its title; untrusted.
        sheet: Its sheet.
        script: The one script that its body may have, or "" for none.
    """
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    policy = (
        f"default-src 'none'; {scripts}style-src '{_hash(sheet)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""{begin}<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{visible_html(title)}</title>
<link rel="icon" href="data:,">
<style>{sheet}</style>
</head>
"""


def asset(*names: str) -> str:
    """Returns the text of files of this package, one after the other."""
    folder = files("retool_env.report")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
