"""The law: what None, weights, routing and time mean here.

A break here changes what users have trained on. Do not fix such a test: changing a rule is a decision, with an entry in
the changelog. Each test names the rule it proves; rules that need servers or the trainer are proven beside those.

None
1. A reward of None means *unscored*: no one judged the rollout. It is never 0.0, never NaN in our own API, never
   dropped silently: it is counted and shown.
2. An observed 0.0 or negative reward is a score. A later unscored or failed tool call does not erase an earlier score.
   A score that arrives after `finished` was seen does not replace it.
3. A rollout whose source scored nothing stays None whatever else is composed: extra reward functions of a source
   (format, length …) are gated and yield None too, unless the user declares one `scores_alone`.
4. Composition within a source: sum of weight × value over the parts that are not None; all None gives None. The order
   of parts does not matter; a part that is all None changes nothing.
5. A non-finite or non-numeric reward from a server is an error of that server: unscored, counted, reported with source,
   task and tool. It never reaches TRL as a number.
6. Whether giving up counts as failure is the user's choice, per source: `unscored: <number>` and `unfinished: <number>`
   turn those cases into scores, and infrastructure failures stay None even then.
7. Undefined statistics are None: the mean of nothing, the interval of one.

Why a rollout is unscored is kept, as exactly one of: `no_tool_call`, `no_score` (tools ran, none scored), `tool_error`
(the environment's code raised), `bad_call` (the model's arguments were refused), `session_lost` (gone, expired, server
died), `unreachable` (never opened), `bad_reward` (rule 5), `truncated` (budget ran out), and counted per source.

Weights
8. A source's *weight* is its share of slots; shares are weights divided by their sum. Weights are given by the user for
   every source or for none; with none, shares are equal. `weights="tasks"` asks for shares in proportion to task
   counts.
9. A batch has exactly its size. At every generation-batch end, for every source, |slots drawn − slots planned| < 1 as
   long as shares are constant; when shares change between batches the bound cannot always hold (no online rule can keep
   it), so the deviation is tracked, logged, and carried over until it is repaid.
10. A source smaller than its share repeats its tasks, each once per pass, reshuffled each pass. How often it will is
    printed before training.
11. A *reward weight* scales a source's influence on the gradient. If the trainer's settings would cancel it, that is an
    error naming the setting to change.

Routing
12. A row names its environment; an unknown name, a duplicate name, an empty or unreachable source, or a server that
    answers with another environment than the one asked for is an error before the first step, not in the batch that
    draws it.
13. A group never mixes sources or tasks. All members of a group get the same prompt (or, where the environment's prompt
    is random, the preflight says so and names the mode in which that is unsafe).
14. Same-named tools in two sources never reach each other's server.

Time
15. Seed and step decide everything random; world size, arrival order and wall clock decide nothing. For the same global
    generation batch, one process, N processes and a resumed run draw the same slots.
16. A checkpoint holds all curriculum state. Resuming with a source added, removed or renamed reports what changed and
    keeps the rest.

Lifecycle
17. Every opened session is closed: after its rollout was scored, at the end, on error, on Ctrl-C. A session that cannot
    be closed is reported.
18. `finished` ends the episode: a later tool call is answered without touching the server.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing import (
    SHARE_UNITS,
    SourceRows,
    apportion,
    build_dataset,
    build_schedule,
    make_plan,
    resolve_shares,
)
from multiors.mixing.quota import share_units
from multiors.numeric import parse_step_reward
from multiors.records import RolloutRecord, StepRecord, UnscoredReason
from multiors.rewards import (
    Outcome,
    RewardPart,
    SourceReward,
    compose,
    decide_outcome,
    metric_values,
    summarize_source,
)

scores = st.floats(-1e6, 1e6)
part_weights = st.floats(-10, 10).filter(lambda weight: weight != 0)
mixes = st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 12)), min_size=1, max_size=6).map(
    lambda mix: ([share / sum(share for share, _ in mix) for share, _ in mix], [tasks for _, tasks in mix])
)


def answer(**_: Any) -> list[float]:
    """A reward function; only its place matters here."""
    return []


def part(name: str, *, weight: float = 1.0, scores_alone: bool = False) -> RewardPart:
    """A part under a name."""
    return RewardPart(answer, weight=weight, name=name, scores_alone=scores_alone)


def call(reward: float | None = None, *, failure: UnscoredReason | None = None, finished: bool = False) -> StepRecord:
    """One tool call."""
    return StepRecord("move", reward=reward, failure=failure, finished=finished)


def play(*steps: StepRecord, finished: bool = False, reward: SourceReward | None = None) -> Outcome:
    """The outcome of an opened rollout with these calls."""
    return decide_outcome(steps, finished=finished, opened=True, truncated=False, reward=reward or SourceReward())


def record(outcome: Outcome, *steps: StepRecord) -> RolloutRecord:
    """A rollout with this outcome."""
    return RolloutRecord("sort", 0, 0, 0, outcome.value, outcome.value, {}, outcome.reason, None, False, steps)


# None


def test_rule_1_unscored_is_none_and_counted() -> None:
    """A rollout that nobody judged is None through outcome, composition and statistics, and is counted there."""
    outcome = play(call())
    records = [record(outcome, call()), record(Outcome(1.0, None))]

    summary = summarize_source(records)

    assert outcome.value is None
    assert compose(outcome.value, [], SourceReward()) is None
    assert (2, 1, 1.0) == (summary.num_rollouts, summary.num_scored, summary.mean_reward)
    assert [1.0, 0.0] == metric_values("sort", records)["env/sort/unscored/no_score"]


def test_rule_1_none_survives_json() -> None:
    """A record written and read back still says that nobody judged the rollout."""
    written = json.loads(json.dumps(record(play()).to_json()))

    assert written["reward"] is None
    assert "no_tool_call" == written["reason"]


@given(st.sampled_from([0.0, -0.0, -1.0, -1e300]), st.sampled_from([None, *UnscoredReason]))
def test_rule_2_zero_and_negative_rewards_are_scores(score: float, failure: UnscoredReason | None) -> None:
    """0.0 and below stand like any score, and a later call without a score does not erase them."""
    assert Outcome(score, None) == play(call(score))
    assert Outcome(score, None) == play(call(score), call(failure=failure))


@given(scores, scores)
def test_rule_2_the_end_of_the_episode_fixes_the_score(before: float, after: float) -> None:
    """A score that arrives after `finished` was seen changes nothing."""
    assert Outcome(before, None) == play(call(before, finished=True), call(after))
    assert Outcome(before, None) == play(call(before), call(finished=True), call(after))


@given(st.lists(scores, max_size=4))
def test_rule_3_extras_do_not_score_what_the_environment_did_not(values: list[float]) -> None:
    """Whatever a user's functions say, a rollout without an outcome stays None."""
    reward = SourceReward(parts=tuple(part(f"part {index}") for index in range(len(values))))

    assert compose(None, values, reward) is None


