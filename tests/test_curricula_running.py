"""A curriculum at work: what is checked of a user's, what is kept on resume, and several one behind the other."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from multiors.errors import ConfigError
from multiors.mixing.curricula import (
    Curriculum,
    CurriculumRun,
    Gates,
    LearningProgress,
    MixSource,
    ScoreBandit,
    ShareSchedule,
    SourceObservation,
    chain,
)
from tests.histories import History, even, groups_of, histories, names, play, seen_in, sources_of

NAMES = names(2)
GATES = Gates(graduate_at={"source-0": 1.0})


@dataclass(frozen=True)
class Counting(Curriculum):
    """A user's curriculum: shares in proportion to one plus how often a source was seen."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    """What a method returns instead, by its name."""

    def begin(self, sources: Sequence[MixSource]) -> Any:
        """Nothing was seen."""
        return self.answers.get("begin", {source.name: 0 for source in sources})

    def update(self, states: Any, seen: Mapping[str, SourceObservation]) -> Any:
        """Count."""
        counted = {name: count + (name in seen) for name, count in states.items()}
        return self.answers.get("update", counted)

    def shares(self, states: Any, reference: Mapping[str, float], *, batch: int, num_batches: int | None) -> Any:
        """In proportion to the counts."""
        parts = {name: share * (1 + states[name]) for name, share in reference.items()}
        total = sum(parts.values())
        return self.answers.get("shares", {name: part / total for name, part in parts.items()})


BATCH: dict[str, list[tuple[float | None, ...]]] = {"source-0": groups_of(1.0, 0.0)}


def test_a_users_curriculum_is_a_class_with_three_methods() -> None:
    """It decides the shares, and has no metrics and nothing to tell unless it says so."""
    run = CurriculumRun(Counting(), sources_of(NAMES))
    run.update(seen_in(BATCH))

    assert pytest.approx({"source-0": 2 / 3, "source-1": 1 / 3}) == run.shares(even(NAMES), 1)
    assert {} == run.measure()
    assert [] == run.changes


def test_numbers_of_what_is_no_source_are_refused() -> None:
    """A user's metrics are those of sources."""

    class Measuring(Counting):
        def measure(self, states: Any) -> dict[str, dict[str, float]]:
            """Of a source that is misspelled."""
            return {"source-0": {"seen": 0.0}, "sauce": {"seen": 0.0}}

    run = CurriculumRun(Measuring(), sources_of(NAMES))

    with pytest.raises(
        ConfigError, match=r"curriculum Measuring: measure\(\) gave numbers for \['sauce'\]; the sources"
    ):
        run.measure()


def fail(*_: Any, **__: Any) -> Any:
    """What a user has overlooked."""
    raise ZeroDivisionError("division by zero")


def behind(curriculum: Curriculum) -> Curriculum:
    """The same behind another one."""
    return chain([LearningProgress(), curriculum])


@pytest.mark.parametrize("given", ["text", None, [1.0], {"source-0": 1.0}, {"source-0": {"seen": "often"}}])
@pytest.mark.parametrize("place", [lambda alone: alone, behind], ids=["alone", "behind another"])
def test_what_is_measured_are_numbers(place: Any, given: object) -> None:
    """Anything else is refused, by the name of the one that answered so."""

    class Measuring(Counting):
        def measure(self, states: Any) -> Any:
            """Something else."""
            return given

    run = CurriculumRun(place(Measuring()), sources_of(NAMES))

    with pytest.raises(ConfigError, match=r"curriculum Measuring: measure\(\) gave .*\. Return numbers by source and"):
        run.measure()


def test_truth_values_may_be_measured() -> None:
    """They are logged as 0 and 1."""

    class Measuring(Counting):
        def measure(self, states: Any) -> Any:
            """Whether a source was seen."""
            return {name: {"seen": count > 0} for name, count in states.items()}

    assert {"source-0": {"seen": 1.0}, "source-1": {"seen": 0.0}} == learn(Measuring()).measure()


