"""The balancer, over scripted engines and over real HTTP servers that are killed and come back."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from retool_env.errors import ConfigurationError, PolicyError
from retool_env.problems import Problem
from retool_env.rollout.attempt import AttemptConfig, attempt, make_codec
from retool_env.rollout.balancer import Balancer, NoServerError
from retool_env.rollout.engines import GenerateParams, Generation, ScriptedEngine, TurnLostError, VllmEngine
from retool_env.sandbox import Sandbox
from retool_env.tokenizer import TokenCodec

from ..tokenizers import load  # noqa: TID252 - `tests` is on no path
from .model_server import MODEL, ModelServer

pytest.importorskip("httpx", reason="the httpx package is not installed (extra `rollout`)")

PROBLEM = Problem(id="p", question="What is 6 * 7?", answer="42")
CODE, ANSWER = "<code>\nprint(6 * 7)\n</code>", "<answer>\\boxed{42}</answer>"


class Gate:
    """An engine whose calls end when they are let through. It cannot be asked for its health."""

    def __init__(self, name: str):
        self.name = name
        self.calls: list[tuple[str, asyncio.Future[Generation]]] = []
        self.n_cancelled = 0
        self.closed = False
        self.released: list[str] = []

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams) -> Generation:
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self.calls.append((params.trajectory_id, future))
        try:
            return await future
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise

    def finish(self, number: int = -1) -> None:
        self.calls[number][1].set_result(Generation([1], self.name, [-1.0]))

    def fail(self, error: Exception, number: int = -1) -> None:
        self.calls[number][1].set_exception(error)

    async def aclose(self) -> None:
        self.closed = True


class Moody(Gate):
    """A gate that can be asked for its health."""

    def __init__(self, name: str, *answers: bool | Exception):
        super().__init__(name)
        self.answers = list(answers)

    async def healthy(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def begin(balancer: Balancer, name: str) -> asyncio.Task[Generation]:
    return asyncio.create_task(balancer.generate([1, 2], GenerateParams(max_tokens=5, trajectory_id=name)))


async def until(holds: Callable[[], object]) -> None:
    """Waits for something that other tasks bring about."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def turn(balancer: Balancer, gates: Sequence[Gate], name: str) -> str:
    """Makes a whole turn of an attempt; returns which engine it was on."""
    before = sum(len(gate.calls) for gate in gates)
    task = begin(balancer, name)
    await until(lambda: sum(len(gate.calls) for gate in gates) > before)
    for gate in gates:
        if gate.calls and gate.calls[-1][0] == name and not gate.calls[-1][1].done():
            gate.finish()
    return (await task).text


# Where a turn goes


async def test_new_attempts_go_where_the_fewest_calls_are() -> None:
    gates = [Gate("a"), Gate("b"), Gate("c")]
    balancer = Balancer(gates)
    tasks = [begin(balancer, f"t{number}") for number in range(9)]
    await settled()
    assert [len(gate.calls) for gate in gates] == [3, 3, 3]
    assert list(balancer.in_flight().values()) == [3, 3, 3]
    for number in range(3):
        gates[1].finish(number)
    await settled()
    tasks += [begin(balancer, f"u{number}") for number in range(3)]
    await settled()
    assert [len(gate.calls) for gate in gates] == [3, 6, 3]
    for gate in gates:
        for _, future in gate.calls:
            if not future.done():
                future.set_result(Generation([1], "x", [-1.0]))
    await asyncio.gather(*tasks)
    await balancer.aclose()
    assert all(gate.closed for gate in gates)


async def test_the_turns_of_an_attempt_stay_together() -> None:
    gates = [Gate("a"), Gate("b")]
    balancer = Balancer(gates)
    homes = {name: await turn(balancer, gates, name) for name in "stuvwx"}
    assert sorted(homes.values()) == ["a", "a", "a", "b", "b", "b"]
    for name in itertools.chain("xuvtsw", "ssxx"):
        assert await turn(balancer, gates, name) == homes[name]
    assert balancer.n_moved == 0
    await balancer.aclose()


async def test_attempts_that_ended_or_are_silent_for_longest_are_forgotten() -> None:
    gates = [Gate("a"), Gate("b")]
    balancer = Balancer(gates, max_attempts=2)
    assert [await turn(balancer, gates, name) for name in "st"] == ["a", "b"]
    await turn(balancer, gates, "s")
    await turn(balancer, gates, "u")  # t is forgotten: a holds s and u
    assert len(balancer._homes) == 2
    assert await turn(balancer, gates, "s") == "a"
    for name in "su":
        balancer.release(name)
        balancer.release(name)
    assert len(balancer._homes) == 0
    assert [server.n_held for server in balancer._servers] == [0, 0]
    await balancer.aclose()


