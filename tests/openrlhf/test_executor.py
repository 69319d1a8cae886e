"""The executor in this process, with the real sandbox and OpenRLHF's own way from its result to an Experience."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retool_env.errors import ConfigurationError, ProblemError
from retool_env.rollout.measure import METRICS
from retool_env.trajectory import read_jsonl

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path
from .engines import ScriptedEngine, output, sampling

ANSWER = "<answer>\\boxed{42}</answer>"
WRONG = "<answer>\\boxed{41}</answer>"
SHOWN_42 = "\n<interpreter>\n42\n</interpreter>\n"
QUESTION = "What is 6 * 7?"

Make = Callable[..., Any]


def code(source: str) -> str:
    return f"<code>\n{source}\n</code>"


def call(source: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'code_interpreter', 'arguments': {'code': source}})}\n</tool_call>"


async def go(
    executor: Any,
    engine: Any,
    prompts: Sequence[str] = (QUESTION,),
    *,
    label: Any = "42",
    max_length: int = 2048,
    **options: Any,
) -> list[dict[str, Any]]:
    """As ``RolloutRayActor.generate_responses``: one SamplingParams for all, all at a time."""
    params = sampling(**options)
    tasks = [
        executor.execute(
            prompt=prompt,
            label=label,
            sampling_params=params,
            max_length=max_length,
            hf_tokenizer=engine.tokenizer,
            llm_engine=engine,
            images=None,
        )
        for prompt in prompts
    ]
    return list(await asyncio.gather(*tasks))


def experience(made: dict[str, Any], max_length: int = 2048) -> Any:
    """What OpenRLHF's own SamplesGenerator makes of a result."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    generator = SamplesGenerator(SimpleNamespace(args=None), None, None, None, [])
    return generator._process_response_into_experience(made, max_len=max_length)


def masked(made: dict[str, Any]) -> list[int]:
    mask = [0] * len(made["observation_tokens"])
    for start, end in made["action_ranges"]:
        mask[start:end] = [1] * (end - start)
    return mask


@pytest.mark.parametrize("name", ["small", "qwen2_5", "qwen3", "llama3_2"])
async def test_code_tags_token_by_token(make_executor: Make, name: str) -> None:
    engine = ScriptedEngine(load(name), [f"Let me see. {code('print(6 * 7)')}", f"So it is {ANSWER}"])
    [made] = await go(make_executor(protocol="code_tags", reward="tool_aware"), engine)
    first, second = engine.requests
    shown = engine.tokenizer.encode(SHOWN_42, add_special_tokens=False)
    sampled = [1] * len(first.gave) + [0] * len(shown) + [1] * len(second.gave)
    n_prompt = len(first.prompt_ids)
    assert made["observation_tokens"] == first.prompt_ids + first.gave + shown + second.gave
    assert masked(made) == [0] * n_prompt + sampled
    assert len(made["action_ranges"]) == 2
    logprobs = [0.0] * n_prompt + first.logprobs + [0.0] * len(shown) + second.logprobs
    assert made["rollout_log_probs"] == pytest.approx(logprobs)
    assert made["reward"] == pytest.approx(1.05)
    assert made["scores"] == 1.0
    assert made["truncated"] is False
    assert (made["prompt"], made["label"]) == (QUESTION, "42")

    theirs = experience(made)
    assert theirs.sequences[0].tolist() == made["observation_tokens"]
    assert theirs.action_mask[0].tolist() == ([0] * n_prompt + sampled)[1:]
    assert theirs.rollout_log_probs[0].tolist() == pytest.approx(logprobs[1:])
    assert theirs.rewards.tolist() == pytest.approx([1.05])
    assert theirs.scores.tolist() == [1.0]
    assert theirs.info["tool_calls"].tolist() == [1.0]
    assert theirs.response_length.tolist() == [len(sampled)]


