"""What of a mix is not as it was when a checkpoint was written. Compares descriptions; restores nothing.

A mix is described by its `sources` with `name`, `num_tasks` and `share` (without a curriculum), `prompts_per_batch` and
`seed`: by `describe_mix`, or by the state of a planner.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["compare_curricula", "compare_mixes", "describe_mix", "digest_shares"]

_SAME_SHARE = 1e-9
_DIGITS = 9


def describe_mix(
    shares: Mapping[str, float],
    num_tasks: Sequence[int],
    *,
    prompts_per_batch: int | None,
    seed: int,
    scheduled: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What the slots of a mix follow from, as JSON-ready values.

    Args:
        shares: By source, without a curriculum.
        num_tasks: Of the sources, in the same order.
        prompts_per_batch: Slots in a batch. None: not known.
        seed: The run's seed.
        scheduled: The curriculum that is laid out before the run, by name and settings. None: there is none.
    """
    sources = [
        {"name": name, "num_tasks": count, "share": share}
        for (name, share), count in zip(shares.items(), num_tasks, strict=True)
    ]
    return {"sources": sources, "prompts_per_batch": prompts_per_batch, "seed": seed, "scheduled": scheduled}


def compare_mixes(before: Mapping[str, Any], now: Mapping[str, Any], *, follows_weights: bool = True) -> list[str]:
    """Sentences on what of a mix is not as it was.

    Args:
        before: Its description.
        now: The same of the mix as it is.
        follows_weights: Whether shares matter. False: a schedule replaces them.
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
    if not changes and follows_weights:
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


def compare_curricula(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    """Whether shares follow something else than before.

    Args:
        before: The curriculum between sources, with `curriculum`, its name, and `settings`. None: there was none.
        now: The same as it is.
    """
    names = ["their weights" if each is None else each["curriculum"] for each in (now, before)]
    if names[0] != names[1]:
        return [f"shares follow {names[0]}, and followed {names[1]}"]
    is_same = before is None or now is None or before["settings"] == now["settings"]
    return [] if is_same else [f"{names[0]} has other settings than before"]


def digest_shares(names: Sequence[str], shares_by_batch: Sequence[Sequence[float]]) -> list[str]:
    """For each number of batches, from 0 to all, a digest of the shares of the first so many.

    Equal where every source has the same shares but for rounding, in whatever order; one that a batch does not draw may
    be missing.

    Args:
        names: The sources.
        shares_by_batch: For each batch each source's share of it.
    """
    digests = [""]
    for shares in shares_by_batch:
        drawn = sorted((name, round(share, _DIGITS)) for name, share in zip(names, shares, strict=True) if share)
        digests.append(hashlib.sha256(json.dumps([digests[-1], drawn]).encode()).hexdigest())
    return digests
