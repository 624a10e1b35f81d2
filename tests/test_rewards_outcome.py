"""From tool calls to the environment's outcome, or to why there is none."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.numeric import parse_step_reward
from multiors.records import StepRecord, UnscoredReason
from multiors.rewards import Outcome, SourceReward, decide_outcome, decide_value
from multiors.rewards.reduction import REDUCTIONS

LOST, RAISED, REFUSED, BAD = (
    UnscoredReason.SESSION_LOST,
    UnscoredReason.TOOL_ERROR,
    UnscoredReason.BAD_CALL,
    UnscoredReason.BAD_REWARD,
)
PLAIN = SourceReward()

step_records = st.builds(
    StepRecord,
    tool=st.just("move"),
    reward=st.none() | st.floats(-10, 10),
    finished=st.booleans(),
    failure=st.sampled_from([None, None, None, LOST, RAISED, REFUSED, BAD]),
)
flags = st.fixed_dictionaries({"finished": st.booleans(), "opened": st.booleans(), "truncated": st.booleans()})
rules = st.builds(
    SourceReward,
    reduction=st.sampled_from(REDUCTIONS),
    unscored=st.sampled_from([None, 0.0, -1.0]),
    unfinished=st.sampled_from([None, 0.0, -2.0]),
)


def step(reward: float | None = None, *, failure: UnscoredReason | None = None, finished: bool = False) -> StepRecord:
    """One call."""
    return StepRecord("move", reward=reward, failure=failure, finished=finished)


def decide(
    *steps: StepRecord,
    finished: bool = False,
    opened: bool = True,
    truncated: bool = False,
    reward: SourceReward = PLAIN,
) -> Outcome:
    """The outcome of these calls."""
    return decide_outcome(steps, finished=finished, opened=opened, truncated=truncated, reward=reward)


@pytest.mark.parametrize(
    ("answers", "finished", "value", "reason"),
    [
        ("[null, null]", False, None, UnscoredReason.NO_SCORE),
        ("[]", False, None, UnscoredReason.NO_TOOL_CALL),
        ("[0.0]", True, 0.0, None),
        ("[1.0, null]", False, 1.0, None),
        ("[1.0, 0.0]", False, 0.0, None),
        ("[-1.0]", True, -1.0, None),
        ("[NaN]", True, None, UnscoredReason.BAD_REWARD),
        ("[Infinity]", True, None, UnscoredReason.BAD_REWARD),
        ('["NaN"]', True, None, UnscoredReason.BAD_REWARD),
        ("[0.5, NaN]", True, 0.5, None),
        ("[true]", True, 1.0, None),
        ("[1e999]", True, None, UnscoredReason.BAD_REWARD),
        ("[3, [1.0]]", True, 3.0, None),
    ],
)
def test_the_last_score_is_the_outcome(
    answers: str, finished: bool, value: float | None, reason: UnscoredReason | None
) -> None:
    """From a server's answers to the outcome: the last number counts, and what is no number never does."""
    steps = []
    for answer in json.loads(answers):
        number, is_bad = parse_step_reward(answer)
        steps.append(step(number, failure=BAD if is_bad else None))

    assert Outcome(value, reason) == decide(*steps, finished=finished)


def test_failed_and_unscored_calls_do_not_erase_a_score() -> None:
    """A score stands whatever fails after it."""
    for failure in (None, LOST, RAISED, REFUSED, BAD):
        assert Outcome(0.25, None) == decide(step(0.25), step(failure=failure))


def test_nothing_counts_after_the_end() -> None:
    """Scores and failures of calls after the one that finished the episode are not looked at."""
    assert Outcome(0.5, None) == decide(step(0.5, finished=True), step(1.0), step(failure=LOST))
    assert Outcome(0.5, None) == decide(step(0.5), step(finished=True), step(1.0, finished=True))
    assert Outcome(None, UnscoredReason.NO_SCORE) == decide(step(finished=True), step(1.0), step(failure=RAISED))


