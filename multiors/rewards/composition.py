"""How the outcome of a rollout and the user's reward functions become one reward.

Rules 1 to 4 and 6 of the semantics. Arithmetic only: who calls the functions, and with what, is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from multiors.errors import ConfigError, RewardError
from multiors.numeric import to_finite
from multiors.rewards.reduction import REDUCTIONS, Reduction

__all__ = ["GroupScore", "RewardPart", "SourceReward", "as_source_reward", "check_values", "compose", "naming"]


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One of the user's reward functions for a source.

    It is called as TRL calls reward functions, with this source's rollouts only, and returns one number or None each.

    Example:
        >>> def is_short(completions, **_):
        ...     return [float(len(completion) < 4) for completion in completions]
        >>> RewardPart(is_short, weight=0.1).name
        'is_short'
    """

    function: Callable[..., Any]
    """Sync or async."""

    weight: float = 1.0
    """Its values are multiplied by this before they are added up. 0: computed and recorded only."""

    name: str = ""
    """For logs and records. Empty or None: the function's own name."""

    scores_alone: bool = False
    """Whether a value counts even where the environment scored nothing. Otherwise such a rollout stays unscored."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"reward part {self.function!r} cannot be called. Pass a function.")
        object.__setattr__(self, "name", self.name or _name_function(self.function))
        object.__setattr__(self, "weight", _check_number(self.weight, f"reward part {self.name!r}: weight"))
        if self.scores_alone and self.weight == 0:
            raise ConfigError(
                f"reward part {self.name!r}: weight 0 with scores_alone=True would turn unscored rollouts into 0.0. "
                f"Give it a weight, or leave scores_alone out."
            )


@dataclass(frozen=True, slots=True)
class GroupScore:
    """What the environment says a rollout is worth beside the others of its group (ORS's `score_group`), as a part.

    One call per group. A rollout in which the environment failed is not compared. One that was not compared, or whose
    comparison failed, is unscored: its tools' rewards alone would make it look worse than the others of its group.

    Example:
        >>> SourceReward(parts=(GroupScore(weight=0.5),)).parts[0].name
        'group_score'
    """

    weight: float = 1.0
    """Scores are multiplied by this before they are added up. 0: computed and recorded only, and needed by nothing."""

    name: str = "group_score"
    """For logs and records."""

    scores_alone: bool = True
    """Whether a score counts even where no tool scored the rollout. Otherwise such a rollout stays unscored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _check_number(self.weight, f"reward part {self.name!r}: weight"))
        if not self.name:
            raise ConfigError(f"GroupScore: name {self.name!r} is no name. Pass text, or leave it out.")
        if self.scores_alone and self.weight == 0:
            object.__setattr__(self, "scores_alone", False)