@pytest.mark.parametrize("given", ["one sentence", None, [1]])
@pytest.mark.parametrize("place", [lambda alone: alone, behind], ids=["alone", "behind another"])
def test_what_is_described_are_sentences(place: Any, given: object) -> None:
    """A text would be told letter by letter."""

    class Describing(Counting):
        def describe_changes(self, before: Any, after: Any) -> Any:
            """Something else."""
            return given

    with pytest.raises(ConfigError, match=r"curriculum Describing: describe_changes\(\) gave .*Return a list of sent"):
        learn(place(Describing()))


@pytest.mark.parametrize("place", [lambda alone: alone, behind], ids=["alone", "behind another"])
def test_what_a_curriculum_raises_names_it(place: Any) -> None:
    """Before training it is an error of the mix, in training it keeps its type; the batch stands beside the name."""
    begun, updated, shared = (type("Mine", (Counting,), {name: fail})() for name in ("begin", "update", "shares"))

    with pytest.raises(ConfigError, match=r"^curriculum Mine: begin\(\) raised ZeroDivisionError: division by zero\."):
        CurriculumRun(place(begun), sources_of(NAMES))
    run = CurriculumRun(place(updated), sources_of(NAMES))
    with pytest.raises(ZeroDivisionError) as of_update:
        run.update(seen_in(BATCH), batch=7)
    with pytest.raises(ZeroDivisionError) as of_unknown:
        run.update(seen_in(BATCH))
    with pytest.raises(ZeroDivisionError) as of_shares:
        CurriculumRun(place(shared), sources_of(NAMES)).shares(even(NAMES), 8)

    name = place(updated).name
    inside = ["curriculum Mine"] if "+" in name else []
    assert [*inside, f"curriculum {name}, update() after batch 7"] == of_update.value.__notes__
    assert [*inside, f"curriculum {name}, update()"] == of_unknown.value.__notes__
    assert [*inside, f"curriculum {name}, shares() of batch 8"] == of_shares.value.__notes__


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"source-0": 1.0}, r"shares\(\) gave \['source-0'\]; the sources are \['source-0', 'source-1'\]"),
        (0.5, r"shares\(\) gave 0.5; the sources are"),
        ({"source-0": -1.0, "source-1": 2.0}, r"shares\(\) gave source 'source-0' -1.0. Return numbers from 0 upwards"),
        ({"source-0": math.nan, "source-1": 1.0}, r"shares\(\) gave source 'source-0' nan"),
        ({"source-0": 0.5, "source-1": 0.6}, "the shares of batch 7 sum to 1.1. Divide them by their sum"),
    ],
)
def test_shares_that_are_none_are_refused(shares: Any, message: str) -> None:
    """The error names the curriculum and what it answered."""
    run = CurriculumRun(Counting({"shares": shares}), sources_of(NAMES))
    with pytest.raises(ConfigError, match=f"curriculum Counting: {message}"):
        run.shares(even(NAMES), 7)


def test_what_is_left_out_cannot_be_drawn() -> None:
    """A curriculum that gives a share to a source whose reference share is 0 is refused."""
    run = CurriculumRun(Counting({"shares": even(NAMES)}), sources_of(NAMES))
    with pytest.raises(ConfigError, match=r"gave source 'source-1' 0\.5, and its reference share is 0"):
        run.shares({"source-0": 1.0, "source-1": 0.0}, 0)


def test_a_share_too_small_to_be_drawn_is_none() -> None:
    """The quota cannot tell it from 0; the others make up for it."""
    run = CurriculumRun(Counting({"shares": {"source-0": 1 - 1e-12, "source-1": 1e-12}}), sources_of(NAMES))

    assert {"source-0": 1.0, "source-1": 0.0} == run.shares(even(NAMES), 0)


@pytest.mark.parametrize("state", [(1, 2), {1: 2}, math.nan, np.float64(0.5).astype(np.float32), {"a", "b"}])
def test_states_are_json_ready(state: object) -> None:
    """What a checkpoint cannot hold is refused at once, and not when it is written."""
    message = "returned a state that is not what it is after it was written as JSON"
    states = dict.fromkeys(NAMES, state)
    run = CurriculumRun(Counting({"update": states}), sources_of(NAMES))
    with pytest.raises(ConfigError, match=rf"curriculum Counting: begin\(\) {message}"):
        CurriculumRun(Counting({"begin": states}), sources_of(NAMES))
    with pytest.raises(ConfigError, match=rf"curriculum Counting: update\(\) {message}"):
        run.update(seen_in(BATCH))


