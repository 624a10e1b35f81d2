"""The folder of an evaluation: what was to be played, and every episode that was.

Decides what makes two runs the same evaluation, so that one can go on where another was stopped, and which record of an
episode counts: the last one that was written whole. Episodes are lines of a rollout log, so everything that reads one
reads this. One process writes at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_type_hints

from multiors.errors import ComparisonError, ConfigError
from multiors.evaluation.statistics.scores import RunScores, SourceScores
from multiors.records import RolloutRecord, UnscoredReason
from multiors.rollout_log import find_files, read_rollouts

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

__all__ = [
    "EpisodeBrief",
    "EpisodeKey",
    "EvaluationRun",
    "Manifest",
    "SourcePlan",
    "begin_folder",
    "find_left",
    "is_evaluation",
    "read_evaluation",
]

FORMAT = "multiors evaluation"
FORMAT_VERSION = 1

EpisodeKey = tuple[str, int, int]
"""Source, task index, and which of the task's episodes: what an episode is counted and paired by."""

_MANIFEST = "evaluation.json"
_UNFINISHED = f"{_MANIFEST}.part"
_LOCK = ".lock"

_LOOSE = ("parts", "steps", "messages", "prompt")
"""What has no fixed form in a record."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """Which episodes of a source are played."""

    target: str
    """As the user wrote it, without credentials."""

    env_name: str | None
    split: str
    tasks: tuple[int, ...]
    """Task indices, in the order in which they are played."""

    digests: Mapping[int, str] = field(default_factory=dict)
    """Of the tasks' specifications, by index: tells whether two evaluations played the same. Empty: not fetched."""

    weight: float = 1.0
    """In the macro average, relative to the other sources."""

    range: tuple[float, float] | None = None
    """Lowest and highest outcome there is. None: not declared."""

    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward there is. None: not known, as where the user's functions have a part in it."""

    reward: Mapping[str, Any] = field(default_factory=dict)
    """How step rewards become outcome and reward: scores that were made otherwise are no pairs. Empty: not known."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an evaluation is of."""

    policy: Mapping[str, Any]
    """What the policy says of itself: kind, name, sampling. No key or secret."""

    sources: Mapping[str, SourcePlan]
    """In the order of the mix."""

    seed: int
    episodes_per_task: int
    limits: Mapping[str, Any]
    """How long an episode may be: turns, tokens, seconds."""

    begun: str
    """Date and time, ISO 8601."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that took part."""

    @property
    def num_episodes(self) -> int:
        """All that are to be played."""
        return self.episodes_per_task * sum(len(plan.tasks) for plan in self.sources.values())

    def list_episodes(self) -> Iterator[EpisodeKey]:
        """All episodes, in the order in which they are begun: each task once before any is played again."""
        for episode in range(self.episodes_per_task):
            for source, plan in self.sources.items():
                for task_index in plan.tasks:
                    yield source, task_index, episode

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"format": FORMAT, "version": FORMAT_VERSION, **values}


