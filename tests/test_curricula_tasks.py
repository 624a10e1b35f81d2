"""Curricula inside a source: levels of tasks, the ladder, and pools of tasks by what they earned last."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing.curricula import Ladder, Pools, SourceTasks, TaskCurriculum, TaskDraws, TaskObservation
from multiors.mixing.curricula.levels import find_levels, read_field
from multiors.mixing.curricula.tasks import spread

Earns = Callable[[int], Sequence[float | None]]
"""The rewards of a task's group."""

SOLVED, HALF, IMPOSSIBLE, UNSCORED = (1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (None, None)


def tasks_of(levels: Sequence[Any], **options: Any) -> SourceTasks:
    """A source whose tasks say their level."""
    specs = [json.dumps({"name": "x", "config": {"level": level}}) for level in levels]
    return SourceTasks("sort", len(levels), **{"reward_range": (0.0, 1.0), "specs": specs, **options})


def play(
    curriculum: TaskCurriculum, tasks: SourceTasks, counts: Sequence[int], earns: Earns, *, is_saved: bool = False
) -> tuple[list[list[int]], TaskDraws]:
    """Draw batches and score each two batches later; `is_saved`: each time with new draws, restored from JSON."""
    draws = curriculum.begin(tasks, seed=3, source=1)
    found: list[list[int]] = []
    for batch, count in enumerate(counts):
        if batch >= 2:
            draws.update([TaskObservation(each, tuple(earns(each))) for each in found[batch - 2]])
        if is_saved:
            state = json.loads(json.dumps(draws.state(), allow_nan=False))
            draws = curriculum.begin(tasks, seed=3, source=1)
            draws.restore(state)
        found.append(draws.draw(count).tolist())
    return found, draws


counts = st.lists(st.integers(0, 9), max_size=20)
outcomes = st.lists(st.sampled_from([SOLVED, HALF, IMPOSSIBLE, UNSCORED]), min_size=1, max_size=7)
levels = st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=12).filter(
    lambda found: any(level is not None for level in found)
)
CURRICULA: dict[str, TaskCurriculum] = {
    "ladder": Ladder(field="config.level", window=2, min_groups=2, patience_groups=4),
    "pools": Pools(),
}
each_curriculum = pytest.mark.parametrize("curriculum", CURRICULA.values(), ids=CURRICULA)


def earning(found: Sequence[Sequence[float | None]]) -> Earns:
    """Rewards that follow the task."""
    return lambda position: found[position % len(found)]


# -- in common


@each_curriculum
@given(levels, counts, outcomes)
def test_saved_draws_go_on_as_if_they_had_not_stopped(
    curriculum: TaskCurriculum, levels: list[int | None], counts: list[int], found: list[Any]
) -> None:
    """Written to JSON and read by a new process after every batch, they draw the same tasks."""
    expected, _ = play(curriculum, tasks_of(levels), counts, earning(found))

    assert expected == play(curriculum, tasks_of(levels), counts, earning(found), is_saved=True)[0]


@each_curriculum
@given(levels, counts, outcomes)
def test_every_draw_is_a_task(
    curriculum: TaskCurriculum, levels: list[int | None], counts: list[int], found: list[Any]
) -> None:
    """As many positions as are asked for, each of a task there is, also where a source has only one."""
    drawn, _ = play(curriculum, tasks_of(levels), counts, earning(found))

    assert counts == [len(batch) for batch in drawn]
    assert set(range(len(levels))) >= {position for batch in drawn for position in batch}


@each_curriculum
@given(levels, counts, outcomes)
def test_unscored_groups_are_missing_data(
    curriculum: TaskCurriculum, levels: list[int | None], counts: list[int], found: list[Any]
) -> None:
    """An unscored rollout in a group changes nothing."""
    expected, _ = play(curriculum, tasks_of(levels), counts, earning(found))

    assert expected == play(curriculum, tasks_of(levels), counts, earning([(*each, None) for each in found]))[0]


@each_curriculum
def test_seed_and_source_decide_the_order(curriculum: TaskCurriculum) -> None:
    """The same seed and source draw the same; another seed, and another source, do not."""
    tasks = tasks_of([0] * 64)

    def draw(seed: int, source: int) -> list[int]:
        return curriculum.begin(tasks, seed=seed, source=source).draw(64).tolist()  # type: ignore[no-any-return]  # numpy

    first = draw(0, 0)
    assert first == draw(0, 0)
    assert first not in (draw(1, 0), draw(0, 1))


