"""What a curriculum is: three pure methods that turn what was observed into the share of each source.

A curriculum's object holds its settings only. What it has learned is one JSON-ready value per source, which lies in the
checkpoint; so a run that is resumed with other sources keeps what belongs to those that are still there, and two
processes that were told the same decide the same. Curricula can stand one behind the other: each gets the shares of the
one before as its reference. This module knows no particular one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from multiors.errors import ConfigError, MultiORSError
from multiors.mixing.curricula.observing import RewardRange, SourceObservation
from multiors.mixing.settings import is_number

__all__ = ["Chain", "Curriculum", "MixSource", "States", "begin", "chain", "describe_changes", "measure", "naming"]

States = Mapping[str, Any]
"""One JSON-ready value per source, by name: numbers, texts, None, truth values, and lists and dicts of these."""


@dataclass(frozen=True, slots=True)
class MixSource:
    """What a curriculum may know of a source before anything was observed."""

    name: str
    num_tasks: int

    reward_range: RewardRange | None = None
    """The lowest and the highest reward of a rollout, as declared. None: not declared."""


class Curriculum(ABC):
    """Decides what share of the slots each source gets.

    Nothing but the arguments may decide: no clock, no random numbers, no memory in the object.
    """

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return type(self).__name__

    @property
    def reacts(self) -> bool:
        """Whether shares depend on what is observed. False: they are known before the run, and laid out then."""
        return True

    @property
    def follows_reference(self) -> bool:
        """Whether shares depend on those it is given. False: it only leaves out what is left out of these."""
        return True

    @abstractmethod
    def begin(self, sources: Sequence[MixSource]) -> States:
        """The state of each source before anything was observed.

        Raises:
            ConfigError: The settings do not fit these sources.
        """

    @abstractmethod
    def update(self, states: States, seen: Mapping[str, SourceObservation]) -> States:
        """The states after one more batch. Called once for every batch, in order.

        Args:
            states: Those before, which are left as they are.
            seen: The sources that the batch held. One that is missing was not drawn: nothing was learned of it.
        """

    @abstractmethod
    def shares(
        self, states: States, reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> Mapping[str, float]:
        """Each source's share of a batch.

        Args:
            states: What is known.
            reference: The shares as they would be without this curriculum; they sum to 1. 0: the source is left out
                of this batch, and gets 0 here, too.
            batch: Number of the batch.
            num_batches: Batches in the run. None: not known.

        Returns:
            Shares that sum to 1.
        """

    def can_continue(self, settings: Any) -> bool:
        """Whether states that were learned with other settings mean something with these, on resume.

        Args:
            settings: Those before, as JSON-ready values.
        """
        return True

    def measure(self, states: States) -> dict[str, dict[str, float]]:
        """Numbers to be logged, by source and metric."""
        return {}

    def describe_changes(self, before: States, after: States) -> list[str]:
        """Sentences on what an update changed that a person should hear of."""
        return []


# A curriculum is often a user's: what it raises and answers is never nameless.


@contextmanager
def naming(curriculum: Curriculum, where: str = "") -> Iterator[None]:
    """Note on an exception which curriculum has raised it, and where."""
    try:
        yield
    except Exception as error:
        error.add_note(f"curriculum {curriculum.name}{where}")
        raise


def begin(curriculum: Curriculum, sources: Sequence[MixSource]) -> States:
    """The states before anything was observed.

    Raises:
        ConfigError: The curriculum does not fit the sources, or has raised something.
    """
    try:
        return curriculum.begin(sources)
    except MultiORSError:
        raise
    except Exception as error:  # a user's class may raise anything, and is begun before training, to check it
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"curriculum {curriculum.name}: begin() raised {what}. Mend it.") from error


def measure(curriculum: Curriculum, states: States) -> dict[str, dict[str, float]]:
    """What a curriculum measures, by source and metric.

    Raises:
        ConfigError: It has measured something else than numbers.
    """
    with naming(curriculum, ", measure()"):
        found: object = curriculum.measure(states)
    if not isinstance(found, Mapping) or not all(map(_are_numbers, found.values())):
        raise ConfigError(
            f"curriculum {curriculum.name}: measure() gave {found!r}. Return numbers by source and metric, "
            f"{{'sort': {{'seen': 1.0}}}} for example, and leave out what is not known."
        )
    return {name: dict(values) for name, values in found.items()}


def _are_numbers(metrics: object) -> bool:
    return isinstance(metrics, Mapping) and all(isinstance(each, bool) or is_number(each) for each in metrics.values())


def describe_changes(curriculum: Curriculum, before: States, after: States) -> list[str]:
    """The sentences of a curriculum on what an update changed.

    Raises:
        ConfigError: It has said something else.
    """
    with naming(curriculum, ", describe_changes()"):
        found: object = curriculum.describe_changes(before, after)
    if not isinstance(found, list | tuple) or not all(isinstance(sentence, str) for sentence in found):
        raise ConfigError(
            f"curriculum {curriculum.name}: describe_changes() gave {found!r}. Return a list of sentences, [] where "
            f"there is nothing to say."
        )
    return list(found)


@dataclass(frozen=True)
class Chain(Curriculum):
    """Curricula one behind the other, each with the shares of the one before as its reference.

    Raises:
        ConfigError: What one of them decides would be lost in the next.
    """

    parts: tuple[Curriculum, ...]

    def __post_init__(self) -> None:
        for before, part in pairwise(self.parts):
            if not part.follows_reference:
                raise ConfigError(
                    f"curriculum=[{', '.join(each.name for each in self.parts)}]: {part.name} takes of the shares "
                    f"before it only which sources are left out, so what {before.name} decides would be lost. Let "
                    f"{part.name} stand first, and only once."
                )

    @property
    def name(self) -> str:
        """The names of all parts, in order."""
        return " + ".join(part.name for part in self.parts)

    @property
    def reacts(self) -> bool:
        """Whether one of the parts does."""
        return any(part.reacts for part in self.parts)

    @property
    def follows_reference(self) -> bool:
        """Whether the first part does."""
        return self.parts[0].follows_reference

    def begin(self, sources: Sequence[MixSource]) -> States:
        """A list for each source: its state in each part."""
        return self._join([begin(part, sources) for part in self.parts])

    def update(self, states: States, seen: Mapping[str, SourceObservation]) -> States:
        """Every part is told the same."""
        updated = []
        for part, own in self._split(states):
            with naming(part):
                updated.append(part.update(own, seen))
        return self._join(updated)

    def shares(
        self, states: States, reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> Mapping[str, float]:
        """The shares of the last part."""
        for part, own in self._split(states):
            with naming(part):
                reference = part.shares(own, reference, batch=batch, num_batches=num_batches)
        return reference

    def measure(self, states: States) -> dict[str, dict[str, float]]:
        """The metrics of all parts; one that several measure stands under the name of each, as `Name_metric`."""
        measured = [measure(part, own) for part, own in self._split(states)]
        count = Counter(metric for own in measured for metric in {each for values in own.values() for each in values})
        found: dict[str, dict[str, float]] = {}
        for label, own in zip(self._labels, measured, strict=True):
            for name, values in own.items():
                named = {metric if count[metric] == 1 else f"{label}_{metric}": each for metric, each in values.items()}
                found.setdefault(name, {}).update(named)
        return found

    def describe_changes(self, before: States, after: States) -> list[str]:
        """The sentences of all parts."""
        pairs = zip(self._split(before), self._split(after), strict=True)
        return [sentence for (part, old), (_, new) in pairs for sentence in describe_changes(part, old, new)]

    @property
    def _labels(self) -> list[str]:
        """The name of each part; of several with the same name also which of them it is, from 1."""
        names = [part.name for part in self.parts]
        return [
            name if names.count(name) == 1 else f"{name}_{names[: place + 1].count(name)}"
            for place, name in enumerate(names)
        ]

    def _join(self, parts: Sequence[States]) -> dict[str, list[Any]]:
        return {name: [states[name] for states in parts] for name in parts[0]}

    def _split(self, states: States) -> list[tuple[Curriculum, States]]:
        return [(part, {name: own[i] for name, own in states.items()}) for i, part in enumerate(self.parts)]


def chain(curricula: Curriculum | Sequence[Curriculum]) -> Curriculum:
    """One curriculum of one or several, in the order in which they act.

    Raises:
        ConfigError: There is none, one of them is no curriculum, or what one decides would be lost in the next.
    """
    parts = tuple(curricula) if isinstance(curricula, list | tuple) else (curricula,)
    for part in parts:
        if not isinstance(part, Curriculum):
            raise ConfigError(
                f"curriculum={part!r} does not decide the shares of sources. Pass a Curriculum such as "
                f"LearningProgress(), or several in a list; what chooses among the tasks of one source goes to "
                f"ORSSource(..., task_curriculum=...)."
            )
    if not parts:
        raise ConfigError("curriculum=[] holds none. Pass at least one, or None.")
    return parts[0] if len(parts) == 1 else Chain(parts)