@pytest.mark.parametrize(
    ("steps", "truncated", "finished", "reason"),
    [
        ([step(failure=LOST), step(failure=RAISED), step(failure=BAD)], True, False, LOST),
        ([step(failure=RAISED), step(failure=BAD)], True, False, BAD),
        ([step(failure=REFUSED), step(failure=RAISED), step()], True, False, RAISED),
        ([step(failure=REFUSED)], True, False, UnscoredReason.TRUNCATED),
        ([step()], True, False, UnscoredReason.TRUNCATED),
        ([], True, False, UnscoredReason.TRUNCATED),
        ([step()], True, True, UnscoredReason.NO_SCORE),
        ([], False, False, UnscoredReason.NO_TOOL_CALL),
        ([step(), step(failure=REFUSED)], False, False, REFUSED),
        ([step(failure=REFUSED), step()], False, False, UnscoredReason.NO_SCORE),
        ([step(math.nan)], False, False, BAD),
    ],
)
def test_an_unscored_rollout_has_its_truest_reason(
    steps: list[StepRecord], truncated: bool, finished: bool, reason: UnscoredReason
) -> None:
    """The environment's failures come before the policy's, the nearest to the cause first."""
    assert Outcome(None, reason) == decide(*steps, truncated=truncated, finished=finished)


@given(st.lists(step_records, max_size=5), flags, rules)
def test_a_rollout_has_a_score_or_one_reason(
    steps: list[StepRecord], flags: dict[str, bool], reward: SourceReward
) -> None:
    """There is a reason exactly where there is no number, and numbers are finite."""
    outcome = decide_outcome(steps, reward=reward, **flags)

    assert (outcome.value is None) == (outcome.reason is not None)
    assert outcome.value is None or math.isfinite(outcome.value)


@given(st.lists(step_records, max_size=5), flags, rules)
def test_settings_replace_only_what_the_policy_answers_for(
    steps: list[StepRecord], flags: dict[str, bool], reward: SourceReward
) -> None:
    """Where the environment failed, `unscored` and `unfinished` change nothing."""
    plain = decide_outcome(steps, reward=SourceReward(reduction=reward.reduction), **flags)

    outcome = decide_outcome(steps, reward=reward, **flags)

    if plain.reason is not None and plain.reason.is_infrastructure:
        assert plain == outcome
    elif plain.reason is not None and reward.unscored is not None:
        assert outcome.value in (reward.unscored, reward.unfinished)
        assert outcome.reason is None
    else:
        assert outcome == plain or outcome.value == reward.unfinished


def test_a_session_that_never_opened_is_unreachable_whatever_is_set() -> None:
    """Nothing turns a rollout that never began into a score."""
    reward = SourceReward(unscored=0.0, unfinished=0.0)

    assert Outcome(None, UnscoredReason.UNREACHABLE) == decide(opened=False, truncated=True, reward=reward)


@pytest.mark.parametrize("steps", [[], [step()], [step(failure=REFUSED)]])
def test_giving_up_can_be_a_score(steps: list[StepRecord]) -> None:
    """`unscored` is the score of a rollout that the policy left without one."""
    reward = SourceReward(unscored=-0.5)

    assert Outcome(-0.5, None) == decide(*steps, reward=reward)
    assert Outcome(-0.5, None) == decide(*steps, truncated=True, reward=reward)


@pytest.mark.parametrize("failure", [LOST, RAISED, BAD])
def test_failures_of_the_environment_are_never_scores(failure: UnscoredReason) -> None:
    """Where the environment failed, an earlier score stands and no score stays none."""
    reward = SourceReward(unscored=0.0, unfinished=0.0)

    assert Outcome(None, failure) == decide(step(), step(failure=failure), reward=reward)
    assert Outcome(0.75, None) == decide(step(0.75), step(failure=failure), reward=reward)


def test_an_unfinished_episode_can_have_a_score_of_its_own() -> None:
    """`unfinished` replaces earlier scores of an episode that never ended, and only of such."""
    reward = SourceReward(unscored=-1.0, unfinished=-2.0)

    assert Outcome(-2.0, None) == decide(step(0.75), reward=reward)
    assert Outcome(-2.0, None) == decide(reward=reward)
    assert Outcome(0.75, None) == decide(step(0.75), finished=True, reward=reward)
    assert Outcome(0.75, None) == decide(step(0.75, finished=True), reward=reward)
    assert Outcome(-1.0, None) == decide(step(finished=True), reward=reward)


# -- reductions

