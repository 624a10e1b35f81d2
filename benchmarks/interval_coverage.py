"""Do the intervals of a comparison hold the truth as often as they say, and do its tests find what is there?

Evaluations are drawn from worlds whose truth is known, given to the library's own `compare_arms`, and looked at: how
often a nominal 95 % interval holds the true value, how wide it is, how often a test finds a difference that is there
(power) or is not (size). Beside it stand, on the same draws, the intervals that are usually printed.

`mix`: six sources with 20 to 400 tasks and 4 episodes each. A task is easy or hard: its chance of success p is drawn
from Beta(6, 1) or Beta(1, 6), and each source has its own share of easy ones. The candidate's chance on a task is
p + c p (1 - p), where c is as often .5 more as .5 less than what makes the true gain 0 or .03: tasks gain unequally.
Then once more with sources that move in opposite directions before that: on every other source four in five of the hard
tasks become easy (p becomes 1 - p), on the rest as many of the easy ones hard, which adds nothing to the macro gain.
`single`: one source, Beta(m/2, (1 - m)/2) around a mean m, where tasks are mostly always or never solved; scores, and
the difference of two policies that are equal on every task.
`few`: the macro score of the mix's kind of sources, where some or all have few tasks.
`runs`: training runs with an effect of the seed that all six sources share, and matched runs of both arms too, and one
of each source's own; the true gain is 0 or .06.

Goals: coverage from .93 to .97 for the macro score and difference of `mix`, for its sources, and for `runs`, and of
.93 or more in `few`; sizes of at most .06. What `single` shows near 0 and 1 and with few tasks has no goal: it is
reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._report import parse_arguments, write_report
from multiors.evaluation.results import Difference
from multiors.evaluation.statistics import RunScores, SourceScores, compare_arms, summarize_arm
from multiors.evaluation.statistics.estimates import average_tasks, estimate_source, estimate_tasks, find_scale
from multiors.evaluation.statistics.flips import sign_flip_p
from multiors.evaluation.statistics.means import SIGNIFICANCE, Mean, combine_means, find_mean

__all__ = ["main"]

_SEED = 2026
_NUM_SIMULATIONS = 2000
_NUM_TASKS = (20, 40, 80, 120, 200, 400)
_EASY_SHARES = (0.5, 0.2, 0.35, 0.65, 0.8, 0.5)
_NUM_EPISODES = 4
_GAIN = 0.03
_SWING = 0.8
_EASY = (6.0, 1.0)
_HARD = (1.0, 6.0)
_FEW_TASKS = ((8, 3), (20, 3), (100, 5), (10, 10), (20, 20, 20, 20))
_SINGLE_TASKS = (5, 10, 20, 50, 200)
_SINGLE_MEANS = (0.05, 0.5, 0.95)
_NUM_RUNS = (3, 5, 10)
_RUN_MEANS = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8)
_SEED_SCATTER = 0.03
_SOURCE_SCATTER = 0.04
_RUN_GAIN = 0.06
_RANGE = (0.0, 1.0)
_GOAL = (0.93, 0.97)
_GOAL_SIZE = 0.06
_Z = 1.959964

Array = npt.NDArray[np.float64]


def main() -> None:
    """Simulate, and report."""
    arguments = parse_arguments(__doc__ or "")
    num_simulations = 20 if arguments.quick else _NUM_SIMULATIONS
    results: dict[str, Any] = {
        "mix": _simulate_mix(num_simulations),
        "few": _simulate_few(num_simulations),
        "single": _simulate_single(num_simulations // 2),
        "runs": {f"{number}_runs": _simulate_runs(number, num_simulations) for number in _NUM_RUNS},
    }
    results["goals"] = _judge(results)
    settings = {
        "simulations": num_simulations,
        "simulations_of_single": num_simulations // 2,
        "seed": _SEED,
        "tasks": _NUM_TASKS,
        "episodes_per_task": _NUM_EPISODES,
    }
    write_report(arguments.json, results, settings=settings)


@dataclass
class _Tally:
    """How often intervals held the truth, and how wide they were."""

    hits: int = 0
    widths: list[float] = field(default_factory=list)
    num_all: int = 0

    def add(self, low: float | None, high: float | None, truth: float) -> None:
        """Count an interval; None is one that is not given."""
        self.num_all += 1

        if low is not None and high is not None:
            self.hits += low - 1e-12 <= truth <= high + 1e-12
            self.widths.append(high - low)

    def add_normal(self, mean: float, variance: float, truth: float) -> None:
        """Count an interval of the normal distribution."""
        half = _Z * math.sqrt(variance)
        self.add(mean - half, mean + half, truth)

    def to_json(self) -> dict[str, Any]:
        """Coverage is of the intervals that were given."""
        given = len(self.widths)
        return {
            "coverage": round(self.hits / given, 4) if given else None,
            "mean_width": round(sum(self.widths) / given, 4) if given else None,
            "given_fraction": round(given / self.num_all, 4),
        }


class _Tallies(dict[str, _Tally]):
    """By the name of the interval, in the order of the first use."""

    def __missing__(self, name: str) -> _Tally:
        return self.setdefault(name, _Tally())

    def to_json(self) -> dict[str, Any]:
        return {name: tally.to_json() for name, tally in self.items()}


# -- a mix of sources


@dataclass(frozen=True)
class _Drawn:
    """The episodes of both arms on one source, as 0 and 1: `before_TE`, `after_TE`."""

    before_TE: Array
    after_TE: Array


def _simulate_mix(num_simulations: int) -> dict[str, Any]:
    scores = _Tallies()
    differences: dict[str, dict[str, Any]] = {}

    for world, (gain, swing) in _WORLDS.items():
        tallies, found = _Tallies(), dict.fromkeys(_REJECTIONS, 0)
        any_source = 0

        for simulation in range(num_simulations):
            rng = np.random.default_rng([_SEED, simulation, round(1000 * gain)])
            drawn = [
                _draw(rng, num_tasks, easy_share, gain=gain, swing=-swing if index % 2 else swing)
                for index, (num_tasks, easy_share) in enumerate(zip(_NUM_TASKS, _EASY_SHARES, strict=True))
            ]
            comparison = compare_arms([_as_run(drawn, "before")], [_as_run(drawn, "after")], seed=simulation)
            tallies["macro"].add(comparison.macro.low, comparison.macro.high, gain)

            for (name, each), truth in zip(comparison.sources.items(), _find_gains(gain, swing), strict=True):
                tallies[name].add(each.low, each.high, truth)

            for name, rejects in _REJECTIONS.items():
                found[name] += rejects(drawn)
            found["sign flips of the sum"] += _reject_by_sum(drawn, comparison.macro)
            found["sign flips (ours)"] += comparison.macro.verdict != "undecided"
            any_source += any(each.verdict != "undecided" for each in comparison.sources.values())

            if world == "equal":
                _tally_scores(scores, comparison.reference.sources, comparison.reference.macro, drawn)

        shares = {name: round(count / num_simulations, 4) for name, count in found.items()}
        differences[world] = {
            "intervals": tallies.to_json(),
            "macro_difference_found": shares,
            "any_source_found": round(any_source / num_simulations, 4),
        }

    return {"scores": scores.to_json(), "differences": differences}


_WORLDS: Mapping[str, tuple[float, float]] = {
    "equal": (0.0, 0.0),
    f"gain_{_GAIN:g}": (_GAIN, 0.0),
    "opposite moves, equal": (0.0, _SWING),
    f"opposite moves, gain_{_GAIN:g}": (_GAIN, _SWING),
}
"""The true macro gain, and what part of the hard tasks becomes easy, or of the easy ones hard."""


def _find_gains(gain: float, swing: float) -> list[float]:
    """The true gain of each source. Those of the swing sum to 0: as many shares are easy here as hard there."""
    return [gain + swing * 5 / 7 * (-share if index % 2 else 1 - share) for index, share in enumerate(_EASY_SHARES)]


def _draw(rng: np.random.Generator, num_tasks: int, easy_share: float, *, gain: float, swing: float) -> _Drawn:
    """One source: its tasks, and the episodes of both arms. A swing above 0 turns hard tasks, one below 0 easy ones."""
    is_easy = rng.random(num_tasks) < easy_share
    before = np.where(is_easy, rng.beta(*_EASY, num_tasks), rng.beta(*_HARD, num_tasks))
    mean_variance = 6 / (7 * 8)  # of p (1 - p), under either Beta
    factor = gain / mean_variance + 0.5 * rng.choice([-1.0, 1.0], num_tasks)
    draws = rng.random((2, num_tasks, _NUM_EPISODES))
    is_turned = (rng.random(num_tasks) < abs(swing)) & (is_easy == (swing < 0)) if swing else np.zeros_like(is_easy)
    chances = np.where(is_turned, 1 - before, before)
    after = chances + factor * chances * (1 - chances)
    return _Drawn((draws[0] < before[:, None]).astype(float), (draws[1] < after[:, None]).astype(float))


def _as_source(scores_TE: Array) -> SourceScores:
    return SourceScores({task: dict(enumerate(scores)) for task, scores in enumerate(scores_TE.tolist())}, _RANGE)


def _as_run(drawn: list[_Drawn], arm: str) -> RunScores:
    sources = {f"{len(each.before_TE)}_tasks": _as_source(getattr(each, f"{arm}_TE")) for each in drawn}
    return RunScores(arm, sources)


def _tally_scores(tallies: _Tallies, sources: Mapping[str, Any], macro: Any, drawn: list[_Drawn]) -> None:
    """Intervals of one arm's scores, ours and the usual ones."""
    truths = [share * 6 / 7 + (1 - share) / 7 for share in _EASY_SHARES]
    scores = [each.before_TE for each in drawn]
    pooled = np.concatenate([each.ravel() for each in scores])
    pooled_truth = float(np.average(truths, weights=_NUM_TASKS))
    means = [float(each.mean()) for each in scores]
    num_sources = len(truths)
    tallies["pooled, episodes as independent"].add_normal(
        float(pooled.mean()), float(pooled.var(ddof=1)) / len(pooled), pooled_truth
    )
    by_episode = sum(float(each.var(ddof=1)) / each.size for each in scores) / num_sources**2
    tallies["macro, episodes as independent"].add_normal(float(np.mean(means)), by_episode, float(np.mean(truths)))
    tallies["macro (ours)"].add(macro.low, macro.high, float(np.mean(truths)))

    for truth, (name, found), each in zip(truths, sources.items(), scores, strict=True):
        tallies[f"{name}, episodes as independent"].add_normal(
            float(each.mean()), float(each.var(ddof=1)) / each.size, truth
        )
        tallies[f"{name} (ours)"].add(found.score.low, found.score.high, truth)


