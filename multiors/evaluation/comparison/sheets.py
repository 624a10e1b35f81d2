"""What a result says, in the order in which it is read, as plain text in named places.

Decides the order: what regressed is said first, then what improved, then what cannot be told and which difference would
have been seen; then the numbers, and what must be known before they are believed. How a sheet looks on a terminal, in
Markdown or on a page is decided elsewhere. Names and reasons are made inert here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from multiors.evaluation.comparison.visible import fold
from multiors.evaluation.comparison.wording import (
    NOTHING,
    count,
    say_between,
    say_difference,
    say_estimate,
    say_fraction,
    say_number,
    say_p,
    say_whole,
)
from multiors.evaluation.results import ArmResult, Comparison, Difference, SourceResult, Verdict
from multiors.records import UnscoredReason

__all__ = ["Group", "Sheet", "Table", "describe", "name_arms"]

_LONG = 1_000
"""Characters of a remark, at most."""


class Group(NamedTuple):
    """Environments of which the same is to be said."""

    verdict: Verdict
    title: str
    lines: tuple[tuple[str, str], ...]
    """Name of the environment, and what is said of it."""


class Table(NamedTuple):
    """Rows of text; the first column names what a row is about."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdicts: tuple[Verdict | None, ...] = ()
    """One per row. Empty: the rows say nothing of better and worse."""


class Sheet(NamedTuple):
    """All that is said of a result."""

    title: str
    headline: str
    """The sentence that answers the question."""

    groups: tuple[Group, ...]
    tables: tuple[Table, ...]
    details: tuple[Table, ...]
    """Further tables, for readers who have room."""

    remarks: tuple[str, ...]


def describe(result: Comparison | ArmResult) -> Sheet:
    """What a comparison, or one evaluation, says."""
    return _describe_comparison(result) if isinstance(result, Comparison) else _describe_arm(result)


def name_arms(comparison: Comparison) -> tuple[str, str]:
    """How reference and candidate are called; two of one name are told apart."""
    names = fold(comparison.reference.name), fold(comparison.candidate.name)
    return (f"{names[0]} (reference)", f"{names[1]} (candidate)") if names[0] == names[1] else names


# -- a comparison


def _describe_comparison(comparison: Comparison) -> Sheet:
    reference, candidate = name_arms(comparison)
    units = "training runs" if comparison.unit == "run" else "tasks"
    pairing = f"paired by {units}" if comparison.is_paired else f"not paired: {units} of two independent samples"
    groups = [_group(comparison, verdict) for verdict in ("worse", "better", "undecided")]
    return Sheet(
        title=f"candidate {candidate}, reference {reference}; score: {comparison.value}; {pairing}",
        headline=_answer(comparison, reference, candidate),
        groups=tuple(group for group in groups if group is not None),
        tables=(_tabulate_differences(comparison), *_tabulate_unscored(comparison.reference, comparison.candidate)),
        details=(
            *_tabulate_passes(comparison.reference, comparison.candidate),
            *_tabulate_usage(comparison.reference, comparison.candidate),
        ),
        remarks=(*_say_runs(comparison), *(fold(remark, _LONG) for remark in comparison.remarks)),
    )


def _answer(comparison: Comparison, reference: str, candidate: str) -> str:
    macro, worse = comparison.macro, [fold(name) for name in comparison.regressed]
    numbers = f"{say_difference(macro.value)} overall ({_say_certainty(macro)})"

    if macro.value is None:
        answer = f"Whether {candidate} is better than {reference} overall cannot be said: some environment has no score"
    elif macro.verdict == "undecided":
        answer = f"Whether {candidate} is better than {reference} cannot be told: {numbers}{_say_missed(macro)}"
    else:
        answer = f"{candidate} is {macro.verdict} than {reference}: {numbers}"

    if macro.verdict == "worse" or not worse:
        return f"{answer}."
    return f"{answer}. It is worse on {_join(worse)}."


def _group(comparison: Comparison, verdict: Verdict) -> Group | None:
    """The environments with a verdict. None: there are none, and that need not be said."""
    found = {name: each for name, each in comparison.on_one_scale.items() if each.verdict == verdict}
    sign = -1.0 if verdict == "better" else 1.0
    ordered = sorted(found, key=lambda name: sign * (found[name].value or 0.0)) if verdict != "undecided" else found
    titles = {"worse": "Worse on", "better": "Better on", "undecided": "Cannot tell on"}
    title = f"{titles[verdict]} {len(found)} of {count(len(comparison.sources), 'environment')}"

    if not found:
        return Group(verdict, "Worse on no environment, as far as can be told", ()) if verdict == "worse" else None

    return Group(verdict, title, tuple((fold(name), _say_source(comparison, name)) for name in ordered))