@each_curriculum
def test_a_declared_range_is_needed(curriculum: TaskCurriculum) -> None:
    """Thresholds are fractions of it, so a source without one is refused before training."""
    with pytest.raises(ConfigError, match=r"source 'sort': the thresholds of .* are fractions of the range"):
        curriculum.begin(tasks_of([0], reward_range=None), seed=0, source=0)


@given(st.lists(st.just(0.0) | st.floats(0.01, 1), min_size=1, max_size=6).filter(any), st.integers(1, 200))
def test_draws_are_spread_by_weight(weights: list[float], num_draws: int) -> None:
    """With constant weights every pool is near its part of the draws, and those without weight get none."""
    credit = [0.0] * len(weights)
    drawn = Counter(spread(weights, credit) for _ in range(num_draws))

    for pool, weight in enumerate(weights):
        assert abs(drawn[pool] - num_draws * weight / sum(weights)) < len(weights)
        assert weight > 0 or drawn[pool] == 0


# -- levels


@given(st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=30), st.none() | st.integers(1, 6), st.booleans())
def test_levels_follow_the_numbers(values: list[int | None], num_levels: int | None, highest_first: bool) -> None:
    """Equal tasks are on one level, harder ones not below it, levels have no gaps, and unknown ones have none."""
    found = find_levels("sort", values, num_levels=num_levels, highest_first=highest_first)
    pairs = sorted((value, level) for value, level in zip(values, found, strict=True) if value is not None)
    ordered = [level for _, level in (reversed(pairs) if highest_first else pairs)]

    assert [value is None for value in values] == [level is None for level in found]
    assert ordered == sorted(ordered, key=lambda level: level or 0)
    assert set(range(len(set(ordered)))) == set(ordered)
    assert len(dict(pairs)) == len({*pairs})
    assert num_levels is None or len(set(ordered)) <= num_levels


@given(st.lists(st.floats(0, 1), min_size=10, max_size=50, unique=True), st.integers(1, 5))
def test_levels_of_numbers_have_about_equally_many_tasks(values: list[float], num_levels: int) -> None:
    """Where all numbers differ, no level has a task more than its part needs."""
    sizes = Counter(find_levels("sort", values, num_levels=num_levels))

    assert num_levels == len(sizes)
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_an_order_lists_each_value_once() -> None:
    """Which of its two places a value has, nobody could say."""
    with pytest.raises(ConfigError, match=r"Ladder: order=\['a', 'b', 'a'\] has 'a' more than once\. List each value"):
        Ladder(field="level", order=("a", "b", "a"))


def test_levels_of_words_follow_the_given_order() -> None:
    """The order lists the words; those that no task has make no gap."""
    found = find_levels("sort", ["hard", "easy", None, "hard"], order=("easy", "medium", "hard"))

    assert [1, 0, None, 1] == found


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (["easy"], {}, r"level is 'easy', which is no number. List the levels from the easiest to the hardest"),
        ([True], {}, "level is True, which is no number"),
        (["odd"], {"order": ["easy"]}, r"level is 'odd', which is not in order=\['easy'\]. Add it"),
    ],
)
def test_levels_that_cannot_be_ordered_are_refused(values: list[Any], options: dict[str, Any], message: str) -> None:
    """The error names the source and the value."""
    with pytest.raises(ConfigError, match=f"source 'sort': a task's {message}"):
        find_levels("sort", values, **options)


def test_a_field_is_read_through_objects() -> None:
    """Dots lead inwards; a task without the field has None, and one that is no object, too."""
    tasks = SourceTasks("sort", 3, specs=['{"config": {"level": 2}}', '{"config": 5}', "[1]"])

    assert [2, None, None] == read_field(tasks, "config.level")


def test_a_field_that_no_task_has_is_refused() -> None:
    """The error lists what tasks have; without specifications it says how to fetch them."""
    with pytest.raises(ConfigError, match=r"no task has the field 'level'; fields of its tasks: \['config', 'name'\]"):
        read_field(tasks_of([0]), "level")
    with pytest.raises(ConfigError, match=r"specifications were not fetched\. Leave include_metadata at True"):
        read_field(tasks_of([0], specs=None), "level")


def test_a_ladder_takes_words_in_their_order() -> None:
    """The list of words may be a list, and is a part of the settings."""
    ladder = Ladder(field="config.level", order=["easy", "hard"])

    assert [1, 0] == ladder.find_levels(tasks_of(["hard", "easy"]))
    assert ladder == Ladder(field="config.level", order=("easy", "hard"))


