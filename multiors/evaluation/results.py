"""What an evaluation and a comparison found, as plain values: nothing here is computed, nothing is drawn.

`statistics` fills these, `comparison` and the command line show them. Undefined is None: the mean of nothing, the
interval of one. They are made of numbers and names alone, so that they survive JSON and pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from multiors.records import UnscoredReason

__all__ = [
    "ArmResult",
    "Comparison",
    "Difference",
    "Estimate",
    "RunsComparison",
    "SourceResult",
    "Usage",
    "Verdict",
]

Verdict = Literal["better", "worse", "undecided"]
"""Of the candidate beside the reference, by the adjusted p value at 5 %."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    value: float | None
    """None: there is nothing to average."""

    low: float | None
    high: float | None
    """None: fewer than two units."""

    error: float | None
    """Standard error. None: fewer than two units."""

    num_units: int
    """What was averaged: tasks with a scored episode, or training runs."""

    method: str = ""
    """How the interval was made, in a few words. Empty: there is none."""

    def as_fraction(self, low: float, high: float) -> Estimate:
        """The same mean as a fraction of a range."""
        width = high - low
        places: dict[str, Any] = {
            name: None if (place := getattr(self, name)) is None else (place - low) / width
            for name in ("value", "low", "high")
        }
        return replace(self, **places, error=None if self.error is None else self.error / width)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the episodes of one source cost."""

    num_turns: int
    """Messages that the policy wrote."""

    num_tool_calls: int
    num_prompt_tokens: int | None
    """None: no episode says."""

    num_sampled_tokens: int | None
    policy_s: float | None
    """Seconds waited for the policy, summed over episodes."""

    median_s: float | None
    """Seconds of an episode, half of them were quicker. None: not measured."""

    p95_s: float | None
    """Nineteen of twenty were quicker."""


@dataclass(frozen=True, slots=True)
class SourceResult:
    """One policy on one source."""

    source: str
    weight: float
    """Of the source in the macro average, normalized to sum 1 over the sources."""

    num_tasks: int
    """Tasks that were played, scored or not."""

    num_episodes: int
    num_scored: int
    unscored_by_reason: Mapping[UnscoredReason, int]
    """Reasons that occurred; they sum to num_episodes - num_scored."""

    score: Estimate
    """Mean over tasks of each task's mean over its scored episodes (avg@k)."""

    bounds: tuple[float, float] | None
    """`score` if every unscored episode had scored the lowest, and the highest, of the source's declared range. None:
    no range is declared."""

    success_at: float | None
    """From which score on an episode counts as a success. None: not declared, and not to be told from the scores."""

    pass_at: Mapping[int, Estimate] = field(default_factory=dict)
    """pass@k by k, over tasks with k scored episodes and more. Empty: there is no `success_at`."""

    usage: Usage | None = None

    @property
    def scored_fraction(self) -> float | None:
        """None: there are no episodes."""
        return self.num_scored / self.num_episodes if self.num_episodes else None


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One policy on all sources; with several training runs (seeds), their mean."""

    name: str
    """As the user calls it: the folder's name, unless another was given."""

    policy: Mapping[str, Any]
    """What the policy says of itself: kind, model, sampling."""

    num_runs: int
    """Evaluations that were read: one per training run."""

    sources: Mapping[str, SourceResult]
    """By source, in the order of the mix. Of several runs all episodes together, but `score` over runs."""

    macro: Estimate
    """Mean of the sources' scores by their weights. None where a source that has a weight has no score."""

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By source, where `macro` is of fractions of them, and all are known. Empty: scores are shown as they are."""

    remarks: tuple[str, ...] = ()
    """What the reader must know before believing the numbers: episodes that are missing, environments that failed. Of
    an arm that is compared they are among the comparison's."""

    @property
    def on_one_scale(self) -> dict[str, Estimate]:
        """The scores of sources that can be put side by side: as fractions of `ranges`, if there are any."""
        return {
            name: each.score.as_fraction(*self.ranges[name]) if self.ranges else each.score
            for name, each in self.sources.items()
        }

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values


@dataclass(frozen=True, slots=True)
class Difference:
    """Candidate less reference, paired."""

    value: float | None
    low: float | None
    """Lower end of the 95 % interval. None: fewer than two pairs."""

    high: float | None
    error: float | None
    p: float | None
    """Two-sided, by sign flips over the pairs, or by the paired t over training runs. None: no test is possible."""

    p_adjusted: float | None
    """Holm's, over the sources. For the macro difference, which is one test declared beforehand, equal to `p`."""

    minimum_detectable: float | None
    """The true difference that a test at 5 % would find in four of five repetitions, if pairs scatter as these did."""

    num_pairs: int
    """Tasks that both arms have scored episodes of, or training runs."""

    verdict: Verdict

    def divide(self, width: float) -> Difference:
        """The same difference in units of this many."""
        numbers = ("value", "low", "high", "error", "minimum_detectable")
        divided: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value / width for name in numbers
        }
        return replace(self, **divided)


@dataclass(frozen=True, slots=True)
class RunsComparison:
    """What several training runs of each arm say beside the paired t. Whole runs are resampled; 95 % intervals."""

    reference_iqm: Estimate
    candidate_iqm: Estimate
    """Interquartile mean over runs and sources."""

    probability_of_improvement: Estimate
    """That a run of the candidate beats one of the reference on a source, averaged over sources; ties count half."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Is the candidate better than the reference, and where?"""

    reference: ArmResult
    candidate: ArmResult
    unit: Literal["task", "run"]
    """What is paired: tasks of two evaluations, or training runs."""

    is_paired: bool
    """False: the runs have no common names, so arms are compared as two independent samples."""

    value: Literal["reward", "outcome"]
    """Which number of an episode is its score."""

    macro: Difference
    sources: Mapping[str, Difference]
    """By source, in the order of the mix."""

    range_widths: Mapping[str, float] = field(default_factory=dict)
    """By source, where `macro` is of fractions of the ranges, and all are known. Empty: shown as they are."""

    runs: RunsComparison | None = None
    """None: one run each."""

    remarks: tuple[str, ...] = ()
    """What the reader must know before believing the numbers: tasks that only one arm has, scored fractions that
    differ, other sampling; one sentence each."""

    @property
    def on_one_scale(self) -> dict[str, Difference]:
        """The differences of sources that can be put side by side: as fractions of `range_widths`, if there are any."""
        return {name: each.divide(self.range_widths.get(name, 1.0)) for name, each in self.sources.items()}

    @property
    def regressed(self) -> tuple[str, ...]:
        """Sources on which the candidate is worse, the worst first, on one scale."""
        worse = [(each.value, name) for name, each in self.on_one_scale.items() if each.verdict == "worse"]
        return tuple(name for _, name in sorted(worse, key=lambda pair: (pair[0] or 0.0, pair[1])))

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values
