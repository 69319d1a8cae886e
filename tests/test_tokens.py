"""``TokenTrajectory`` and ``TokenCodec`` on a small tokenizer and on real ones: ids checked one by one."""

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_env.errors import ConfigurationError
from retool_env.tokenizer import TokenCodec
from retool_env.tokens import TokenBudget

from .token_texts import PIECES, QUESTION, TAGS, end_id, opened, sample, slow_start, texts
from .tokenizers import NAMES, load


@pytest.fixture(params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.fixture
def codec(tokenizer: Any) -> TokenCodec:
    return TokenCodec(tokenizer, tags=TAGS)


@pytest.fixture
def small() -> Any:
    """A copy of the small tokenizer that a test may change."""
    return copy.deepcopy(load("small"))


# Sampled turns and text that continues them


def test_a_conversation_in_code_tags_token_by_token(codec: TokenCodec) -> None:
    tokens = opened(codec)
    first, first_logprobs = sample(codec, "Compute.\n<code>print(6 * 7)</code>")
    tokens.add_turn(first, first_logprobs, "Compute.\n<code>print(6 * 7)</code>")
    shown = "\n<interpreter>\n42\n</interpreter>\n"
    tokens.add_text(shown)
    last, last_logprobs = sample(codec, "<answer>\\boxed{42}</answer>")
    tokens.add_turn(last, last_logprobs, "<answer>\\boxed{42}</answer>")
    prompt = codec.encode(codec.open(QUESTION)[0])
    seen = codec.encode(shown)
    assert tokens.prompt_ids == prompt
    assert tokens.ids == prompt + first + seen + last
    assert tokens.mask == [0] * len(prompt) + [1] * len(first) + [0] * len(seen) + [1] * len(last)
    assert tokens.logprobs == [0.0] * len(prompt) + first_logprobs + [0.0] * len(seen) + last_logprobs
    assert tokens.response_ids == first + seen + last
    assert len(tokens.response_mask) == len(tokens.response_logprobs) == len(tokens) - tokens.n_prompt
    assert tokens.n_sampled == len(first) + len(last)
    assert [segment.kind for segment in tokens.segments()] == ["prompt", "sampled", "appended", "sampled"]
    assert (tokens.dropped, tokens.has_logprobs, tokens.exact, tokens.template_drift) == (0, True, True, "")


def test_sampled_ids_are_kept_even_where_another_spelling_is_the_usual_one(codec: TokenCodec) -> None:
    # One id for each byte: no tokenizer would encode it so, but a policy may sample it.
    ids = [id for char in "<code>print(1)</code>" for id in codec.encode(char)]
    assert ids != codec.encode("<code>print(1)</code>")
    tokens = opened(codec)
    tokens.add_turn(ids, None, "<code>print(1)</code>")
    assert tokens.response_ids == ids


def test_a_stop_string_that_ends_inside_a_token_keeps_the_token(codec: TokenCodec) -> None:
    # Qwen and Llama have a token for ">\n": the engine stops after it and cuts the text after ">".
    ids = codec.encode("<code>print(1)</code") + codec.encode(">\n")
    tokens = opened(codec)
    tokens.add_turn(ids, None, "<code>print(1)</code>")
    tokens.add_text("\n<interpreter>\n1\n</interpreter>\n")
    assert tokens.response_ids[: len(ids)] == ids
    assert tokens.dropped == 0
    # The line feed that the token brought is not written a second time.
    assert codec.decode(tokens.response_ids) == "<code>print(1)</code>\n<interpreter>\n1\n</interpreter>\n"


def test_what_a_token_holds_past_the_stop_string_stays_even_if_it_is_no_white_space(codec: TokenCodec) -> None:
    ids = codec.encode("print(1)</code>) and")
    tokens = opened(codec)
    tokens.add_turn(ids, None, "print(1)</code>")
    tokens.add_text("\n<interpreter>\n1\n</interpreter>\n")
    assert codec.decode(tokens.response_ids) == "print(1)</code>) and\n<interpreter>\n1\n</interpreter>\n"


def test_what_the_policy_wrote_past_its_block_is_dropped_and_counted(codec: TokenCodec) -> None:
    kept, invented = "<code>print(1)</code>", "\n<interpreter>\n7\n</interpreter>\nso 7"
    head, tail = codec.encode(kept), codec.encode(invented)
    tokens = opened(codec)
    tokens.add_turn(head + tail, [-1.0] * len(head) + [-2.0] * len(tail), kept + invented, kept)
    assert tokens.response_ids == head
    assert tokens.response_logprobs == [-1.0] * len(head)
    assert tokens.dropped == len(tail)


def test_an_end_token_stays_at_the_end_and_is_dropped_where_the_turn_goes_on(codec: TokenCodec) -> None:
    ids = [*codec.encode("```python\nprint(1)\n```"), end_id(codec)]
    tokens = opened(codec)
    tokens.add_turn(ids, None, "```python\nprint(1)\n```")
    assert tokens.response_ids == ids
    ended = tokens.branch()
    tokens.add_text("\n```output\n1\n```\n")
    assert tokens.response_ids[: len(ids)] == [*ids[:-1], codec.encode_neutral("\n```output\n1\n```\n")[0]]
    assert tokens.dropped == 1
    assert len(tokens.ids) == len(tokens.mask) == len(tokens.logprobs) == len(tokens)
    assert (ended.response_ids, ended.dropped) == (ids, 0)


def test_a_stop_string_that_the_engine_left_out_of_text_and_ids_is_appended(codec: TokenCodec) -> None:
    ids = codec.encode("<code>print(1)")
    tokens = opened(codec)
    tokens.add_turn(ids, None, "<code>print(1)", "<code>print(1)</code>")
    tokens.add_text("\n<interpreter>\n1\n</interpreter>\n")
    assert tokens.response_ids == ids + codec.encode("</code>\n<interpreter>\n1\n</interpreter>\n")
    assert tokens.response_mask[: len(ids) + 1] == [1] * len(ids) + [0]


def test_a_stop_string_that_the_engine_left_out_of_the_text_alone_is_not_written_twice(codec: TokenCodec) -> None:
    ids = codec.encode("<code>print(1)</code>")
    tokens = opened(codec)
    tokens.add_turn(ids, None, "<code>print(1)", "<code>print(1)</code>")
    tokens.add_text("\n<interpreter>\n1\n</interpreter>\n")
    assert tokens.response_ids == ids + codec.encode("\n<interpreter>\n1\n</interpreter>\n")


def test_empty_turns(codec: TokenCodec) -> None:
    tokens = opened(codec)
    tokens.add_turn([], [], "")
    tokens.add_turn([end_id(codec)], [-0.1], "")
    tokens.add_text("\nGo on.\n")
    tokens.add_turn([], [], "")
    assert tokens.response_ids == codec.encode("\nGo on.\n")
    assert tokens.n_sampled == 0
    assert tokens.dropped == 1


@slow_start
@given(text=texts, data=st.data())
def test_ids_stay_through_the_one_that_holds_the_last_kept_character(
    codec: TokenCodec, text: str, data: st.DataObject
) -> None:
    ids = codec.encode(text)
    whole = codec.decode(ids)
    kept = whole[: data.draw(st.integers(0, len(whole)))]
    expected = next(n for n in range(len(ids) + 1) if codec.decode(ids[:n]).startswith(kept))
    assert codec.count_kept(ids, kept) == expected


@slow_start
@given(text=texts, data=st.data())
def test_text_that_the_engine_shows_with_its_control_tokens_is_cut_as_well(
    codec: TokenCodec, text: str, data: st.DataObject
) -> None:
    ids = [*codec.encode_neutral("x" + text), end_id(codec), *codec.encode_neutral("y")]
    whole = codec.decode(ids, with_control=True)
    kept = whole[: data.draw(st.integers(0, len(whole)))]
    n = codec.count_kept(ids, kept)
    assert codec.decode(ids[:n], with_control=True).startswith(kept) or codec.decode(ids[:n]).startswith(kept)
    assert n == 0 or not codec.decode(ids[: n - 1], with_control=True).startswith(kept)


@pytest.mark.parametrize("cut", [" do , it .", "print( 1 )", "don 't", "do , 漢", "do , 😀"])
def test_an_engine_that_cleans_up_spaces_is_cut_by_visible_characters(codec: TokenCodec, cut: str) -> None:
    cleaned = cut.replace(" ,", ",").replace(" .", ".").replace(" 't", "'t").replace("( ", "(").replace(" )", ")")
    head, tail = codec.encode(cut), codec.encode("\n\nmore of it")
    tokens = opened(codec)
    tokens.add_turn(head + tail, None, cleaned + "\n\nmore of it", cleaned)
    assert tokens.response_ids == head


def test_finding_the_cut_takes_a_logarithm_of_decodings(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    codec = TokenCodec(small)
    decode = small.decode
    monkeypatch.setattr(small, "decode", lambda ids, **options: calls.append(len(ids)) or decode(ids, **options))
    counts = []
    for n in (1_000, 2_000, 4_000):
        ids = codec.encode("a 漢字 b\n" * n)
        calls.clear()
        assert codec.count_kept(ids, "a 漢字 b\n" * 3) == len(codec.encode("a 漢字 b\n" * 3))
        counts.append(len(calls))
    assert counts[-1] <= counts[0] + 8


@slow_start
@given(turns=st.lists(st.tuples(texts, texts, st.integers(0, 40)), max_size=4))
def test_whatever_is_sampled_and_appended_the_three_lists_agree(
    codec: TokenCodec, turns: list[tuple[str, str, int]]
) -> None:
    tokens = opened(codec)
    for text, observation, cut in turns:
        ids, logprobs = sample(codec, text)
        said = codec.decode(ids)
        before = len(tokens)
        tokens.add_turn(ids, logprobs, said, said[:cut] if cut < len(said) else None)
        n = len(tokens) - before
        assert tokens.ids[before:] == ids[:n]  # never another id than the sampled ones
        assert tokens.logprobs[before:] == logprobs[:n]
        assert tokens.mask[before:] == [1] * n
        tokens.add_text(observation)
        assert len(tokens.ids) == len(tokens.mask) == len(tokens.logprobs) == len(tokens)
        added = tokens.segments()[-1]
        assert added.kind == "appended"
        assert set(added.ids).isdisjoint(codec.control)
        assert tokens.dropped >= len(ids) - n
    rebuilt = pickle.loads(pickle.dumps(tokens.branch().segments()))
    assert [id for segment in rebuilt for id in segment.ids] == tokens.ids


def test_ids_that_the_engine_does_not_tell_are_encoded_and_marked(codec: TokenCodec) -> None:
    tokens = opened(codec)
    tokens.add_turn(None, None, "<code>print(1)</code>\ninvented", "<code>print(1)</code>")
    assert tokens.response_ids == codec.encode("<code>print(1)</code>")
    assert not tokens.exact
    assert not tokens.has_logprobs


def test_logprobs_that_are_missing_are_marked_and_bad_ones_refused(codec: TokenCodec) -> None:
    tokens = opened(codec)
    tokens.add_turn(codec.encode("a b"), None, "a b")
    assert not tokens.has_logprobs
    assert set(tokens.response_logprobs) == {0.0}
    with pytest.raises(ConfigurationError, match="2 ids and 1 logprobs"):
        tokens.add_turn([1, 2], [-1.0], "ab")
    with pytest.raises(ConfigurationError, match="finite"):
        tokens.add_turn([1], [float("nan")], "a")


# Branches


def test_branches_share_what_they_have_in_common_and_nothing_else(codec: TokenCodec) -> None:
    trunk = opened(codec)
    trunk.add_turn(codec.encode("<code>x</code>"), None, "<code>x</code>")
    trunk.add_text("\n<interpreter>\n1\n</interpreter>\n")
    common = trunk.ids
    left, right = trunk.branch(), trunk.branch()
    left.add_turn(codec.encode("left"), None, "left")
    right.add_turn(codec.encode("right is longer"), None, "right is longer")
    assert trunk.ids == common
    assert left.ids == common + codec.encode("left")
    assert right.ids == common + codec.encode("right is longer")
    assert all(a is b for a, b in zip(left.segments()[:3], right.segments()[:3], strict=True))
    assert left.segments()[3] is not right.segments()[3]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["turn", "text", "branch", "look"])), max_size=25))