def test_levels_are_read_from_what_others_earned() -> None:
    """Without a field the tasks that earned most are the easiest, in five levels; those without a number have none."""
    tasks = SourceTasks("sort", 11, avg_rewards=[*(each / 10 for each in range(10)), None])

    assert [4, 4, 3, 3, 2, 2, 1, 1, 0, 0, None] == Ladder().find_levels(tasks)


def test_a_ladder_without_any_difficulty_is_refused() -> None:
    """The error says how to get one."""
    with pytest.raises(ConfigError, match="source 'sort': a ladder needs to know how hard its tasks are"):
        Ladder().find_levels(SourceTasks("sort", 2, avg_rewards=[None, None]))
    with pytest.raises(ConfigError, match="source 'sort': a ladder needs to know how hard its tasks are"):
        Ladder().find_levels(SourceTasks("sort", 2))


# -- the ladder

SIX_LEVELS = [position % 6 for position in range(60)]
"""Ten tasks on each of six levels."""


def climb(ladder: Ladder, earned: Sequence[Sequence[float | None]], levels: Sequence[int | None] = SIX_LEVELS) -> float:
    """The level after so many groups of the current level, one after the other."""
    draws = ladder.begin(tasks_of(levels), seed=0, source=0)
    for rewards in earned:
        current = int(draws.measure()["level"])
        draws.update([TaskObservation(list(levels).index(current), tuple(rewards))])
    return draws.measure()["level"]


LADDER = Ladder(field="config.level", min_groups=4, patience_groups=None)


def test_a_ladder_goes_up_when_its_level_is_mastered() -> None:
    """After enough groups with a mean of at least 0.9, and not before."""
    assert 0 == climb(LADDER, [SOLVED] * 3)
    assert 1 == climb(LADDER, [SOLVED] * 4)
    assert 2 == climb(LADDER, [SOLVED] * 8)
    assert 0 == climb(LADDER, [*[SOLVED] * 3, HALF])


def test_a_ladder_counts_anew_after_each_decision() -> None:
    """Groups of one decision are no part of the next."""
    assert 0 == climb(LADDER, [*[HALF] * 2, *[SOLVED] * 5])
    assert 1 == climb(LADDER, [*[HALF] * 2, *[SOLVED] * 6])


def test_a_ladder_goes_down_when_its_level_is_hopeless() -> None:
    """Below 0.1, but never below the first level."""
    assert 1 == climb(LADDER, [*[SOLVED] * 8, *[IMPOSSIBLE] * 4])
    assert 0 == climb(LADDER, [IMPOSSIBLE] * 12)


def test_a_ladder_ends_at_its_last_level() -> None:
    """However well it goes."""
    assert 5 == climb(LADDER, [SOLVED] * 100)


def test_a_ladder_loses_patience_with_a_level_that_cannot_be_mastered() -> None:
    """After so many groups it goes up all the same, but not from a hopeless level."""
    patient = Ladder(field="config.level", min_groups=4, patience_groups=8)

    assert 0 == climb(patient, [HALF] * 4)
    assert 1 == climb(patient, [HALF] * 8)
    assert 0 == climb(patient, [IMPOSSIBLE] * 40)


def test_only_groups_of_the_current_level_decide() -> None:
    """Groups of other levels, of tasks without a level, and unscored ones are not counted."""
    draws = LADDER.begin(tasks_of([0, 1, None]), seed=0, source=0)
    draws.update([TaskObservation(position, SOLVED) for position in (1, 2)] * 10)
    draws.update([TaskObservation(0, UNSCORED)] * 10)

    assert {"level": 0.0} == draws.measure()


def test_thresholds_are_relative_to_the_declared_range() -> None:
    """A mean of -1 is the top of a range from -5 to -1."""
    draws = LADDER.begin(tasks_of([0, 1], reward_range=(-5.0, -1.0)), seed=0, source=0)
    draws.update([TaskObservation(0, (-1.0, -1.0))] * 4)

    assert {"level": 1.0} == draws.measure()


def drawn_levels(level: int, num_draws: int, levels: Sequence[int | None] = SIX_LEVELS) -> Counter[int | None]:
    """How often each level is drawn, at a level."""
    ladder = Ladder(field="config.level", window=2, rehearsal=0.1, min_groups=1)
    draws = ladder.begin(tasks_of(levels), seed=0, source=0)
    for current in range(level):
        draws.update([TaskObservation(list(levels).index(current), SOLVED)])
    return Counter(levels[position] for position in draws.draw(num_draws))


