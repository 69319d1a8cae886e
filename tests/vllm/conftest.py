"""One real vLLM server for all tests here, and a sandbox of this machine's best tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retool_env.config import EpisodeConfig
from retool_env.rollout.attempt import AttemptConfig, make_codec
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenBudget

from ..small_model import TEMPLATE, folder, need  # noqa: TID252 - `tests` is on no path

if TYPE_CHECKING:
    from .server import VllmServer


@pytest.fixture(scope="session")
def model(pytestconfig: pytest.Config) -> Path:
    need(pytestconfig, "vllm", "torch", "transformers", "httpx", "psutil")
    return folder(pytestconfig)


@pytest.fixture(scope="session")
def start_server(model: Path) -> Iterator[Callable[[], Any]]:
    """Returns a function that starts a server, which is stopped in the end."""
    from .server import VllmServer

    started: list[VllmServer] = []

    def start() -> VllmServer:
        started.append(VllmServer(model))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server: Callable[[], Any]) -> Any:
    server = start_server()
    server.wait()
    return server


@pytest.fixture(scope="session")
def sandbox(start_sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    with start_sandbox(tier="auto", timeout_s=20.0) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def greedy() -> AttemptConfig:
    """Four shots, greedy, turns of at most 120 tokens."""
    return AttemptConfig(
        episode=EpisodeConfig(prompt_template=TEMPLATE, max_turns=4),
        temperature=0.0,
        budget=TokenBudget(context=2048, response=512, turn=120),
    )


@pytest.fixture(scope="session")
def codec(model: Path, greedy: AttemptConfig) -> TokenCodec:
    from transformers import AutoTokenizer

    return make_codec(AutoTokenizer.from_pretrained(model), greedy)