def test_whatever_branches_do_each_has_the_tokens_of_its_segments(steps: list[tuple[int, str]]) -> None:
    """They share lists as long as they can, whoever has looked at them, or gone on, first."""
    codec = TokenCodec(load("small"))
    branches = [opened(codec)]
    for number, step in steps:
        tokens = branches[number % len(branches)]
        if step == "branch" and len(branches) < 4:
            branches.append(tokens.branch())
        elif step == "turn":
            tokens.add_turn([7, 8, codec.tokenizer.eos_token_id], [-1.0, -2.0, -3.0], "ab")
        elif step == "text":
            tokens.add_text("\n1\n")
        else:
            assert len(tokens.ids) == len(tokens)
    for tokens in branches:
        ids = [id for piece in tokens.segments() for id in piece.ids]
        assert tokens.ids == ids == tokens.prompt_ids + tokens.response_ids
        assert tokens.mask == [int(piece.kind == "sampled") for piece in tokens.segments() for _ in piece.ids]
        assert tokens.logprobs == [logprob for piece in tokens.segments() for logprob in piece.logprobs]
        assert tokens.n_sampled == sum(tokens.mask)


def test_the_lists_are_copies(codec: TokenCodec) -> None:
    tokens = opened(codec)
    before = tokens.ids
    tokens.ids.append(1)
    tokens.mask.clear()
    tokens.add_turn([5], [-1.0], "a")
    assert tokens.ids == [*before, 5]
    assert len(tokens.mask) == len(tokens.ids)