def _simulate_few(num_simulations: int) -> dict[str, Any]:
    tallies = _Tallies()

    for each in _FEW_TASKS:
        shares = _EASY_SHARES[: len(each)]
        truth = sum(share * 6 / 7 + (1 - share) / 7 for share in shares) / len(shares)

        for simulation in range(num_simulations):
            rng = np.random.default_rng([_SEED, simulation, *each])
            drawn = [_draw(rng, *source, gain=0.0, swing=0.0) for source in zip(each, shares, strict=True)]
            scored = [(_as_source(source.before_TE), source.before_TE.mean(axis=1)) for source in drawn]
            run = RunScores("", {f"source_{index}": source for index, (source, _) in enumerate(scored)})
            arm = summarize_arm([run])
            student = combine_means((1 / len(each), find_mean(means.tolist())) for _, means in scored)
            name = " and ".join(map(str, each))
            tallies[f"{name}, ours"].add(arm.macro.low, arm.macro.high, truth)
            tallies[f"{name}, Satterthwaite's t"].add(*_find_ends(student), truth)

    return tallies.to_json()


def _find_ends(mean: Mean) -> tuple[float | None, float | None]:
    if mean.value is None or mean.half_width is None:
        return None, None

    return mean.value - mean.half_width, mean.value + mean.half_width


