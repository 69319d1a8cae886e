"""OpenRLHF's real rollout actors on Ray, and its SamplesGenerator: from prompts to Experiences."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path
from .conftest import BLOCK
from .engines import ScriptedEngine
from .test_executor import ANSWER, SHOWN_42, WRONG, code

pytestmark = pytest.mark.slow

AGENT = Path(__file__).parents[2] / "adapters" / "openrlhf" / "retool_openrlhf" / "agent_func.py"
N = 2
MAX_LEN = 1024


def script(text: str, number: int) -> Any:
    if "(lost)" in text:
        return ValueError("refused")
    if "(wrong)" in text:
        return WRONG
    return ANSWER if number else code("print(6 * 7)")


@pytest.fixture(scope="module")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import psutil
    import ray

    from . import engines

    # Ray's workers do not know the tests' modules.
    for module in (engines, sys.modules[__name__], sys.modules[code.__module__]):
        ray.cloudpickle.register_pickle_by_value(module)
    config = tmp_path_factory.mktemp("config") / "retool.yaml"
    config.write_text("reward: tool_aware\nmax_turns: 3\nmax_resumes: 0\n")
    variables = {
        "RETOOL_AGENT_CONFIG": str(config),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(config.parent / "inductor"),
        "VLLM_CACHE_ROOT": str(config.parent / "vllm"),
    }
    # Ray's and vLLM's sockets lie there, and their paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        variables["VLLM_RPC_BASE_PATH"] = folder
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env={"env_vars": variables},
        )
        yield ray
        children = psutil.Process(os.getpid()).children(recursive=True)
        ray.shutdown()
        psutil.wait_procs([each for each in children if folder in " ".join(_command(each))], timeout=20)


def _command(process: Any) -> list[str]:
    import psutil

    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def _shared_memory(pid: int) -> set[Path]:
    """The files of Python's shared memory that a process and its descendants have mapped."""
    import psutil

    process = psutil.Process(pid)
    maps = [Path(f"/proc/{each.pid}/maps") for each in (process, *process.children(recursive=True))]
    lines = "\n".join(file.read_text() for file in maps if file.exists()).splitlines()
    return {Path(line.split()[-1]) for line in lines if "/dev/shm/psm_" in line and not line.endswith("(deleted)")}


def samples_generator(engines: list[Any], rows: list[tuple[str, Any]], **options: Any) -> Any:
    """OpenRLHF's own, over rows as its dataloader gives them."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    algo = SimpleNamespace(
        advantage=SimpleNamespace(is_correction_level="token"),
        dynamic_filtering_enable=options.get("filtering", False),
        dynamic_filtering_range=(0.0, 1.0),
    )
    rollout = SimpleNamespace(batch_size=len(rows), n_samples_per_prompt=N, vllm_generate_batch_size=None)
    args = SimpleNamespace(algo=algo, rollout=rollout, vllm=SimpleNamespace(enable_sleep=False))
    loader = [(["source"], [prompt], [label], [None]) for prompt, label in rows]
    return SamplesGenerator(SimpleNamespace(args=args), loader, loader, load("small"), engines)


@pytest.fixture(scope="module")
def scripted(ray_here: Any) -> Iterator[Any]:
    """OpenRLHF's rollout actor with all that is its own, but the vLLM engine."""
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor, _load_agent_executor

    base = RolloutRayActor.__ray_metadata__.modified_class

    class ScriptedActor(base):
        async def __init__(self, tokenizer: Any, path: str) -> None:
            self.executor = _load_agent_executor(path)
            self.engine = ScriptedEngine(tokenizer, script)

        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            return await self.engine.generate(*args, **kwargs)

        def get_num_unfinished_requests(self) -> int:
            return 0

    actor = ray_here.remote(ScriptedActor).options(num_cpus=1).remote(load("small"), str(AGENT))
    yield actor
    ray_here.kill(actor)


def test_from_prompts_to_experiences(scripted: Any) -> None:
    rows = [("What is 6 * 7? (right)", "42"), ("(wrong)", "42"), ("(lost)", "42"), ("What is 6 * 7?", None)]
    generator = samples_generator([scripted], rows)
    made, _, consumed, _ = generator.generate_samples(max_len=MAX_LEN, max_new_tokens=None)
    assert (len(made), consumed) == (len(rows) * N, len(rows))
    by_prompt: dict[str, list[Any]] = {}
    for each in made:
        by_prompt.setdefault(each.prompts[0], []).append(each)
    tokenizer = load("small")
    shown = tokenizer.encode(SHOWN_42, add_special_tokens=False)
    for (prompt, label), reward, score, fault in zip(rows, (1.05, 0, 0, 0), (1, 0, 0, 0), (0, 0, 1, 1), strict=True):
        assert len(by_prompt[prompt]) == N
        for each in by_prompt[prompt]:
            assert each.labels == [label]
            assert each.rewards.tolist() == pytest.approx([reward])
            assert each.scores.tolist() == [score]
            assert each.info["fault"].tolist() == [fault]
            ids, mask = each.sequences[0].tolist(), [0, *each.action_mask[0].tolist()]
            assert len(ids) == len(mask) == 1 + each.rollout_log_probs.shape[1]
            if fault:
                assert not any(mask)
                continue
            first = mask.index(1)
            hidden = [id for id, sampled in zip(ids[first:], mask[first:], strict=True) if not sampled]
            assert hidden == (shown if score else [])
            logprobs = [0.0, *each.rollout_log_probs[0].tolist()]
            assert all((value < 0) == bool(sampled) for value, sampled in zip(logprobs, mask, strict=True))


