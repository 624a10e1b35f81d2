"""The generators of reasoning-gym as lists of tasks: which tasks there are, how each is made, what an answer earns.

A task is a split, an index and a level; its question is made when it is asked for. Task `i` of a split has a seed that
no other task has, of either split and of any `seed`, so the same options give the same tasks in every process. For a
few generators that needs `PYTHONHASHSEED` too, which the command sets. Knows nothing of servers.
"""

from __future__ import annotations

import difflib
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from multiors.errors import ConfigError
from multiors.serving.answers import scoring
from multiors.serving.plan import MAX_NUM_TASKS

__all__ = ["SPLITS", "Generator", "open_generator"]

SPLITS = ("train", "test")

_KEPT_ENTRIES = 1024
_MAX_ANSWER = 50_000
"""Characters; the longest right answers, 1,000 numbers in order, have 9,000."""

_LEVEL_TIMEOUT_S = 60.0

_Entry = Mapping[str, Any]
"""What reasoning-gym makes: a question, an answer (None where many are right) and metadata."""


class Generator:
    """One dataset of reasoning-gym. To be used by one thread at a time: datasets keep state, and promise nothing.

    Args:
        name: Its name there.
        levels: The levels of its curriculum that are served, from the easiest. Tasks take turns on them.
        num_tasks: Of each split.
        seed: Decides the tasks.
    """

    def __init__(self, name: str, levels: Sequence[int], *, num_tasks: int, seed: int) -> None:
        self.name = name
        self.levels = tuple(levels)
        self.num_tasks = num_tasks
        self._seed = seed
        self._datasets: dict[tuple[str, int], Any] = {}
        self._kept = lru_cache(maxsize=_KEPT_ENTRIES)(self._make)

    def make_spec(self, split: str, index: int) -> dict[str, Any]:
        """What a client is told of a task. It holds neither question nor answer."""
        level = self.levels[index % len(self.levels)]
        return {"dataset": self.name, "split": split, "index": index, "level": level, "seed": self._seed}

    def list_specs(self, split: str) -> list[dict[str, Any]]:
        """Of every task of a split."""
        return [self.make_spec(split, index) for index in range(self.num_tasks)]

    def check_spec(self, spec: Any) -> None:
        """Any thread may ask whether a specification is one of `list_specs`.

        Raises:
            ValueError: It is not.
        """
        known = isinstance(spec, Mapping) and spec.get("split") in SPLITS and type(spec.get("index")) is int
        if not known or not 0 <= spec["index"] < self.num_tasks:
            raise ValueError(f"{self.name} has no such task")
        if dict(spec) != self.make_spec(spec["split"], spec["index"]):
            raise ValueError(f"{self.name} has no such task; was the server started with other options?")

    def make_entry(self, spec: Any) -> _Entry:
        """The question of a task.

        Raises:
            ValueError: The specification is not one of `list_specs`.
        """
        self.check_spec(spec)
        return self._kept(spec["split"], spec["index"])

    def score(self, entry: _Entry, answer: str | None) -> float | None:
        """What an answer earns, from 0 to 1. None: nobody can say.

        An answer that the scorer cannot read is wrong, if the scorer reads the right one.
        """
        if answer is not None and len(answer) > _MAX_ANSWER:
            return 0.0
        dataset = self._open(entry["metadata"]["split"], entry["metadata"]["level"])
        try:
            return _check_score(_score(dataset, entry, answer))
        except Exception:  # noqa: BLE001  # scorers raise whatever they come across in text
            return 0.0 if self._reads_its_own(dataset, entry) else None

    def check_level(self, level: int) -> None:
        """Make a task of a level and score its right answer, with and without running code.

        Raises:
            ConfigError: Only by running answers as code can they be scored.
            Exception: Whatever the generator raises.
        """
        entry = self._kept("train", self.levels.index(level))
        if entry["answer"] is None:
            return
        dataset = self._open("train", level)
        free = dataset.score_answer(entry["answer"], entry)  # also loads what scorers import when they are called
        if _score(dataset, entry, entry["answer"]) < free:
            raise ConfigError(
                f"--dataset {self.name!r} cannot be served: reasoning-gym runs its answers as Python code, so whoever "
                f"answers could do anything on this machine. Choose another dataset."
            )

    def _make(self, split: str, index: int) -> _Entry:
        level = self.levels[index % len(self.levels)]
        entry: _Entry = self._open(split, level)[index]
        return {**entry, "metadata": {**entry["metadata"], "split": split, "level": level}}

    def _open(self, split: str, level: int) -> Any:
        if (split, level) not in self._datasets:
            first = (2 * self._seed + SPLITS.index(split)) * MAX_NUM_TASKS
            self._datasets[split, level] = _make_dataset(self.name, level, seed=first, size=self.num_tasks)
        return self._datasets[split, level]

    def _reads_its_own(self, dataset: Any, entry: _Entry) -> bool:
        if entry["answer"] is None:
            return False
        try:
            return bool(_score(dataset, entry, entry["answer"]) == 1)
        except Exception:  # noqa: BLE001  # as above
            return False


