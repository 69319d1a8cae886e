import pickle
import string

import gymnasium
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Dict
from gymnasium.utils.passive_env_checker import check_action_space, check_observation_space
from hypothesis import given
from hypothesis import strategies as st

import retool_env  # noqa: F401 (registers ReTool-v0)
from retool_env.spaces import UnicodeText


@given(st.text(alphabet=st.characters(), max_size=40))
def test_any_unicode_text_up_to_the_limit_is_inside(text: str) -> None:
    assert (text in UnicodeText(20)) == (len(text) <= 20)


def test_the_empty_text_is_inside_and_other_types_are_not() -> None:
    space = UnicodeText(5)
    assert "" in space
    assert "12345" in space
    assert "123456" not in space
    assert all(value not in space for value in (b"a", None, 1, ["a"]))


def test_samples_are_short_printable_inside_and_fixed_by_the_seed() -> None:
    space = UnicodeText(1 << 20, seed=3)
    samples = [space.sample() for _ in range(50)]
    assert all(sample in space and len(sample) <= 256 for sample in samples)
    assert set("".join(samples)) <= set(string.printable)
    assert len(set(samples)) > 40
    again = UnicodeText(1 << 20, seed=3)
    assert [again.sample() for _ in range(50)] == samples


def test_samples_respect_a_small_space_and_a_mask() -> None:
    assert all(len(UnicodeText(3, seed=seed).sample()) <= 3 for seed in range(20))
    assert len(UnicodeText(100, seed=0).sample(mask=(70, None))) == 70


def test_spaces_are_equal_by_limit_survive_pickling_and_pass_gymnasiums_checks() -> None:
    space = UnicodeText(7)
    assert space == UnicodeText(7)
    assert space != UnicodeText(8)
    assert pickle.loads(pickle.dumps(space)) == space
    check_action_space(space)
    check_observation_space(space)


PROBLEM = {"id": "p", "question": "Was ist 6 × 7? Schöne Grüße, 数学", "answer": "42"}


class TestVectorEnvironments:
    """gymnasium's own: its shared memory would drop every character that is not printable ASCII."""

    def test_shared_memory_is_refused_with_the_way_out(self) -> None:
        with pytest.raises(ValueError, match="shared_memory=False") as caught:
            gymnasium.make_vec("ReTool-v0", num_envs=2, vectorization_mode="async", problems=[PROBLEM])
        assert isinstance(caught.value.__cause__, CustomSpaceError)
        assert "make_vec: vector_kwargs={'shared_memory': False}" in str(caught.value.__cause__)

    def test_so_it_is_within_another_space(self) -> None:
        with pytest.raises(CustomSpaceError, match="shared_memory=False"):
            gymnasium.vector.utils.create_shared_memory(Dict({"text": UnicodeText(5)}), n=2)

    @pytest.mark.parametrize(
        ("mode", "options"), [("async", {"shared_memory": False}), ("sync", {})], ids=["async", "sync"]
    )
    def test_observations_arrive_as_they_are(self, mode: str, options: dict[str, bool]) -> None:
        envs = gymnasium.make_vec(
            "ReTool-v0", num_envs=2, vectorization_mode=mode, vector_kwargs=options, problems=[PROBLEM]
        )
        try:
            prompts, _ = envs.reset(seed=0)
            assert len(prompts) == 2
            assert all(PROBLEM["question"] in prompt for prompt in prompts)
            observations, rewards, terminated, _, _ = envs.step(
                ("<code>print('Grüße 数学')</code>", r"<answer>\boxed{42}</answer>")
            )
            assert "Grüße 数学" in observations[0]
            assert (list(rewards), list(terminated)) == ([0.0, 1.0], [False, True])
        finally:
            envs.close()