class EpisodeBrief(NamedTuple):
    """The numbers of an episode, without what was said in it."""

    reward: float | None
    outcome: float | None
    reason: UnscoredReason | None
    num_turns: int
    num_tool_calls: int
    num_prompt_tokens: int | None
    num_sampled_tokens: int | None
    policy_s: float | None
    duration_s: float | None

    @classmethod
    def of(cls, record: RolloutRecord) -> EpisodeBrief:
        return cls(
            record.reward,
            record.outcome,
            record.reason,
            num_turns=sum(message.get("role") == "assistant" for message in record.messages),
            num_tool_calls=len(record.steps),
            num_prompt_tokens=record.num_prompt_tokens,
            num_sampled_tokens=record.num_sampled_tokens,
            policy_s=record.policy_s,
            duration_s=record.duration_s,
        )


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """An evaluation that was begun, read from its folder; `episodes` reads the records anew each time."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.absolute().name

    def episodes(self) -> Iterator[RolloutRecord]:
        """The record of each episode that was played, in the order of the files; of one played again, the last."""
        expected = set(self.manifest.list_episodes())
        last: dict[EpisodeKey, int] = {}

        for position, record in enumerate(self._read()):
            if (key := _key_of(record)) in expected:
                last[key] = position

        counted = set(last.values())
        yield from (record for position, record in enumerate(self._read()) if position in counted)

    def read_briefs(self) -> dict[EpisodeKey, EpisodeBrief]:
        """The numbers of each episode that was played; the records are read once, and none is kept."""
        expected = set(self.manifest.list_episodes())
        return {key: EpisodeBrief.of(record) for record in self._read() if (key := _key_of(record)) in expected}

    def scores(
        self,
        value: Literal["reward", "outcome"] = "reward",
        *,
        briefs: Mapping[EpisodeKey, EpisodeBrief] | None = None,
    ) -> RunScores:
        """The score of every episode, for statistics.

        Args:
            value: Which number is the score: the reward that the user composed, or what the environment alone said.
            briefs: Of `read_briefs`. None: they are read.
        """
        found: dict[str, dict[int, dict[int, float | None]]] = {
            name: {task: {} for task in plan.tasks} for name, plan in self.manifest.sources.items()
        }

        for (source, task_index, episode), brief in (self.read_briefs() if briefs is None else briefs).items():
            found[source][task_index][episode] = getattr(brief, value)

        plans = self.manifest.sources
        ranges = {name: plan.reward_range if value == "reward" else plan.range for name, plan in plans.items()}
        return RunScores(
            name=self.name,
            sources={
                name: SourceScores({task: episodes for task, episodes in by_task.items() if episodes}, ranges[name])
                for name, by_task in found.items()
            },
            weights={name: plan.weight for name, plan in plans.items()},
        )

    def to_pandas(self) -> DataFrame:
        """One row per episode; `steps`, `messages` and `prompt` are tuples. A number that is None is pandas' NA, which
        no mean takes for a number; any other None stays one.
        """
        from pandas import DataFrame, Series

        rows = [record.to_json() for record in self.episodes()]
        dtypes: dict[type, str] = {bool: "bool", int: "Int64", float: "Float64"}
        return DataFrame(
            {
                name: Series([row[name] for row in rows], dtype=dtypes.get(kind, "object"))
                for name, kind in _find_kinds().items()
            }
        )

    def to_dataset(self) -> Dataset:
        """One row per episode, with the same columns for every evaluation. What has no fixed form (`parts`, `steps`,
        `messages`, `prompt`) is JSON text, so that nothing a server or policy sends can become a column.
        """
        from datasets import Dataset, Features, Value

        rows = [record.to_json() for record in self.episodes()]
        dtypes: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}
        kinds = _find_kinds()
        return Dataset.from_dict(
            {name: [_flatten(name, row[name]) for row in rows] for name in kinds},
            features=Features({name: Value(dtypes.get(kind, "string")) for name, kind in kinds.items()}),
        )

    def _read(self) -> Iterator[RolloutRecord]:
        return read_rollouts(self.folder) if find_files(self.folder) else iter(())


def is_evaluation(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an evaluation."""
    return (Path(path) / _MANIFEST).is_file()


def read_evaluation(path: str | os.PathLike[str]) -> EvaluationRun:
    """The evaluation in a folder, finished or not.

    Raises:
        ComparisonError: There is none, or it is of another format.
    """
    folder = Path(path)

    if not is_evaluation(folder):
        raise ComparisonError(
            f"{str(folder)!r} holds no evaluation: there is no {_MANIFEST} in it. Pass the folder that `multiors "
            f"evaluate --output` wrote."
        )

    return EvaluationRun(folder, _read_manifest(folder / _MANIFEST))


@contextmanager
def begin_folder(path: str | os.PathLike[str], manifest: Manifest) -> Iterator[EvaluationRun]:
    """Begin an evaluation in a folder, or go on with the one that is there; nobody else can meanwhile.

    One that is there may get more tasks and more episodes of each, but neither fewer nor others.

    Raises:
        ConfigError: The folder holds another evaluation or something else, is in use, or cannot be written.
    """
    folder = Path(path)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"the folder {str(folder)!r} cannot be written: {error.strerror}. Choose another.") from error

    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"the folder {str(folder)!r} is in use by another evaluation. Wait for its end, or choose another."
            ) from error

        yield _begin(folder, manifest)


