"""The agent loop in verl's real managers on Ray: the legacy trainer's and, with TransferQueue, the default one's."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .test_worker import ANSWER, SHOWN_42, batch, code, response

pytestmark = pytest.mark.slow

N_GROUPS = 3
N = 2
RAYS_OWN = Path("/tmp/ray")
"""Where Ray keeps what it is not told to keep elsewhere."""


def script(text: str, number: int) -> Any:
    from ray.exceptions import RayActorError

    if "(lost)" in text:
        return RayActorError()
    return ANSWER if number else code("print(6 * 7)")


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    import psutil
    import ray

    from . import servers

    # Ray's workers do not know the tests' modules.
    for module in (servers, sys.modules[__name__], sys.modules[batch.__module__]):
        ray.cloudpickle.register_pickle_by_value(module)
    # Not pytest's folder: the names of Ray's sockets below it would be longer than the kernel's 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    others = psutil.Process().children(recursive=True)
    try:
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=str(folder))
        started = psutil.Process().children(recursive=True)
        yield ray
        started += psutil.Process().children(recursive=True)
        ray.shutdown()
        _, alive = psutil.wait_procs({*started} - {*others}, timeout=30)
        assert alive == []
    finally:
        ray.shutdown()
        shutil.rmtree(folder)
    assert [session for session in RAYS_OWN.glob("*") if session.name.endswith(f"_{os.getpid()}")] == []


@pytest.fixture
def scripted(model_folder: Callable[[str], Any]) -> Any:
    from transformers import AutoTokenizer

    from .servers import ScriptedServers

    return ScriptedServers(AutoTokenizer.from_pretrained(model_folder("small")), script)


def questions() -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"What is 6 * 7? {which}"}] for which in ("(a)", "(lost)", "(b)")]


def test_the_legacy_manager(ray_here: Any, make_config: Callable[..., Any], scripted: Any) -> None:
    import psutil
    from verl.experimental.agent_loop import AgentLoopManager

    config = make_config("actor_rollout_ref.rollout.agent.num_workers=2", max_resumes=0)
    manager = AgentLoopManager.create(config, llm_client=scripted)
    made = manager.generate_sequences(batch(N_GROUPS, raw_prompt=questions()).repeat(N))
    assert made.non_tensor_batch["acc"].tolist() == [1, 1, 0, 0, 1, 1]
    assert made.non_tensor_batch["fault"].tolist() == [0, 0, 1, 1, 0, 0]
    assert made.batch["rm_scores"].sum(-1).tolist() == pytest.approx([1.05, 1.05, 0, 0, 1.05, 1.05])
    shown = scripted.tokenizer.encode(SHOWN_42, add_special_tokens=False)
    for row in (0, 1, 4, 5):
        ids, mask, _ = response(made, row)
        assert [id for id, sampled in zip(ids, mask, strict=True) if not sampled] == shown
    assert made.meta_info["timing"]["agent_loop/tool_calls/max"] > 0

    # Each worker has a sandbox of its own, which ends with it, though it is killed.
    pids = ray_here.get([worker.__ray_call__.remote(lambda _: os.getpid()) for worker in manager.agent_loop_workers])
    sandboxes = [psutil.Process(pid).children(recursive=True) for pid in pids]
    assert all(sandboxes)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    _, alive = psutil.wait_procs([process for each in sandboxes for process in each], timeout=20)
    assert alive == []


def test_the_default_manager_with_its_queue(ray_here: Any, make_config: Callable[..., Any], scripted: Any) -> None:
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
    from verl.utils import tensordict_utils

    config = make_config(
        "actor_rollout_ref.rollout.agent.num_workers=1",
        f"actor_rollout_ref.rollout.n={N}",
        "transfer_queue.enable=true",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        max_resumes=0,
    )
    path = config.actor_rollout_ref.rollout.agent.agent_loop_config_path
    entries = OmegaConf.load(path)
    OmegaConf.save(OmegaConf.create([*entries, {**entries[0], "name": "strict", "on_fault": "raise"}]), path)
    tq.init(config.transfer_queue)
    manager = AgentLoopManagerTQ.create(config, llm_client=scripted)
    n = N_GROUPS + 1
    names = ["retool"] * N_GROUPS + ["strict"]
    rows = batch(n, raw_prompt=[*questions(), questions()[1]], agent_name=names).non_tensor_batch
    uids = [f"group{number}" for number in range(n)]
    rows["uid"] = rows["data_source"].copy()
    rows["uid"][:] = uids
    asked = tensordict_utils.get_tensordict(rows)
    tensordict_utils.assign_non_tensor_data(asked, "global_steps", 1)
    tensordict_utils.assign_non_tensor_data(asked, "validate", False)
    try:
        manager.generate_sequences(asked)
        tags = _wait(tq, uids)
        # A fault that is raised costs its group, not the others; one that is masked costs nobody.
        assert [tags[uid]["status"] for uid in uids] == ["finished"] * N_GROUPS + ["failure"]
        keys = [f"{uid}_{session}_0" for uid in uids[:N_GROUPS] for session in range(N)]
        got = tq.kv_batch_get(keys=keys, partition_id="train")
        shown = scripted.tokenizer.encode(SHOWN_42, add_special_tokens=False)
        rewards = [[1.05], [1.05], [0.0], [0.0], [1.05], [1.05]]
        for place, [reward] in enumerate(rewards):
            ids, mask = got["responses"][place].tolist(), got["response_mask"][place].tolist()
            logprobs = got["rollout_log_probs"][place].tolist()
            assert len(ids) == len(mask) == len(logprobs) >= 1
            assert got["rm_scores"][place].tolist() == pytest.approx([0.0] * (len(ids) - 1) + [reward])
            masked = [id for id, sampled in zip(ids, mask, strict=True) if not sampled]
            assert masked == (shown if reward else [scripted.tokenizer.eos_token_id])
    finally:
        for worker in manager.agent_loop_workers:
            ray_here.kill(worker)
        tq.close()


def _wait(tq: Any, uids: list[str], limit_s: float = 60.0) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while True:
        tags = tq.kv_list("train").get("train", {})
        if all(tags.get(uid, {}).get("status") in ("finished", "failure") for uid in uids):
            return tags
        assert time.monotonic() < deadline, f"not in time: {tags}"
        time.sleep(0.1)