async def test_a_turn_leaves_a_server_that_is_much_fuller_than_another() -> None:
    gates = [Gate("a"), Gate("b")]
    balancer = Balancer(gates, move_margin=2)
    homes = {f"t{number}": await turn(balancer, gates, f"t{number}") for number in range(12)}
    on_a = [name for name, home in homes.items() if home == "a"]
    tasks = [begin(balancer, name) for name in on_a]  # the long ones are all on a
    await settled()
    # Up to 2 calls are within the margin of an empty server; with one call there, up to 4 are.
    assert list(balancer.in_flight().values()) == [5, 1]
    assert balancer.n_moved == 1
    for gate in gates:
        for _, future in gate.calls[6:]:
            future.set_result(Generation([1], "x", [-1.0]))
    await asyncio.gather(*tasks)
    await balancer.aclose()


# Servers that fail


async def test_a_lost_turn_is_generated_elsewhere_at_once_and_its_attempt_stays_there() -> None:
    gates = [Gate("a"), Gate("b")]
    balancer = Balancer(gates)
    task = begin(balancer, "t")
    await settled()
    gates[0].fail(TurnLostError("gone"))
    await settled()
    assert len(gates[1].calls) == 1
    gates[1].finish()
    assert (await task).text == "b"
    assert (balancer.n_lost, balancer.n_moved) == (1, 1)
    assert await turn(balancer, gates, "t") == "b"
    await balancer.aclose()


async def test_a_server_that_cannot_be_asked_is_tried_again_after_a_pause() -> None:
    gates = [Gate("a"), Gate("b")]
    balancer = Balancer(gates, check_every_s=0.05)
    task = begin(balancer, "t")
    await settled()
    gates[0].fail(TurnLostError("gone"))
    await settled()
    assert list(balancer.in_flight()) == ["engine 1"]
    gates[1].finish()
    await task
    await until(lambda: list(balancer.in_flight()) == ["engine 0", "engine 1"])
    assert await turn(balancer, gates, "new") == "a"
    await balancer.aclose()


async def test_calls_on_a_server_that_is_down_move_on_without_waiting_for_it() -> None:
    gates = [Moody("a", False), Moody("b", True)]
    balancer = Balancer(gates)
    tasks = [begin(balancer, f"t{number}") for number in range(8)]
    await settled()
    gates[0].fail(TurnLostError("gone"), 0)
    await settled()
    assert gates[0].n_cancelled == 3
    assert len(gates[1].calls) == 8
    for number in range(8):
        gates[1].finish(number)
    assert [generation.text for generation in await asyncio.gather(*tasks)] == ["b"] * 8
    await balancer.aclose()


async def test_calls_on_a_server_that_is_well_or_cannot_be_asked_go_on_after_anothers_failure() -> None:
    for gate in (Gate("a"), Moody("a", True)):
        balancer = Balancer([gate], check_every_s=0.01)
        tasks = [begin(balancer, f"t{number}") for number in range(4)]
        await settled()
        gate.fail(TurnLostError("too many requests"), 0)
        with pytest.raises(TurnLostError):
            await tasks[0]
        await until(balancer.in_flight)
        assert gate.n_cancelled == 0
        for number in range(1, 4):
            gate.finish(number)
        assert [generation.text for generation in await asyncio.gather(*tasks[1:])] == ["a"] * 3
        await balancer.aclose()


async def test_a_turn_that_every_server_fails_at_is_lost_and_a_refusal_is_no_failure() -> None:
    gates = [Gate("a"), Gate("b")]
    balancer = Balancer(gates)
    task = begin(balancer, "t")
    await settled()
    gates[0].fail(TurnLostError("a fell"))
    await settled()
    gates[1].fail(TurnLostError("b fell"))
    with pytest.raises(TurnLostError, match="b fell"):
        await task
    await balancer.aclose()

    gate = Gate("c")
    balancer = Balancer([gate])
    task = begin(balancer, "t")
    await settled()
    gate.fail(PolicyError("too long"))
    with pytest.raises(PolicyError, match="too long"):
        await task
    assert balancer.in_flight() == {"engine 0": 0}
    await balancer.aclose()


async def test_a_call_that_is_cancelled_ends_on_its_server() -> None:
    gate = Gate("a")
    balancer = Balancer([gate])
    task = begin(balancer, "t")
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.n_cancelled == 1
    assert balancer.in_flight() == {"engine 0": 0}
    await balancer.aclose()


def test_options_that_cannot_work() -> None:
    gate = Gate("a")
    with pytest.raises(ConfigurationError, match="at least one"):
        Balancer([])
    with pytest.raises(ConfigurationError, match="twice"):
        Balancer([gate, gate])
    with pytest.raises(ConfigurationError, match="check_every_s"):
        Balancer([gate], check_every_s=0)