def test_a_ladder_begins_with_its_easiest_tasks() -> None:
    """Nothing above the current level is drawn."""
    assert Counter({0: 30}) == drawn_levels(0, 30)


def test_a_ladder_draws_its_window_evenly_and_rehearses_what_is_below() -> None:
    """Nine of ten draws are from the last two levels, the tenth from those before them."""
    assert Counter({0: 15, 1: 15}) == drawn_levels(1, 30)
    assert Counter({3: 9, 2: 9, 1: 1, 0: 1}) == drawn_levels(3, 20)


def test_tasks_without_a_level_are_drawn_in_proportion_to_their_number() -> None:
    """A fifth of the tasks has no level, and gets a fifth of the draws, on any level."""
    levels = [0, 1, 2, 3] * 4 + [None] * 4

    assert 4 == drawn_levels(0, 20, levels)[None]
    assert 4 == drawn_levels(3, 20, levels)[None]


def test_a_level_draws_each_of_its_tasks_once_in_a_pass() -> None:
    """Without replacement, in another order in each pass."""
    draws = LADDER.begin(tasks_of([0] * 20 + [1]), seed=0, source=0)
    first, second = draws.draw(20).tolist(), draws.draw(20).tolist()

    assert list(range(20)) == sorted(first)
    assert list(range(20)) == sorted(second)
    assert first != second


def test_a_ladder_goes_on_where_levels_have_changed() -> None:
    """With fewer levels than the checkpoint it begins on its last; what was counted is forgotten."""
    before = LADDER.begin(tasks_of(SIX_LEVELS), seed=0, source=0)
    for level in range(4):
        before.update([TaskObservation(level, SOLVED)] * 4)
    after = LADDER.begin(tasks_of([0, 1, 2]), seed=0, source=0)
    after.restore(before.state())

    assert {"level": 4.0} == before.measure()
    assert {"level": 2.0} == after.measure()
    assert {0, 1, 2} == set(after.draw(6).tolist())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window=0 is no whole number from 1 upwards"),
        ({"min_groups": 0}, "min_groups=0 is no whole number from 1 upwards"),
        ({"num_levels": 0}, "num_levels=0 is no whole number from 1 upwards"),
        ({"patience_groups": 7}, "patience_groups=7 is no whole number from 8 upwards"),
        ({"up": 1.5}, "up=1.5 is no number above 0 to 1"),
        ({"down": -0.1}, "down=-0.1 is no number from 0 to 1"),
        ({"down": 0.9}, "down=0.9 is not below up=0.9"),
        ({"rehearsal": 1}, "rehearsal=1 is no number from 0 to 0.9"),
        ({"order": ("a",)}, "lists the values of a field"),
        ({"order": ("a",), "field": "x", "num_levels": 2}, "lists the values of a field"),
    ],
)
def test_wrong_settings_of_a_ladder_are_refused(settings: dict[str, Any], message: str) -> None:
    """Each setting says what it may be."""
    with pytest.raises(ConfigError, match=f"Ladder: .*{message}"):
        Ladder(**settings)


# -- pools


def test_new_tasks_come_first_and_once() -> None:
    """Until every task was drawn, none is drawn again before its outcome is known."""
    drawn, _ = play(Pools(), tasks_of([0] * 20), [10, 10], earning([HALF]))

    assert list(range(20)) == sorted(position for batch in drawn for position in batch)


def test_tasks_in_the_middle_are_drawn_more_often() -> None:
    """A task that is solved, or never, is drawn a fifth as often as one in between."""
    kinds = [SOLVED, HALF, HALF, IMPOSSIBLE]
    drawn, draws = play(Pools(), tasks_of([0] * 40), [4] * 400, earning(kinds))
    times = Counter(position % 4 for batch in drawn[20:] for position in batch)

    assert 0.2 == pytest.approx(times[0] / times[1], rel=0.2)
    assert 0.2 == pytest.approx(times[3] / times[2], rel=0.2)
    assert {"hard_tasks": 0.25, "normal_tasks": 0.5, "solved_tasks": 0.25} == draws.measure()


def test_the_tasks_of_a_pool_take_turns() -> None:
    """Among equals the one that has waited longest is drawn next."""
    drawn, _ = play(Pools(), tasks_of([0] * 12), [4] * 30, earning([HALF]))

    assert list(range(12)) == sorted(position for batch in drawn[-3:] for position in batch)
    assert drawn[-6:-3] == drawn[-3:]


