"""Wherever a trainer may call from: threads, event loops, forked and started workers, loaders of data, notebooks.

What one worker of each kind does is in ``test_lifetime.py``; here there are several, at the same time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading

import nbformat
import pytest
from nbclient import NotebookClient

from ..interrupts import interrupted_when  # noqa: TID252 - `tests` is on no path
from .conftest import assert_at_rest, is_gone, wait_until, zygotes_of


class TestThreadsAndLoops:
    def test_main_thread_and_32_threads_in_all_ways(self, tier_sandbox):
        seen: dict[str, str] = {}
        together = threading.Barrier(33)

        def work(i: int) -> None:
            together.wait(30)
            for turn in range(3):
                code = f"print({i}, {turn})"
                ways = (
                    lambda code: tier_sandbox.run(code),
                    lambda code: tier_sandbox.submit(code).result(),
                    lambda code: asyncio.run(tier_sandbox.arun(code)),
                )
                seen[code] = ways[(i + turn) % 3](code).stdout

        threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        work(32)
        for thread in threads:
            thread.join(60)
        assert seen == {f"print({i}, {turn})": f"{i} {turn}\n" for i in range(33) for turn in range(3)}
        assert_at_rest(tier_sandbox)

    def test_event_loops_in_several_threads(self, tier_sandbox):
        """Eight loops, each with twelve programs in flight; some tasks are cancelled in the middle."""
        outputs: dict[int, list[str]] = {}
        cancelled: list[int] = []

        async def main(i: int) -> list[str]:
            doomed = [asyncio.ensure_future(tier_sandbox.arun("while True: pass", timeout_s=60)) for _ in range(2)]
            tasks = [asyncio.ensure_future(tier_sandbox.arun(f"print({i}, {n})")) for n in range(12)]
            await asyncio.sleep(0.05)
            for task in doomed:
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    cancelled.append(i)
            return [result.stdout for result in await asyncio.gather(*tasks)]

        threads = [threading.Thread(target=lambda i=i: outputs.update({i: asyncio.run(main(i))})) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert outputs == {i: [f"{i} {n}\n" for n in range(12)] for i in range(8)}
        assert sorted(cancelled) == sorted([*range(8), *range(8)])
        assert_at_rest(tier_sandbox)

    def test_a_loop_that_ends_before_its_programs(self, tier_sandbox):
        async def main() -> None:
            for _ in range(3):
                asyncio.ensure_future(tier_sandbox.arun("while True: pass", timeout_s=60))  # noqa: RUF006
            await asyncio.sleep(0.05)

        asyncio.run(main())
        assert tier_sandbox.run("print(1)").stdout == "1\n"
        assert_at_rest(tier_sandbox)

    def test_an_interrupt_ends_the_program_and_not_the_sandbox(self, tier_sandbox):
        """Ctrl-C in a call that blocks."""
        with interrupted_when(lambda: tier_sandbox.metrics().running == 1, "it runs"):
            tier_sandbox.run("while True: pass", timeout_s=100)
        assert tier_sandbox.run("print(1)").stdout == "1\n"
        assert_at_rest(tier_sandbox)


class TestForks:
    def test_forks_of_forks_while_programs_run(self, tier, make_sandbox):
        """Parent, children and grandchildren all use the object they have in common."""
        sandbox = make_sandbox(tier=tier, preload=())
        running = [sandbox.submit("import time; time.sleep(1); print('whole')") for _ in range(3)]
        read, write = os.pipe()
        pids = []
        for i in range(2):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    grandchild = os.fork()
                    outputs = [sandbox.run(f"print({i})").stdout for _ in range(3)]
                    if grandchild:
                        assert os.waitpid(grandchild, 0)[1] == 0
                    assert outputs == [f"{i}\n"] * 3
                    os.write(write, b"%d %d\n" % (i, zygotes_of(sandbox)[0].pid))
                    sandbox.close()
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        os.close(write)
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]
        with os.fdopen(read) as lines:
            zygotes = [int(line.split()[1]) for line in lines]
        assert len({*zygotes, zygotes_of(sandbox)[0].pid}) == 5
        wait_until(lambda: all(map(is_gone, zygotes)), "the zygotes of closed workers are gone")
        assert [future.result().stdout for future in running] == ["whole\n"] * 3
        assert_at_rest(sandbox)


LOADER = """
import multiprocessing, os, sys, threading
from retool_env.sandbox import Sandbox

class Problems:
    '''A dataset that runs code in __getitem__, as a loader's workers do.'''

    def __init__(self, sandbox):
        self.sandbox = sandbox

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.sandbox.run(f"print({index} ** 2)").stdout, os.getpid()

