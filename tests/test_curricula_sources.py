"""The adaptive curricula between sources: what they have in common, and what each of them follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing.curricula import Curriculum, CurriculumRun, LearningProgress, ScoreBandit, WorstSource, chain
from tests.histories import Group, History, even, groups_of, histories, names, play, references, seen_in, sources_of

NAMES = names(4)
DUMP = ScoreBandit(window_rollouts=6, temperature=0.1, exploration=1.0)
CURRICULA: dict[str, Any] = {
    "learning_progress": LearningProgress(),
    "sec": ScoreBandit(),
    "dump": DUMP,
    "learnability": ScoreBandit("variance"),
    "softmax_of_variance": ScoreBandit("variance", temperature=0.1),
    "worst_source": WorstSource(),
    "chain": chain([LearningProgress(), ScoreBandit()]),
}
each_curriculum = pytest.mark.parametrize("curriculum", CURRICULA.values(), ids=CURRICULA)
each_boxed = pytest.mark.parametrize("curriculum", list(CURRICULA.values())[:-1], ids=list(CURRICULA)[:-1])

SOLVED, IMPOSSIBLE, UNSCORED = groups_of(1.0, 1.0), groups_of(0.0, 0.0), groups_of(None, None)
NOISE = groups_of(1.0, 0.0)


def last(curriculum: Curriculum, history: History, reference: Mapping[str, float], **options: Any) -> dict[str, float]:
    """The shares after a history."""
    return play(curriculum, history, reference, **options)[-1]


# -- in common


@each_boxed
@given(histories(NAMES), references(NAMES))
def test_shares_stay_inside_the_box(curriculum: Any, history: History, reference: dict[str, float]) -> None:
    """In every batch the shares sum to 1, and none leaves the box around its reference."""
    for shares in play(curriculum, history, reference):
        assert math.isclose(1, math.fsum(shares.values()), rel_tol=1e-9)
        for name, share in shares.items():
            assert curriculum.lowest * reference[name] * (1 - 1e-9) <= share
            assert share <= curriculum.highest * reference[name] * (1 + 1e-9)


@each_curriculum
@given(history=histories(NAMES), reference=references(NAMES))
def test_a_saved_curriculum_goes_on_as_if_it_had_not_stopped(
    curriculum: Any, history: History, reference: dict[str, float]
) -> None:
    """Written to JSON and read by a new process after every batch, it gives the same shares to the last bit."""
    assert play(curriculum, history, reference) == play(curriculum, history, reference, is_saved=True)


@each_curriculum
@given(histories(NAMES), references(NAMES), st.permutations(NAMES))
def test_the_order_of_the_sources_does_not_matter(
    curriculum: Any, history: History, reference: dict[str, float], order: Sequence[str]
) -> None:
    """Each source gets the same share wherever it stands in the mix."""
    there = play(curriculum, history, {name: reference[name] for name in order})

    for expected, found in zip(play(curriculum, history, reference), there, strict=True):
        assert expected == {name: found[name] for name in reference}


@each_curriculum
@given(history=histories(NAMES))
def test_an_unscored_group_is_as_if_it_had_not_been_drawn(curriculum: Any, history: History) -> None:
    """Groups in which nothing was scored, and sources that were not drawn, change nothing."""
    silent = [
        {name: [*batch.get(name, []), *UNSCORED] for name in NAMES if name in batch or number % 2}
        for number, batch in enumerate(history)
    ]
    bare = [{name: found for name, found in batch.items() if any(map(_is_scored, found))} for batch in history]

    assert play(curriculum, bare, even(NAMES)) == play(curriculum, silent, even(NAMES))


def _is_scored(group: Sequence[float | None]) -> bool:
    return any(reward is not None for reward in group)


@each_curriculum
def test_before_anything_was_scored_the_shares_are_the_users(curriculum: Any) -> None:
    """At the beginning, and as long as nothing is scored."""
    reference = dict(zip(NAMES, (0.1, 0.2, 0.3, 0.4), strict=True))
    for shares in play(curriculum, [dict.fromkeys(NAMES, UNSCORED)] * 3, reference):
        assert pytest.approx(reference) == shares


@each_curriculum
@given(history=histories(NAMES))
def test_one_source_gets_everything(curriculum: Any, history: History) -> None:
    """There is nothing to decide where there is one source."""
    alone = [{"source-0": batch["source-0"]} if "source-0" in batch else {} for batch in history]

    assert [{"source-0": 1.0}] * (len(history) + 1) == play(curriculum, alone, {"source-0": 1.0})


@each_curriculum
def test_a_thousand_sources_are_no_problem(curriculum: Any) -> None:
    """Shares of many sources sum to 1, and equal sources have equal shares."""
    many = names(1000)
    shares = last(curriculum, [dict.fromkeys(many[:500], NOISE)] * 3, even(many))

    assert math.isclose(1, math.fsum(shares.values()), rel_tol=1e-9)
    assert 2 >= len({round(share, 12) for share in shares.values()})


@pytest.mark.parametrize("name", ["learning_progress", "sec", "dump", "learnability"])
@given(history=histories(NAMES), exponent=st.integers(-10, 10), shift=st.sampled_from([-2.0, 0.0, 1.0]))
def test_the_scale_of_rewards_does_not_matter(name: str, history: History, exponent: int, shift: float) -> None:
    """One source's rewards times a factor plus a number give the same shares, where no range is declared."""

    def move(reward: float | None, by_source: str) -> float | None:
        if reward is None or by_source != "source-1":
            return reward
        return 2.0**exponent * (reward + shift)

    rounded = [
        {
            key: [tuple(r if r is None else round(r * 16) / 16 for r in group) for group in found]
            for key, found in b.items()
        }
        for b in history
    ]
    moved = [
        {key: [tuple(move(reward, key) for reward in group) for group in found] for key, found in batch.items()}
        for batch in rounded
    ]

    expected = play(CURRICULA[name], rounded, even(NAMES), reward_range=None)
    found = play(CURRICULA[name], moved, even(NAMES), reward_range=None)
    assert [pytest.approx(each, rel=1e-6) for each in expected] == found


