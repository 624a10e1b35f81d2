"""From folders to answers: what makes up an arm, what may be compared, and what a reader is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multiors.errors import ComparisonError
from multiors.evaluation import compare, read_evaluation, summarize
from multiors.evaluation.comparing import read_arm
from multiors.evaluation.folder import EvaluationRun, Manifest, SourcePlan, begin_folder
from multiors.records import RolloutRecord, UnscoredReason
from multiors.redaction import Redactor
from multiors.rollout_log.lines import render, render_header
from tests.sample_comparison import make_episode

NUM_TASKS = 8

Write = Callable[..., EvaluationRun]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes an evaluation of one source, whose episodes all have one score, into a folder of the given name."""

    def do(
        name: str,
        score: float | None = 0.5,
        *,
        records: list[RolloutRecord] | None = None,
        plan: dict[str, Any] | None = None,
        **changes: Any,
    ) -> EvaluationRun:
        reason = UnscoredReason.NO_TOOL_CALL if score is None else None
        played = [make_episode("sort", task, 0, reward=score, reason=reason) for task in range(NUM_TASKS)]
        settings = {"target": "http://127.0.0.1:8001", "env_name": "sorting", "split": "test"}
        manifest = Manifest(
            policy={"kind": "scripted", "name": name, "sampling": {"temperature": 1.0}},
            sources={"sort": SourcePlan(**{**settings, "tasks": tuple(range(NUM_TASKS)), **(plan or {})})},
            **{
                "seed": 0,
                "episodes_per_task": 1,
                "limits": {"max_turns": 8},
                "begun": "2026-01-02T03:04:05+00:00",
                **changes,
            },
        )

        with begin_folder(tmp_path / name, manifest) as run:
            lines = [
                render(record, Redactor(), limit_bytes=1 << 20) for record in (played if records is None else records)
            ]
            (run.folder / "rollouts-000001-rank0.jsonl").write_bytes(b"".join([render_header(["sort"]), *lines]))
            return run

    return do


def test_an_arm_is_an_evaluation_its_path_or_a_folder_of_them(write: Write, tmp_path: Path) -> None:
    """Whichever a user has at hand; those of a folder are in the order of their names."""
    run = write("arm/seed-1")
    write("arm/seed-0")

    assert [run] == read_arm(run) == read_arm(run.folder) == read_arm(str(run.folder)) == read_arm([run])
    assert ["seed-0", "seed-1"] == [each.name for each in read_arm(tmp_path / "arm")]


def test_a_folder_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    """With what is missing, whether it is there or not."""
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ComparisonError, match=r"holds no evaluation: there is no evaluation\.json in it"):
            read_arm(path)


def test_an_evaluation_without_an_episode_is_refused(write: Write) -> None:
    """There is nothing to say about it."""
    empty = write("empty", records=[])

    with pytest.raises(ComparisonError, match=r"empty' has no episode yet\. Run `multiors evaluate`"):
        summarize(empty)


def test_an_arm_is_called_as_its_folder(write: Write) -> None:
    """Unless it is given a name."""
    before, after = write("before"), write("after")
    named, plain = compare(before, after, names=("A", "B")), compare(before.folder, after.folder)

    assert ("A", "B") == (named.reference.name, named.candidate.name)
    assert ("before", "after") == (plain.reference.name, plain.candidate.name)


def test_several_training_runs_are_compared_by_run(write: Write, tmp_path: Path) -> None:
    """They are matched by the names of their folders."""
    for seed in range(3):
        write(f"a/{seed}", 0.25 + seed / 100)
        write(f"b/{seed}", 0.5 + seed / 50)

    found = compare(tmp_path / "a", tmp_path / "b")

    assert ("run", True, 3) == (found.unit, found.is_paired, found.macro.num_pairs)
    assert pytest.approx(0.26) == found.macro.value


def test_usage_and_reasons_are_added(write: Write) -> None:
    """What scores do not say: why an episode has none, and what the episodes cost."""
    records = [make_episode("sort", task, 0, reward=None, reason=UnscoredReason.NO_TOOL_CALL) for task in range(3)]
    records += [make_episode("sort", task, 0, reward=1.0, reason=None) for task in range(3, NUM_TASKS)]
    found = summarize(write("mixed", records=records)).sources["sort"]
    usage = found.usage

    assert usage is not None
    assert {UnscoredReason.NO_TOOL_CALL: 3} == found.unscored_by_reason
    assert (NUM_TASKS, NUM_TASKS - 3) == (usage.num_turns, usage.num_tool_calls)
    assert sum(record.num_prompt_tokens or 0 for record in records) == usage.num_prompt_tokens
    assert pytest.approx(0.9 * NUM_TASKS) == usage.policy_s


def test_what_no_episode_says_is_none(write: Write) -> None:
    """A policy that counts no tokens has not read 0."""
    nothing = {"num_prompt_tokens": None, "num_sampled_tokens": None, "policy_s": None, "duration_s": None}
    records = [make_episode("sort", task, 0, reward=1.0, reason=None, **nothing) for task in range(NUM_TASKS)]
    usage = summarize(write("silent", records=records)).sources["sort"].usage

    assert usage is not None
    assert (None,) * 5 == (
        usage.num_prompt_tokens,
        usage.num_sampled_tokens,
        usage.policy_s,
        usage.median_s,
        usage.p95_s,
    )