def _say_source(comparison: Comparison, name: str) -> str:
    difference = comparison.sources[name]

    if difference.value is None:
        return "nothing to compare: no task has a score on both sides"

    said = f"{say_difference(difference.value)} ({_say_certainty(difference, adjusted=True)})"

    if difference.verdict == "undecided":
        return f"{said}{_say_missed(difference)}"
    return f"{said}; {_say_means(comparison, name)}"


def _say_means(comparison: Comparison, name: str) -> str:
    """Of both arms; where they are not over what is compared, over how much they are."""
    scores = [arm.sources[name].score for arm in (comparison.reference, comparison.candidate)]
    counts, num_pairs = [score.num_units for score in scores], comparison.sources[name].num_pairs
    said = f"means {say_number(scores[0].value)} and {say_number(scores[1].value)}"

    if comparison.unit == "run" or set(counts) == {num_pairs}:
        return said
    return f"{said} over {counts[0]:,} and {counts[1]:,} tasks, of which {num_pairs:,} are compared"


def _say_certainty(difference: Difference, *, adjusted: bool = False) -> str:
    p = difference.p_adjusted if adjusted else difference.p
    interval = say_between(difference.low, difference.high, signed=True)
    parts = ["" if interval == NOTHING else f"95 % interval {interval}"]
    parts.append("no test is possible" if p is None else f"{'adjusted ' if adjusted else ''}p {say_p(p)}")
    return ", ".join(filter(None, parts))


def _say_missed(difference: Difference) -> str:
    found = difference.minimum_detectable
    return "" if found is None else f"; would have seen ±{say_number(found)}"


def _say_runs(comparison: Comparison) -> list[str]:
    runs = comparison.runs

    if runs is None:
        return []

    reference, candidate = name_arms(comparison)
    chance = say_estimate(runs.probability_of_improvement)
    return [
        f"Interquartile mean over runs and environments: {reference} {say_estimate(runs.reference_iqm)}, {candidate} "
        f"{say_estimate(runs.candidate_iqm)}.",
        f"A run of {candidate} beats a run of {reference} on an environment with probability {chance}.",
    ]


def _tabulate_differences(comparison: Comparison) -> Table:
    header = ("environment", "reference", "candidate", "difference", "95 % interval", "adjusted p")
    rows, verdicts = [], []

    for name, each in comparison.sources.items():
        reference, candidate = comparison.reference.sources.get(name), comparison.candidate.sources.get(name)
        scored = [say_fraction(None if arm is None else arm.scored_fraction) for arm in (reference, candidate)]
        means = [say_number(None if arm is None else arm.score.value) for arm in (reference, candidate)]
        rows.append((fold(name), *means, *_say_cells(each), *scored, f"{each.num_pairs:,}"))
        verdicts.append(each.verdict)

    macro = comparison.macro
    means = [say_number(arm.macro.value) for arm in (comparison.reference, comparison.candidate)]
    scored = [say_fraction(_scored_fraction(arm)) for arm in (comparison.reference, comparison.candidate)]
    rows.append(("overall", *means, *_say_cells(macro), *scored, f"{macro.num_pairs:,}"))
    units = "runs" if comparison.unit == "run" else "tasks"
    return Table(
        "Scores",
        (*header, "scored, ref.", "scored, cand.", units),
        tuple(rows),
        (*verdicts, macro.verdict),
    )


def _say_cells(each: Difference) -> tuple[str, str, str]:
    return say_difference(each.value), say_between(each.low, each.high, signed=True), say_p(each.p_adjusted)


def _scored_fraction(arm: ArmResult) -> float | None:
    played = sum(each.num_episodes for each in arm.sources.values())
    return sum(each.num_scored for each in arm.sources.values()) / played if played else None


# -- one evaluation


def _describe_arm(arm: ArmResult) -> Sheet:
    name, macro = fold(arm.name), arm.macro
    about = f"over {count(len(arm.sources), 'environment')}" + (f", {arm.num_runs} runs" if arm.num_runs > 1 else "")
    scored = f"{name} scores {say_number(macro.value)} overall"
    interval = say_between(macro.low, macro.high)
    missing = [fold(source) for source, each in arm.sources.items() if each.score.value is None]
    return Sheet(
        title=f"evaluation {name}",
        headline=(
            f"{name} has no overall score: nothing is scored on {_join(missing) or 'any environment'}."
            if macro.value is None
            else f"{scored}{'' if interval == NOTHING else f' (95 % interval {interval})'}, {about}."
        ),
        groups=(),
        tables=(_tabulate_scores(arm), *_tabulate_unscored(arm)),
        details=(*_tabulate_passes(arm), *_tabulate_usage(arm)),
        remarks=tuple(fold(remark, _LONG) for remark in arm.remarks),
    )