# Real servers


@pytest.fixture
def codec() -> TokenCodec:
    return make_codec(load("small"), AttemptConfig())


def scripted(codec: TokenCodec) -> ScriptedEngine:
    """Codes in the first turn and answers in the second; each turn takes a while."""

    def turns(prompt_ids: Sequence[int], params: GenerateParams) -> str:
        return ANSWER if "</interpreter>" in codec.decode(prompt_ids[-30:]) else CODE

    return ScriptedEngine(codec, turns, delay_s=lambda n_tokens: 0.05)


@pytest.fixture
async def start(codec: TokenCodec) -> AsyncIterator[Callable[[], Awaitable[ModelServer]]]:
    servers: list[ModelServer] = []

    async def start() -> ModelServer:
        servers.append(ModelServer(scripted(codec)))
        await servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        await server.kill()


def over(servers: Sequence[ModelServer], **options: float) -> Balancer:
    return Balancer([VllmEngine(server.url, MODEL, max_retries=0) for server in servers], **options)


async def test_a_server_is_killed_in_the_middle_and_no_attempt_loses_or_repeats_a_token(
    start: Callable[[], Awaitable[ModelServer]], codec: TokenCodec, start_sandbox: Callable[..., Sandbox]
) -> None:
    servers = [await start(), await start()]
    balancer = over(servers)
    killed = asyncio.Event()
    servers[0].on_request = lambda: len(servers[0].prompts) == 12 and killed.set()
    with start_sandbox() as sandbox:
        tasks = [
            asyncio.create_task(attempt(PROBLEM, balancer, codec, sandbox, AttemptConfig(max_resumes=0)))
            for _ in range(16)
        ]
        await killed.wait()
        await servers[0].kill()
        results = await asyncio.gather(*tasks)
    await balancer.aclose()
    assert balancer.n_lost >= 1
    assert len({tuple(result.tokens.ids) for result in results}) == 1
    assert {(result.outcome.correct, result.fault) for result in results} == {(True, "")}
    text = codec.decode(results[0].response_ids)
    assert (text.count("</code>"), text.count("</answer>")) == (1, 1)
    # Every turn, also the one after a loss, began after whole turns.
    first = results[0].tokens.n_prompt
    second = len(results[0].tokens) - len(results[0].tokens.segments()[-1].ids)
    assert {len(prompt) for server in servers for prompt in server.prompts} == {first, second}
    assert balancer._homes == {}


async def test_a_server_that_comes_back_is_taken_back(
    start: Callable[[], Awaitable[ModelServer]], codec: TokenCodec
) -> None:
    servers = [await start(), await start()]
    balancer = over(servers, check_every_s=0.1)
    await servers[0].kill()
    params = GenerateParams(max_tokens=50, stop=("</code>",), trajectory_id="t")
    assert (await balancer.generate(codec.encode("hi"), params)).text == CODE
    assert list(balancer.in_flight()) == [servers[1].url]
    await servers[0].start()
    await until(lambda: len(balancer.in_flight()) == 2)
    await balancer.generate(codec.encode("hi"), GenerateParams(max_tokens=50, trajectory_id="u"))
    assert len(servers[0].prompts) == 1
    await balancer.aclose()


async def test_one_that_is_ill_is_left_out_until_its_health_is_good(
    start: Callable[[], Awaitable[ModelServer]], codec: TokenCodec
) -> None:
    servers = [await start(), await start()]
    servers[0].status = servers[0].health = 503
    balancer = over(servers, check_every_s=0.02)
    params = GenerateParams(max_tokens=50, trajectory_id="t")
    await balancer.generate(codec.encode("hi"), params)
    await asyncio.sleep(0.4)  # many looks at it
    assert list(balancer.in_flight()) == [servers[1].url]
    servers[0].status = servers[0].health = 200
    await until(lambda: len(balancer.in_flight()) == 2)
    await balancer.aclose()


async def test_with_all_down_it_waits_for_one_and_then_says_so(
    start: Callable[[], Awaitable[ModelServer]], codec: TokenCodec
) -> None:
    servers = [await start(), await start()]
    for server in servers:
        await server.kill()
    balancer = over(servers, check_every_s=0.05, wait_s=0.3)
    params = GenerateParams(max_tokens=50, stop=("</code>",), trajectory_id="t")
    with pytest.raises(TurnLostError):
        await balancer.generate(codec.encode("hi"), params)
    with pytest.raises(NoServerError, match=r"came back in 0\.3 s") as raised:
        await balancer.generate(codec.encode("hi"), params)
    assert all(server.url in str(raised.value) for server in servers)
    await balancer.aclose()
    patient = over(servers, check_every_s=0.05, wait_s=60)
    with pytest.raises(TurnLostError):
        await patient.generate(codec.encode("hi"), params)
    task = asyncio.create_task(patient.generate(codec.encode("hi"), params))
    await settled()
    await servers[1].start()
    assert (await task).text == CODE
    await patient.aclose()