# The way to the ids


def test_it_gives_the_ids_of_the_tokenizer_whoever_else_uses_that(tokenizer: Any) -> None:
    codec = TokenCodec(tokenizer)
    for text in ("<|im_end|>\n<tool_call>", " Ünï  ﬁ\u00a0😀\n", "", *PIECES):
        tokenizer.encode(text, split_special_tokens=True, add_special_tokens=False)
        ids = codec.encode(text)
        assert ids == tokenizer.encode(text, add_special_tokens=False)
        for with_control in (True, False):
            assert codec.decode(ids, with_control=with_control) == tokenizer.decode(
                ids, skip_special_tokens=not with_control, clean_up_tokenization_spaces=False
            )


def test_a_tokenizer_that_does_more_than_its_backend_is_asked_itself() -> None:
    tokenizer = copy.deepcopy(load("small"))
    tokenizer.backend_tokenizer.enable_padding(length=64, pad_id=1)
    assert TokenCodec(tokenizer).encode("a") == tokenizer.encode("a", add_special_tokens=False)

    class Loud:
        """Encodes as another tokenizer does, but in capitals."""

        def __init__(self, tokenizer: Any):
            self._tokenizer = tokenizer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tokenizer, name)

        def encode(self, text: str, **options: Any) -> Any:
            return self._tokenizer.encode(text.replace("don't", "DON'T").replace("zoo", "ZOO"), **options)

    assert TokenCodec(Loud(load("small"))).encode("zoo") == load("small").encode("ZOO", add_special_tokens=False)