def _begin(folder: Path, manifest: Manifest) -> EvaluationRun:
    if is_evaluation(folder):
        found = read_evaluation(folder)
        different = _find_differences(found.manifest, manifest)

        if different:
            raise ConfigError(
                f"the folder {str(folder)!r} holds an evaluation with other settings: {'; '.join(different)}. Go on "
                f"with the same settings, or with more tasks or episodes, or choose another folder."
            )

        now = replace(found.manifest, sources=manifest.sources, episodes_per_task=manifest.episodes_per_task)

        if now != found.manifest:
            _write_manifest(folder, now)

        return EvaluationRun(folder, now)

    strangers = sorted(each.name for each in folder.iterdir() if each.name not in (_LOCK, _UNFINISHED))

    if strangers:
        raise ConfigError(
            f"the folder {str(folder)!r} holds something that is no evaluation ({strangers[0]!r}), and nothing is "
            f"overwritten. Choose another."
        )

    _write_manifest(folder, manifest)
    return EvaluationRun(folder, manifest)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    """Whole or not at all: a manifest that was cut off would make the folder unusable."""
    unfinished = folder / _UNFINISHED
    unfinished.write_text(json.dumps(manifest.to_json(), indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / _MANIFEST)


def _find_differences(found: Manifest, asked: Manifest) -> list[str]:
    """Why one evaluation cannot go on as another, one text each; when and with which versions it began is no reason."""
    before, now = found.to_json(), asked.to_json()
    different = [
        f"{name} was {_show(old)}, and is {_show(new)}"
        for key in ("policy", "seed", "limits")
        for name, old, new in _compare_values(key, before[key], now[key])
    ]

    if asked.episodes_per_task < found.episodes_per_task:
        different.append(f"episodes_per_task was {found.episodes_per_task}, and is only {asked.episodes_per_task}")

    for name in dict.fromkeys([*found.sources, *asked.sources]):
        old, new = found.sources.get(name), asked.sources.get(name)

        if old is None or new is None:
            different.append(f"source {name!r} was {'not ' if old is None else ''}in it")
        else:
            different += [f"source {name!r} {text}" for text in _compare_plans(old, new)]

    return different


def _compare_values(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """What differs of two values: name, before and now; of mappings that have the same keys, only those that differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and set(old) == set(new):
        for key in old:
            yield from _compare_values(f"{name}.{key}", old[key], new[key])
    elif old != new:
        yield name, old, new


def _compare_plans(old: SourcePlan, new: SourcePlan) -> Iterator[str]:
    others = ("target", "env_name", "split", "weight", "range", "reward_range")
    changed = [
        f"{key} {_show(before)}, and has {_show(now)}"
        for key in others
        if (before := getattr(old, key)) != (now := getattr(new, key))
    ]
    missing = set(old.tasks) - set(new.tasks)
    renewed = [index for index in old.tasks if old.digests.get(index) != new.digests.get(index)]

    if changed:
        yield f"had {'; '.join(changed)}"
    if missing:
        yield f"had {len(old.tasks)} tasks, of which {len(missing)} are not among the {len(new.tasks)} asked for"
    elif renewed:
        yield f"had another specification of task {renewed[0]}"


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _read_manifest(path: Path) -> Manifest:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))

        if values["format"] != FORMAT or values["version"] != FORMAT_VERSION:
            raise ComparisonError(
                f"{str(path)!r} is in format {values['format']!r} {values['version']!r}, and this version of multiors "
                f"reads {FORMAT!r} {FORMAT_VERSION}."
            )

        known = {each.name: values[each.name] for each in fields(Manifest)}
        sources = {name: _read_plan(plan) for name, plan in known.pop("sources").items()}
        return Manifest(sources=sources, **known)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ComparisonError):
            raise

        raise ComparisonError(
            f"{str(path)!r} is no manifest of an evaluation: {type(error).__name__}: {error}."
        ) from error


def _read_plan(values: Mapping[str, Any]) -> SourcePlan:
    ranges = {name: None if values[name] is None else tuple(values[name]) for name in ("range", "reward_range")}
    digests = {int(index): digest for index, digest in values["digests"].items()}
    known = {each.name: values[each.name] for each in fields(SourcePlan) if each.name in values}
    return SourcePlan(**{**known, **ranges, "tasks": tuple(values["tasks"]), "digests": digests})


def _find_kinds() -> dict[str, type]:
    """By field of a record, what it is besides None: a number, a truth value, or else text."""
    hints = get_type_hints(RolloutRecord)
    return {
        each.name: next(
            (kind for kind in (bool, int, float) if kind in (hints[each.name], *get_args(hints[each.name]))), str
        )
        for each in fields(RolloutRecord)
    }


def _flatten(name: str, value: Any) -> Any:
    """What stands for a field's value in a table whose columns have fixed types; Arrow takes no half of a surrogate."""
    if name in _LOOSE:
        return json.dumps(value)

    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _key_of(record: RolloutRecord) -> EpisodeKey:
    index, episode = record.task_index, record.episode
    return record.source, -1 if index is None else index, -1 if episode is None else episode


def find_left(run: EvaluationRun, *, also_failed: bool) -> list[EpisodeKey]:
    """The episodes that are not played yet, in the order in which they are begun.

    Args:
        run: What was begun.
        also_failed: Whether those count as not played in which the environment failed.
    """
    done: set[EpisodeKey] = set()

    for record in run.episodes():
        failed = record.reason is not None and record.reason.is_infrastructure

        if not (failed and also_failed):
            done.add(_key_of(record))

    return [key for key in run.manifest.list_episodes() if key not in done]
