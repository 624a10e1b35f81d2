"""A comparison as pictures for papers: the difference on every environment, and how the means of tasks are distributed.

The colours are those of the page. matplotlib is loaded when a picture is drawn, and needs no display.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from multiors.errors import ConfigError
from multiors.evaluation.comparison.html import name_result, read_task_means
from multiors.evaluation.comparison.visible import fold
from multiors.evaluation.folder import EvaluationRun
from multiors.evaluation.results import ArmResult, Comparison, Difference, Estimate
from multiors.pictures import PLAIN, check_name, make_figure, save

__all__ = ["COLORS", "draw_distributions", "draw_result"]

COLORS: Mapping[str, str] = {
    "reference": "#8a8478",
    "candidate": "#2f6f9f",
    "worse": "#b3400e",
    "better": "#17705c",
    "undecided": "#6b675f",
    "unseen": "#f1eee8",
}
_DPI = 200  # of print
_ROW = 0.34
_LABELS = 1.3
_COLUMNS = 3
_BINS = 20
_LONGEST_NAME = 40


def draw_result(result: Comparison | ArmResult, path: str | os.PathLike[str]) -> None:
    """Draw a forest plot: of a comparison the differences, of one evaluation the means; with 95 % intervals.

    Args:
        result: What is drawn.
        path: Where the picture goes, as PNG or SVG by its ending. A file that is there is replaced.

    Raises:
        ConfigError: matplotlib is not installed, or the picture cannot be written.
    """
    target = check_name(path)
    rows: dict[str, Difference | Estimate] = {**result.on_one_scale, "overall": result.macro}

    with make_figure(width=6.4, height=_LABELS + _ROW * len(rows), dpi=_DPI) as figure:
        axes = figure.subplots()

        for place, each in enumerate(rows.values()):
            _draw_row(axes, -place, each, is_overall=place == len(rows) - 1)

        if isinstance(result, Comparison):
            axes.axvline(0.0, color=COLORS["undecided"], linewidth=0.8, zorder=1)

        axes.axhline(1.5 - len(rows), color="#e4e0d8", linewidth=0.8)
        axes.set_ylim(0.6 - len(rows), 0.6)
        axes.set_yticks([-place for place in range(len(rows))], labels=[fold(name, _LONGEST_NAME) for name in rows])

        for label in axes.get_yticklabels():
            label.set(**PLAIN)

        axes.set_xlabel(_label(result), **PLAIN)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        save(figure, target)


def _draw_row(axes: Any, height: float, each: Difference | Estimate, *, is_overall: bool) -> None:
    verdict = each.verdict if isinstance(each, Difference) else "candidate"
    color = COLORS[verdict]

    if isinstance(each, Difference) and each.minimum_detectable is not None:
        width = each.minimum_detectable
        axes.barh(height, 2 * width, left=-width, height=0.8, color=COLORS["unseen"], zorder=0)

    if each.low is not None and each.high is not None:
        axes.plot([each.low, each.high], [height, height], color=color, linewidth=1.6, zorder=2)

    if each.value is not None:
        face = "white" if verdict == "undecided" else color
        marker = "D" if is_overall else "s"
        axes.plot([each.value], [height], marker, color=color, markerfacecolor=face, markersize=6, zorder=3)


def _label(result: Comparison | ArmResult) -> str:
    names = name_result(result)
    is_scaled = result.range_widths if isinstance(result, Comparison) else result.ranges
    unit = ", as fractions of the ranges" if is_scaled else ""
    return f"{names[1]} less {names[0]}{unit}" if len(names) == 2 else f"mean score of {names[0]}{unit}"


def draw_distributions(
    result: Comparison | ArmResult, path: str | os.PathLike[str], *arms: Sequence[EvaluationRun]
) -> None:
    """Draw how the means of tasks are distributed on every environment.

    Args:
        result: What is drawn.
        path: As of `draw_result`.
        arms: The runs that it was found in: those of the reference, then those of the candidate; of one evaluation, its
            own.

    Raises:
        ConfigError: There is no environment, matplotlib is not installed, or the picture cannot be written.
    """
    target = check_name(path)
    names = list(result.sources)

    if not names:
        raise ConfigError(f"a picture {str(target)!r} cannot be drawn: the result has no environment.")

    means = read_task_means(result, arms)
    columns = min(_COLUMNS, len(names))
    num_rows = -(-len(names) // columns)

    with make_figure(width=2.6 * columns, height=0.5 + 1.9 * num_rows, dpi=_DPI) as figure:
        all_axes = figure.subplots(num_rows, columns, squeeze=False).flat

        for axes, name in zip(all_axes, names, strict=False):
            _draw_histograms(axes, [arm.get(name, []) for arm in means])
            axes.set_title(fold(name, _LONGEST_NAME), fontsize="medium", **PLAIN)

        for axes in list(all_axes)[len(names) :]:
            axes.set_visible(False)

        _draw_key(figure, name_result(result))
        save(figure, target)


def _draw_histograms(axes: Any, means: Sequence[Sequence[float]]) -> None:
    """Of two arms the candidate upwards and the reference downwards, as fractions of each arm's tasks."""
    values = [value for arm in means for value in arm]
    signs = {2: (-1, 1), 1: (1,)}[len(means)]
    colors = [COLORS["reference"], COLORS["candidate"]][-len(means) :]

    for arm, sign, color in zip(means, signs, colors, strict=True):
        if arm:
            weights = [sign / len(arm)] * len(arm)
            axes.hist(arm, bins=_BINS, range=(min(values), max(values)), weights=weights, color=color, alpha=0.75)
            axes.plot([sum(arm) / len(arm)], [0.0], "^" if sign < 0 else "v", color=color, markersize=6, zorder=3)

    axes.axhline(0.0, color="#e4e0d8", linewidth=0.8)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_key(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    colors = [COLORS["reference"], COLORS["candidate"]][-len(names) :]
    handles = [Patch(color=color, alpha=0.75) for color in colors]
    legend = figure.legend(
        handles, [str(place) for place in range(len(names))], loc="outside lower center", ncols=2, frameon=False
    )

    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=fold(name, _LONGEST_NAME), **PLAIN)