@pytest.mark.parametrize("states", [None, {"source-0": 1}, [1, 2]])
def test_there_is_one_state_per_source(states: object) -> None:
    """Anything else is refused."""
    with pytest.raises(ConfigError, match=r"begin\(\) returned .*Return one state per source, by name"):
        CurriculumRun(Counting({"begin": states}), sources_of(NAMES))


def test_a_state_that_json_cannot_hold_is_found_at_the_checkpoint_at_the_latest() -> None:
    """A state that only later stops being JSON would be written, and read back as another one."""
    run = CurriculumRun(Counting(), sources_of(NAMES))
    run._states = dict.fromkeys(NAMES, (1, 2))
    with pytest.raises(ConfigError, match="after it was written as JSON and read again"):
        run.state()


def test_sources_that_stay_keep_what_is_known_of_them() -> None:
    """On resume a source that is new begins anew, one that is gone is forgotten, the others go on."""
    run = CurriculumRun(Counting(), sources_of(["a", "b", "c"]))
    for _ in range(3):
        run.update(seen_in({"a": groups_of(1.0), "b": groups_of(1.0)}))
    resumed = CurriculumRun(Counting(), sources_of(["d", "b"]))

    assert [] == resumed.restore(json.loads(json.dumps(run.state())))
    assert {"d": 0, "b": 3} == resumed.state()["sources"]


def test_another_curriculum_begins_anew_and_says_so() -> None:
    """What one curriculum knows means nothing to another."""
    run = CurriculumRun(Counting(), sources_of(NAMES))
    run.update(seen_in(BATCH))
    resumed = CurriculumRun(chain([GATES, LearningProgress()]), sources_of(NAMES))

    assert [
        "the curriculum is Gates + LearningProgress, and was Counting; what that one knew is forgotten"
    ] == resumed.restore(run.state())
    assert pytest.approx(even(NAMES)) == resumed.shares(even(NAMES), 1)


def learn(curriculum: Curriculum) -> CurriculumRun:
    """A run that has seen two batches."""
    run = CurriculumRun(curriculum, sources_of(NAMES))
    for _ in range(2):
        run.update(seen_in(BATCH))
    return run


ANEW = "the curriculum ScoreBandit has other settings, with which it begins anew"
GOES_ON = "the curriculum ScoreBandit has other settings, and goes on with what it knows"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (ScoreBandit(), ScoreBandit("variance"), ANEW),
        (ScoreBandit(), ScoreBandit(window_rollouts=8), ANEW),
        (ScoreBandit(window_rollouts=8), ScoreBandit(), GOES_ON),
        (ScoreBandit(), ScoreBandit(highest=2.0), GOES_ON),
    ],
    ids=["another score", "a window", "no window", "another box"],
)
def test_a_bandit_with_another_score_begins_anew_and_says_so(before: ScoreBandit, now: ScoreBandit, said: str) -> None:
    """Alone and among others, which go on."""
    alone, behind = CurriculumRun(now, sources_of(NAMES)), CurriculumRun(chain([GATES, now]), sources_of(NAMES))
    fresh, known = alone.state()["sources"], learn(before).state()["sources"]
    gates = learn(GATES).state()["sources"]

    assert [said] == alone.restore(learn(before).state())
    assert [said] == behind.restore(learn(chain([GATES, before])).state())
    expected = fresh if said == ANEW else known
    assert expected == alone.state()["sources"]
    assert {name: [gates[name], expected[name]] for name in NAMES} == behind.state()["sources"]


def test_what_is_forgotten_of_a_source_begins_anew() -> None:
    """The other sources keep what is known of them."""
    run = CurriculumRun(Counting(), sources_of(NAMES))

    assert [] == run.restore(
        learn(Counting()).state() | {"sources": {"source-0": 2, "source-1": 2}}, forgotten=NAMES[:1]
    )
    assert {"source-0": 0, "source-1": 2} == run.state()["sources"]


def test_settings_that_are_not_known_are_not_compared() -> None:
    """Those of a class that is no dataclass, alone or among others."""

    class Bare(LearningProgress):
        """With an attribute that JSON does not know."""

    curricula = chain([Bare(fast=0.5), GATES])
    state = learn(curricula).state() | {"settings": None}
    run = CurriculumRun(curricula, sources_of(NAMES))

    assert [] == run.restore(state)
    assert state["sources"] == run.state()["sources"]