def _tabulate_scores(arm: ArmResult) -> Table:
    rows = [
        (
            fold(name),
            say_number(each.score.value),
            say_between(each.score.low, each.score.high),
            say_fraction(each.scored_fraction),
            _say_tasks([each], arm),
            f"{each.num_episodes:,}",
        )
        for name, each in arm.sources.items()
    ]
    tasks = _say_tasks(list(arm.sources.values()), arm)
    episodes = sum(each.num_episodes for each in arm.sources.values())
    macro = (say_number(arm.macro.value), say_between(arm.macro.low, arm.macro.high))
    rows.append(("overall", *macro, say_fraction(_scored_fraction(arm)), tasks, f"{episodes:,}"))
    return Table("Scores", ("environment", "mean", "95 % interval", "scored", "tasks", "episodes"), tuple(rows))


def _say_tasks(results: Sequence[SourceResult], arm: ArmResult) -> str:
    """How many were played, and of how many of them the mean is, where that is not all; of several runs only that."""
    played = sum(each.num_tasks for each in results)
    scored = played if arm.num_runs > 1 else sum(each.score.num_units for each in results)
    return f"{played:,}" if scored == played else f"{scored:,} of {played:,}"


# -- what both have


def _by_source(arms: Iterable[ArmResult]) -> list[tuple[str, ArmResult, SourceResult]]:
    """The results of all arms, those of one source together."""
    arms = list(arms)
    names = dict.fromkeys(name for arm in arms for name in arm.sources)
    return [(name, arm, arm.sources[name]) for name in names for arm in arms if name in arm.sources]


def _who(arm: ArmResult, arms: tuple[ArmResult, ...]) -> str:
    """Which of two arms; names need not differ."""
    return "reference" if arm is arms[0] else "candidate"


def _head(arms: tuple[ArmResult, ...], *columns: str) -> tuple[str, ...]:
    return ("environment", *(("policy",) if len(arms) > 1 else ()), *columns)


def _lead(name: str, arm: ArmResult, arms: tuple[ArmResult, ...]) -> tuple[str, ...]:
    return (fold(name), *((_who(arm, arms),) if len(arms) > 1 else ()))


def _tabulate_unscored(*arms: ArmResult) -> list[Table]:
    """How many episodes have no score, and why; with bounds, where a range is declared. Nothing if all have one."""
    found = [(name, arm, each) for name, arm, each in _by_source(arms) if each.num_scored < each.num_episodes]
    has_bounds = any(each.bounds for _, _, each in found)
    rows = [
        (
            *_lead(name, arm, arms),
            f"{each.num_episodes - each.num_scored:,} of {each.num_episodes:,}",
            _say_reasons(each.unscored_by_reason),
            *(map(say_number, each.bounds or (None, None)) if has_bounds else ()),
        )
        for name, arm, each in found
    ]
    bounds = ("mean, if lowest", "mean, if highest") if has_bounds else ()
    return [Table("Unscored episodes", _head(arms, "unscored", "why", *bounds), tuple(rows))] if rows else []


def _say_reasons(number_by_reason: Mapping[UnscoredReason, int]) -> str:
    ordered = sorted(number_by_reason.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{fold(reason)} {number:,}" for reason, number in ordered) or NOTHING


def _tabulate_passes(*arms: ArmResult) -> list[Table]:
    """One column for each k. Nothing if no source knows what a success is."""
    found = [(name, arm, each) for name, arm, each in _by_source(arms) if each.pass_at]
    numbers = sorted({k for _, _, each in found for k in each.pass_at})
    rows = [
        (
            *_lead(name, arm, arms),
            say_number(each.success_at),
            *(_say_pass(each, k) for k in numbers),
        )
        for name, arm, each in found
    ]
    header = _head(arms, "success from", *(f"pass@{k}" for k in numbers))
    return [Table("At least one success in k episodes", header, tuple(rows))] if rows else []


def _say_pass(result: SourceResult, k: int) -> str:
    """With the tasks that have so many scored episodes, where that is not all that are scored."""
    if k not in result.pass_at:
        return NOTHING

    found = result.pass_at[k]
    tasks = "" if found.num_units == result.score.num_units else f" of {count(found.num_units, 'task')}"
    return f"{say_estimate(found)}{tasks}"


def _tabulate_usage(*arms: ArmResult) -> list[Table]:
    rows = []

    for name, arm, each in _by_source(arms):
        usage, played = each.usage, each.num_episodes

        if usage is None or not played:
            continue

        totals = (usage.num_turns, usage.num_tool_calls, usage.num_prompt_tokens, usage.num_sampled_tokens)
        means = [say_whole(None if total is None else total / played) for total in totals]
        times = [None if usage.policy_s is None else usage.policy_s / played, usage.median_s, usage.p95_s]
        rows.append((*_lead(name, arm, arms), *means, *map(_say_seconds, times)))

    columns = ("turns", "tool calls", "tokens read", "tokens written", "waited for policy", "median", "19 of 20 within")
    return [Table("Cost of an episode", _head(arms, *columns), tuple(rows))] if rows else []


def _say_seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f} s" if value < 10 else f"{value:,.0f} s"


def _join(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
