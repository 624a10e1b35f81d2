"""Simulated runs: the real planner, with rewards along assumed curves."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing import PRESETS, LearningCurve, MixRules, Simulation, build_schedule, simulate
from multiors.mixing.curricula import (
    Curriculum,
    Gates,
    Ladder,
    LearningProgress,
    Pools,
    ShareSchedule,
    SourceTasks,
    TaskCurriculum,
)

NUM_LEVELS = 4
LADDER = Ladder(field="level", up=0.8, min_groups=4)
FAST = LearningCurve(0.2, 1.0, half_slots=8)

curves = st.builds(LearningCurve, st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 1e4))


def tasks_of(*names: str, reward_range: tuple[float, float] | None = (0.0, 1.0)) -> list[SourceTasks]:
    """Sources with tasks on four levels."""
    specs = [json.dumps({"level": position % NUM_LEVELS}) for position in range(20)]
    return [SourceTasks(name, 20, reward_range, specs) for name in names]


def run(
    rules: MixRules | None = None, names: Sequence[str] = ("a", "b"), *, tasks: Any = None, **options: Any
) -> Simulation:
    """A simulated run at equal shares."""
    settings = {"num_batches": 20, "prompts_per_batch": 8, "num_generations": 4, "lag": 2, **options}
    shares = dict.fromkeys(names, 1 / len(names))
    return simulate(shares, tasks or tasks_of(*names), rules or MixRules(), **settings)


def rules_of(*, tasks: Mapping[str, TaskCurriculum] | None = None) -> MixRules:
    """Learning progress between sources."""
    return MixRules(None, LearningProgress(), tasks or {})


# -- curves


def test_a_curve_begins_at_its_start_and_halves_what_is_left() -> None:
    """After each `half_slots` slots, half of the rest of the way is done."""
    curve = LearningCurve(0.2, 1.0, half_slots=10)

    assert [0.2, 0.6, 0.8] == pytest.approx([curve.find_reward(slots) for slots in (0, 10, 20)])


@given(curves, st.floats(0, 1e6), st.integers(0, 9))
def test_a_curve_stays_between_its_ends(curve: LearningCurve, num_slots: float, level: int) -> None:
    """It is a chance wherever it is looked at, and never beyond what was given."""
    low, high = sorted([curve.start, curve.end])

    assert low - 1e-12 <= curve.find_reward(num_slots, level) <= high + 1e-12


@given(curves, st.floats(0, 1e3), st.integers(0, 9))
def test_a_level_is_learned_after_the_levels_below_it(curve: LearningCurve, num_slots: float, level: int) -> None:
    """Level l is where the easiest level was l times `half_slots` slots before, and at the start until then."""
    earlier = max(0.0, num_slots - level * curve.half_slots)

    assert curve.find_reward(earlier) == curve.find_reward(num_slots, level)


def test_presets_learn_nothing() -> None:
    """Impossible, noise and solved stay what they are."""
    assert {"impossible": 0.0, "noise": 0.5, "solved": 1.0} == {
        name: curve.find_reward(1e9) for name, curve in PRESETS.items()
    }
    assert [curve.find_reward(0) for curve in PRESETS.values()] == [c.find_reward(1e9) for c in PRESETS.values()]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": -0.1}, r"LearningCurve: start=-0\.1 is no number from 0 to 1"),
        ({"end": 1.1}, r"LearningCurve: end=1\.1 is no number from 0 to 1"),
        ({"half_slots": 0}, "LearningCurve: half_slots=0 is no number above 0"),
        ({"start": float("nan")}, "start=nan"),
    ],
)
def test_a_curve_that_is_none_is_refused(settings: dict[str, float], message: str) -> None:
    """Each number has its range."""
    with pytest.raises(ConfigError, match=message):
        LearningCurve(**settings)


def test_a_curve_says_what_is_assumed() -> None:
    """In words, also where nothing is learned."""
    assert "0.2 to 0.9, half of the way in 64 slots" == str(LearningCurve())
    assert "0.5 all the time" == str(PRESETS["noise"])


# -- runs


@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from([1, 3, 8]),
    st.integers(1, 4),
    st.integers(0, 2**64 - 1),
)
def test_each_batch_has_its_exact_size(num_sources: int, num_batches: int, size: int, lag: int, seed: int) -> None:
    """Whatever is planned, a batch is full, its shares sum to 1, and what was not drawn earned None."""
    found = run(
        rules_of(), "abcd"[:num_sources], num_batches=num_batches, prompts_per_batch=size, lag=lag, mix_seed=seed
    )

    assert [size] * num_batches == [sum(drawn) for drawn in found.drawn_BS]
    assert [1.0] * num_batches == pytest.approx([sum(shares) for shares in found.shares_BS])
    assert [[slots == 0 for slots in drawn] for drawn in found.drawn_BS] == [
        [reward is None for reward in rewards] for rewards in found.rewards_BS
    ]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_same_seeds_give_the_same_run(seed: int, mix_seed: int) -> None:
    """A simulation can be shown again."""
    rules = rules_of(tasks={"a": LADDER, "b": Pools()})

    first, second = (run(rules, num_batches=6, seed=seed, mix_seed=mix_seed) for _ in range(2))

    assert first == second


def test_another_seed_draws_other_rewards_and_the_same_first_batches() -> None:
    """What is drawn follows the mix's seed until rewards decide."""
    first, second = run(rules_of(), seed=1), run(rules_of(), seed=2)

    assert first.rewards_BS != second.rewards_BS
    assert first.drawn_BS[:2] == second.drawn_BS[:2]