def test_the_score_is_the_reward_or_the_outcome(write: Write) -> None:
    """An episode that only a function of the user's scored has a reward, and its environment said nothing."""
    records = [make_episode("sort", task, 0, reward=0.75, reason=None, outcome=None) for task in range(NUM_TASKS)]
    run = write("parts", records=records)
    reward, outcome = summarize(run).sources["sort"], summarize(run, value="outcome").sources["sort"]

    assert (0.75, None) == (reward.score.value, outcome.score.value)
    assert {UnscoredReason.NO_SCORE: NUM_TASKS} == outcome.unscored_by_reason
    assert "outcome" == compare(run, write("same", records=records), value="outcome").value


def test_tasks_that_changed_are_no_pairs(write: Write) -> None:
    """One index with two specifications is two tasks: they are left out, and that is said."""
    digests = {task: f"digest {task}" for task in range(NUM_TASKS)}
    before = write("before", 0.25, plan={"digests": digests})
    after = write("after", 0.5, plan={"digests": {**digests, 0: "another", 5: "another"}})
    found = compare(before, after)

    assert NUM_TASKS - 2 == found.sources["sort"].num_pairs
    assert "source 'sort': 2 tasks have one index and different specifications (first 0)" in found.remarks[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "the seeds differ (0 and 1)"),
        ({"limits": {"max_turns": 4}}, "the limits of an episode differ: max_turns 8, and max_turns 4"),
        ({"policy": {"sampling": {"temperature": 0.0}}}, "the sampling differs: temperature 1.0, and temperature 0.0"),
        ({"plan": {"split": "train"}}, "source 'sort' is 'sorting', split 'test', in one and 'sorting', split 'train'"),
        ({"episodes_per_task": 2}, "'after' is not finished: 8 of 16 episodes were played"),
    ],
)
def test_what_was_not_done_alike_is_said(write: Write, changes: dict[str, Any], said: str) -> None:
    """A difference that comes from how the two were evaluated is none of the policies'."""
    before = write("before")
    policy = changes.pop("policy", None)
    after = write("after", **changes)

    if policy is not None:
        after = EvaluationRun(after.folder, replace(after.manifest, policy={**after.manifest.policy, **policy}))

    assert said in " ".join(compare(before, after).remarks)


def test_two_that_were_done_alike_need_no_remark(write: Write) -> None:
    """Nothing is said where there is nothing to know."""
    declared = {"reward_range": (0.0, 1.0)}
    found = compare(write("before", 0.25, plan=declared), write("after", 0.5, plan=declared))

    assert () == found.remarks
    assert ("better", 0.25) == (found.macro.verdict, found.macro.value)


def test_an_episode_that_was_played_again_counts_once(write: Write) -> None:
    """Its last record does, in scores, costs and reasons alike."""
    lost = [make_episode("sort", 0, 0, reward=None, reason=UnscoredReason.SESSION_LOST)]
    rest = [make_episode("sort", task, 0, reward=1.0, reason=None) for task in range(NUM_TASKS)]
    found = summarize(write("again", records=lost + rest)).sources["sort"]

    assert (NUM_TASKS, NUM_TASKS, {}) == (found.num_episodes, found.num_scored, found.unscored_by_reason)


@pytest.mark.parametrize("value", ["reward", "outcome"])
def test_scores_that_were_made_in_two_ways_are_not_compared(write: Write, value: Any) -> None:
    """The same policy under `scale: 2` is not twice as good."""
    outcome = {"reduction": "last", "scale": 1.0, "offset": 0.0, "clip": None, "unscored": None, "unfinished": None}
    reward = {"outcome": outcome, "outcome_weight": 1.0, "parts": []}
    doubled = {**reward, "outcome": {**outcome, "scale": 2.0}}
    before, after = write("before", plan={"reward": reward}), write("after", plan={"reward": doubled})
    same = write("same", plan={"reward": {**reward, "parts": [["brevity", 0.1, False]]}})

    assert compare(before, same, value="outcome").macro.value == 0.0
    with pytest.raises(
        ComparisonError, match=r"'before' and 'after' make its scores in different ways: .*scale is 1.0 and 2.0\."
    ):
        compare(before, after, value=value)


def test_an_evaluation_is_not_compared_with_itself(write: Write, tmp_path: Path) -> None:
    """It would look like two policies that are alike, also under another name or among several runs."""
    run, other = write("run"), write("other")
    (tmp_path / "link").symlink_to(run.folder)

    for candidate in (run, str(tmp_path / "link"), [other, run]):
        with pytest.raises(ComparisonError, match="is on both sides"):
            compare(run, candidate)


def test_one_evaluation_says_what_is_missing_and_what_failed(write: Write) -> None:
    """Before its mean is believed: episodes that were not played, and those that the environment's failure cost."""
    lost = [make_episode("sort", task, 0, reward=None, reason=UnscoredReason.UNREACHABLE) for task in range(3)]
    records = [*lost, *(make_episode("sort", task, 0, reward=1.0, reason=None) for task in range(3, 6))]
    remarks = summarize(write("part", records=records)).remarks

    assert "'part' is not finished: 6 of 8 episodes were played" in remarks[0]
    assert "the environment failed in 3 episodes" in remarks[1]


def test_an_evaluation_that_grew_says_the_same_of_what_it_had(write: Write) -> None:
    """Reading a folder twice gives one answer."""
    run = write("same", 0.5)

    assert summarize(run) == summarize(read_evaluation(run.folder))
