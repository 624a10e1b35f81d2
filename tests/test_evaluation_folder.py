"""The folder of an evaluation: what counts as the same one, what counts as played, and how it is read."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ComparisonError, ConfigError
from multiors.evaluation import EvaluationRun, read_evaluation
from multiors.evaluation.folder import Manifest, SourcePlan, begin_folder, find_left, is_evaluation
from multiors.records import RolloutRecord, UnscoredReason
from multiors.rollout_log import RolloutLog
from tests.sample_records import make_record

PLAN = SourcePlan("http://127.0.0.1:1", "echo", "train", (0, 1), {0: "aa", 1: "bb"})
MANIFEST = Manifest(
    policy={"kind": "scripted", "temperature": 0.5},
    sources={"echo": PLAN, "sort": replace(PLAN, env_name="sorting", digests={}, range=(0.0, 1.0))},
    seed=3,
    episodes_per_task=2,
    limits={"max_turns": 4, "timeout_s": 60.0},
    begun="2026-01-01T00:00:00+00:00",
    versions={"multiors": "1"},
)
ALL = list(MANIFEST.list_episodes())


def change_source(manifest: Manifest = MANIFEST, name: str = "echo", **changes: Any) -> Manifest:
    """The manifest with another plan of a source."""
    return replace(manifest, sources={**manifest.sources, name: replace(manifest.sources[name], **changes)})


def make_episode(source: str, task_index: int, episode: int, **changes: Any) -> RolloutRecord:
    """A record of an episode."""
    return make_record(source=source, task_index=task_index, episode=episode, slot=None, step=0, **changes)


def write(folder: Path, records: Sequence[RolloutRecord], manifest: Manifest = MANIFEST) -> EvaluationRun:
    """Write records to a folder, in a file of their own."""
    with begin_folder(folder, manifest) as run:
        log = RolloutLog(folder)
        log.write(records)
        log.close()

    return run


def test_each_task_is_played_once_before_any_is_played_again() -> None:
    """An evaluation that is stopped has all tasks about equally often."""
    first, second = ALL[:4], ALL[4:]

    assert [("echo", 0, 0), ("echo", 1, 0), ("sort", 0, 0), ("sort", 1, 0)] == first
    assert [(source, task, 1) for source, task, _ in first] == second
    assert 8 == MANIFEST.num_episodes


def test_what_was_begun_is_read_back(tmp_path: Path) -> None:
    """A manifest survives its file, with None, tuples and whole numbers as keys."""
    with begin_folder(tmp_path / "new" / "a", MANIFEST) as run:
        pass

    assert MANIFEST == run.manifest == read_evaluation(run.folder).manifest
    assert "a" == read_evaluation(run.folder).name


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.builds(
            SourcePlan,
            target=st.text(),
            env_name=st.none() | st.text(),
            split=st.text(),
            tasks=st.lists(st.integers(0, 10**9), unique=True).map(tuple),
            digests=st.dictionaries(st.integers(0, 10**9), st.text(max_size=4)),
            weight=st.floats(0, 10),
            range=st.none() | st.tuples(st.floats(-9, 0), st.floats(0, 9)),
        ),
        max_size=3,
    ),
    st.integers(0, 2**80),
)
def test_any_manifest_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, sources: dict[str, SourcePlan], seed: int
) -> None:
    """Whatever names, texts and numbers it has."""
    manifest = replace(MANIFEST, sources=sources, seed=seed)

    with begin_folder(tmp_path_factory.mktemp("a"), manifest) as run:
        pass

    assert manifest == read_evaluation(run.folder).manifest


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(MANIFEST, policy={"kind": "other"}), "policy was .*0.5.*, and is .*other"),
        (replace(MANIFEST, seed=4), "seed was 3, and is 4"),
        (replace(MANIFEST, limits={"max_turns": 5}), "limits was .*4.*, and is .*5"),
        (replace(MANIFEST, episodes_per_task=1), "episodes_per_task was 2, and is only 1"),
        (replace(MANIFEST, sources={"echo": PLAN}), "source 'sort' was in it"),
        (replace(MANIFEST, sources={**MANIFEST.sources, "new": PLAN}), "source 'new' was not in it"),
        (change_source(split="test"), 'source \'echo\' had split "train", and has "test"'),
        (change_source(target="x", weight=2.0), "source 'echo' had target .*, and has \"x\"; weight .*, and has 2.0"),
        (change_source(tasks=(0,)), "source 'echo' had 2 tasks, of which 1 are not among the 1 asked for"),
        (change_source(tasks=(0, 2, 3)), "source 'echo' had 2 tasks, of which 1 are not among the 3 asked for"),
        (change_source(digests={0: "aa", 1: "cc"}), "source 'echo' had another specification of task 1"),
        (change_source(digests={}), "source 'echo' had another specification of task 0"),
    ],
)
def test_another_evaluation_is_refused_with_what_is_other(tmp_path: Path, changed: Manifest, words: str) -> None:
    """One folder holds one evaluation; the remedy is said, and nothing is changed."""
    write(tmp_path, [make_episode(*ALL[0])])

    with pytest.raises(ConfigError, match=f"{words}.*same settings, or with more .*another folder"):  # noqa: SIM117
        with begin_folder(tmp_path, changed):
            pass

    assert MANIFEST == read_evaluation(tmp_path).manifest


def test_another_day_or_version_is_no_other_evaluation(tmp_path: Path) -> None:
    """What began an evaluation is kept when it goes on."""
    write(tmp_path, [])

    with begin_folder(tmp_path, replace(MANIFEST, begun="later", versions={"multiors": "2"})) as run:
        pass

    assert MANIFEST == run.manifest == read_evaluation(tmp_path).manifest


def test_an_evaluation_goes_on_with_more_tasks_and_episodes(tmp_path: Path) -> None:
    """What was played counts, what is new is left to play, and the folder is from then on that of the larger one."""
    write(tmp_path, [make_episode(*key) for key in ALL])
    larger = replace(change_source(tasks=(2, 1, 0), digests={0: "aa", 1: "bb", 2: "cc"}), episodes_per_task=3)

    with begin_folder(tmp_path, larger) as run:
        left = find_left(run, also_failed=False)

    assert larger == run.manifest == read_evaluation(tmp_path).manifest
    assert set(left) == set(larger.list_episodes()) - set(ALL)
    with pytest.raises(ConfigError, match="episodes_per_task was 3, and is only 2"), begin_folder(tmp_path, MANIFEST):
        pass


def test_a_manifest_that_was_not_written_to_its_end_is_written_anew(tmp_path: Path) -> None:
    """A process that is killed while it begins leaves a folder that can be used."""
    (tmp_path / "evaluation.json.part").write_text('{"format": "multi', encoding="utf-8")

    write(tmp_path, [])

    assert MANIFEST == read_evaluation(tmp_path).manifest
    assert [".lock", "evaluation.json"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    """Nothing is written beside what is no evaluation."""
    (tmp_path / "thesis.tex").write_text("", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"is no evaluation \('thesis.tex'\)"), begin_folder(tmp_path, MANIFEST):
        pass

    assert not is_evaluation(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file in the place of the folder is named."""
    (tmp_path / "file").write_text("", encoding="utf-8")

    with pytest.raises(ConfigError, match="cannot be written"), begin_folder(tmp_path / "file", MANIFEST):
        pass


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    """Whoever comes second is refused while the first is at work, and no longer."""
    refused = []

    def come_second() -> None:
        try:
            with begin_folder(tmp_path, MANIFEST):
                pass
        except ConfigError as error:
            refused.append(str(error))

    with begin_folder(tmp_path, MANIFEST):
        second = threading.Thread(target=come_second)
        second.start()
        second.join()

    come_second()

    assert ["in use by another evaluation"] == [text[text.index("in use") :].partition(".")[0] for text in refused]