def _reject_by_normal(drawn: list[_Drawn], find_variance: Callable[[_Drawn], float]) -> bool:
    """Whether the macro difference is more than 1.96 standard errors from 0."""
    difference = np.mean([each.after_TE.mean() - each.before_TE.mean() for each in drawn])
    variance = sum(map(find_variance, drawn)) / len(drawn) ** 2
    return bool(abs(difference) > _Z * math.sqrt(variance))


def _reject_by_sum(drawn: list[_Drawn], found: Difference) -> bool:
    """What the verdict would be without dividing the sum by its error, which for a single source changes nothing."""
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return False

    shares = [(each.after_TE.mean(1) - each.before_TE.mean(1)) / len(each.before_TE) for each in drawn]
    p = sign_flip_p(np.concatenate(shares).tolist(), seed=0)
    return p is not None and p < SIGNIFICANCE


def _by_episodes(each: _Drawn) -> float:
    return float(each.before_TE.var(ddof=1) + each.after_TE.var(ddof=1)) / each.before_TE.size


def _by_tasks(each: _Drawn) -> float:
    return float(each.before_TE.mean(1).var(ddof=1) + each.after_TE.mean(1).var(ddof=1)) / len(each.before_TE)


_REJECTIONS: Mapping[str, Callable[[list[_Drawn]], bool]] = {
    "unpaired, episodes as independent": lambda drawn: _reject_by_normal(drawn, _by_episodes),
    "unpaired, by task": lambda drawn: _reject_by_normal(drawn, _by_tasks),
    "sign flips of the sum": lambda _: False,  # these two are counted from the comparison
    "sign flips (ours)": lambda _: False,
}


