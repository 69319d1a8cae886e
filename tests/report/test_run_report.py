"""The report of a folder: which files it writes and from what, and that nothing in them is more than text."""

from __future__ import annotations

import html.parser
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from retool_env.errors import ConfigurationError
from retool_env.plain import plain_text
from retool_env.report import plots, run_report
from retool_env.report.metrics import measure
from retool_env.report.run_page import run_page
from retool_env.report.run_report import write_report
from retool_env.trajectory import Trajectory, write_jsonl

Record = Callable[..., Trajectory]
RIGHT, WRONG = "So <answer>\\boxed{42}</answer>", "So <answer>\\boxed{41}</answer>"
CODE = "I compute.\n<code>\nprint(6 * 7)\n</code>"
EVIL = "</td></table><script>alert(1)</script><img src=x onerror=a> & \x00 \x1b[31m \u202e \ud800 $\\frac{ [red]x[/]"
FILES = ["attempts.html", "metrics.json", "report.html", "trajectories.jsonl"]


@pytest.fixture
def folder(tmp_path: Path, record: Record) -> Path:
    """A run: two problems, three attempts each, one of them a fault."""
    path = tmp_path / "run"
    path.mkdir()
    attempts = [record(CODE, RIGHT, id="a"), record(RIGHT, id="a"), record(CODE, WRONG, id="a", status="error")]
    attempts += [record(WRONG, id="b"), record(CODE, id="b"), record(WRONG, id="b")]
    write_jsonl(path / "trajectories.jsonl", attempts)
    return path


def metrics_of(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "metrics.json").read_text())
    assert isinstance(found, dict)
    return found


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


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not about pictures does not wait for them."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


class TestReport:
    def test_a_run(self, folder: Path) -> None:
        report = write_report(folder)
        assert sorted(os.listdir(folder)) == FILES
        found = metrics_of(folder)
        assert (found["attempts"], found["counted"], found["correct"], found["faults"]) == (6, 5, 2, 1)
        assert found["estimates"]["pass@1"]["value"] == pytest.approx(1 / 3)  # type: ignore[index]
        assert report.metrics.estimates["pass@1"].value == pytest.approx(1 / 3)
        assert report.listed == 6
        page = (folder / "report.html").read_text(encoding="utf-8")
        for part in ("<h1>run</h1>", "33.3%", "mean@n", "How code was used", "Problems by pass rate", "attempts.html"):
            assert part in page

    def test_it_is_the_same_every_time(self, folder: Path) -> None:
        write_report(folder)
        first = {name: (folder / name).read_bytes() for name in FILES}
        write_report(folder)
        assert {name: (folder / name).read_bytes() for name in FILES} == first


