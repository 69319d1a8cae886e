"""Attempts to look at: made by real episodes, with outputs that a test chooses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from retool_env.config import EpisodeConfig
from retool_env.driver import TurnWork
from retool_env.episode import Episode
from retool_env.problems import Problem
from retool_env.protocol import EndReason, Feedback, RunCode
from retool_env.recorder import Recorder
from retool_env.sandbox import ExecutionResult, ExecutionStatus
from retool_env.tools import ToolResult
from retool_env.trajectory import Trajectory

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Record = Callable[..., Trajectory]


@pytest.fixture(scope="session")
def record() -> Record:
    """Returns a function that records an attempt; see ``_record``."""
    return _record


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs chromium on PATH: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # As root Chromium's own sandbox does not start; the pages are ours.
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def contrasts() -> str:
    """JavaScript that returns the contrast of all text that is shown, by what it stands in."""
    return _CONTRASTS


# Relative luminance and contrast as WCAG 2.2 defines them (1.4.3 asks for 4.5), of all text that is shown.
_CONTRASTS = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
  };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const pair = [luminance(parse(getComputedStyle(element).color)), luminance(ground(element))].sort((a, b) => a - b);
    const name = `${element.tagName} ${element.className} ${walker.currentNode.data.slice(0, 20)}`;
    found[name] = (pair[1] + 0.05) / (pair[0] + 0.05);
  }
  return found;
}"""


def _record(
    *turns: str,
    id: str = "p",
    question: str = "What is 6 * 7?",
    stdout: str = "42\n",
    status: str = "ok",
    over: bool = True,
    end: EndReason | None = None,
    result: dict[str, Any] | None = None,
    **options: Any,
) -> Trajectory:
    """An attempt whose executions gave ``stdout`` and ``status``; it is aborted if it is to be over and is not."""
    episode = Episode(Problem(id=id, question=question, answer="42"), EpisodeConfig(**options))
    recorder = Recorder(episode)
    for text in turns:
        done = TurnWork()
        action = episode.read(text)
        if isinstance(action, RunCode):
            fields = {"stdout": stdout, "wall_s": 0.25, "cpu_s": 0.125} | (result or {})
            done.results = [
                ExecutionResult(ExecutionStatus(status), **fields)
                if call.name == "code_interpreter"
                else ToolResult(stdout)
                for call in action.calls
            ]
            done.observation = episode.observe(done.results)
        elif isinstance(action, Feedback):
            done.observation = episode.observe()
        elif not episode.over:
            from retool_env.grading import grade_answer

            done.grade = grade_answer(action.text, "42")
            episode.finish(done.grade)
        recorder.add_turn(text, "stop", None, action, done, 0.5)
        if episode.over:
            break
    if over and not episode.over:
        episode.fail(end or EndReason.ABORTED)
    return recorder.trajectory("landlock")