@given(scores, scores)
def test_rule_3_a_part_may_score_alone(alone: float, gated: float) -> None:
    """Only parts declared `scores_alone` count where the environment scored nothing."""
    reward = SourceReward(parts=(part("alone", weight=0.5, scores_alone=True), part("gated")))

    assert 0.5 * alone == compose(None, [alone, gated], reward)
    assert compose(None, [None, gated], reward) is None


@given(scores, st.lists(st.tuples(part_weights, st.none() | scores), max_size=5), st.randoms(use_true_random=False))
def test_rule_4_parts_add_up_in_any_order(outcome: float, parts: list[tuple[float, float | None]], random: Any) -> None:
    """The reward is the sum of weight times value over what is not None; order and all-None parts change nothing."""
    extended = [*parts, (2.0, None)]
    order = random.sample(range(len(extended)), len(extended))
    rules = [
        SourceReward(parts=tuple(part(str(index), weight=extended[index][0]) for index in indices))
        for indices in (range(len(parts)), order)
    ]

    plain = compose(outcome, [value for _, value in parts], rules[0])
    changed = compose(outcome, [extended[index][1] for index in order], rules[1])

    assert plain == changed
    assert plain == math.fsum([outcome, *(weight * value for weight, value in parts if value is not None)])


@pytest.mark.parametrize("sent", [math.nan, math.inf, -math.inf, 10**400, "1.0", "", [1.0], {"score": 1.0}])
def test_rule_5_what_is_no_number_is_never_a_number(sent: Any) -> None:
    """Such a reward is unscored, is told apart from null, and is the environment's failure."""
    number, is_bad = parse_step_reward(sent)

    outcome = play(call(number, failure=UnscoredReason.BAD_REWARD if is_bad else None))

    assert (None, True) == (number, is_bad)
    assert Outcome(None, UnscoredReason.BAD_REWARD) == outcome
    assert UnscoredReason.BAD_REWARD.is_infrastructure