@given(st.lists(st.tuples(*[st.floats(0.1, 10)] * 3), min_size=2, max_size=4), st.integers(0, 2**32))
def test_a_share_schedule_is_simulated_as_it_is_laid_out(weights: list[tuple[float, ...]], seed: int) -> None:
    """Slot by slot what the dataset of the run holds, per batch and source."""
    schedule = ShareSchedule([(5 * at, dict(zip("abc", each, strict=True))) for at, each in enumerate(weights)])
    rules, tasks = MixRules(None, schedule), tasks_of("a", "b", "c")
    shares = rules.find_shares(tasks, dict.fromkeys("abc", 1 / 3), num_batches=20)
    laid_out = build_schedule(
        [1 / 3] * 3, [20] * 3, num_slots=160, prompts_per_batch=8, seed=seed, shares_by_batch=shares
    )

    found = run(rules, "abc", mix_seed=seed)

    assert shares == [list(each) for each in found.shares_BS]
    assert [tuple(np.bincount(batch, minlength=3)) for batch in laid_out.source_index.reshape(-1, 8)] == list(
        found.drawn_BS
    )


@given(st.integers(0, 2**32))
def test_what_is_drawn_follows_the_shares(seed: int) -> None:
    """Over all batches up to any, a source has drawn its shares' sum, but for a slot and what rounding leaves."""
    found = run(rules_of(), "abc", seed=seed, num_batches=40)

    planned = [list(accumulate(share * 8 for share in column)) for column in zip(*found.shares_BS, strict=True)]
    drawn = [list(accumulate(column)) for column in zip(*found.drawn_BS, strict=True)]

    assert np.abs(np.array(planned) - np.array(drawn)).max() < 1 + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_an_impossible_source_ends_at_its_lowest(seed: int) -> None:
    """Learning progress finds out that nothing is learned there, and gives the others its slots."""
    found = run(
        rules_of(), "abc", num_batches=60, seed=seed, curves={"c": PRESETS["impossible"], "a": LearningCurve(0, 1, 200)}
    )

    assert pytest.approx(0.25 / 3) == found.shares_BS[-1][2]
    assert {0.0, None} >= {rewards[2] for rewards in found.rewards_BS}


@pytest.mark.parametrize("seed", range(5))
def test_a_ladder_climbs_as_its_levels_are_learned(seed: int) -> None:
    """It ends on the hardest level where everything is learned, and stays on the easiest where nothing is."""
    rules = MixRules(None, None, {"a": LADDER, "b": LADDER})

    found = run(rules, num_batches=60, seed=seed, curves={"a": FAST, "b": PRESETS["impossible"]})

    levels = [(measured["a"]["level"], measured["b"]["level"]) for measured in found.measures_B]
    assert (0.0, 0.0) == levels[0]
    assert (NUM_LEVELS - 1.0, 0.0) == levels[-1]


def test_harder_levels_earn_less() -> None:
    """With a ladder tasks of high levels are learned later; without one all are learned at once."""
    start = LearningCurve(0.0, 1.0, half_slots=40)
    all_at_once = MixRules(None, None, {"a": Ladder(field="level", window=4, up=0.01, down=0.0, min_groups=1)})

    with_levels = run(all_at_once, "a", num_batches=5, curves=start)
    without = run(MixRules(), "a", num_batches=5, curves=start)

    assert with_levels.rewards_BS[-1][0] < without.rewards_BS[-1][0]  # type: ignore[operator]  # both were drawn


