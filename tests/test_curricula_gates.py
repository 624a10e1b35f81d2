"""Gates: sources that wait for others, and sources that get less once they go well."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given

from multiors.errors import ConfigError
from multiors.mixing.curricula import CurriculumRun, Gates, LearningProgress, chain
from tests.histories import (
    History,
    even,
    groups_of,
    histories,
    names,
    play,
    references,
    seen_in,
    sources_of,
)

NAMES = names(3)
EASY, HARD, OTHER = NAMES
GATES = Gates(after={HARD: {EASY: 0.7}}, graduate_at={EASY: 0.9}, window_groups=4)

SOLVED, HALF, IMPOSSIBLE = (groups_of(*rewards, num_groups=2) for rewards in ((1.0, 1.0), (1.0, 0.0), (0.0, 0.0)))


def begin(gates: Gates = GATES) -> CurriculumRun:
    """A run of three sources that has seen nothing."""
    return CurriculumRun(gates, sources_of(NAMES))


def shares_after(history: History, gates: Gates = GATES) -> dict[str, float]:
    """The shares after a history, with equal ones for reference."""
    return play(gates, history, even(NAMES))[-1]


def test_a_source_waits_for_its_prerequisite() -> None:
    """A locked source is not drawn, and the others share its slots."""
    assert {EASY: 0.5, HARD: 0.0, OTHER: 0.5} == shares_after([])
    assert {EASY: 0.5, HARD: 0.0, OTHER: 0.5} == shares_after([{EASY: HALF}] * 5)


def test_a_source_opens_once_its_prerequisite_is_reached() -> None:
    """It opens when the last groups of what it waits for reach the threshold, and not before there are enough."""
    mixed = [*SOLVED, *HALF]  # a mean of 0.75

    assert 0 == shares_after([{EASY: SOLVED}])[HARD]
    assert pytest.approx(1 / 3) == shares_after([{EASY: mixed}])[HARD]


def test_what_was_opened_stays_open() -> None:
    """A prerequisite that falls back locks nothing again."""
    history: History = [{EASY: SOLVED}] * 2 + [{EASY: IMPOSSIBLE}] * 5

    assert pytest.approx(even(NAMES)) == shares_after(history)


def test_all_prerequisites_must_be_reached_though_not_at_once() -> None:
    """What was reached once counts, when the others come later."""
    gates = Gates(after={OTHER: {EASY: 0.7, HARD: 0.7}}, window_groups=2)
    first: History = [{EASY: SOLVED}, {EASY: IMPOSSIBLE}]

    assert 0 == shares_after(first, gates)[OTHER]
    assert pytest.approx(1 / 3) == shares_after([*first, {HARD: SOLVED}], gates)[OTHER]


def test_a_source_that_has_graduated_gets_a_floor() -> None:
    """A quarter of its share beside those that have not, by default."""
    shares = shares_after([{EASY: SOLVED}] * 2)

    assert pytest.approx({EASY: 0.25 / 2.25, HARD: 1 / 2.25, OTHER: 1 / 2.25}) == shares


def test_a_source_that_has_regressed_gets_its_share_again() -> None:
    """Below the threshold by more than the margin; a little below changes nothing."""
    gates = Gates(graduate_at={EASY: 0.9}, margin=0.2, window_groups=4)
    graduated: History = [{EASY: SOLVED}] * 2
    slightly = [*graduated, {EASY: [(1.0, 1.0)] * 2 + [(1.0, 0.0)] * 2}]  # 0.75 is not below 0.9 - 0.2

    assert shares_after(graduated, gates) == shares_after(slightly, gates)
    assert pytest.approx(even(NAMES)) == shares_after([*graduated, {EASY: HALF * 2}], gates)


def test_changes_are_told() -> None:
    """What opens, what graduates and what regresses, each once, in words."""
    run = begin()
    for found in [SOLVED] * 3 + [IMPOSSIBLE] * 3:
        run.update(seen_in({EASY: found}))

    assert [
        f"source '{EASY}' has graduated with a mean reward of 1.00 of its range, and gets 0.25 of its share",
        f"source '{HARD}' is open: reached was '{EASY}' 0.7",
        f"source '{EASY}' has regressed: its mean reward fell to 0.50 of its range, it had graduated at 0.9. It gets "
        f"its whole share again",
    ] == run.changes


def test_patience_opens_a_source_that_would_wait_for_ever() -> None:
    """After so many batches it opens, whatever its prerequisite earned, and says so."""
    run = begin(Gates(after={HARD: {EASY: 0.7}}, window_groups=4, patience_batches=3))
    found = []
    for number in range(3):
        run.update(seen_in({EASY: IMPOSSIBLE} if number % 2 else {}))
        found.append(run.shares(even(NAMES), number)[HARD])

    assert [0.0, 0.0, pytest.approx(1 / 3)] == found
    assert [f"source '{HARD}' is open: it has waited for '{EASY}' 0.7 during 3 batches"] == run.changes


def test_thresholds_are_fractions_of_the_declared_range() -> None:
    """A mean of 5 is half of a range from 0 to 10."""
    gates = Gates(after={HARD: {EASY: 0.5}}, window_groups=1)
    run = CurriculumRun(gates, sources_of(NAMES, (0.0, 10.0)))
    run.update(seen_in({EASY: [(1.0,)]}, (0.0, 10.0)))
    before = run.shares(even(NAMES), 1)[HARD]
    run.update(seen_in({EASY: [(5.0,)]}, (0.0, 10.0)))

    assert 0 == before
    assert pytest.approx(1 / 3) == run.shares(even(NAMES), 2)[HARD]


def test_unscored_groups_open_nothing_and_lock_nothing() -> None:
    """A source that is never scored keeps those that wait for it locked, and one that has graduated stays so."""
    silent = groups_of(None, None, num_groups=9)

    assert 0 == shares_after([{EASY: silent}] * 9)[HARD]
    assert shares_after([{EASY: SOLVED}] * 2) == shares_after([{EASY: SOLVED}] * 2 + [{EASY: silent}] * 9)


def test_where_only_locked_sources_are_left_they_are_drawn() -> None:
    """If all open sources are left out for another reason, the reference stands."""
    only_hard = {EASY: 0.0, HARD: 1.0, OTHER: 0.0}

    assert only_hard == play(GATES, [], only_hard)[-1]


@given(histories(NAMES), references(NAMES))
def test_shares_sum_to_one_and_what_is_left_out_stays_out(history: History, reference: dict[str, float]) -> None:
    """In every batch, also with an adaptive curriculum behind the gates, which then draws nothing that is locked."""
    gated = play(GATES, history, reference)
    both = play(chain([GATES, LearningProgress()]), history, reference)

    for only_gates, shares in zip(gated, both, strict=True):
        assert math.isclose(1, math.fsum(shares.values()), rel_tol=1e-9)
        assert {name for name, share in only_gates.items() if not share} == {
            name for name, share in shares.items() if not share
        }


@given(histories(NAMES), references(NAMES))
def test_saved_gates_go_on_as_if_they_had_not_stopped(history: History, reference: dict[str, float]) -> None:
    """Written to JSON and read by a new process after every batch, they decide the same."""
    assert play(GATES, history, reference) == play(GATES, history, reference, is_saved=True)


def test_resumed_gates_may_name_other_sources() -> None:
    """A source that waits for nothing any more opens, one that graduates no more gets its whole share; both told."""
    run = begin()
    run.update(seen_in({EASY: SOLVED}))
    saved = run.state()
    saved["sources"][EASY]["graduated"] = True
    resumed = begin(Gates(graduate_at={HARD: 1.0}, window_groups=4))
    assert ["the curriculum Gates has other settings, and goes on with what it knows"] == resumed.restore(
        json.loads(json.dumps(saved))
    )
    resumed.update(seen_in({EASY: SOLVED}))

    assert [
        f"source {EASY!r} had graduated, and is not named in graduate_at any more. It gets its whole share again",
        f"source {HARD!r} is open: nothing is named any more that it waits for",
    ] == resumed.changes
    assert pytest.approx(even(NAMES)) == resumed.shares(even(NAMES), 0)


def test_the_metrics_say_what_is_locked_and_what_has_graduated() -> None:
    """Of the sources that a gate names."""
    run = begin()
    run.update(seen_in({EASY: [(0.8, 0.8)] * 4}))

    assert {
        EASY: {"locked": 0.0, "graduated": 0.0},
        HARD: {"locked": 0.0, "graduated": 0.0},
    } == run.measure()


OPEN: dict[str, Any] = {"graduate_at": {"a": 1}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"no source waits for another, and none graduates\. Give after=\.\.\. or graduate_at=\.\.\."),
        ({"after": {"a": {}}, "floor": 0.5}, "no source waits for another, and none graduates"),
        ({"after": {"a": {"b": 2}}}, r"after\['a'\]\['b'\]=2 is no number from 0 to 1"),
        ({"graduate_at": {"a": -1}}, r"graduate_at\['a'\]=-1 is no number from 0 to 1"),
        ({**OPEN, "floor": 0}, "floor=0 is no number above 0 to 1"),
        ({**OPEN, "margin": 2}, "margin=2 is no number from 0 to 1"),
        ({**OPEN, "window_groups": 0}, "window_groups=0 is no whole number from 1 upwards"),
        ({**OPEN, "patience_batches": 0.5}, "patience_batches=0.5 is no whole number from 1 upwards"),
        ({"after": {"a": {"b": 1}, "b": {"a": 1}}}, "waits for .* waits for .*, so none of them ever opens"),
    ],
)
def test_wrong_gates_are_refused(settings: dict[str, Any], message: str) -> None:
    """Each setting says what it may be, and nothing may wait for itself."""
    with pytest.raises(ConfigError, match=f"Gates: .*{message}"):
        Gates(**settings)


def test_gates_name_sources_of_the_mix() -> None:
    """A name that is not there is refused before training."""
    with pytest.raises(ConfigError, match="Gates: source 'odd' is not in the mix"):
        begin(Gates(after={"odd": {EASY: 0.5}}))


def test_gates_need_the_range_of_what_they_judge() -> None:
    """A source that a threshold is about must declare the range of its rewards; one that only waits need not."""
    sources = [*sources_of([HARD], None), *sources_of([EASY, OTHER])]
    run = CurriculumRun(Gates(after={HARD: {EASY: 0.5}}), sources)
    with pytest.raises(ConfigError, match=f"source '{HARD}': the thresholds of Gates are fractions of the range"):
        CurriculumRun(Gates(graduate_at={HARD: 0.5}), sources)

    run.update(seen_in({HARD: SOLVED}, None))

    assert 0 == run.shares(even(NAMES), 0)[HARD]