@pytest.mark.parametrize("name", ["small", "qwen2_5", "qwen3", "llama3_2"])
async def test_tool_calls_token_by_token(make_executor: Make, name: str) -> None:
    engine = ScriptedEngine(load(name), [call("print(6 * 7)"), "It is \\boxed{42}"])
    [made] = await go(make_executor(protocol="tool_calls", reward="verl"), engine)
    first, second = engine.requests
    between = second.prompt_ids[len(first.prompt_ids) + len(first.gave) :]
    assert "42" in engine.tokenizer.decode(between)
    assert made["observation_tokens"] == second.prompt_ids + second.gave
    sampled = [1] * len(first.gave) + [0] * len(between) + [1] * len(second.gave)
    assert masked(made)[len(first.prompt_ids) :] == sampled
    # The prompt is the chat template's, with the tool in it.
    text = engine.tokenizer.decode(first.prompt_ids)
    assert "code_interpreter" in text
    assert QUESTION in text
    assert not first.sampling_params.stop
    assert made["reward"] == pytest.approx(1.0)


async def test_what_the_engine_is_asked(make_executor: Make) -> None:
    """Stop strings hold from turn 1, and the one object that all attempts share stays as it was."""
    engine = ScriptedEngine(load("small"), [code("print(6 * 7)"), ANSWER])
    params = sampling(seed=5)
    before = repr(params)
    made = await make_executor().execute(QUESTION, "42", params, 1024, engine.tokenizer, engine)
    assert made["scores"] == 1.0
    assert repr(params) == before
    first, second = engine.requests
    assert first.sampling_params is not params
    for request in (first, second):
        assert request.sampling_params.stop == ["</code>", "</answer>"]
        assert request.sampling_params.include_stop_str_in_output is True
        assert request.sampling_params.seed == 5
        assert request.sampling_params.max_tokens == 1024 - len(request.prompt_ids)


async def test_max_new_tokens_bounds_the_response(make_executor: Make) -> None:
    engine = ScriptedEngine(load("small"), lambda text, number: code("print(6 * 7)"))
    [made] = await go(make_executor(), engine, max_tokens=96)
    first = engine.requests[0]
    assert first.sampling_params.max_tokens == 96
    assert len(made["observation_tokens"]) - len(first.prompt_ids) <= 96
    assert made["truncated"] is True


async def test_an_observation_is_cut_by_tokens_within_max_length(make_executor: Make) -> None:
    """OpenRLHF's own loop would return far more tokens than ``max_len``, not truncated, and pay nothing."""
    engine = ScriptedEngine(load("small"), [code("print(list(range(5000)))"), ANSWER])
    executor = make_executor(max_observation_chars=100_000)
    n_prompt = len((await go(executor, ScriptedEngine(load("small"), [WRONG])))[0]["observation_tokens"])
    max_length = n_prompt + 400
    [made] = await go(executor, engine, max_length=max_length)
    assert len(made["observation_tokens"]) <= max_length
    assert made["extra_logs"]["shortened"] == 1.0
    assert made["reward"] == pytest.approx(1.05)
    assert made["truncated"] is False


@pytest.mark.parametrize(
    ("keys", "turns", "truncated"),
    [
        ({}, ["so " * 2000], True),
        ({"max_turns": 1}, [code("print(1)")], True),
        ({"max_tool_calls": 1}, [code("print(1)"), code("print(2)")], True),
        ({}, ["<code>\nprint(1)"], True),
        ({}, [WRONG], False),
        ({}, ["I do not know."], False),
    ],
)
async def test_truncated_where_a_budget_ran_out(
    make_executor: Make, keys: dict[str, Any], turns: list[str], truncated: bool
) -> None:
    [made] = await go(make_executor(**keys), ScriptedEngine(load("small"), turns))
    assert made["truncated"] is truncated
    assert made["scores"] == 0.0
    assert experience(made).truncated.tolist() == [truncated]