@dataclass(frozen=True, slots=True)
class SourceReward:
    """How the rollouts of one source become rewards.

    Example:
        >>> compose(0.5, [], SourceReward(outcome_weight=2.0))
        1.0
        >>> print(compose(None, [], SourceReward()))
        None
    """

    weight: float = 1.0
    """The source's reward weight: how much its advantages count against other sources'. Above 0."""

    reduction: Reduction = "last"
    """How the step rewards of an episode become its outcome: "last", "sum", "mean", "max", "min", or "final", which
    takes the finishing call's only. If the environment fails before the end, "last" and "max" stand and the others are
    unscored."""

    range: tuple[float, float] | None = None
    """Lowest and highest outcome of the environment, before `scale`; one outside is a bad reward. None: not known."""

    scale: float = 1.0
    """The outcome is multiplied by this, then `offset` is added, then `clip` applied. `unscored` and `unfinished` are
    taken as they are."""

    offset: float = 0.0
    clip: tuple[float, float] | None = None
    """Lowest and highest value after `scale` and `offset`. None: not clipped."""

    outcome_weight: float = 1.0
    """The environment's outcome is multiplied by this. 0: the outcome only decides whether the parts count."""

    parts: tuple[RewardPart | GroupScore, ...] = ()
    """The user's own reward functions, and the environment's comparison of a group's rollouts. Any sequence of these is
    taken."""

    unscored: float | None = None
    """Score of a rollout that the policy left unscored: no tool call, no score, refused calls, budget ran out. None: it
    stays unscored. A rollout in which the environment failed stays unscored in any case."""

    unfinished: float | None = None
    """Score of an episode that was never finished, instead of any earlier score. None: an earlier score stands. Not
    applied where the environment failed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _check_number(self.weight, "SourceReward: weight"))
        for field in ("outcome_weight", "scale", "offset"):
            object.__setattr__(self, field, _check_number(getattr(self, field), f"SourceReward: {field}"))
        if self.reduction not in REDUCTIONS:
            raise ConfigError(f"SourceReward: reduction={self.reduction!r} is not known. Pass one of {REDUCTIONS}.")
        if self.scale == 0:
            raise ConfigError("SourceReward: scale 0 makes all outcomes equal. Use outcome_weight=0 to leave them out.")
        for field in ("range", "clip"):
            object.__setattr__(self, field, _check_interval(getattr(self, field), f"SourceReward: {field}"))
        if self.weight <= 0:
            raise ConfigError(
                f"SourceReward: weight {self.weight!r} is not above 0: the source would cost rollouts and teach "
                f"nothing, or the opposite. Remove the source from the mix, or evaluate on it."
            )
        for field in ("unscored", "unfinished"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, _check_number(value, f"SourceReward: {field}"))
        object.__setattr__(self, "parts", tuple(_as_part(part) for part in self.parts))
        names = [part.name for part in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"reward part {name!r}: the name is used twice. Pass RewardPart(..., name=...).")
        if sum(isinstance(part, GroupScore) for part in self.parts) > 1:
            raise ConfigError("SourceReward: GroupScore stands there twice, and an environment compares a group once.")

    @property
    def outcome_range(self) -> tuple[float, float] | None:
        """Lowest and highest outcome there is after `scale`, `offset` and `clip`. None: not known.

        Beside it there are `unscored` and `unfinished`, which are no outcomes of the environment.
        """
        if self.range is None:
            return None
        low, high = sorted(self.scale * value + self.offset for value in self.range)
        if self.clip is not None:
            low, high = (min(max(value, self.clip[0]), self.clip[1]) for value in (low, high))
        return (low, high) if low < high and math.isfinite(high - low) else None

    @property
    def compares_groups(self) -> bool:
        """Whether the environment is asked to compare the rollouts of each group."""
        return any(isinstance(part, GroupScore) for part in self.parts)

    @property
    def needs_comparison(self) -> bool:
        """Whether a rollout without a score beside the others of its group is unscored."""
        return any(isinstance(part, GroupScore) and part.weight != 0 for part in self.parts)


def as_source_reward(value: object) -> SourceReward:
    """What a user may write for `reward`: nothing, a `SourceReward`, a function, a part, or a sequence of these two.

    Raises:
        ConfigError: It is none of them.
    """
    if value is None:
        return SourceReward()
    if isinstance(value, SourceReward):
        return value
    if isinstance(value, RewardPart | GroupScore) or callable(value):
        return SourceReward(parts=(_as_part(value),))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return SourceReward(parts=tuple(_as_part(part) for part in value))
    raise ConfigError(
        f"reward={value!r} is no reward. Pass a SourceReward, a reward function, a RewardPart, or a list of those two."
    )


def compose(outcome: float | None, values: Sequence[float | None], reward: SourceReward) -> float | None:
    """One rollout's reward: the sum of weight times value over what is not None.

    Where the outcome is None, only parts that `scores_alone` count. The order of the parts changes nothing, not even
    the last bit: the sum is rounded once.

    Args:
        outcome: What the environment alone was worth. None: unscored.
        values: One per part of `reward`, in order. None: the part does not apply.
        reward: The source's rule.

    Returns:
        The reward. None: unscored.

    Raises:
        RewardError: There is not one value per part, or the sum is too large for a float.
    """
    if len(values) != len(reward.parts):
        raise RewardError(f"{len(values)} values were passed for {len(reward.parts)} reward parts. Pass one each.")
    terms = [] if outcome is None else [reward.outcome_weight * outcome]
    for part, value in zip(reward.parts, values, strict=True):
        if value is not None and (outcome is not None or part.scores_alone):
            terms.append(part.weight * value)
    if not terms:
        return None
    total = _sum_exactly(terms)
    if total is None:
        raise RewardError(
            f"outcome {outcome!r} and parts {list(values)!r} add up to no finite number. Lower the weights."
        )
    return total


@contextmanager
def naming(part: RewardPart, *, source: str) -> Iterator[None]:
    """Say in whose function an error of a user's happened; the error stays what it is."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the reward function {part.name!r} of source {source!r}")
        raise