WAYS = [("last", 2.0), ("sum", 3.0), ("mean", 1.0), ("max", 2.0), ("min", -1.0), ("final", 2.0)]
each_way = pytest.mark.parametrize(("reduction", "value"), WAYS)


@each_way
def test_step_rewards_become_one_as_declared(reduction: Any, value: float) -> None:
    """Calls without a reward, and refused ones, count for nothing, not as zero either."""
    steps = [step(2.0), step(), step(-1.0), step(failure=REFUSED), step(2.0, finished=True), step(9.0)]

    assert Outcome(value, None) == decide(*steps, reward=SourceReward(reduction=reduction))


@pytest.mark.parametrize("failure", [LOST, RAISED, BAD])
@each_way
def test_what_an_environment_broke_off_is_scored_only_if_more_could_not_change_it(
    reduction: Any, value: float, failure: UnscoredReason
) -> None:
    """The last and the largest reward were reached; a sum, a mean, a minimum and a final reward were not."""
    outcome = decide(step(1.0), step(3.0), step(failure=failure), reward=SourceReward(reduction=reduction))

    assert (Outcome(3.0, None) if reduction in ("last", "max") else Outcome(None, failure)) == outcome


def test_only_the_finishing_call_is_final() -> None:
    """Without a finishing call, or without its reward, an episode reduced by "final" has no outcome."""
    reward = SourceReward(reduction="final")

    assert Outcome(None, UnscoredReason.NO_SCORE) == decide(step(1.0), reward=reward)
    assert Outcome(None, UnscoredReason.NO_SCORE) == decide(step(1.0), step(finished=True), reward=reward)
    assert Outcome(None, UnscoredReason.TRUNCATED) == decide(step(1.0), truncated=True, reward=reward)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.sampled_from(REDUCTIONS), st.floats(0.1, 10), st.floats(-5, 5))
def test_scale_and_offset_act_on_the_outcome(rewards: list[float], reduction: Any, scale: float, offset: float) -> None:
    """The outcome in other units is the outcome in the environment's, rescaled."""
    steps = [step(value) for value in rewards[:-1]] + [step(rewards[-1], finished=True)]
    plain = decide(*steps, reward=SourceReward(reduction=reduction)).value
    rescaled = decide(*steps, reward=SourceReward(reduction=reduction, scale=scale, offset=offset)).value

    assert plain is not None
    assert scale * plain + offset == rescaled


@given(st.permutations([1.5, -2.0, 1e16, 3.25, -1e16]), st.sampled_from(["sum", "mean", "max", "min"]))
def test_the_order_of_steps_changes_no_order_free_reduction(rewards: list[float], reduction: Any) -> None:
    """Sums are rounded once, so not even their last bit depends on the order."""
    outcomes = [
        decide(*map(step, order), reward=SourceReward(reduction=reduction)) for order in (rewards, sorted(rewards))
    ]

    assert outcomes[0] == outcomes[1]


def test_the_outcome_is_clipped_last() -> None:
    """Values beyond the ends are moved to them, after scale and offset; other scores are taken as they are."""
    reward = SourceReward(scale=2.0, offset=-1.0, clip=(-1.5, 4.0), unscored=-9.0, unfinished=9.0)

    assert Outcome(4.0, None) == decide(step(3.0, finished=True), reward=reward)
    assert Outcome(-1.5, None) == decide(step(-3.0, finished=True), reward=reward)
    assert Outcome(1.0, None) == decide(step(1.0, finished=True), reward=reward)
    assert Outcome(-9.0, None) == decide(step(finished=True), reward=reward)
    assert Outcome(9.0, None) == decide(step(1.0), reward=reward)