async def test_a_printed_box_is_not_paid(make_executor: Make) -> None:
    engine = ScriptedEngine(load("small"), [code("print('<answer>\\\\boxed{42}</answer>')"), "Done."])
    [made] = await go(make_executor(reward="paper"), engine)
    assert (made["reward"], made["scores"]) == (-1.0, 0.0)


@pytest.mark.parametrize("reward", ["tool_aware", "paper", "verl", "accuracy"])
@pytest.mark.parametrize(("last", "score"), [(ANSWER, 1.0), (WRONG, 0.0)])
async def test_scores_are_one_or_zero_whatever_is_paid(
    make_executor: Make, reward: str, last: str, score: float
) -> None:
    engine = ScriptedEngine(load("small"), [code("print(6 * 7)"), last])
    [made] = await go(make_executor(reward=reward), engine)
    assert made["scores"] == score
    assert isinstance(made["reward"], float)


async def test_an_evaluation_row_is_paid_one_or_zero(make_executor: Make) -> None:
    """OpenRLHF's pass@1 is the mean of rewards, whatever the scores say."""
    paid = {}
    for evaluation in (False, True):
        engine = ScriptedEngine(load("small"), [code("print(6 * 7)"), ANSWER])
        label = json.dumps({"answer": "42", "evaluation": evaluation})
        [made] = await go(make_executor(reward="tool_aware"), engine, label=label)
        paid[evaluation] = made["reward"]
        assert made["label"] == label
    assert paid == {False: pytest.approx(1.05), True: 1.0}


async def test_a_batch_of_all_ends_has_one_shape(make_executor: Make) -> None:
    """Right and wrong, without an answer, with errors and time-outs, lost: OpenRLHF can put them all in one batch."""
    from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch
    from vllm.v1.engine.exceptions import EngineGenerateError

    scripts: dict[str, list[Any]] = {
        "right": [code("print(6 * 7)"), ANSWER],
        "wrong": [WRONG],
        "silent": ["I do not know."],
        "error": [code("1 / 0"), ANSWER],
        "slow": [code("while True: pass"), ANSWER],
        "refused": [ValueError("the prompt is bad")],
        "lost": [EngineGenerateError()],
    }

    def script(text: str, number: int) -> Any:
        turns = next(turns for name, turns in scripts.items() if f"({name})" in text)
        return turns[min(number, len(turns) - 1)]

    engine = ScriptedEngine(load("small"), script)
    executor = make_executor(sandbox={"timeout_s": 0.5}, max_resumes=1)
    made = await go(executor, engine, [f"{QUESTION} ({name})" for name in scripts])
    figures = {name: [each["extra_logs"][name] for each in made] for name in ("acc", "errors", "timeouts", "fault")}
    assert figures == {
        "acc": [1, 0, 0, 1, 1, 0, 0],
        "errors": [0, 0, 0, 1, 0, 0, 0],
        "timeouts": [0, 0, 0, 0, 1, 0, 0],
        "fault": [0, 0, 0, 0, 0, 1, 1],
    }
    assert [each["reward"] for each in made] == pytest.approx([1.05, 0, 0, 1.05, 1.05, 0, 0])
    for each in made:
        assert list(each["extra_logs"]) == list(METRICS)
        assert all(type(value) is float for value in each["extra_logs"].values())
    samples = [experience(each) for each in made]
    for number, sample in enumerate(samples):
        sample.index = [number]
    batch = Experience.concat_experiences(samples, engine.tokenizer.pad_token_id)
    assert batch.rewards.shape == (7,)
    assert batch.action_mask[5:].sum() == 0
    assert batch.rollout_log_probs.shape == batch.action_mask.shape
    again = make_experience_batch(split_experience_batch(batch))
    assert again.sequences.tolist() == batch.sequences.tolist()