def check_values(values: object, *, source: str, part: RewardPart, num_rollouts: int) -> list[float | None]:
    """What a reward function returned, as one float or None per rollout.

    Numbers of numpy and torch count as numbers; True is 1.0.

    Args:
        values: What the function returned.
        source: The source's name, for the error.
        part: Whose function it was.
        num_rollouts: Rollouts it was given.

    Raises:
        RewardError: It is not a list of that length, or an entry is neither None nor a finite number.
    """
    who = f"source {source!r}: reward function {part.name!r}"
    try:
        entries = None if isinstance(values, (str, bytes, dict, set)) else list(values)  # type: ignore[call-overload]  # a user's value: anything
    except TypeError:
        entries = None
    if entries is None or len(entries) != num_rollouts:
        what = repr(values) if entries is None else f"{len(entries)} values"
        raise RewardError(f"{who} returned {what} for {num_rollouts} rollouts. Return a list with one entry each.")
    return [_check_value(entry, f"{who}, rollout {index}") for index, entry in enumerate(entries)]


def _check_value(value: object, who: str) -> float | None:
    if value is None:
        return None
    plain = value
    if not isinstance(value, (bool, int, float)) and hasattr(value, "item"):
        try:
            plain = value.item()  # a scalar of numpy or torch
        except (TypeError, ValueError, RuntimeError):
            plain = value  # an array of several values
    number = to_finite(plain)
    if number is None:
        raise RewardError(f"{who}: {value!r} is not a finite number. Return a number, or None for unscored.")
    return number


def _as_part(value: object) -> RewardPart | GroupScore:
    if isinstance(value, RewardPart | GroupScore):
        return value
    if callable(value):
        return RewardPart(value)
    raise ConfigError(f"reward part {value!r} is neither a function nor a RewardPart. Pass one of these.")


def _name_function(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _check_number(value: object, who: str) -> float:
    number = None if isinstance(value, bool) else to_finite(value)
    if number is None:
        raise ConfigError(f"{who} {value!r} is not a finite number. Pass a number.")
    return number


def _check_interval(value: object, who: str) -> tuple[float, float] | None:
    if value is None:
        return None
    ends = list(value) if isinstance(value, (tuple, list)) else []
    if len(ends) != 2:
        raise ConfigError(f"{who} {value!r} is no pair. Pass (lowest, highest).")
    low, high = (_check_number(end, who) for end in ends)
    if low >= high:
        raise ConfigError(f"{who} {value!r}: the lowest value is not below the highest. Pass (lowest, highest).")
    return low, high


def _sum_exactly(terms: Sequence[float]) -> float | None:
    """The sum, rounded once. None: it is not finite."""
    if not all(map(math.isfinite, terms)):
        return None
    try:
        return math.fsum(terms)
    except OverflowError:
        return None