def test_a_task_moves_to_the_pool_of_its_last_group() -> None:
    """What was hard and is solved now is solved."""
    draws = Pools().begin(tasks_of([0]), seed=0, source=0)
    found = []
    for rewards in (IMPOSSIBLE, HALF, SOLVED, UNSCORED):
        draws.draw(1)
        draws.update([TaskObservation(0, rewards)])
        found.append([name for name, part in draws.measure().items() if part])

    assert [["hard_tasks"], ["normal_tasks"], ["solved_tasks"], ["solved_tasks"]] == found


def test_an_unscored_task_stays_new() -> None:
    """A task that was never scored counts as one worth drawing."""
    draws = Pools().begin(tasks_of([0]), seed=0, source=0)
    draws.draw(1)
    draws.update([TaskObservation(0, UNSCORED)])

    assert {"hard_tasks": 0.0, "normal_tasks": 0.0, "solved_tasks": 0.0} == draws.measure()
    assert [0] == draws.draw(1).tolist()


def test_what_will_never_be_seen_is_drawn_again() -> None:
    """Where a run does not go on exactly where it stopped, tasks in flight go back first."""
    before = Pools().begin(tasks_of([0] * 6), seed=0, source=0)
    lost = before.draw(6).tolist()
    after = Pools().begin(tasks_of([0] * 6), seed=0, source=0)
    after.restore(json.loads(json.dumps(before.state())), in_step=False)

    assert sorted(lost) == sorted(after.draw(6).tolist())


def test_tasks_that_are_gone_are_not_drawn() -> None:
    """A source that has fewer tasks than in the checkpoint goes on with those it has."""
    before = Pools().begin(tasks_of([0] * 10), seed=0, source=0)
    before.update([TaskObservation(position, HALF) for position in before.draw(10).tolist()])
    before.draw(3)
    after = Pools().begin(tasks_of([0] * 4), seed=0, source=0)
    after.restore(before.state())

    assert set(range(4)) >= set(after.draw(20).tolist())


@pytest.mark.parametrize(
    ("num_before", "num_after", "seed", "source"),
    [(12, 12, 0, 1), (12, 12, 1, 0), (12, 20, 0, 0), (20, 12, 0, 0)],
    ids=["another position", "another seed", "more tasks", "fewer tasks"],
)
def test_pools_draw_every_task_when_the_order_of_new_ones_has_changed(
    num_before: int, num_after: int, seed: int, source: int
) -> None:
    """Those that were drawn keep their pools, and each of the others is drawn once before any takes a second turn."""
    before = Pools().begin(tasks_of([0] * num_before), seed=0, source=0)
    known = before.draw(6).tolist()
    before.update([TaskObservation(position, SOLVED) for position in known])
    after = Pools(solved_weight=1.0).begin(tasks_of([0] * num_after), seed=seed, source=source)

    after.restore(json.loads(json.dumps(before.state())), in_step=False)
    solved = after.measure()["solved_tasks"] * num_after
    drawn = after.draw(num_after).tolist()

    assert sum(position < num_after for position in known) == solved
    assert list(range(num_after)) == sorted(drawn)


def test_an_outcome_of_a_task_that_is_not_in_flight_changes_nothing() -> None:
    """Of a task that was drawn twice in one batch the first outcome counts."""
    draws = Pools().begin(tasks_of([0]), seed=0, source=0)
    draws.draw(3)
    draws.update([TaskObservation(0, SOLVED), TaskObservation(0, IMPOSSIBLE), TaskObservation(0, IMPOSSIBLE)])

    assert {"hard_tasks": 0.0, "normal_tasks": 0.0, "solved_tasks": 1.0} == draws.measure()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hard_below": -1}, "hard_below=-1 is no number from 0 to 1"),
        ({"solved_above": 2}, "solved_above=2 is no number from 0 to 1"),
        ({"hard_weight": 0}, "hard_weight=0 is no number above 0"),
        ({"solved_weight": 0}, "solved_weight=0 is no number above 0"),
        ({"hard_below": 0.8}, "hard_below=0.8 is above solved_above=0.75"),
    ],
)
def test_wrong_settings_of_pools_are_refused(settings: dict[str, Any], message: str) -> None:
    """Each setting says what it may be."""
    with pytest.raises(ConfigError, match=f"Pools: {message}"):
        Pools(**settings)