@pytest.mark.parametrize("reward_range", [None, (0.0, 1.0), (-2.0, 6.0), (-1.7e308, 1.7e308)])
def test_rewards_are_fractions_of_the_range(reward_range: tuple[float, float] | None) -> None:
    """A solved source earns 1, an impossible one 0, whatever its range is."""
    found = run(
        rules_of(),
        tasks=tasks_of("a", "b", reward_range=reward_range),
        curves={"a": PRESETS["solved"], "b": PRESETS["impossible"]},
    )

    assert {1.0, None} >= {rewards[0] for rewards in found.rewards_BS}
    assert {0.0, None} >= {rewards[1] for rewards in found.rewards_BS}


@dataclass(frozen=True)
class Watching(Curriculum):
    """Keeps the rewards of the last batch as its states."""

    def begin(self, sources: Any) -> Any:
        return {source.name: None for source in sources}

    def update(self, states: Any, seen: Any) -> Any:
        return {name: sorted(set(found.scored)) for name, found in seen.items()}

    def shares(self, states: Any, reference: Any, *, batch: int, num_batches: int | None) -> Any:
        return reference

    def measure(self, states: Any) -> Any:
        return {name: {str(value): value for value in state or ()} for name, state in states.items()}


def test_curricula_are_told_rewards_of_the_range() -> None:
    """The lowest and the highest reward that the source declares."""
    found = run(MixRules(None, Watching()), tasks=tasks_of("a", "b", reward_range=(-2.0, 6.0)), num_batches=4)

    assert {-2.0, 6.0} == set(found.measures_B[-1]["a"].values())


def test_what_a_curriculum_changes_is_told_with_its_batch() -> None:
    """A gate opens when its prerequisite is solved, two batches after the last reward that counted."""
    rules = MixRules(None, Gates(after={"b": {"a": 0.9}}, window_groups=4))

    found = run(rules, curves=PRESETS["solved"])

    opened = next(batch for batch, drawn in enumerate(found.drawn_BS) if drawn[1])
    assert [opened] == [batch for batch, _ in found.changes]
    assert 2 == opened
    assert f"batch {opened}: {found.changes[0][1]}" in str(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curves": {"c": FAST}}, r"source 'c': a curve is assumed for it, and the sources are \['a', 'b'\]"),
        ({"curves": {"a": 0.5}}, r"source 'a': 0\.5 is no curve"),
        ({"num_batches": 0}, "num_batches=0 is no whole number from 1 upwards"),
        ({"seed": -1}, "seed -1 is not a whole number"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options: dict[str, Any], message: str) -> None:
    """A name that is wrong is not passed over."""
    with pytest.raises(ConfigError, match=message):
        run(**options)


# -- what is shown


def test_a_simulation_survives_json_and_pickle() -> None:
    """None stays None on the way."""
    found = run(rules_of(tasks={"a": LADDER}), "abcdef", prompts_per_batch=2)

    assert found == pickle.loads(pickle.dumps(found))
    assert found.to_json() == json.loads(json.dumps(found.to_json()))
    assert None in found.to_json()["sources"]["a"]["reward"]


def test_a_simulation_prints_a_short_table() -> None:
    """Shares and rewards in six parts of the run, and that the curves are assumptions."""
    found = run(num_batches=12, curves={"a": PRESETS["solved"], "b": PRESETS["impossible"]})

    expected = """\
simulation of 12 batches of 8 slots with 4 rollouts each (seed 0)

planned share    0-1    2-3    4-5    6-7    8-9  10-11
-------------  -----  -----  -----  -----  -----  -----
a              50.0%  50.0%  50.0%  50.0%  50.0%  50.0%
b              50.0%  50.0%  50.0%  50.0%  50.0%  50.0%

mean reward   0-1   2-3   4-5   6-7   8-9  10-11
-----------  ----  ----  ----  ----  ----  -----
a            1.00  1.00  1.00  1.00  1.00   1.00
b            0.00  0.00  0.00  0.00  0.00   0.00

Rewards follow curves that are assumed, not measured; a real run will go otherwise:
a: 1 all the time
b: 0 all the time"""
    assert expected == str(found)


def test_a_short_simulation_has_a_column_for_each_batch() -> None:
    """And a dash where nothing was drawn."""
    rules = MixRules(None, ShareSchedule.stages([(0, {"a": 1, "b": 0}), (1, {"a": 0, "b": 1})]))

    lines = str(run(rules, num_batches=2, curves=PRESETS["solved"])).splitlines()

    assert "planned share       0       1" == lines[2]
    assert ["a            1.00     –", "b               –  1.00"] == lines[9:11]