@each_curriculum
@given(history=histories(NAMES))
def test_what_is_logged_are_numbers(curriculum: Any, history: History) -> None:
    """Metrics of known sources, finite and by name."""
    run = CurriculumRun(curriculum, sources_of(NAMES))
    for batch in history:
        run.update(seen_in(batch))

    found = run.measure()
    assert set(found) <= set(NAMES)
    assert all(math.isfinite(value) for values in found.values() for value in values.values())


# -- learning progress


def climb(start: float, step: float, number: int) -> list[Group]:
    """A group whose mean rises with the batch."""
    return [(min(1.0, start + step * number),) * 2]


def test_progress_goes_where_rewards_change() -> None:
    """A source whose reward rises gets the most; always solved, never solved and never changing ones the least."""
    history = [
        {"source-0": climb(0, 0.05, n), "source-1": SOLVED, "source-2": IMPOSSIBLE, "source-3": groups_of(0.5, 0.5)}
        for n in range(12)
    ]
    shares = last(LearningProgress(), history, even(NAMES))

    assert pytest.approx({"source-0": 0.75, "source-1": 1 / 12, "source-2": 1 / 12, "source-3": 1 / 12}) == shares


def test_progress_counts_down_as_up() -> None:
    """A source that is being forgotten gets as much as one that is being learned."""
    history = [{"source-0": climb(0, 0.05, n), "source-1": climb(1, -0.05, n)} for n in range(12)]
    found = ["source-0", "source-1"]

    assert pytest.approx(even(found)) == last(LearningProgress(), history, even(found))


def test_a_source_that_was_not_seen_yet_comes_first() -> None:
    """What is not known counts as more than the best that is, until it was scored."""
    history = [{name: climb(0, 0.05, n) for name in NAMES[:3]} for n in range(8)]
    shares = last(LearningProgress(), history, even(NAMES))

    assert max(shares.values()) == shares["source-3"]
    assert shares["source-3"] > 1.2 * shares["source-0"]