def test_what_is_missing_is_left_to_play(tmp_path: Path) -> None:
    """In the order in which it would have been begun; records of other episodes change nothing."""
    strangers = [make_episode("other", 0, 0), make_episode("echo", 9, 0), make_episode("echo", 0, 7), make_record()]
    run = write(tmp_path, [*(make_episode(*key) for key in (ALL[5], ALL[0])), *strangers])

    assert [key for key in ALL if key not in (ALL[0], ALL[5])] == find_left(run, also_failed=False)
    assert [ALL[5], ALL[0]] == [(r.source, r.task_index, r.episode) for r in run.episodes()]


def test_failures_of_the_environment_are_played_again_on_request(tmp_path: Path) -> None:
    """An unscored episode is played; whether one counts in which the environment failed is the user's choice."""
    reasons = [UnscoredReason.NO_SCORE, UnscoredReason.SESSION_LOST, UnscoredReason.TOOL_ERROR, None]
    run = write(
        tmp_path,
        [
            make_episode(*key, reward=None if reason else 1.0, reason=reason)
            for key, reason in zip(ALL[:4], reasons, strict=True)
        ],
    )

    assert ALL[4:] == find_left(run, also_failed=False)
    assert [*ALL[1:3], *ALL[4:]] == find_left(run, also_failed=True)