async def test_a_turn_lost_with_its_request_is_generated_again(make_executor: Make) -> None:
    from vllm.v1.engine.exceptions import EngineGenerateError

    tokenizer = load("small")
    turns = [EngineGenerateError(), output(tokenizer, [5], [-1.0], "abort"), output(tokenizer, [], [], "stop"), ANSWER]
    [made] = await go(make_executor(), ScriptedEngine(tokenizer, turns))
    assert made["extra_logs"]["resumes"] == 3.0
    assert made["extra_logs"]["acc"] == 1.0


@pytest.mark.parametrize("wrapped", [True, False])
async def test_what_vllm_refuses_is_not_asked_again(make_executor: Make, wrapped: bool) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.exceptions import EngineGenerateError

    error: Exception = VLLMValidationError("the prompt is too long")
    if wrapped:
        error = EngineGenerateError()
        error.__cause__ = ValueError("logit_bias")
    engine = ScriptedEngine(load("small"), [error])
    [made] = await go(make_executor(), engine)
    assert len(engine.requests) == 1
    assert made["extra_logs"]["fault"] == 1.0


async def test_a_dead_engine_ends_the_step(make_executor: Make) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    with pytest.raises(EngineDeadError):
        await go(make_executor(), ScriptedEngine(load("small"), [EngineDeadError()]))


@pytest.mark.parametrize(("policy", "ranges"), [("mask", [0, 2]), ("score", [1, 2])])
async def test_a_fault_is_masked_or_scored(make_executor: Make, policy: str, ranges: list[int]) -> None:
    """The second turn never comes; the other attempt of the batch is as it would be alone."""
    from vllm.v1.engine.exceptions import EngineGenerateError

    def script(text: str, number: int) -> Any:
        return EngineGenerateError() if "(lost)" in text and number else code("print(6 * 7)") if not number else ANSWER

    engine = ScriptedEngine(load("small"), script)
    questions = [f"{QUESTION} (lost)", f"{QUESTION} (whole)"]
    made = await go(make_executor(on_fault=policy, max_resumes=0), engine, questions)
    assert [len(each["action_ranges"]) for each in made] == ranges
    assert [each["reward"] for each in made] == pytest.approx([0.0, 1.05])
    assert made[0]["truncated"] is False


async def test_a_fault_can_be_raised(make_executor: Make) -> None:
    from vllm.v1.engine.exceptions import EngineGenerateError

    from retool_env.rollout.attempt import AttemptFaultError

    with pytest.raises(AttemptFaultError):
        await go(make_executor(on_fault="raise", max_resumes=0), ScriptedEngine(load("small"), [EngineGenerateError()]))


@pytest.mark.parametrize("max_length", [24, 200])
async def test_a_prompt_that_does_not_fit_is_a_fault(make_executor: Make, max_length: int) -> None:
    engine = ScriptedEngine(load("small"), [ANSWER])
    [made] = await go(make_executor(), engine, [QUESTION + " again" * 100], max_length=max_length)
    assert made["extra_logs"]["fault"] == 1.0
    assert made["action_ranges"] == []
    assert len(made["observation_tokens"]) == len(made["rollout_log_probs"]) == max_length
    assert engine.requests == []
    assert experience(made, max_length).action_mask.sum() == 0


BAD_LABELS = [
    *[None, {"gold": "42"}, json.dumps({"answer": None}), ["42"], True, math.nan, '{"answer": NaN}', "inf", "  "],
    *["4" * 5000, '{"answer": "\\ud800"}', '{"a":' * 100_000],
]


@pytest.mark.parametrize("label", BAD_LABELS, ids=lambda label: repr(label)[:20])
async def test_a_bad_label_does_not_end_the_batch(make_executor: Make, label: Any) -> None:
    engine = ScriptedEngine(load("small"), lambda text, number: ANSWER)
    executor = make_executor()
    bad, good = await asyncio.gather(go(executor, engine, label=label), go(executor, engine))
    assert bad[0]["extra_logs"]["fault"] == 1.0
    assert bad[0]["action_ranges"] == []
    assert good[0]["scores"] == 1.0
    with pytest.raises(ProblemError, match=r"label|answer"):
        await go(make_executor(on_fault="raise"), engine, label=label)


