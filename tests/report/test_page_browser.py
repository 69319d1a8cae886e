"""The page in a real browser: nothing in a record runs, and people can find what they look for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retool_env.plain import plain_text
from retool_env.protocol import EndReason
from retool_env.report.attempts import Attempt, describe
from retool_env.report.page import write_page
from retool_env.trajectory import Trajectory

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.once]  # a page of the same bytes: other tests see to those

Record = Callable[..., Trajectory]
Open = Callable[..., "Page"]
RUNS = "window.pwned = true; document.title = 'pwned'"
EVIL = (
    f"</script><script>{RUNS}</script><!-- <script> <img src=x onerror=\"{RUNS}\"> <svg onload='{RUNS}'>"
    f"</pre></template></textarea><iframe srcdoc='<script>parent.pwned=1</script>'></iframe>"
    f"<a href='javascript:{RUNS}'> \" onmouseover='{RUNS}' <style>body{{display:none}}</style> &lt;b&gt;"
    " \x00 \x1b[31mred\x1b[0m \u202eevil\u2066 \ud800"
)
RIGHT, WRONG = "So <answer>\\boxed{42}</answer>", "So <answer>\\boxed{41}</answer>"
SOURCE = "def product(a, b):\n    return a * b  # why not\nprint(product(6, 7))"
CODE = f"I multiply.\n<code>\n```python\n{SOURCE}\n```\n</code>"


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Returns a function that opens a page of these attempts. Complaints of the browser fail the test."""
    said: list[str] = []
    opened: list[Page] = []

    def open_page(*trajectories: Trajectory, hash: str = "", **options: Any) -> Page:
        attempts: list[Attempt] = [describe(number, one) for number, one in enumerate(trajectories, start=1)]
        path = tmp_path / "page.html"
        write_page(path, "run.jsonl", attempts)
        page = browser.new_page(**options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != page_url else None)
        page_url = path.as_uri()
        page.goto(page_url + hash)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert said == []


@pytest.fixture(scope="module")
def run(record: Record) -> list[Trajectory]:
    return [
        record(RIGHT, id="sum", question="What is 40 + 2?"),
        record(CODE, RIGHT, id="product", question="What is 6 * 7?"),
        record(CODE, WRONG, id="slow", question="What is 7 * 6, slowly?", status="timeout"),
        record(CODE, id="broken", end=EndReason.SANDBOX_UNAVAILABLE),
        record("I do not know.", id="silent"),
        record(CODE, id="open", over=False),
    ]


def listed(page: Page) -> list[str]:
    return page.locator("#attempts li:visible .id").all_inner_texts()


def shown(page: Page) -> str:
    return page.inner_text("#attempt h2")


def wait_for(page: Page, ids: list[str]) -> None:
    page.wait_for_function(
        "ids => JSON.stringify([...document.querySelectorAll('#attempts li:not([hidden]) .id')]"
        ".map(id => id.textContent)) === JSON.stringify(ids)",
        arg=ids,
        timeout=60_000,
    )


class TestHostileText:
    @pytest.fixture
    def page(self, show: Open, record: Record) -> Page:
        code = f"<code>\nx = {EVIL!a}\n# {EVIL}\n</code>"
        valid = plain_text(EVIL)
        hostile = record(EVIL + code, EVIL, id=valid, question=valid, stdout=EVIL, result={"error_class": EVIL})
        return show(hostile, record(RIGHT, id="tame"))

    def test_nothing_runs_and_nothing_is_loaded(self, page: Page) -> None:
        for row in (1, 0):
            page.locator("#attempts a").nth(row).click()
            for block in page.locator("#attempt summary").all():
                block.hover()
        page.fill("#search", "<script>")
        page.wait_for_timeout(300)  # whatever would run late has run by then
        assert page.evaluate("window.pwned") is None
        assert page.title() == "run.jsonl"
        assert page.locator("iframe, img, svg, main script, main style, main a").count() == 0
        assert page.locator("script:not([type])").count() == 1

    def test_it_is_shown_as_it_was_written(self, page: Page) -> None:
        text = page.inner_text("#attempt")
        for part in ("</script><script>window.pwned", "<!-- <script> <img src=x", "&lt;b&gt;", "<iframe srcdoc"):
            assert part in text
        for part in (r"\x1b[31mred\x1b[0m", r"\x00", "[U+202E RLO]evil[U+2066 LRI]", "\ufffd"):
            assert part in text
        assert not re.search("[\x00\x1b\u202e\u2066\ud800-\udfff]", page.content())

    def test_the_policy_would_stop_what_the_escaping_let_through(self, page: Page, browser: Browser) -> None:
        other = browser.new_page()
        other.goto(page.url)
        blocked: list[str] = []
        other.on("console", lambda message: blocked.append(message.text))
        other.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", f'<img src=x onerror="{RUNS}">')
        other.evaluate(
            "() => { const s = document.createElement('script'); s.text = 'pwned = 1'; document.body.append(s) }"
        )
        other.wait_for_timeout(300)
        assert other.evaluate("window.pwned") is None
        assert len([text for text in blocked if "Content Security Policy" in text]) >= 2
        other.close()