def test_of_an_episode_that_was_played_again_the_last_record_counts(tmp_path: Path) -> None:
    """Also over several files; nothing is counted twice."""
    write(tmp_path, [make_episode(*ALL[0], reward=None, reason=UnscoredReason.UNREACHABLE), make_episode(*ALL[1])])
    run = write(tmp_path, [make_episode(*ALL[0], reward=0.5), make_episode(*ALL[2], reward=None)])

    assert [(1, 1.1), (0, 0.5), (0, None)] == [(r.task_index, r.reward) for r in run.episodes()]
    assert {"echo": {0: {0: 0.5}, 1: {0: 1.1}}, "sort": {0: {0: None}}} == {
        name: each.scores_TE for name, each in run.scores().sources.items()
    }


def test_a_line_that_was_cut_off_is_no_episode(tmp_path: Path) -> None:
    """What a killed process was writing is left out, and its episode is left to play."""
    run = write(tmp_path, [make_episode(*key) for key in ALL[:3]])
    path = tmp_path / "rollouts-000001-rank0.jsonl"
    path.write_bytes(path.read_bytes()[:-10])

    with pytest.warns(UserWarning, match="line 4, the last, is cut off"):
        left = find_left(run, also_failed=False)

    assert ALL[2:] == left


def test_scores_keep_what_is_unscored(tmp_path: Path) -> None:
    """None stays None; which number of an episode is its score can be said, and the ranges go with it."""
    run = write(
        tmp_path, [make_episode(*ALL[0], reward=None, outcome=0.25, reason=None), make_episode(*ALL[2], outcome=None)]
    )
    reward, outcome = run.scores(), run.scores("outcome")

    assert [{0: {0: None}}, {0: {0: 1.1}}] == [dict(each.scores_TE) for each in reward.sources.values()]
    assert [{0: {0: 0.25}}, {0: {0: None}}] == [dict(each.scores_TE) for each in outcome.sources.values()]
    assert [None, (0.0, 1.0)] == [each.range for each in outcome.sources.values()]
    assert [None, None] == [each.range for each in reward.sources.values()]


HOSTILE: dict[str, Any] = {
    "parts": {"reward": None, "__class__": 1.0},
    "error": "\ud800 \x1b[31m",
    "messages": ({"role": "assistant", "content": None, "reward": 7, "\ud800": ["\ud800"]},),
    "prompt": ({"role": "user", "content": [{"type": "text", "text": "a"}], "episode": -1},),
}


def test_a_table_has_one_row_per_episode(tmp_path: Path) -> None:
    """Numbers stay exact, an undefined one is missing and no NaN, and a mean leaves it out."""
    seed = 2**63 - 1
    records = [
        make_episode(*ALL[0], seed=seed, reward=1.0, **HOSTILE),
        make_episode(*ALL[1], seed=seed - 1, reward=None, reason=UnscoredReason.NO_SCORE, num_tokens=None),
    ]
    table = write(tmp_path, records).to_pandas()

    assert [seed, seed - 1] == table["seed"].tolist()
    assert [False, True] == table["reward"].isna().tolist()
    assert 1.0 == table["reward"].mean()
    assert [None, "no_score"] == table["reason"].tolist()
    assert [None] * 2 == table["slot"].astype(object).where(table["slot"].notna(), None).tolist()
    assert {"reward": None, "__class__": 1.0} == table["parts"][0]


def test_a_data_set_has_the_same_columns_whatever_was_sent(tmp_path: Path) -> None:
    """Nothing that a server or a policy sends is a column, and None stays None."""
    hostile = write(tmp_path / "a", [make_episode(*ALL[0], **HOSTILE)]).to_dataset()
    empty = write(tmp_path / "b", []).to_dataset()
    (row,) = hostile.to_list()

    assert empty.features == hostile.features
    assert set(make_record().to_json()) == set(row)
    assert {"reward": None, "__class__": 1.0} == json.loads(row["parts"])
    assert list(HOSTILE["messages"]) == json.loads(row["messages"])
    assert [None, None, 1.1] == [row["slot"], row["policy_s"], row["reward"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no manifest of an evaluation"),
        ("[]", "is no manifest of an evaluation"),
        ('{"format": "multiors evaluation", "version": 1}', "is no manifest of an evaluation: KeyError"),
        ('{"format": "multiors evaluation", "version": 2}', "reads 'multiors evaluation' 1"),
        ('{"format": "other", "version": 1}', "in format 'other'"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, text: str, words: str) -> None:
    """Neither a broken file nor one of another format is taken for an evaluation."""
    (tmp_path / "evaluation.json").write_text(text, encoding="utf-8")

    with pytest.raises(ComparisonError, match=words):
        read_evaluation(tmp_path)


def test_a_folder_without_an_evaluation_is_named(tmp_path: Path) -> None:
    """The remedy says which folder is meant."""
    with pytest.raises(ComparisonError, match=r"holds no evaluation.*evaluate --output"):
        read_evaluation(tmp_path)