@pytest.mark.parametrize("value", [-0.5, 1.5, 1e308])
def test_an_outcome_outside_its_range_is_a_bad_reward(value: float) -> None:
    """What the environment cannot have meant is no score, however it is rescaled."""
    reward = SourceReward(range=(0.0, 1.0), clip=(0.0, 1.0), unscored=0.0)

    outcome = decide(step(value, finished=True), reward=reward)

    assert Outcome(None, BAD) == outcome
    assert f"the outcome {value!r} is outside the declared range=(0.0, 1.0)" == outcome.detail
    assert Outcome(0.0, None) == decide(step(0.0, finished=True), reward=reward)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_sum_too_large_for_a_number_is_a_bad_reward(reduction: Any) -> None:
    """No infinity becomes an outcome."""
    assert Outcome(None, BAD) == decide(step(1.7e308), step(1.7e308), reward=SourceReward(reduction=reduction))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reduction": "median"}, r"reduction='median' is not known\. Pass one of \('last', 'sum'"),
        ({"scale": 0.0}, r"scale 0 makes all outcomes equal"),
        ({"scale": math.nan}, r"SourceReward: scale nan is not a finite number"),
        ({"offset": "1"}, r"SourceReward: offset '1' is not a finite number"),
        ({"clip": 1.0}, r"SourceReward: clip 1\.0 is no pair\. Pass \(lowest, highest\)"),
        ({"clip": (1.0, 1.0)}, r"SourceReward: clip \(1\.0, 1\.0\): the lowest value is not below the highest"),
        ({"range": (0.0, math.inf)}, r"SourceReward: range inf is not a finite number"),
    ],
)
def test_rules_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    """A mistake in the rule is found when it is written down."""
    with pytest.raises(ConfigError, match=message):
        SourceReward(**fields)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (None, False)),
        (True, (1.0, False)),
        (False, (0.0, False)),
        (3, (3.0, False)),
        (-0.5, (-0.5, False)),
        (math.nan, (None, True)),
        (math.inf, (None, True)),
        (10**400, (None, True)),
        ("1.0", (None, True)),
        ([1.0], (None, True)),
        ({"score": 1.0}, (None, True)),
    ],
)
def test_only_finite_numbers_are_step_rewards(value: Any, expected: tuple[float | None, bool]) -> None:
    """null is no reward, true and false are 1.0 and 0.0, and all that is no finite number is bad."""
    number, is_bad = parse_step_reward(value)

    assert expected == (number, is_bad)
    assert number is None or isinstance(number, float)


# -- environments that say what they are worth at the end

scores = st.lists(st.floats(-10, 10), max_size=4)


@given(scores, st.lists(step_records, max_size=4), st.booleans(), st.booleans(), rules, st.sampled_from([LOST, BAD]))
def test_a_failure_outweighs_what_is_said_at_the_end(
    values: list[float], steps: list[StepRecord], finished: bool, truncated: bool, reward: SourceReward, failure: Any
) -> None:
    """Whatever was scored, and whatever giving up is worth: the rollout is unscored for that reason."""
    found = decide_value(values, steps, failure=failure, finished=finished, truncated=truncated, reward=reward)

    assert Outcome(None, failure) == found


@given(scores, st.randoms(use_true_random=False))
def test_the_sum_does_not_depend_on_the_order(values: list[float], random: Any) -> None:
    """Not even its last bit; without any value there is no score."""
    shuffled = random.sample(values, len(values))
    one, other = (
        decide_value(each, [], failure=None, finished=True, truncated=False, reward=PLAIN)
        for each in (values, shuffled)
    )

    assert one == other
    assert (None if not values else math.fsum(values)) == one.value
    assert (UnscoredReason.NO_TOOL_CALL if not values else None) == one.reason


@pytest.mark.parametrize(
    ("values", "finished", "reward", "expected"),
    [
        ([0.5, 0.25], True, SourceReward(scale=2.0, offset=1.0, clip=(0.0, 2.0)), Outcome(2.0, None)),
        ([3.0], True, SourceReward(range=(0.0, 1.0)), Outcome(None, BAD)),
        ([1e308, 1e308], True, PLAIN, Outcome(None, BAD)),
        ([1.0], False, SourceReward(unfinished=-1.0), Outcome(-1.0, None)),
        ([], True, SourceReward(unscored=-2.0), Outcome(-2.0, None)),
        ([], False, PLAIN, Outcome(None, UnscoredReason.TRUNCATED)),
        ([], True, PLAIN, Outcome(None, UnscoredReason.NO_SCORE)),
    ],
)
def test_what_is_said_at_the_end_is_judged_like_any_outcome(
    values: list[float], finished: bool, reward: SourceReward, expected: Outcome
) -> None:
    """In the user's units, within the declared range, and with what giving up is worth."""
    found = decide_value(values, [step()], failure=None, finished=finished, truncated=True, reward=reward)

    assert expected == found
