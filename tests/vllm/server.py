"""A real vLLM server on this machine's CPU, for the tests: started, asked, stopped, killed, and gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from ..small_model import NAME  # noqa: TID252 - `tests` is on no path

CONTEXT = 2048
START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 20.0
# What a generation_config.json might hold, and what no sampled token may depend on.
_TRAP = '{"top_k": 1, "repetition_penalty": 1.5}'


def environment(folder: Path) -> dict[str, str]:
    """Returns the variables with which vLLM runs on a CPU that it shares, and writes only into a folder."""
    return {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder),
    }


class VllmServer:
    """One server and its processes. Starting does not wait; ``wait`` does."""

    def __init__(self, model: Path):
        # Not pytest's folder: the paths of sockets must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="vllm-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self._process = psutil.Popen(
                [
                    *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
                    *("--model", str(model), "--served-model-name", NAME, "--dtype", "float32", "--enforce-eager"),
                    *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(CONTEXT)),
                    *("--max-num-seqs", "16", "--enable-scale-out", "--override-generation-config", _TRAP),
                    # vLLM 0.32.0 on a CPU dies of a seeded request whose prompt is computed in pieces ("CPU Generator
                    # does not use offset").
                    "--no-enable-chunked-prefill",
                ],
                env={**os.environ, **environment(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Returns when the server is healthy; fails with its log when it ends before, or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the vLLM server did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.2)

    def metric(self, name: str) -> float:
        """Returns the value of one of the server's own metrics."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30.0).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}{{"))

    def replay(self, ids: Sequence[int]) -> list[float]:
        """Returns the logprob of each id but the first, as the model has it for the whole text: one forward pass."""
        body: Mapping[str, Any] = {"model": NAME, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=300.0)
        found = answer.raise_for_status().json()["choices"][0]["prompt_logprobs"]
        return [each[str(id)]["logprob"] for id, each in zip(ids[1:], found[1:], strict=True)]

    @contextlib.contextmanager
    def frozen(self) -> Any:
        """Stops all its processes for a while, as a machine that hangs; ``thaw`` ends that sooner."""
        for process in self._tree():
            process.suspend()
        try:
            yield
        finally:
            self.thaw()

    def thaw(self) -> None:
        """Lets its processes go on."""
        for process in self._tree():
            process.resume()

    def kill(self) -> None:
        """Ends it as a crash would: SIGKILL for the server and its engine, at once."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it, and removes what it wrote."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder)

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [*self._process.children(recursive=True), self._process]
        return []

    def _end(self, signal: signal.Signals) -> None:
        """Signals the processes and waits for all; Python's resource tracker cleans up and ends by itself."""
        tree = self._tree()
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                if "resource_tracker" not in " ".join(process.cmdline()):
                    process.send_signal(signal)
        _, left = psutil.wait_procs(tree, timeout=_STOP_TIMEOUT_S)
        for process in left:
            process.kill()
        psutil.wait_procs(left)
