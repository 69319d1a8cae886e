"""The report in a real browser: it reads well, nothing in it runs, and it leads to the attempts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retool_env.plain import plain_text
from retool_env.report.run_report import write_report
from retool_env.trajectory import Trajectory, write_jsonl

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.once]  # a page of the same bytes: other tests see to those

Record = Callable[..., Trajectory]
Open = Callable[..., "Page"]
RUNS = "window.pwned = document.title = 1"
EVIL = (
    f"\x00 \x1b[31m \u202eevil\u2066 \ud800 </td></table></style></title><script>{RUNS}</script>"
    f"<img src=x onerror='{RUNS}'><svg onload='{RUNS}'><style>body{{display:none}}</style>"
)
RIGHT, WRONG = "So <answer>\\boxed{42}</answer>", "So <answer>\\boxed{41}</answer>"
CODE = "I compute.\n<code>\nprint(6 * 7)\n</code>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, record: Record) -> Path:
    """The report of a run, some of it hostile."""
    path = tmp_path_factory.mktemp("runs") / "monday"
    path.mkdir()
    evil = plain_text(EVIL)
    attempts = [record(CODE, RIGHT, id="easy") for _ in range(4)]
    attempts += [record(CODE, WRONG, id="hard", status="timeout"), record(WRONG, id="hard"), record(RIGHT, id="hard")]
    attempts += [
        record(CODE, f"<answer>\\boxed{{{EVIL}}}</answer>", id=evil, question=evil, result={"error_class": EVIL})
    ]
    attempts += [record(RIGHT, id="x" * 100_000), record(CODE, id="hard")]
    write_jsonl(path / "trajectories.jsonl", attempts)
    write_report(path, run={EVIL: EVIL, "tokens_per_s": 1234.5})
    return path


@pytest.fixture
def show(browser: Browser, run: Path) -> Iterator[Open]:
    """Returns a function that opens the report. Complaints of the browser, and requests of the page, fail the test."""
    said: list[str] = []
    opened: list[Page] = []
    url = (run / "report.html").as_uri()
    allowed = (url, (run / "attempts.html").as_uri(), "data:")

    def open_page(**options: object) -> Page:
        page = browser.new_page(**options)  # type: ignore[arg-type]
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(allowed) else said.append(request.url))
        page.goto(url)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert said == []


def test_nothing_runs_and_nothing_is_loaded(show: Open) -> None:
    page = show()
    page.wait_for_timeout(300)  # whatever would run late has run by then
    assert page.evaluate("window.pwned") is None
    assert page.title() == "monday"
    assert page.locator("script, iframe, svg, body style").count() == 0
    assert page.evaluate("[...document.images].every(one => one.src.startsWith('data:image/png'))")
    text = page.inner_text("body")
    for part in ("<script>window.pwned", r"\x00", "[U+202E RLO]evil[U+2066 LRI]"):
        assert part in text


def test_figures_and_what_to_know_of_them(show: Open) -> None:
    page = show()
    assert page.inner_text("h1") == "monday"
    titles = page.locator("h2").all_inner_texts()
    for title in ("Headline", "By number of attempts k", "How code was used", "What shaping paid for", "The run"):
        assert title in titles
    assert "1 of 10 attempts ended by a fault" in page.inner_text(".notes")
    rows = {row.split("\t")[0].strip(): row for row in page.locator("table.problems tbody tr").all_inner_texts()}
    assert "33.3%" in rows["hard"]
    assert "100.0%" in rows["easy"]


def test_pictures_are_drawn_and_described(show: Open) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    page = show()
    sizes = page.evaluate("[...document.images].map(one => [one.complete, one.naturalWidth, one.alt.length])")
    assert len(sizes) == 8
    assert all(complete and width > 300 and alt > 10 for complete, width, alt in sizes)


def test_it_leads_to_the_attempts(show: Open) -> None:
    page = show()
    page.click("text=All attempts")
    page.wait_for_function("() => document.querySelector('#attempt h2') !== null")
    assert page.title() == "attempts of monday"
    assert page.locator("#attempts li").count() == 10


@pytest.mark.parametrize("width", [1280, 420])
def test_long_names_do_not_break_the_layout(width: int, show: Open) -> None:
    page = show(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str, show: Open, contrasts: str) -> None:
    page = show(color_scheme=scheme)
    ratios = page.evaluate(contrasts)
    assert len(ratios) > 50
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")