# -- one source


def _simulate_single(num_simulations: int) -> dict[str, Any]:
    return {
        f"mean_{mean:g}": {
            f"{num_tasks}_tasks": {
                f"{num_episodes}_episodes": _simulate_cell(mean, num_tasks, num_episodes, num_simulations)
                for num_episodes in (1, _NUM_EPISODES)
            }
            for num_tasks in _SINGLE_TASKS
        }
        for mean in _SINGLE_MEANS
    }


def _simulate_cell(mean: float, num_tasks: int, num_episodes: int, num_simulations: int) -> dict[str, Any]:
    scores, differences = _Tallies(), _Tallies()
    num_found = 0

    for simulation in range(num_simulations):
        rng = np.random.default_rng([_SEED, simulation, num_tasks, num_episodes, round(100 * mean)])
        chances = rng.beta(mean / 2, (1 - mean) / 2, num_tasks)
        before, after = (rng.random((2, num_tasks, num_episodes)) < chances[:, None]).astype(float)
        source = _as_source(before)
        ours = estimate_source(source, find_scale([source]))
        student = estimate_tasks(list(average_tasks(source).values()), None)
        scores["ours"].add(ours.low, ours.high, mean)
        scores["Student's t over tasks"].add(student.low, student.high, mean)
        scores["episodes as independent"].add_normal(
            float(before.mean()), float(before.var(ddof=1)) / before.size, mean
        )
        found = compare_arms([RunScores("", {"a": source})], [RunScores("", {"a": _as_source(after)})], seed=simulation)
        differences["ours"].add(found.macro.low, found.macro.high, 0.0)
        num_found += found.macro.verdict != "undecided"

    return {
        "score": scores.to_json(),
        "difference": differences.to_json() | {"found_by_chance": round(num_found / num_simulations, 4)},
    }


# -- training runs


def _simulate_runs(num_runs: int, num_simulations: int) -> dict[str, Any]:
    many = np.random.default_rng(_SEED)
    iqm_truth = _find_iqm(_draw_runs(many, many.normal(0.0, _SEED_SCATTER, 100_000)))
    scores, differences = _Tallies(), _Tallies()
    found = dict.fromkeys(("paired_size", "paired_power", "unpaired_size", "unpaired_power"), 0)

    for simulation in range(num_simulations):
        rng = np.random.default_rng([_SEED, simulation, num_runs])
        seeds = rng.normal(0.0, _SEED_SCATTER, (2, num_runs))
        before, matched, other = (_draw_runs(rng, each) for each in (seeds[0], seeds[0], seeds[1]))
        macros = before.mean(axis=1)

        for is_paired, gain in ((True, 0.0), (True, _RUN_GAIN), (False, 0.0), (False, _RUN_GAIN)):
            after, prefix = (matched, "r") if is_paired else (other, "s")
            arms = _as_runs(before, "r"), _as_runs(after + gain, prefix)
            comparison = compare_arms(*arms, seed=simulation)
            kind = "paired" if is_paired else "unpaired"
            found[f"{kind}_{'power' if gain else 'size'}"] += comparison.macro.verdict != "undecided"

            if not gain:
                differences[f"{kind} t over runs (ours)"].add(comparison.macro.low, comparison.macro.high, 0.0)

            if is_paired and not gain and comparison.runs is not None:
                ours, iqm = comparison.reference.macro, comparison.runs.reference_iqm
                probability = comparison.runs.probability_of_improvement
                differences["probability of improvement (ours)"].add(probability.low, probability.high, 0.5)
                scores["macro, t over runs (ours)"].add(ours.low, ours.high, float(np.mean(_RUN_MEANS)))
                scores["IQM, whole runs resampled (ours)"].add(iqm.low, iqm.high, iqm_truth)

        truth = float(np.mean(_RUN_MEANS))
        scores["macro, whole runs resampled"].add(*_resample(rng, macros[:, None]), truth)
        scores["macro, runs resampled within each source"].add(*_resample(rng, before), truth)

    rates = {name: round(count / num_simulations, 4) for name, count in found.items()}
    return {"scores": scores.to_json(), "differences": differences.to_json(), "found": rates}


