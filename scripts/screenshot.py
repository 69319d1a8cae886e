"""Takes docs/images/viewer.png: a run of `retool demo`, its page by `retool view --html`, a picture by Chromium.

    .venv/bin/python scripts/screenshot.py [OUT.png]

Needs the `test` extra (playwright) and a Chromium: Debian's package `chromium`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "retool_env.cli"]


def main() -> None:
    """Writes the picture."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "viewer.png"
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("screenshot: there is no chromium on PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder, "run.jsonl"), Path(folder, "run.html")
        subprocess.run([*COMMAND, "demo", "-n", "64", "--out", str(run)], check=True)
        subprocess.run([*COMMAND, "view", str(run), "--html", str(page)], check=True)
        with sync_playwright() as playwright:
            # As root, which is what continuous integration is, Chromium's own sandbox does not start.
            browser = playwright.chromium.launch(executable_path=browser_path, chromium_sandbox=False)
            view = browser.new_page(viewport={"width": 1280, "height": 1000})
            view.goto(page.as_uri())
            view.click("text=builtin-0-27")  # code fails, is mended, and leads to the answer
            view.screenshot(path=out)
            browser.close()
    print(out)


if __name__ == "__main__":
    main()