@pytest.mark.parametrize("label", ["42", 42, {"answer": 42}, json.dumps({"answer": "42", "id": "p"}), "{42}"])
async def test_labels_that_are_gold_answers(make_executor: Make, label: Any) -> None:
    answer = "<answer>\\boxed{\\{42\\}}</answer>" if label == "{42}" else ANSWER
    [made] = await go(make_executor(), ScriptedEngine(load("small"), [answer]), label=label)
    assert made["extra_logs"]["fault"] == 0.0
    assert made["label"] == label


async def test_the_strict_grader_takes_any_gold_answer(make_executor: Make) -> None:
    engine = ScriptedEngine(load("small"), ["<answer>\\boxed{nan}</answer>"])
    [made] = await go(make_executor(grader="strict"), engine, label="nan")
    assert made["scores"] == 1.0


@pytest.mark.parametrize("question", ["", "What is \ud800?"])
async def test_a_question_that_is_none_does_not_end_the_batch(make_executor: Make, question: str) -> None:
    engine = ScriptedEngine(load("small"), lambda text, number: ANSWER)
    lost, whole = await go(make_executor(), engine, [question, QUESTION])
    assert lost["extra_logs"]["fault"] == 1.0
    assert len(lost["observation_tokens"]) >= 2
    assert whole["scores"] == 1.0
    assert experience(lost).sequences.shape[1] >= 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": ""}, "--data.label_key"),
        ({"prompt": "<|im_start|>user\n2 + 2?<|im_end|>"}, "--data.apply_chat_template"),
        ({"prompt": [{"role": "user", "content": "2 + 2?"}]}, "--data.input_key"),
        ({"images": ["a.png"]}, "images"),
        ({"max_length": 0}, "context"),
    ],
)
async def test_what_is_wrong_with_a_run_is_said_at_once(make_executor: Make, change: dict[str, Any], said: str) -> None:
    engine = ScriptedEngine(load("small"), [ANSWER])
    asked = {
        "prompt": QUESTION,
        "label": "42",
        "sampling_params": sampling(),
        "max_length": 1024,
        "hf_tokenizer": engine.tokenizer,
        "llm_engine": engine,
    }
    with pytest.raises(ConfigurationError, match=said):
        await make_executor().execute(**{**asked, **change})


@pytest.mark.parametrize("change", [{"label": ""}, {"prompt": None}, {"prompt": "What does <|im_end|> mean?"}])
async def test_what_is_wrong_with_a_later_row_does_not_end_the_batch(make_executor: Make, change: Any) -> None:
    engine = ScriptedEngine(load("small"), lambda text, number: ANSWER)
    executor = make_executor()
    row = {"prompt": QUESTION, "label": "42", "max_length": 1024, "hf_tokenizer": engine.tokenizer}
    rows = [row, {**row, **change}, row]
    tasks = [executor.execute(**each, sampling_params=sampling(), llm_engine=engine) for each in rows]
    made = await asyncio.gather(*tasks)
    assert [each["extra_logs"]["fault"] for each in made] == [0.0, 1.0, 0.0]
    assert made[1]["action_ranges"] == []


async def test_the_tokenizer_may_be_in_a_processor(make_executor: Make) -> None:
    engine = ScriptedEngine(load("small"), [ANSWER])
    processor = SimpleNamespace(tokenizer=engine.tokenizer, image_processor=None, eos_token_id=0)
    made = await make_executor().execute(QUESTION, "42", sampling(), 1024, processor, engine)
    assert made["scores"] == 1.0