def _draw_runs(rng: np.random.Generator, seeds: Array) -> Array:
    """Scores of runs on each source, `scores_RS`; the effect of each run's seed is given."""
    own = rng.normal(0.0, _SOURCE_SCATTER, (len(seeds), len(_RUN_MEANS)))
    scores: Array = np.array(_RUN_MEANS) + seeds[:, None] + own
    return scores


def _as_runs(scores_RS: Array, prefix: str) -> list[RunScores]:
    return [
        RunScores(
            f"{prefix}{run}",
            {f"source_{index}": SourceScores({0: {0: score}}, _RANGE) for index, score in enumerate(scores)},
        )
        for run, scores in enumerate(scores_RS.tolist())
    ]


def _find_iqm(scores_RS: Array) -> float:
    cells = np.sort(scores_RS.ravel())
    cut = len(cells) // 4
    return float(cells[cut : len(cells) - cut].mean())


def _resample(rng: np.random.Generator, scores_RS: Array, num_resamples: int = 1000) -> tuple[float, float]:
    """The percentile interval of the mean, with runs drawn anew for each column."""
    num_runs, num_sources = scores_RS.shape
    chosen = rng.integers(0, num_runs, (num_resamples, num_runs, num_sources))
    means = scores_RS[chosen, np.arange(num_sources)].mean(axis=(1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


# -- goals


def _judge(results: Mapping[str, Any]) -> dict[str, Any]:
    """Which of what is claimed holds."""
    coverages = dict(_list_coverages(results))
    differences = results["mix"]["differences"]
    sizes = {
        **{
            f"macro difference, {name}": differences[name]["macro_difference_found"]["sign flips (ours)"]
            for name, (gain, _) in _WORLDS.items()
            if not gain
        },
        "any source": differences["equal"]["any_source_found"],
        **{
            f"{name}, {kind}": found["found"][f"{kind}_size"]
            for name, found in results["runs"].items()
            for kind in ("paired", "unpaired")
        },
    }
    few = min(found["coverage"] for name, found in results["few"].items() if name.endswith("ours"))
    return {
        "coverage": {"goal": list(_GOAL), "is_met": all(_GOAL[0] <= each <= _GOAL[1] for each in coverages.values())}
        | {"outside": {name: each for name, each in coverages.items() if not _GOAL[0] <= each <= _GOAL[1]}},
        "few": {"goal": _GOAL[0], "least": few, "is_met": few >= _GOAL[0]},
        "size": {"goal": _GOAL_SIZE, "largest": max(sizes.values()), "is_met": max(sizes.values()) <= _GOAL_SIZE},
    }


def _list_coverages(results: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Of the intervals that the goals speak of."""
    for name, found in results["mix"]["scores"].items():
        if name.endswith("(ours)"):
            yield f"score, {name}", found["coverage"]

    for when, each in results["mix"]["differences"].items():
        for name, found in each["intervals"].items():
            yield f"difference, {when}, {name}", found["coverage"]

    for number, each in results["runs"].items():
        for name, found in {**each["scores"], **each["differences"]}.items():
            if "t over runs" in name:
                yield f"{number}, {name}", found["coverage"]


if __name__ == "__main__":
    main()