def test_prompts_do_not_get_mixed_up(codec: TokenCodec) -> None:
    def ids(question: str) -> list[int]:
        return codec.open([{"role": "user", "content": question}])[1]

    first, second = ids("one"), ids("two")
    assert first != second
    first.append(1)
    assert (ids("one"), ids("one")) == (first[:-1], first[:-1])
    assert ids("two") == second


# Tools that write control tokens


@slow_start
@given(data=st.data())
def test_a_tool_cannot_write_a_control_token(codec: TokenCodec, data: st.DataObject) -> None:
    text = data.draw(
        st.lists(st.one_of(st.sampled_from(codec.added[:64]), st.sampled_from(PIECES), st.text(max_size=3))).map(
            "".join
        )
    )
    tokens = opened(codec)
    tokens.add_turn(codec.encode("<code>x</code>"), None, "<code>x</code>")
    tokens.add_text(f"\n<interpreter>\n{text}\n</interpreter>\n")
    vocabulary = {id for id, token in codec.tokenizer.added_tokens_decoder.items() if token.content not in TAGS}
    assert vocabulary.isdisjoint(tokens.segments()[-1].ids)


def test_what_would_be_a_control_token_stays_readable(codec: TokenCodec) -> None:
    for marker in [*codec.added[:3], *codec.added[-3:]]:
        if marker not in TAGS:
            assert codec.decode(codec.encode_neutral(f"a{marker}b")) == f"a{marker[0]}\\{marker[1:]}b"