@pytest.mark.parametrize("name", ["small", "qwen2_5"])
async def test_a_tokenizer_is_looked_at_once(make_executor: Make, name: str) -> None:
    """Looking takes a large vocabulary a good while, in which vLLM would not generate."""
    import pickle

    executor = make_executor()
    copies = [pickle.loads(pickle.dumps(load(name))) for _ in range(3)]  # as Ray hands it over
    [made] = await go(executor, ScriptedEngine(copies[0], [ANSWER]))
    assert made["scores"] == 1.0
    took = []
    for tokenizer in copies:
        started = time.perf_counter()
        executor._look_at(tokenizer)
        took.append(time.perf_counter() - started)
    assert len(executor._codecs) == 1
    started = time.perf_counter()
    len(copies[0])  # goes through the whole vocabulary
    assert min(took) < (time.perf_counter() - started) / 2


async def test_without_logprobs_there_are_none(make_executor: Make) -> None:
    def script(text: str, number: int) -> Any:
        return ValueError("lost") if "(lost)" in text else ANSWER

    engine = ScriptedEngine(load("small"), script)
    made = await go(make_executor(), engine, ["(lost)", "(whole)"], logprobs=None)
    assert [each["rollout_log_probs"] for each in made] == [None, None]
    assert experience(made[1]).rollout_log_probs is None


@pytest.mark.parametrize("given", [None, [None], [{}], [], [{5: SimpleNamespace(logprob=math.nan)}]])
async def test_an_engine_that_forgets_the_logprobs_is_a_fault(make_executor: Make, given: Any) -> None:
    tokenizer = load("small")
    answer = output(tokenizer, [5], None, "stop")
    answer.outputs[0].logprobs = given
    [made] = await go(make_executor(max_resumes=0), ScriptedEngine(tokenizer, [answer]))
    assert made["extra_logs"]["fault"] == 1.0
    assert len(made["rollout_log_probs"]) == len(made["observation_tokens"])


async def test_an_engine_that_ignores_the_limits_breaks_nothing(make_executor: Make) -> None:
    """It writes on past a block and past the room there is: that is dropped."""
    tokenizer = load("small")
    turn = f"{code('print(6 * 7)')}\n<interpreter>\n41\n</interpreter>\n" + "so " * 200
    ids = tokenizer.encode(turn, add_special_tokens=False)
    engine = ScriptedEngine(tokenizer, [output(tokenizer, ids, [-1.0] * len(ids), "stop")] * 50)
    [made] = await go(make_executor(), engine, max_tokens=96)
    n_prompt = len(engine.requests[0].prompt_ids)
    response = made["observation_tokens"][n_prompt:]
    assert len(response) <= 96
    text = tokenizer.decode(response)
    assert text.startswith(code("print(6 * 7)") + SHOWN_42)
    assert "41" not in text


async def test_blocks_can_share_an_interpreter(make_executor: Make) -> None:
    engine = ScriptedEngine(load("small"), [code("x = 6 * 7"), code("print(x)"), ANSWER])
    [made] = await go(make_executor(interpreter="session"), engine)
    assert made["extra_logs"]["errors"] == 0.0
    assert engine.tokenizer.decode(made["observation_tokens"]).count(SHOWN_42) == 1


async def test_trajectories_can_be_recorded(make_executor: Make, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "records"
    engine = ScriptedEngine(load("small"), [code("print(6 * 7)"), ANSWER])
    label = json.dumps({"answer": "42", "id": "aime-1"})
    await go(make_executor(record=str(folder)), engine, label=label)
    [file] = folder.iterdir()
    [record] = read_jsonl(file)
    assert record.outcome is not None
    assert record.outcome.correct
    assert record.problem.id == "aime-1"


async def test_an_attempt_that_cannot_be_recorded_is_trained_on_all_the_same(
    make_executor: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "records"
    executor = make_executor(record=str(folder))
    folder.rmdir()
    [made] = await go(executor, ScriptedEngine(load("small"), [ANSWER]))
    assert made["scores"] == 1.0
    assert "not recorded" in caplog.text
