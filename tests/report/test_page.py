"""The page as text: what is in it, and where it is put. How it behaves is tested in a browser."""

import base64
import hashlib
import html.parser
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError
from retool_env.plain import plain_text
from retool_env.report.attempts import Attempt, describe
from retool_env.report.page import page, write_page
from retool_env.trajectory import Trajectory

Record = Callable[..., Trajectory]
EVIL = (
    "</script><script>alert(1)</script><!-- <script> --> ]]> & \x00 \x1b[31m \u202e \ud800 \u2028 <img src=x onerror=a>"
)


@pytest.fixture(scope="module")
def hostile(record: Record) -> list[Attempt]:
    code = f"<code>\nprint({EVIL!a})\n# {EVIL}\n</code>"
    # A problem takes no lone surrogate; a file that holds one is read with U+FFFD in its place.
    valid = plain_text(EVIL)
    trajectory = record(EVIL + code, EVIL, id=valid, question=valid, stdout=EVIL, result={"error_class": EVIL})
    return [describe(1, trajectory)]


class Tags(html.parser.HTMLParser):
    """Collects the tags of a page, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(text)
    return parser.found


def data(text: str) -> list[dict[str, str]]:
    return [json.loads(one) for one in re.findall(r'<script type="application/json">(.*?)</script>', text)]


def test_hostile_text_adds_no_tag_anywhere(hostile: list[Attempt]) -> None:
    text = "".join(page(EVIL, hostile))
    text.encode()
    assert [attributes for tag, attributes in tags(text) if tag == "script"] == [{"type": "application/json"}, {}]
    assert not re.search("[\x00\x1b\u202e\u2028]", text)
    assert "<!--" not in text.removeprefix("<!doctype html>\n<!--")
    (attempt,) = data(text)
    allowed = {"article", "details", "summary", "div", "h3", "span", "p", "pre", "dl", "dt", "dd"}
    for part in attempt.values():
        found = tags(part)
        assert {tag for tag, _ in found} <= allowed
        assert {name for _, attributes in found for name in attributes} <= {"class", "title", "open"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in attempt["rest"]


def test_no_less_than_sign_is_in_the_json(hostile: list[Attempt]) -> None:
    text = "".join(page("run", hostile))
    (raw,) = re.findall(r'<script type="application/json">(.*?)</script></li>', text)
    assert "<" not in raw


def test_the_policy_allows_our_script_and_our_sheet_only(hostile: list[Attempt]) -> None:
    text = "".join(page("run", hostile))
    (policy,) = [str(attributes["content"]) for tag, attributes in tags(text) if "http-equiv" in attributes]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == directives["base-uri"] == directives["form-action"] == "'none'"
    assert set(directives) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"
    assert directives["img-src"] == "data:"


def test_nothing_is_loaded(hostile: list[Attempt]) -> None:
    found = tags("".join(page("run", hostile)))
    targets = [str(value) for _, attributes in found for name, value in attributes.items() if name in ("src", "href")]
    assert {target for target in targets if not target.startswith("#")} == {"data:,"}


def test_latex_stays_text(record: Record) -> None:
    trajectory = record(r"<answer>\boxed{\frac{1}{2}} and $x^2$</answer>")
    (attempt,) = data("".join(page("run", [describe(1, trajectory)])))
    assert r"\boxed{\frac{1}{2}} and $x^2$" in attempt["rest"]


@pytest.mark.parametrize("count", [0, 1, 50, 51, 120])
def test_the_list_is_whole(count: int, record: Record) -> None:
    attempt = describe(1, record("?"))
    text = "".join(page("run", [attempt] * count))
    assert text.count("<li ") == text.count("</li>") == count
    assert text.count("<ol>") == text.count("</ol>") == -(-count // 50)
    assert re.sub(r"(?s)<li .*?</li>|\s", "", re.findall(r'(?s)<div id="attempts">(.*)</div>\n</nav>', text)[0]) == (
        "<ol></ol>" * -(-count // 50)
    )


def test_lines_that_could_not_be_read_are_mentioned(record: Record) -> None:
    assert "<p>3 lines of the file could not be read.</p>" in "".join(page("run", [], skipped=lambda: 3))
    assert "could not be read" not in "".join(page("run", []))


class TestFile:
    def test_an_older_page_is_replaced(self, record: Record, tmp_path: Path) -> None:
        out = tmp_path / "out.html"
        write_page(out, "one", [])
        write_page(out, "two", [describe(1, record("?"))])
        assert "<h1>two</h1>" in out.read_text(encoding="utf-8")
        assert os.listdir(tmp_path) == ["out.html"]

    def test_any_other_file_is_left_alone(self, tmp_path: Path) -> None:
        out = tmp_path / "run.jsonl"
        out.write_text("precious")
        with pytest.raises(ConfigurationError, match="exists"):
            write_page(out, "run", [])
        assert out.read_text() == "precious"

    def test_a_place_where_no_file_can_be_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="folder"):
            write_page(tmp_path, "run", [])
        with pytest.raises(ConfigurationError, match="No such file"):
            write_page(tmp_path / "no" / "out.html", "run", [])

    def test_a_pipe_is_refused_and_not_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ConfigurationError, match="pipe is not a file"):
            write_page(tmp_path / "pipe", "run", [])

    def test_a_name_may_be_as_long_as_the_file_system_allows(self, tmp_path: Path) -> None:
        out = tmp_path / ("\N{GRINNING FACE}" * 62 + ".html")
        write_page(out, "run", [])
        assert os.listdir(tmp_path) == [out.name]

    def test_what_a_killed_run_left_is_not_in_the_way(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "out.html"
        writer = (
            "import os, sys; from retool_env.report.page import write_page; "
            "write_page(sys.argv[1], 'run', (os.kill(os.getpid(), 9) for _ in [0]))"
        )
        killed = subprocess.Popen([sys.executable, "-c", writer, str(out)])
        assert killed.wait(60) == -9
        (left,) = os.listdir(tmp_path)
        assert left != out.name
        monkeypatch.setattr(os, "getpid", lambda: killed.pid)  # as in a container, where all runs may have the same
        write_page(out, "run", [])
        assert sorted(os.listdir(tmp_path)) == sorted([left, out.name])

    def test_an_interrupted_page_leaves_what_was_there(self, tmp_path: Path) -> None:
        out = tmp_path / "out.html"
        write_page(out, "old", [])

        def interrupted() -> Iterator[Attempt]:
            raise KeyboardInterrupt
            yield

        with pytest.raises(KeyboardInterrupt):
            write_page(out, "new", interrupted())
        assert "<h1>old</h1>" in out.read_text(encoding="utf-8")
        assert os.listdir(tmp_path) == ["out.html"]
