"""What of a mix is not as it was when a checkpoint was written. Compares descriptions; restores nothing.

A mix is described by its `sources`, `prompts_per_batch` and `seed`: by `describe_mix`, or by the state of a planner.
What an older checkpoint does not hold is not compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from multiors.mixing.curricula import SourceTasks, TaskCurriculum

__all__ = [
    "compare_curricula",
    "compare_mixes",
    "compare_task_curricula",
    "describe_mix",
    "describe_source",
    "digest_shares",
    "find_other_ranges",
    "find_other_tasks",
]

_SAME_SHARE = 1e-9
_DIGITS = 9


def describe_mix(
    shares: Mapping[str, float],
    sources: Sequence[SourceTasks],
    *,
    prompts_per_batch: int | None,
    seed: int,
    scheduled: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What the slots of a mix follow from, as JSON-ready values.

    Args:
        shares: By source, without a curriculum.
        sources: What is known of their tasks, in the same order.
        prompts_per_batch: Slots in a batch. None: not known.
        seed: The run's seed.
        scheduled: The curriculum that is laid out before the run, by name and settings. None: there is none.
    """
    return {
        "sources": [describe_source(source, share=shares[source.name]) for source in sources],
        "prompts_per_batch": prompts_per_batch,
        "seed": seed,
        "scheduled": scheduled,
    }


def describe_source(source: SourceTasks, *, share: float) -> dict[str, Any]:
    """What the slots of a source follow from, as JSON-ready values; `share` is the one without a curriculum."""
    return {
        "name": source.name,
        "num_tasks": source.num_tasks,
        "share": share,
        "task_digest": None if source.digest is None else list(source.digest),
    }


def compare_mixes(before: Mapping[str, Any], now: Mapping[str, Any], *, follows_weights: bool = True) -> list[str]:
    """Sentences on what of a mix is not as it was.

    Args:
        before: Its description.
        now: The same of the mix as it is.
        follows_weights: Whether shares matter. False: a schedule replaces them.
    """
    known, found = ({source["name"]: source for source in mix["sources"]} for mix in (before, now))
    changes = [f"source {name!r} is no longer in the mix" for name in known if name not in found]
    changes += [f"source {name!r} is new and begins with its first tasks" for name in found if name not in known]
    changes += [
        f"source {name!r} has {count} tasks, and had {known[name]['num_tasks']}"
        for name, count in ((name, source["num_tasks"]) for name, source in found.items() if name in known)
        if known[name]["num_tasks"] != count
    ]
    changes += [f"source {name!r} has as many tasks as before, and others" for name in find_other_tasks(before, now)]
    if follows_weights:
        changes += _compare_shares(known, found)
    if not changes and list(known) != list(found):
        changes.append("the sources stand in another order")
    changes += [
        f"{name} is {now[name]}, and was {before[name]}"
        for name in ("prompts_per_batch", "seed")
        if before[name] != now[name]
    ]
    return changes


def _compare_shares(known: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Shares among the sources that stayed: those of the whole mix, unless one came or went."""
    stayed = [name for name in found if name in known]
    totals = [fsum(mix[name]["share"] for name in stayed) for mix in (known, found)]
    among = "" if set(known) == set(found) else " among those that stayed"
    pairs = [
        (name, *(mix[name]["share"] / total for mix, total in zip((known, found), totals, strict=True)))
        for name in stayed
    ]
    return [
        f"source {name!r} has a share of {now:.2%}{among}, and had {before:.2%}"
        for name, before, now in pairs
        if abs(now - before) > _SAME_SHARE
    ]


def find_other_tasks(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The sources that have as many tasks as before, and others."""
    known = {source["name"]: source for source in before["sources"]}
    return [source["name"] for source in now["sources"] if _has_other_tasks(known.get(source["name"]), source)]


def _has_other_tasks(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    if before is None or before["num_tasks"] != now["num_tasks"]:
        return False
    digests = zip(before.get("task_digest") or (), now["task_digest"] or (), strict=False)  # () where nothing is known
    return any(None not in pair and pair[0] != pair[1] for pair in digests)


def find_other_ranges(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """By source that declares another range of rewards than before, a sentence on it; for the states of planners."""
    known = {source["name"]: source["reward_range"] for source in before["sources"] if "reward_range" in source}
    found = {source["name"]: source["reward_range"] for source in now["sources"] if source["name"] in known}
    return {
        name: f"source {name!r} declares {_name_range(own)} for its rewards, and declared {_name_range(known[name])}, "
        f"so what curricula knew of it is forgotten"
        for name, own in found.items()
        if own != known[name]
    }


def _name_range(reward_range: Sequence[float] | None) -> str:
    return "no range" if reward_range is None else "the range from {:g} to {:g}".format(*reward_range)


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


def compare_task_curricula(
    name: str,
    before: Mapping[str, Any] | None,
    now: Mapping[str, Any] | None,
    rule: TaskCurriculum | None,
    *,
    has_other_tasks: bool,
) -> tuple[list[str], bool]:
    """What is said of what chooses among the tasks of a source, and whether its draws go on.

    Args:
        name: Of the source.
        before: With `draws`, their kind, and `settings`. None: nothing did.
        now: The same as it is.
        rule: What does now.
        has_other_tasks: Whether the source has as many tasks as before, and others.
    """
    if rule is None or now is None:
        return [f"source {name!r} has no task curriculum any more, so it begins anew in its tasks"], False
    if before is None or before["draws"] != now["draws"]:
        what = "a task curriculum, and had none" if before is None else "another task curriculum than before"
        return [f"source {name!r} has {what}, so it begins anew in its tasks"], False
    goes_on = rule.can_continue(before["settings"], has_other_tasks=has_other_tasks)
    who = f"the task curriculum of source {name!r}"
    if before["settings"] != now["settings"]:
        what = "and goes on with what it knows" if goes_on else "with which it begins anew"
        return [f"{who} has other settings, {what}"], goes_on
    return [] if goes_on else [f"{who} begins anew among its other tasks"], goes_on


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
