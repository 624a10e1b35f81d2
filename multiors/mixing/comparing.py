"""What of a mix is not as it was when a checkpoint was written. Compares descriptions; restores nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["compare_mixes"]

_SAME_SHARE = 1e-9


def compare_mixes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sentences on what of a mix is not as it was.

    Args:
        before: A planner's state, or what it has in common with `Plan.to_json()`: `sources` with `name`, `num_tasks`
            and `share`, `prompts_per_batch`, `seed`.
        now: The same of the mix as it is.
    """
    tasks_before, tasks_now = (
        {source["name"]: source["num_tasks"] for source in mix["sources"]} for mix in (before, now)
    )
    shares_before, shares_now = (
        {source["name"]: source["share"] for source in mix["sources"]} for mix in (before, now)
    )
    changes = [f"source {name!r} is no longer in the mix" for name in tasks_before if name not in tasks_now]
    changes += [
        f"source {name!r} is new and begins with its first tasks" for name in tasks_now if name not in tasks_before
    ]
    changes += [
        f"source {name!r} has {count} tasks, and had {tasks_before[name]}"
        for name, count in tasks_now.items()
        if tasks_before.get(name, count) != count
    ]
    if not changes:
        changes += [
            f"source {name!r} has a share of {share:.2%}, and had {shares_before[name]:.2%}"
            for name, share in shares_now.items()
            if abs(share - shares_before[name]) > _SAME_SHARE
        ]
    if not changes and list(tasks_before) != list(tasks_now):
        changes.append("the sources stand in another order")
    changes += [
        f"{name} is {now[name]}, and was {before[name]}"
        for name in ("prompts_per_batch", "seed")
        if before[name] != now[name]
    ]
    return changes