def open_generator(name: str, *, num_tasks: int, seed: int, num_levels: int | None) -> Generator:
    """A generator with the levels that it can make. One that it cannot is left out with a warning.

    Raises:
        ConfigError: There is no such dataset, none of its levels works, one takes too long, or its scorer runs answers.
    """
    all_levels = _count_levels(name)
    tried = range(all_levels if num_levels is None else min(num_levels, all_levels))
    working = []
    failures = {}
    for level in tried:
        generator = Generator(name, [level], num_tasks=num_tasks, seed=seed)
        try:
            with _time_limit(name, level, timeout_s=_LEVEL_TIMEOUT_S):
                generator.check_level(level)
            working.append(level)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  # generators refuse their own settings by all kinds of errors
            failures[level] = f"{type(error).__name__}: {error}"
    if not working:
        raise ConfigError(
            f"--dataset {name!r} cannot be served: reasoning-gym makes no task of it ({failures[0]}). Choose another "
            f"dataset."
        )
    for level, failure in failures.items():
        warnings.warn(f"{name}: level {level} is left out, reasoning-gym makes no task of it ({failure})", stacklevel=2)
    return Generator(name, working, num_tasks=num_tasks, seed=seed)


def _count_levels(name: str) -> int:
    try:
        from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum
    except ImportError as error:
        raise ConfigError(
            f"reasoning-gym cannot be imported: {error}. Install it: pip install 'multiors[reasoning-gym]'."
        ) from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=5)
        remedy = f"Near it are {near}." if near else f"There are {sorted(DATASETS)}."
        raise ConfigError(f"--dataset {name!r}: reasoning-gym has no such dataset. {remedy}")
    if name not in CURRICULA:
        return 1
    return max((len(attribute.levels) for attribute in create_curriculum(name).attributes.values()), default=1)


def _make_dataset(name: str, level: int, *, seed: int, size: int) -> Any:
    from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum

    dataset_class, config_class = DATASETS[name]
    if name in CURRICULA:
        curriculum: Any = create_curriculum(name)
        curriculum.set_global_level(level)
        config = curriculum.generate_configuration({"seed": seed, "size": size})
    else:
        config = config_class(seed=seed, size=size)
    return dataset_class(config=config)


def _score(dataset: Any, entry: _Entry, answer: str | None) -> float:
    with warnings.catch_warnings(), scoring(answer):
        warnings.simplefilter("ignore")
        return float(dataset.score_answer(answer, entry))


def _check_score(score: float) -> float | None:
    return score if 0 <= score <= 1 else None


class _TookTooLong(BaseException):
    """Not an `Exception`, which generators catch to try again."""


@contextmanager
def _time_limit(name: str, level: int, *, timeout_s: float) -> Iterator[None]:
    """End what the main thread does in there when the time is up.

    What takes too long is an error and not left out: which tasks there are must not depend on how fast a machine is.
    """

    def stop(*_: Any) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, timeout_s, timeout_s)  # again and again: it may be caught in there
    try:
        yield
    except _TookTooLong:
        remedy = f"Serve fewer levels: --levels {level}." if level else "Choose another dataset."
        raise ConfigError(
            f"--dataset {name!r}: reasoning-gym makes no task of level {level} in {timeout_s:g} s. {remedy}"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