def test_rule_6_giving_up_is_a_failure_only_if_the_user_says_so() -> None:
    """Without settings a policy that gives up is unscored; `unscored` and `unfinished` make it a score."""
    assert Outcome(None, UnscoredReason.NO_TOOL_CALL) == play()
    assert Outcome(0.0, None) == play(reward=SourceReward(unscored=0.0))
    assert Outcome(0.0, None) == play(call(), finished=True, reward=SourceReward(unscored=0.0))
    assert Outcome(0.5, None) == play(call(0.5))
    assert Outcome(-1.0, None) == play(call(0.5), reward=SourceReward(unfinished=-1.0))
    assert Outcome(0.5, None) == play(call(0.5), finished=True, reward=SourceReward(unfinished=-1.0))


@pytest.mark.parametrize("failure", [reason for reason in UnscoredReason if reason.is_infrastructure])
def test_rule_6_infrastructure_failures_stay_none(failure: UnscoredReason) -> None:
    """No setting turns a failure of the environment into a score."""
    reward = SourceReward(unscored=0.0, unfinished=-1.0)
    is_opened = failure is not UnscoredReason.UNREACHABLE

    outcome = decide_outcome(
        [call(), call(failure=failure)] if is_opened else [],
        finished=False,
        opened=is_opened,
        truncated=True,
        reward=reward,
    )

    assert Outcome(None, failure) == outcome


def test_rule_7_statistics_of_nothing_are_none() -> None:
    """The mean of no reward and fractions of no rollouts are None, and nothing is logged for them."""
    nothing = summarize_source([])
    unscored = [record(play(), call())]

    assert (None, None, None) == (nothing.mean_reward, nothing.scored_fraction, nothing.finished_fraction)
    assert summarize_source(unscored).mean_reward is None
    assert {} == metric_values("sort", [])
    assert "env/sort/reward" not in metric_values("sort", unscored)