class TestFinding:
    def test_all_are_listed_and_the_first_is_open(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run)
        assert listed(page) == ["sum", "product", "slow", "broken", "silent", "open"]
        assert page.inner_text("#count") == "6 of 6 attempts"
        assert shown(page) == "1 · sum"
        assert page.locator("#attempts .verdict").all_inner_texts() == [
            "correct",
            "correct",
            "wrong",
            "fault",
            "wrong",
            "unfinished",
        ]

    def test_outcome_end_tool_and_time(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run)
        page.select_option("select[name=verdict]", "wrong")
        assert listed(page) == ["slow", "silent"]
        assert page.inner_text("#count") == "2 of 6 attempts"
        page.check("text=tool used")
        assert listed(page) == ["slow"]
        page.click("text=Clear")
        wait_for(page, ["sum", "product", "slow", "broken", "silent", "open"])
        page.select_option("select[name=ended]", "no_action")
        assert listed(page) == ["silent"]
        page.select_option("select[name=ended]", "goes on")
        assert listed(page) == ["open"]
        page.click("text=Clear")
        page.check("text=timed out")
        assert listed(page) == ["slow"]

    def test_the_choices_are_those_of_the_run(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run)
        texts = page.locator("select[name=ended] option").all_inner_texts()
        assert texts == ["every end", "answered (3)", "sandbox_unavailable (1)", "no_action (1)", "goes on (1)"]

    @pytest.mark.parametrize(
        ("typed", "found"),
        [
            ("PRODUCT", ["product", "slow", "broken", "open"]),
            ("slowly", ["slow"]),
            ("product boxed", ["product", "slow"]),
            ("boxed{41}", ["slow"]),
            ("numeric", ["sum", "product", "slow"]),
            ("zebra", []),
            ("Never write the interpreter's part", []),  # the prompt says that, every time
        ],
    )
    def test_search(self, typed: str, found: list[str], show: Open, run: list[Trajectory]) -> None:
        page = show(*run)
        page.click("#search")
        page.keyboard.type(typed)
        wait_for(page, found)

    def test_a_click_opens_an_attempt_and_its_address_names_it(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run)
        page.click("text=slowly")
        assert shown(page) == "3 · slow"
        assert page.url.endswith("#3")
        assert page.get_attribute("#attempts a[aria-current]", "href") == "#3"
        page.go_back()
        page.goto(page.url.partition("#")[0] + "#5")
        page.wait_for_function("() => document.querySelector('#attempt h2').textContent === '5 · silent'")

    def test_the_keyboard_is_enough(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run)
        page.keyboard.press("j")
        assert shown(page) == "2 · product"
        page.keyboard.press("k")
        assert shown(page) == "1 · sum"
        page.keyboard.press("k")
        assert shown(page) == "1 · sum"
        page.keyboard.press("/")
        page.keyboard.type("jk")  # are letters here
        wait_for(page, [])
        page.keyboard.press("Escape")
        wait_for(page, ["sum", "product", "slow", "broken", "silent", "open"])
        page.keyboard.press("/")
        page.keyboard.type("multiply")
        wait_for(page, ["product", "slow", "broken", "open"])
        page.keyboard.press("ArrowDown")
        assert shown(page) == "2 · product"
        page.keyboard.press("ArrowDown")
        assert shown(page) == "3 · slow"
        assert page.evaluate("document.activeElement.getAttribute('href')") == "#3"


