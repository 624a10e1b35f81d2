"""How the step rewards of one episode become one number.

The same rule in training and in evaluation. Which steps count, and what is done where there is no number, is decided in
`multiors.rewards.outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import Literal, get_args

__all__ = ["REDUCTIONS", "Reduction", "needs_whole_episode", "reduce_rewards"]

Reduction = Literal["last", "sum", "mean", "max", "min", "final"]

REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

_FUNCTIONS: Mapping[Reduction, Callable[[Sequence[float]], float]] = {
    "last": lambda rewards: rewards[-1],
    "sum": fsum,
    "mean": lambda rewards: fsum(rewards) / len(rewards),
    "max": max,
    "min": min,
}


def reduce_rewards(rewards: Sequence[float], reduction: Reduction, *, final_reward: float | None) -> float | None:
    """One number of the step rewards of an episode.

    Args:
        rewards: Those of the calls that were scored, in order; finite.
        reduction: "last", "sum", "mean", "max" and "min" of them; "final" takes the finishing call's only.
        final_reward: Of the call that finished the episode. None: it has none, or no call did.

    Returns:
        The number. None: there is nothing to reduce.

    Raises:
        OverflowError: A sum is too large for a float.
    """
    if reduction == "final":
        return final_reward

    return _FUNCTIONS[reduction](rewards) if rewards else None


def needs_whole_episode(reduction: Reduction) -> bool:
    """Whether a number from an episode that its environment broke off would say something else than one from a whole.

    The last and the largest reward were reached whatever came after; a sum lacks what was still to come.
    """
    return reduction not in ("last", "max")