@pytest.mark.parametrize("reward", [0.1, 0.9, 1e6 + 0.1])
def test_rounding_is_no_progress(reward: float) -> None:
    """A source whose mean reward stays has a score of 0, and no share of those that do not change either."""
    found = names(3)
    history = [{"source-0": groups_of(reward), "source-1": SOLVED, "source-2": IMPOSSIBLE}] * 12
    run = CurriculumRun(LearningProgress(), sources_of(found))
    states = LearningProgress().begin(sources_of(found))

    for batch in history:
        run.update(seen_in(batch))
        states = LearningProgress().update(states, seen_in(batch))

    assert states["source-0"]["fast"] != states["source-0"]["slow"]  # by rounding
    assert [0.0, 0.0, 0.0] == [run.measure()[name]["score"] for name in found]
    assert pytest.approx(even(found)) == last(LearningProgress(), history, even(found))


def test_progress_follows_its_formula() -> None:
    """Two moving averages that begin at the first mean, and their distance as a part of the range."""
    run = CurriculumRun(LearningProgress(fast=0.5, slow=0.25), sources_of(["a"], (0.0, 10.0)))
    for reward in (0.0, 8.0, 4.0):
        run.update(seen_in({"a": [(reward,)]}, (0.0, 10.0)))

    assert pytest.approx(abs(4.0 - 2.5) / 10) == run.measure()["a"]["score"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fast": 0}, "fast=0 is no number above 0 to 1"),
        ({"slow": 2}, "slow=2 is no number above 0 to 1"),
        ({"slow": True}, "slow=True is no number above 0 to 1"),
        ({"fast": 0.1, "slow": 0.1}, "slow=0.1 is not below fast=0.1"),
    ],
)
def test_wrong_settings_of_progress_are_refused(settings: dict[str, Any], message: str) -> None:
    """Each setting says what it may be."""
    with pytest.raises(ConfigError, match=f"LearningProgress: {message}"):
        LearningProgress(**settings)


# -- bandits


@pytest.mark.parametrize("name", ["sec", "dump", "learnability", "softmax_of_variance"])
def test_bandits_go_where_groups_disagree(name: str) -> None:
    """A source whose groups are half solved gets the most that the box allows."""
    history = [{"source-0": NOISE, "source-1": SOLVED, "source-2": IMPOSSIBLE, "source-3": SOLVED}] * 20
    shares = last(CURRICULA[name], history, even(NAMES))

    assert pytest.approx(1.5 / 4) == shares["source-0"]


def test_sec_follows_its_formula() -> None:
    """Shares in proportion to exp(mean / temperature), with a mean that moves half of the way in each batch."""
    bandit = ScoreBandit(lowest=0.01, highest=100)
    history = [{"source-0": NOISE, "source-1": SOLVED}, {"source-0": SOLVED, "source-1": SOLVED}]
    shares = last(bandit, history, even(["source-0", "source-1"]))
    mean = 0.5 * math.sqrt(0.5)  # the advantages of (1, 0) are 0.5 / sqrt(0.5)

    assert pytest.approx(math.exp(mean / 0.2)) == shares["source-0"] / shares["source-1"]


def test_learnability_follows_its_formula() -> None:
    """Shares in proportion to the running mean of the variance."""
    bandit = ScoreBandit("variance", lowest=0.01, highest=100)
    quarter = groups_of(1.0, 0.0, 0.0, 0.0)
    history = [{"source-0": NOISE, "source-1": quarter}, {"source-0": SOLVED}]
    shares = last(bandit, history, even(["source-0", "source-1"]))

    assert pytest.approx(0.9 * 0.5 / 0.25) == shares["source-0"] / shares["source-1"]