class TestAttempt:
    def test_turns_output_end_and_times(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run, hash="#2")
        assert page.locator("#attempt h3").all_inner_texts() == [
            "problem product",
            "turn 1: run_code",
            "interpreter: ok",
            "observation",
            "turn 2: answer",
            "grade: correct",
            "end: answered",
        ]
        text = page.inner_text("#attempt")
        for part in ("250 ms", "cpu 125 ms", "<interpreter>\n42", "1.05 = base +1, tool_bonus +0.05", "1.00 s"):
            assert part in text
        assert page.inner_text("#attempt .question") == "What is 6 * 7?"

    def test_the_prompt_is_folded_and_can_be_opened(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run)
        assert "Solve the problem below" not in page.inner_text("#attempt")
        page.click("#attempt .problem summary")
        assert "Solve the problem below" in page.inner_text("#attempt")

    def test_code_is_coloured(self, show: Open, run: list[Trajectory]) -> None:
        page = show(*run, hash="#2")
        assert page.inner_text("#attempt pre.code .keyword >> nth=0") == "def"
        colours = {page.locator(f"#attempt pre.code .{kind}").first.evaluate("e => getComputedStyle(e).color")
                   for kind in ("keyword", "name", "builtin", "number", "comment")}  # fmt: skip
        assert len(colours) == 5

    @pytest.mark.parametrize("width", [1280, 420])
    def test_very_long_lines_do_not_break_the_layout(self, width: int, show: Open, record: Record) -> None:
        long = "x" * 100_000
        trajectory = record(f"{long}<code>\ny = '{long}'\n</code>", long, id=long, question=long, stdout=long)
        page = show(trajectory, viewport={"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            "document.querySelector('#attempt').scrollWidth <= document.querySelector('#attempt').clientWidth"
        )
        assert page.locator("#attempts li").first.bounding_box()["height"] < 800

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_stands_out_from_its_ground(
        self, scheme: str, show: Open, run: list[Trajectory], contrasts: str
    ) -> None:
        page = show(*run, hash="#3", color_scheme=scheme)
        ratios = page.evaluate(contrasts)
        assert len(ratios) > 20
        assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")


def test_many_attempts_are_taken_apart_only_when_they_are_looked_at(show: Open, record: Record) -> None:
    def elements(count: int) -> int:
        page = show(*[record(CODE, RIGHT)] * count)
        assert page.inner_text("#count") == f"{count} of {count} attempts"
        return int(page.evaluate("document.querySelectorAll('*').length"))

    few, many = elements(10), elements(1000)
    assert (many - few) / 990 < 10  # the row of the list; an attempt itself has over 60


def test_filtering_leaves_no_gaps(show: Open, record: Record) -> None:
    attempts = [record(WRONG, id=f"wrong-{n}" if n in (3, 990) else "p") for n in range(1000)]
    page = show(*attempts)
    assert page.evaluate("document.querySelector('nav').scrollHeight") > 50_000
    page.fill("#search", "wrong-")
    wait_for(page, ["wrong-3", "wrong-990"])
    assert page.evaluate("document.querySelector('#attempts').offsetHeight") < 400
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert shown(page) == "991 · wrong-990"
    page.click("text=Clear")
    page.wait_for_function("() => document.querySelector('nav').scrollHeight > 50000")
    page.keyboard.press("j")
    assert shown(page) == "992 · p"
    box = page.locator("#attempts a[aria-current]").bounding_box()
    assert box is not None
    assert 0 < box["y"] < 800


def test_the_list_alone_is_there_without_javascript(browser: Browser, tmp_path: Path, run: list[Trajectory]) -> None:
    write_page(tmp_path / "page.html", "run", [describe(number, one) for number, one in enumerate(run, start=1)])
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("#attempts li:visible").count() == 6
    assert "Without JavaScript" in page.inner_text("nav")
    context.close()