async def test_calls_leave_a_server_that_hangs(start: Callable[[], Awaitable[ModelServer]], codec: TokenCodec) -> None:
    servers = [await start(), await start()]
    servers[0].status, servers[0].health = None, 500
    balancer = over(servers, check_every_s=0.05)
    params = GenerateParams(max_tokens=50, stop=("</code>",), trajectory_id="t")
    assert (await balancer.generate(codec.encode("hi"), params)).text == CODE
    assert (len(servers[0].prompts), len(servers[1].prompts)) == (1, 1)
    await until(lambda: servers[0].abandoned == 1)
    # One that is slow, and well, keeps its calls.
    servers[1].status = None
    slow = asyncio.create_task(balancer.generate(codec.encode("hi"), params))
    await asyncio.sleep(0.5)
    assert not slow.done()
    assert servers[1].abandoned == 0
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    await until(lambda: servers[1].abandoned == 1)
    await balancer.aclose()


async def test_a_request_that_no_server_can_answer_costs_no_other_attempt_a_turn(
    start: Callable[[], Awaitable[ModelServer]], codec: TokenCodec, start_sandbox: Callable[..., Sandbox]
) -> None:
    servers = [await start(), await start()]
    for server in servers:
        fail_at_poison(server, codec)
    balancer = over(servers, check_every_s=0.05)
    config = AttemptConfig(max_resumes=1, resume_pause_s=0.0)
    poison = PROBLEM.model_copy(update={"question": "poison"})
    with start_sandbox() as sandbox:
        tasks = [
            asyncio.create_task(attempt(poison if number % 4 == 3 else PROBLEM, balancer, codec, sandbox, config))
            for number in range(16)
        ]
        results = await asyncio.gather(*tasks)
    assert [result.fault == "" for result in results] == [number % 4 != 3 for number in range(16)]
    others = [result for result in results if not result.fault]
    assert sum(result.resumes for result in others) == 0
    assert sum(server.abandoned for server in servers) == 0
    assert balancer.n_lost == 4 * 4  # only the poison's own: two times on each of two servers
    await balancer.aclose()


def fail_at_poison(server: ModelServer, codec: TokenCodec) -> None:
    def look() -> None:
        server.status = 500 if "poison" in codec.decode(server.prompts[-1]) else 200

    server.on_request = look


async def test_a_turn_that_was_ended_for_anothers_failure_is_not_to_blame() -> None:
    gate = Moody("a", False, True, False, True)
    balancer = Balancer([gate], check_every_s=0.01)
    victim = begin(balancer, "victim")
    for n_ended in (1, 2):  # more often than there are servers
        other = begin(balancer, "other")
        await settled()
        number = max(number for number, (name, _) in enumerate(gate.calls) if name == "other")
        gate.fail(TurnLostError("gone"), number)
        with pytest.raises(TurnLostError, match="gone"):
            await other
        await until(lambda n_ended=n_ended: gate.n_cancelled == n_ended)
        await until(balancer.in_flight)
        await settled()
        assert gate.calls[-1][0] == "victim"
    gate.finish()
    assert (await victim).text == "a"
    await balancer.aclose()


async def test_an_engine_that_raises_when_it_is_asked_is_taken_back_when_it_is_well() -> None:
    gate = Moody("a", ValueError("garbled"), ValueError("garbled"), True)
    balancer = Balancer([gate], check_every_s=0.01)
    task = begin(balancer, "t")
    await settled()
    gate.fail(TurnLostError("gone"))
    with pytest.raises(TurnLostError):
        await task
    await until(balancer.in_flight)
    await balancer.aclose()


async def test_connections_are_made_for_calls_at_the_same_time_and_used_again(
    start: Callable[[], Awaitable[ModelServer]], codec: TokenCodec
) -> None:
    server = await start()
    engine = VllmEngine(server.url, MODEL, max_retries=0)
    params = GenerateParams(max_tokens=50, stop=("</code>",))
    for _ in range(3):
        await asyncio.gather(*(engine.generate(codec.encode("hi"), params) for _ in range(20)))
        cancelled = asyncio.create_task(engine.generate(codec.encode("hi"), params))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
    assert len(server.bodies) >= 60
    assert 20 <= server.n_connections <= 23  # one is broken with each call that is cancelled
    await engine.aclose()