def test_dump_forgets_what_left_its_window() -> None:
    """With a window, only its rollouts count: what was before changes nothing but how often the source was drawn."""
    bandit = ScoreBandit(window_rollouts=4)
    found = ["source-0", "source-1"]
    after = [{"source-0": SOLVED, "source-1": NOISE}] * 2

    expected = last(bandit, [{"source-0": SOLVED, "source-1": SOLVED}] * 3 + after, even(found))
    assert expected == last(bandit, [{"source-0": NOISE, "source-1": NOISE}] * 3 + after, even(found))


def test_dump_explores_what_was_drawn_less() -> None:
    """Of two sources with the same score the one with fewer rollouts gets more."""
    history = [{"source-0": NOISE * 8, "source-1": NOISE}] * 5
    found = even(["source-0", "source-1"])
    with_bonus = last(ScoreBandit(exploration=0.1), history, found)

    assert pytest.approx(found) == last(ScoreBandit(), history, found)
    assert with_bonus["source-1"] > with_bonus["source-0"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "loss"}, "score='loss' is not known"),
        ({"rate": 0}, "rate=0 is no number above 0 to 1"),
        ({"temperature": 0}, "temperature=0 is no number above 0"),
        ({"exploration": -1}, "exploration=-1 is no number from 0 upwards"),
        ({"window_rollouts": 0}, "window_rollouts=0 is no whole number from 1 upwards"),
        ({"window_rollouts": 8, "rate": 0.5}, "rate=0.5 and window_rollouts=8 are two ways to average"),
    ],
)
def test_wrong_settings_of_a_bandit_are_refused(settings: dict[str, Any], message: str) -> None:
    """Each setting says what it may be."""
    with pytest.raises(ConfigError, match=f"ScoreBandit: {message}"):
        ScoreBandit(**settings)


# -- the worst source


def test_the_worst_source_gets_more() -> None:
    """Of sources that have a gradient and do not improve, the lowest gets the most."""
    history = [
        {"source-0": groups_of(1.0, 1.0, 1.0, 0.0), "source-1": NOISE, "source-2": groups_of(1.0, 0.0, 0.0, 0.0)}
    ] * 40
    shares = last(WorstSource(), history, even(NAMES[:3]))

    assert pytest.approx(1.5 / 3) == shares["source-2"]


def test_improvement_counts_against_a_source() -> None:
    """Of two sources with the same low reward, the one that rises by itself gets less."""
    history = [{"source-0": climb(0.0, 0.02, n), "source-1": NOISE[:1]} for n in range(1, 20)]
    levelled: History = [{"source-0": [(0.02 * n, 0.0)], "source-1": [(0.4, 0.0)]} for n in range(1, 20)]
    found = ["source-0", "source-1"]

    assert last(WorstSource(worst_case=0.0), levelled, even(found))["source-0"] < 0.5
    assert last(WorstSource(worst_case=0.0), history, even(found))["source-0"] < 0.5


def test_an_impossible_source_gets_no_more_than_its_share() -> None:
    """The worst source rises above its share only where some groups have a gradient."""
    history = [{"source-0": IMPOSSIBLE, "source-1": groups_of(1.0, 0.0), "source-2": groups_of(1.0, 1.0)}] * 60
    shares = last(WorstSource(), history, even(NAMES[:3]))

    assert pytest.approx(1 / 3) == shares["source-0"]


def test_the_worst_source_needs_declared_ranges() -> None:
    """Rewards of sources can be compared only where each says how low and how high they can be."""
    with pytest.raises(ConfigError, match="source 'a': WorstSource compares the rewards of sources"):
        CurriculumRun(WorstSource(), sources_of(["a"], None))


def test_wrong_settings_of_the_worst_source_are_refused() -> None:
    """Each setting says what it may be."""
    with pytest.raises(ConfigError, match="WorstSource: worst_case=-1 is no number from 0 upwards"):
        WorstSource(worst_case=-1)
    with pytest.raises(ConfigError, match="WorstSource: learning_rate=0 is no number above 0"):
        WorstSource(learning_rate=0)