def test_a_run_can_begin_again() -> None:
    """After a restart nothing is known."""
    run = CurriculumRun(Counting(), sources_of(NAMES))
    fresh = run.state()
    run.update(seen_in(BATCH))
    learned = run.state()
    run.restart()

    assert fresh != learned
    assert fresh == run.state()


# -- one behind the other


@given(histories(NAMES))
def test_a_chain_hands_the_shares_of_one_to_the_next(history: History) -> None:
    """Each part's reference is what the part before it decided."""
    schedule = ShareSchedule([(0, {"source-0": 1, "source-1": 3}), (5, {"source-0": 1, "source-1": 1})])
    progress = LearningProgress()
    found = play(chain([schedule, progress]), history, even(NAMES))

    for batch, shares in enumerate(found):
        reference = schedule.find_shares(batch)
        alone = play(progress, history[:batch], reference)[-1]
        assert pytest.approx(alone) == shares


def test_a_chain_measures_and_tells_all_of_its_parts() -> None:
    """Metrics of the parts stand side by side, and their sentences one after the other."""
    gates = Gates(graduate_at={"source-0": 0.5}, window_groups=1)
    run = CurriculumRun(chain([gates, LearningProgress()]), sources_of(NAMES))
    run.update(seen_in(BATCH))

    assert {"source-0": {"locked": 0.0, "graduated": 1.0, "score": 0.0}} == run.measure()
    assert [
        "source 'source-0' has graduated with a mean reward of 0.50 of its range, and gets 0.25 of its share"
    ] == run.changes


def test_what_several_parts_measure_stands_under_the_name_of_each() -> None:
    """Nothing hides behind a metric of the same name, not even among two of a kind; other metrics keep their names."""
    parts = [GATES, LearningProgress(), ScoreBandit(), ScoreBandit("variance"), ScoreBandit("variance", rate=0.5)]
    alone = [learn(part).measure()["source-0"] for part in parts]

    assert learn(chain(parts)).measure()["source-0"] == {
        "locked": 0.0,
        "graduated": 0.0,
        "LearningProgress_score": alone[1]["score"],
        "ScoreBandit_1_score": alone[2]["score"],
        "ScoreBandit_2_score": alone[3]["score"],
        "ScoreBandit_3_score": alone[4]["score"],
    }
    assert {"score": alone[1]["score"]} == learn(chain([LearningProgress(), Counting()])).measure()["source-0"]


def test_a_chain_of_one_is_that_one() -> None:
    """One curriculum needs no chain, and may stand without a list."""
    bandit = ScoreBandit()

    assert bandit is chain(bandit)
    assert bandit is chain([bandit])


@pytest.mark.parametrize("before", [LearningProgress(), GATES, ShareSchedule.constant({"source-0": 1})])
def test_nothing_stands_in_front_of_a_schedule(before: Curriculum) -> None:
    """It would take no more of it than what is left out; behind it the same curricula act on its shares."""
    schedule = ShareSchedule.constant({"source-0": 1, "source-1": 3})
    message = (
        rf"curriculum=\[{before.name}, ShareSchedule\]: ShareSchedule takes of the shares before it only which sources "
        rf"are left out, so what {before.name} decides would be lost\. Let ShareSchedule stand first, and only once\."
    )
    with pytest.raises(ConfigError, match=message):
        chain([before, schedule])
    with pytest.raises(ConfigError, match=r"what ScoreBandit decides would be lost"):
        chain([ScoreBandit(), chain([schedule, LearningProgress()])])


@pytest.mark.parametrize(
    ("curricula", "message"),
    [
        ([], r"curriculum=\[\] holds none"),
        (["learning_progress"], "curriculum='learning_progress' does not decide the shares of sources"),
        ([LearningProgress], "does not decide the shares of sources"),
    ],
)
def test_only_curricula_can_be_chained(curricula: Any, message: str) -> None:
    """A name or a class in the place of a curriculum is refused."""
    with pytest.raises(ConfigError, match=message):
        chain(curricula)