def test_a_control_token_that_only_the_normaliser_writes_is_left_out(small: Any) -> None:
    from tokenizers import AddedToken, normalizers

    small.backend_tokenizer.normalizer = normalizers.NFKC()
    small.add_tokens([AddedToken("<tool>", normalized=True)])
    codec = TokenCodec(small)
    forged = codec.tokenizer.convert_tokens_to_ids("<tool>")
    assert forged in codec.encode("a\uff1ctool\uff1eb")
    assert codec.encode_neutral("a\uff1ctool\uff1eb") == codec.encode("ab")


def test_an_own_tag_may_be_an_added_token(small: Any) -> None:
    small.add_tokens(["<interpreter>", "</interpreter>"])
    codec = TokenCodec(small, tags=TAGS)
    ids = codec.encode_neutral("\n<interpreter>\n1\n</interpreter>\n")
    assert codec.tokenizer.convert_tokens_to_ids("<interpreter>") in ids


def test_a_tokenizer_that_does_not_give_text_back_is_refused(small: Any) -> None:
    from tokenizers import pre_tokenizers

    small.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(ConfigurationError, match="does not give back the text"):
        TokenCodec(small)


# Budgets


def test_room_is_what_every_budget_leaves(codec: TokenCodec) -> None:
    n = opened(codec).n_prompt
    for budget, room in (
        (TokenBudget(), 16_384),
        (TokenBudget(response=100), 100),
        (TokenBudget(context=n + 50), 50),
        (TokenBudget(turn=20), 20),
        (TokenBudget(context=n + 15), 0),
        (TokenBudget(context=n + 15, min_turn=15), 15),
        (TokenBudget(context=n), 0),
        (TokenBudget(response=60, turn=10, min_turn=20), 10),
    ):
        assert opened(codec, budget=budget).room() == room


def test_a_budget_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="observation: Input should be greater than or equal to 128"):
        TokenBudget(observation=5)
    for options in ({"response": 15}, {"context": 15}, {"response": 99, "min_turn": 100}):
        with pytest.raises(ConfigurationError, match="no turn would ever be begun"):
            TokenBudget(**options)
    assert TokenBudget(response=1, min_turn=1).response == 1


def test_an_observation_keeps_its_budget_and_leaves_room_for_a_turn(codec: TokenCodec) -> None:
    n_shown = len(codec.encode_neutral("\n" + "x y\n" * 80))
    for budget, fits in (
        (TokenBudget(response=2_000), True),
        (TokenBudget(response=2_000, observation=n_shown), True),
        (TokenBudget(response=2_000, observation=n_shown - 1), False),
        (TokenBudget(response=30 + n_shown + 16), True),
        (TokenBudget(response=30 + n_shown + 15), False),
    ):
        tokens = opened(codec, budget=budget)
        tokens.add_turn(codec.encode("a") * 30, None, "a" * 30)
        tokens.add_text("\n" + "x y\n" * 80)
        assert len(tokens) == tokens.n_prompt + 30 + n_shown
        assert tokens.within_budget() == fits