def test_dynamic_filtering_reads_the_scores(scripted: Any) -> None:
    """A shaped reward of a wrong answer is above 0, and of a right one above 1: by rewards, none would be dropped."""
    rows = [("What is 6 * 7? (right)", "42"), ("(wrong)", "42")]
    made, _, _, _ = samples_generator([scripted], rows, filtering=True).generate_samples(max_len=MAX_LEN)
    assert made == []


def test_evaluation_rows_are_paid_one_or_zero(scripted: Any) -> None:
    rows = [("What is 6 * 7?", json.dumps({"answer": "42", "evaluation": True}))]
    made = samples_generator([scripted], rows).generate_eval_samples(max_len=MAX_LEN, n_samples_per_prompt=3)
    assert [each.rewards.item() for each in made] == [1.0] * 3


def test_a_mistake_in_the_environment_ends_the_actor_at_once(ray_here: Any) -> None:
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    @ray_here.remote(num_cpus=0, runtime_env={"env_vars": {"RETOOL_AGENT_PROTOKOL": "code_tags"}})
    def load_it(path: str) -> str:
        try:
            _load_agent_executor(path)
        except ValueError as error:
            return str(error)
        return ""

    assert "RETOOL_AGENT_PROTOKOL" in ray_here.get(load_it.remote(str(AGENT)))


def test_the_sandbox_ends_with_the_actor(ray_here: Any, scripted: Any) -> None:
    import psutil

    samples_generator([scripted], [("What is 6 * 7?", "42")]).generate_samples(max_len=MAX_LEN)
    pid = ray_here.get(scripted.__ray_call__.remote(lambda _: os.getpid()))
    sandbox = psutil.Process(pid).children(recursive=True)
    assert sandbox
    ray_here.kill(scripted)
    _, alive = psutil.wait_procs(sandbox, timeout=20)
    assert alive == []


def test_with_a_real_vllm(ray_here: Any, model_folder: Path) -> None:
    """OpenRLHF's actor as it is, with vLLM on the CPU: stop strings from turn 1, ids and logprobs as the model has."""
    import torch
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
    from transformers import AutoModelForCausalLM

    actor = RolloutRayActor.options(num_cpus=1, num_gpus=0).remote(
        model=str(model_folder),
        agent_func_path=str(AGENT),
        enforce_eager=True,
        worker_extension_cls="openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
        tensor_parallel_size=1,
        seed=1,
        distributed_executor_backend="uni",
        max_model_len=MAX_LEN,
        enable_prefix_caching=True,
        dtype="float32",
        num_gpus=0,
        logprobs_mode="processed_logprobs",
        max_logprobs=1,
    )
    made, _, _, _ = samples_generator([actor], [("What is 6 * 7?", "42")]).generate_samples(max_len=MAX_LEN)
    shared = _shared_memory(ray_here.get(actor.__ray_call__.remote(lambda _: os.getpid())))
    ray_here.get(actor.__ray_call__.remote(lambda it: it.llm.shutdown()))
    ray_here.kill(actor)
    for file in shared:  # vLLM 0.29 leaves its buffer for messages where it is
        file.unlink(missing_ok=True)
    tokenizer = load("small")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    assert len(made) == N
    for each in made:
        ids, mask = each.sequences[0].tolist(), [0, *each.action_mask[0].tolist()]
        n_prompt = mask.index(1)
        assert tokenizer.decode(ids[n_prompt:]) == (BLOCK + SHOWN_42) * 2 + BLOCK
        sampled = [id for id, wanted in zip(ids, mask, strict=True) if wanted]
        assert sampled == tokenizer.encode(BLOCK, add_special_tokens=False) * 3
        assert each.info["tool_calls"].tolist() == [2.0]
        assert each.truncated.tolist() == [True]  # three turns, and the last one asks for more
        assert each.scores.tolist() == [0.0]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        wanted = each.action_mask[0].bool()
        assert each.rollout_log_probs[0][wanted].tolist() == pytest.approx(logprobs[wanted].tolist(), abs=1e-3)
        assert (each.rollout_log_probs[0][~wanted] == 0).all()