@given(
    st.lists(
        st.tuples(st.none() | scores, st.sampled_from([None, *UnscoredReason]), st.booleans()).map(
            lambda made: call(made[0], failure=made[1], finished=made[2])
        ),
        max_size=4,
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_an_unscored_rollout_has_exactly_one_reason(
    steps: list[StepRecord], finished: bool, opened: bool, truncated: bool
) -> None:
    """There is one of the eight reasons exactly where there is no number."""
    outcome = decide_outcome(steps, finished=finished, opened=opened, truncated=truncated, reward=SourceReward())

    assert (outcome.value is None) == (outcome.reason in set(UnscoredReason))
    assert 8 == len(UnscoredReason)


# Weights


def test_rule_8_shares_are_weights_over_their_sum() -> None:
    """Shares follow the weights, are equal without, and follow the task counts if asked."""
    tasks = {"a": 30, "b": 10}

    assert {"a": 0.75, "b": 0.25} == resolve_shares({"a": 3.0, "b": 1.0}, tasks)
    assert {"a": 0.5, "b": 0.5} == resolve_shares({"a": None, "b": None}, tasks)
    assert {"a": 0.75, "b": 0.25} == resolve_shares({"a": None, "b": None}, tasks, weights="tasks")
    with pytest.raises(ConfigError, match="for every source or for none"):
        resolve_shares({"a": 3.0, "b": None}, tasks)


@given(mixes, st.integers(1, 24), st.integers(1, 40), st.integers(0, 2**64 - 1))
def test_rule_9_batches_hold_the_quota(
    mix: tuple[list[float], list[int]], size: int, num_batches: int, seed: int
) -> None:
    """At the end of every batch, every source is less than one slot from its plan."""
    shares, num_tasks = mix

    schedule = build_schedule(shares, num_tasks, num_slots=size * num_batches, prompts_per_batch=size, seed=seed)
    drawn = np.cumsum(schedule.source_index[:, None] == np.arange(len(shares)), axis=0)[size - 1 :: size]

    assert np.abs(drawn - np.outer(np.arange(1, num_batches + 1) * size, shares)).max() < 1


@given(st.data(), st.integers(2, 6), st.integers(1, 24))
def test_rule_9_the_deviation_under_changing_shares_is_known(data: st.DataObject, num_sources: int, size: int) -> None:
    """Whatever the shares, a batch has its size, and what is owed is carried to the next batch without loss."""
    planned = drawn = np.zeros(num_sources, dtype=np.int64)
    residual = None

    for _ in range(5):
        weights = data.draw(st.lists(st.floats(0.01, 1.0), min_size=num_sources, max_size=num_sources))
        shares = [weight / sum(weights) for weight in weights]
        counts, residual = apportion(shares, size, residual)
        planned = planned + size * share_units(shares)
        drawn = drawn + counts

        assert size == counts.sum()
        assert np.array_equal(planned - drawn * SHARE_UNITS, residual)


def test_rule_9_a_deviation_is_repaid() -> None:
    """Once shares stay as they are, sources that got too little or too much are brought back to their plan."""
    residual = np.array([4, -3, 2, -3]) * SHARE_UNITS

    for _ in range(10):
        _, residual = apportion([0.1, 0.3, 0.2, 0.4], 4, residual)

    assert np.abs(residual).max() < SHARE_UNITS


@given(mixes, st.integers(1, 24), st.integers(1, 20), st.integers(0, 2**64 - 1))
def test_rule_10_each_pass_draws_each_task_once(
    mix: tuple[list[float], list[int]], size: int, num_batches: int, seed: int
) -> None:
    """A source goes through all of its tasks before it repeats one."""
    shares, num_tasks = mix

    schedule = build_schedule(shares, num_tasks, num_slots=size * num_batches, prompts_per_batch=size, seed=seed)

    for index, tasks in enumerate(num_tasks):
        walk = schedule.position[schedule.source_index == index].tolist()
        assert all(
            len(set(walk[start : start + tasks])) == len(walk[start : start + tasks])
            for start in range(0, len(walk), tasks)
        )


def test_rule_10_passes_differ_and_repeats_are_printed() -> None:
    """Each pass has an order of its own, and the plan says how often a small source repeats its tasks."""
    shares, num_tasks = [0.5, 0.5], [20, 1000]
    schedule = build_schedule(shares, num_tasks, num_slots=120, prompts_per_batch=8, seed=0)

    passes = schedule.position[schedule.source_index == 0].reshape(3, 20)
    plan = make_plan(
        ["small", "large"], schedule, shares=shares, num_tasks=num_tasks, seed=0, stopping_strategy="max_slots"
    )

    assert 3 == len({order.tobytes() for order in passes})
    assert "source 'small' repeats its 20 tasks: each is drawn 3 times." in str(plan)


@given(scores, st.floats(0.01, 100))
def test_rule_11_a_reward_weight_changes_no_reward(outcome: float, weight: float) -> None:
    """A source's reward weight acts on its advantages only: its rewards are logged as they are."""
    assert outcome == compose(outcome, [], SourceReward(weight=weight))


def test_rule_11_a_reward_weight_without_influence_is_an_error() -> None:
    """A source that would be played and teach nothing is refused, with the remedy."""
    with pytest.raises(ConfigError, match="Remove the source from the mix"):
        SourceReward(weight=0.0)


# Routing


def test_rule_13_a_slot_is_one_task_of_one_source() -> None:
    """A group is the rollouts of one row, and a row names one source and one of its tasks."""
    shares, num_tasks = [0.5, 0.5], [3, 4]
    schedule = build_schedule(shares, num_tasks, num_slots=24, prompts_per_batch=8, seed=0)

    dataset = build_dataset(schedule, [SourceRows("a", [7, 8, 9]), SourceRows("b", [7, 6, 5, 4])])

    tasks = {"a": {7, 8, 9}, "b": {4, 5, 6, 7}}
    assert list(range(24)) == list(dataset["slot"])
    assert all(row["task_index"] in tasks[row["environment"]] for row in dataset)


# Time


@given(mixes, st.integers(1, 16), st.integers(1, 10), st.integers(1, 10), st.integers(0, 2**64 - 1))
def test_rule_15_a_batch_is_the_same_however_it_is_reached(
    mix: tuple[list[float], list[int]], size: int, num_batches: int, num_more: int, seed: int
) -> None:
    """Batch k holds the same slots in a run that ends there, in a longer one, and in one built anew to resume."""
    shares, num_tasks = mix

    schedules = [
        build_schedule(shares, num_tasks, num_slots=batches * size, prompts_per_batch=size, seed=seed)
        for batches in (num_batches, num_batches + num_more, num_batches)
    ]

    first, longer, again = ((s.source_index[: num_batches * size], s.position[: num_batches * size]) for s in schedules)
    assert np.array_equal(first, longer)
    assert np.array_equal(first, again)


def test_rule_15_the_seed_decides() -> None:
    """Another seed gives another run, the same seed the same."""
    runs = [build_schedule([0.5, 0.5], [50, 50], num_slots=64, prompts_per_batch=16, seed=seed) for seed in (1, 1, 2)]

    assert np.array_equal(runs[0].position, runs[1].position)
    assert not np.array_equal(runs[0].position, runs[2].position)
    assert not np.array_equal(runs[0].source_index, runs[2].source_index)