@pytest.mark.usefixtures("without_pictures")
class TestFiles:
    def test_figures_of_the_run_stay(self, folder: Path) -> None:
        write_report(folder, run={"tokens_per_s": 1234.5, "sandbox": {"busy": 0.5}, "odd": float("nan")})
        assert metrics_of(folder)["run"] == {"tokens_per_s": 1234.5, "sandbox": {"busy": 0.5}, "odd": "nan"}
        write_report(folder)
        assert metrics_of(folder)["run"] == {"tokens_per_s": 1234.5, "sandbox": {"busy": 0.5}, "odd": "nan"}
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert "<td>sandbox.busy</td><td>0.5</td>" in page

    def test_long_lists_of_the_run_are_in_the_file_and_not_on_the_page(self, folder: Path) -> None:
        write_report(folder, run={"bounds": list(range(100)), "few": [1, 2]})
        assert metrics_of(folder)["run"] == {"bounds": list(range(100)), "few": [1, 2]}
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert "<td>bounds</td><td>100 values</td>" in page
        assert "<td>few</td><td>[1, 2]</td>" in page

    def test_what_was_asked_for_is_shown(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"asked": {"n": 3, "model": "a<b"}}))
        write_report(folder)
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert "<td>asked.model</td><td>a&lt;b</td>" in page

    @pytest.mark.parametrize("config", [b"{", b"[1]", b"\xff", b'{"a": ' * 100_000, b'{"a": NaN}'])
    def test_any_config_will_do(self, config: bytes, folder: Path) -> None:
        (folder / "config.json").write_bytes(config)
        write_report(folder)
        assert metrics_of(folder)["attempts"] == 6

    def test_no_attempt_yet(self, folder: Path) -> None:
        (folder / "trajectories.jsonl").write_text("")
        write_report(folder)
        assert metrics_of(folder)["notes"] == ["There are no attempts."]
        assert "There are no attempts." in (folder / "report.html").read_text(encoding="utf-8")

    def test_lines_that_cannot_be_read_are_counted(self, folder: Path) -> None:
        line = (folder / "trajectories.jsonl").read_text().splitlines()[0]
        odd = [line.replace('"reward":1.05', '"reward":NaN'), line.replace('"turns":[', '"turns":[7,'), "\x00", "{}"]
        with (folder / "trajectories.jsonl").open("a") as stream:
            stream.writelines(one + "\n" for one in [*odd, "", "   "])
            stream.write(line[:100])
        report = write_report(folder)
        assert (report.metrics.attempts, report.metrics.unread) == (6, 5)
        assert any("Could not be read: 5 lines" in note for note in report.metrics.notes)

    def test_no_attempts_file_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"trajectories\.jsonl: No such file"):
            write_report(tmp_path)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("name", ["metrics.json", "report.html", "attempts.html"])
    def test_a_file_of_somebody_elses_is_left_alone(self, name: str, folder: Path) -> None:
        (folder / name).write_text("precious")
        with pytest.raises(ConfigurationError, match="exists and is not of a report"):
            write_report(folder)
        assert (folder / name).read_text() == "precious"
        assert sorted(os.listdir(folder)) == sorted([name, "trajectories.jsonl"])

    def test_an_interruption_leaves_whole_files(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_report(folder)
        before = (folder / "report.html").read_bytes()

        def interrupted(*_: object, **__: object) -> object:
            yield "<!doctype html>"
            raise KeyboardInterrupt

        monkeypatch.setattr(run_report, "run_page", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_report(folder)
        assert (folder / "report.html").read_bytes() == before
        assert sorted(os.listdir(folder)) == FILES

    def test_two_at_once_in_one_process(self, folder: Path) -> None:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                write_report(folder)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert sorted(os.listdir(folder)) == FILES

    def test_of_many_attempts_a_sample_is_listed(
        self, tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run_report, "_MAX_LISTED", 10)
        write_jsonl(tmp_path / "trajectories.jsonl", [record(RIGHT, id=f"p{n}") for n in range(35)])
        report = write_report(tmp_path)
        assert report.listed == 9
        listed = re.findall(r'<li data-number="(\d+)"', (tmp_path / "attempts.html").read_text(encoding="utf-8"))
        assert list(map(int, listed)) == list(range(1, 36, 4))
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "A sample of 9 of the 35 attempts" in page

    def test_the_list_of_attempts_is_bounded_in_size(
        self, folder: Path, record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_jsonl(folder / "trajectories.jsonl", record("x" * 200_000, id="long"))
        monkeypatch.setattr(run_report, "_MAX_LISTED_BYTES", 100_000)
        assert write_report(folder).listed == 6
        assert (folder / "attempts.html").stat().st_size < 200_000

    def test_against_another_run(self, folder: Path, tmp_path: Path, record: Record) -> None:
        other = tmp_path / "other.jsonl"
        write_jsonl(other, [record(WRONG, id="a"), record(WRONG, id="b")])
        report = write_report(folder, against=other)
        assert report.comparison is not None
        assert (report.comparison.problems, report.comparison.better) == (2, 1)
        found = metrics_of(folder)["against"]
        assert found["differences"][0]["difference"]["value"] == pytest.approx(1 / 3)  # type: ignore[index]
        assert "+33.3 points" in (folder / "report.html").read_text(encoding="utf-8")


class TestHostileText:
    @pytest.fixture
    def text(self, tmp_path: Path, record: Record) -> str:
        """A page whose attempts, folder, configuration and figures of the run are all hostile."""
        valid = plain_text(EVIL)
        path = tmp_path / "<script>alert(2)<" / "x"
        path.parent.mkdir()
        path.mkdir()
        code = f"<code>\nprint({EVIL!a})\n# {EVIL}\n</code>"
        attempts = [
            record(
                EVIL + code, f"<answer>\\boxed{{{EVIL} {n}}}</answer>", id=valid, question=valid, stdout=EVIL,
                status="error", result={"error_class": EVIL}, reward=lambda _: 0.0,
            )
            for n in range(2)
        ]  # fmt: skip
        attempts.append(record("x" * 1_000_000, id="long " + "y" * 1_000_000))
        write_jsonl(path / "trajectories.jsonl", attempts)
        (path / "config.json").write_text(json.dumps({EVIL: EVIL, "deep": [EVIL]}))
        write_report(path, run={EVIL: EVIL})
        (path / "metrics.json").read_text().encode()
        return (path / "report.html").read_text(encoding="utf-8")

    def test_it_adds_no_tag(self, text: str) -> None:
        allowed = set(
            "html head meta title link style body header h1 h2 p a main section div table thead tbody tr th td meter "
            "figure img ul li code span".split()
        )
        found = tags(text)
        assert {tag for tag, _ in found} <= allowed
        names = {name for _, attributes in found for name in attributes}
        assert names <= set(
            "lang charset http-equiv content name rel href class aria-label scope min max value alt src title".split()
        )
        assert {str(attributes["src"])[:22] for tag, attributes in found if tag == "img"} == {"data:image/png;base64,"}
        assert "&lt;/td&gt;&lt;/table&gt;&lt;script&gt;alert(1)" in text

    def test_nothing_hidden_is_in_it(self, text: str) -> None:
        assert not re.search("[\x00\x1b\u202e\ud800-\udfff]", text)
        assert "[U+202E RLO]" in text

    def test_long_text_is_cut(self, text: str) -> None:
        without_pictures = re.sub(r"base64,[^\"]*", "", text)
        assert len(without_pictures) < 100_000

    def test_nothing_is_loaded_and_no_script_allowed(self, text: str) -> None:
        (policy,) = [str(attributes["content"]) for tag, attributes in tags(text) if "http-equiv" in attributes]
        directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert set(directives) == {"default-src", "style-src", "img-src", "base-uri", "form-action"}
        assert directives["default-src"] == "'none'"
        targets = {str(attributes["href"]) for _, attributes in tags(text) if "href" in attributes}
        assert targets == {"data:,", "attempts.html"}


class TestPictures:
    def test_they_are_in_the_page(self, record: Record) -> None:
        pytest.importorskip("matplotlib", reason="needs the extra `report`")
        found = list(plots.plots(measure([record(CODE, RIGHT), record(WRONG)])))
        assert len(found) == 8
        assert all(plot.png.startswith(b"\x89PNG") for plot in found)
        assert len({plot.alt for plot in found}) == 8

    @pytest.mark.usefixtures("without_pictures")
    def test_without_matplotlib_the_page_says_so(self, record: Record) -> None:
        text = "".join(run_page("run", measure([record(RIGHT)])))
        assert "pip install matplotlib" in text
        assert "<img" not in text
        assert "Headline" in text


def test_problems_are_the_hardest_first_and_bounded(record: Record) -> None:
    run = [record(RIGHT if n % 2 else WRONG, id=f"p{n:04}") for n in range(1200)]
    text = "".join(run_page("run", measure(run, n_bootstrap=0)))
    ids = re.findall(r"<td>(p\d{4})</td>", text)
    assert len(ids) == 500
    assert [int(id[1:]) % 2 for id in ids] == [0] * 250 + [1] * 250
    assert "500 of 1200 problems" in text


def test_numbers_past_all_measure_are_damage_and_the_largest_are_none(
    folder: Path, without_pictures: None, recwarn: pytest.WarningsRecorder
) -> None:
    file = folder / "trajectories.jsonl"
    line = json.loads(file.read_text().splitlines()[0])
    sample = {"id": "0/0", "problem_number": 0, "sample": 0, "seed": 1}

    def run(**numbers: float) -> None:
        file.write_text(json.dumps({**line, "sample": {**sample, **numbers}}) + "\n")
        write_report(folder)

    run(n_sampled=2**48, generate_s=1e12)
    assert (metrics_of(folder)["counted"], metrics_of(folder)["unread"]) == (1, 0)
    for numbers in ({"n_sampled": 10**30}, {"n_sampled": 10**400}, {"generate_s": 1e308}):
        run(**numbers)
        assert (metrics_of(folder)["counted"], metrics_of(folder)["unread"]) == (0, 1)
    assert not recwarn.list