def load(dataset, indices, results):
    for index in iter(indices.get, None):
        results.put((index, *dataset[index]))

def main(tier, method):
    context = multiprocessing.get_context(method)
    sandbox = Sandbox(tier=tier, preload=())
    dataset = Problems(sandbox)
    assert sandbox.run("print(1)").stdout == "1\\n"
    try:
        from torch.utils.data import DataLoader
    except ImportError:  # what such a loader does: daemonic workers that are handed indices, and are terminated
        indices, results = context.Queue(), context.Queue()
        workers = [context.Process(target=load, args=(dataset, indices, results), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        for index in range(len(dataset)):
            indices.put(index)
        loaded = sorted(results.get(timeout=100) for _ in range(len(dataset)))
        if method == "fork":
            for worker in workers:
                worker.terminate()
        else:
            for _ in workers:
                indices.put(None)
        for worker in workers:
            worker.join(30)
            assert worker.exitcode is not None
    else:
        loader = DataLoader(dataset, num_workers=2, batch_size=None, multiprocessing_context=method)
        loaded = [(index, *item) for index, item in enumerate(loader)]
    assert [text for _, text, _ in loaded] == [f"{index ** 2}\\n" for index in range(len(dataset))], loaded
    assert os.getpid() not in {pid for _, _, pid in loaded}
    assert sandbox.run("print(2)").stdout == "2\\n"
    sandbox.close()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader(tier, tier_sandbox, tmp_path, method):
    script = tmp_path / "load.py"
    script.write_text(LOADER)
    process = subprocess.Popen(
        [sys.executable, script, tier, method], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    wait_until(lambda: processes_with(str(script)) == [], "no process of the script is left")


def processes_with(word: str) -> list[int]:
    """Lists running processes with a word in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and not is_gone(int(entry)):
            try:
                with open(f"/proc/{entry}/cmdline") as file:
                    if word in file.read():
                        found.append(int(entry))
            except OSError:
                continue
    return found


CELLS = """
from retool_env.sandbox import Sandbox
sandbox = Sandbox(tier={tier!r}, timeout_s=5, preload=())
print(sandbox.run("import math; print(math.comb(10, 3))").stdout, end="")
---
results = [await sandbox.arun(f"print({{i}})") for i in range(3)]
print([result.stdout for result in results])
---
import asyncio
results = await asyncio.gather(*(sandbox.arun(f"print({{i}})") for i in range(8)))
print("".join(result.stdout for result in results).split())
---
session = sandbox.session()
session.run("x = 20")
print((await session.arun("print(x + 1)")).stdout, end="")
---
print(session.run("x += 1; print(x)").stdout, sandbox.submit("print(7)").result().stdout, end="")
---
import asyncio
task = asyncio.ensure_future(sandbox.arun("while True: pass", timeout_s=60))
await asyncio.sleep(0.2)
task.cancel()
try:
    await task
except asyncio.CancelledError:
    print("cancelled", sandbox.run("print(1)").stdout, end="")
---
result = sandbox.run("1/0")
print(result.status, result.error_class)
---
result
---
session.close()
sandbox.close()
"""


def test_a_notebook(tier, tier_sandbox, tmp_path):
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS.format(tier=tier).strip().split("\n---\n")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    texts = []
    for cell in notebook.cells:
        assert not [output for output in cell.outputs if output.get("name") == "stderr"], cell.outputs
        texts.append("".join(output.get("text") or output["data"]["text/plain"] for output in cell.outputs))
    assert texts[:5] == ["120\n", "['0\\n', '1\\n', '2\\n']\n", f"{[str(i) for i in range(8)]}\n", "21\n", "21\n 7\n"]
    assert texts[5:7] == ["cancelled 1\n", "error ZeroDivisionError\n"]
    assert texts[7].startswith("ExecutionResult(status=<ExecutionStatus.ERROR")
    assert texts[8] == ""


def test_a_script_that_leaves_its_sandbox_open(tier, tier_sandbox):
    """No close, no context manager, calls in flight: the interpreter ends all the same, and says nothing."""
    script = textwrap.dedent(f"""
        import threading
        from retool_env.sandbox import Sandbox
        sandbox = Sandbox(tier={tier!r}, preload=())
        session = sandbox.session()
        session.run("x = 1")
        threading.Thread(target=lambda: sandbox.run("while True: pass", timeout_s=600), daemon=True).start()
        futures = [sandbox.submit("while True: pass", timeout_s=600) for _ in range(20)]
        print(sandbox.tier)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tier}\n", "")
