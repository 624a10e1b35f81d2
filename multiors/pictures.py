"""A run as a picture: shares, rewards and levels of each source over the run.

`prepare_panels` decides what is drawn, and is plain data; the rest is matplotlib, which is loaded when a picture is
drawn and needs no display. Names of sources are shown as they are, never as markup. Where a run's curves come from is
decided in `multiors.series`.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from multiors.errors import ConfigError
from multiors.series import Run, RunSeries, Values, read_run

__all__ = ["PLAIN", "Line", "Panel", "check_name", "draw_at_end", "draw_run", "make_figure", "prepare_panels", "save"]

logger = logging.getLogger("multiors.pictures")

_FORMATS = (".png", ".svg")
PLAIN: Mapping[str, Any] = {"parse_math": False, "usetex": False}
"""Text that is shown as it is."""

_STYLES: Mapping[str, Mapping[str, Any]] = {
    "line": {"linewidth": 1.8},
    "thin": {"linewidth": 0.8, "alpha": 0.4, "marker": ".", "markersize": 2},
    "steps": {"linewidth": 1.8, "drawstyle": "steps-post"},
}
_SMOOTHED_PARTS = 30
_HEIGHT_RATIOS = (2, 2, 1)
_HEIGHTS = {2: 6.0, 3: 7.4}
_MOST_BASIC_COLORS = 10
_LEGEND_ROWS = 40


class Line(NamedTuple):
    """One curve of a source."""

    source: str
    style: Literal["line", "thin", "steps"]
    values: Values
    """One per position of the run. None: a gap."""


class Panel(NamedTuple):
    """One pair of axes; all have the positions of the run in common."""

    label: str
    lines: tuple[Line, ...]


def draw_run(run: Run, path: str | os.PathLike[str]) -> None:
    """Draw planned and drawn shares, mean rewards and levels of a run's sources.

    Args:
        run: A simulation, a trainer's `state.log_history`, or the path of a checkpoint, a `trainer_state.json` or a
            rollout log.
        path: Where the picture goes, as PNG or SVG by its ending. A file that is there is replaced.

    Raises:
        ConfigError: There is no run to be drawn, matplotlib is not installed, or the picture cannot be written.
    """
    target = check_name(path)
    _draw(read_run(run), target)


def check_name(path: str | os.PathLike[str]) -> Path:
    """Where a picture goes.

    Raises:
        ConfigError: Its ending is of no format that is drawn.
    """
    target = Path(path)
    if target.suffix.lower() not in _FORMATS:
        raise ConfigError(f"a picture {str(target)!r} cannot be drawn: its name must end with one of {list(_FORMATS)}.")
    return target


def draw_at_end(log_history: Sequence[Mapping[str, Any]], folder: str | os.PathLike[str]) -> None:
    """Draw what a trainer logged, as `curriculum.png` in a folder; a picture that fails is told and ends no training.

    Args:
        log_history: Of the trainer's state.
        folder: The trainer's `output_dir`.
    """
    path = Path(folder) / "curriculum.png"
    try:
        draw_run(log_history, path)
    except ConfigError as error:
        logger.info("%s was not drawn: %s", path, error)
    except Exception as error:  # noqa: BLE001  whatever a picture comes to, the training has ended well
        logger.warning("%s was not drawn: %s: %s", path, type(error).__name__, error)
    else:
        logger.info("the shares and rewards of the run are drawn in %s.", path)


def prepare_panels(series: RunSeries) -> tuple[Panel, ...]:
    """What is drawn: shares, rewards, and levels where a source has any."""
    width = max(1, len(series.positions) // _SMOOTHED_PARTS)
    drawn = [Line(name, "thin", values) for name, values in series.drawn.items()]
    planned = [Line(name, "line", values) for name, values in series.planned.items()]
    raw = [Line(name, "thin", values) for name, values in series.rewards.items()]
    smooth = [Line(name, "line", _smooth(values, width)) for name, values in series.rewards.items()]
    panels = [
        Panel(f"share of the {series.axis}" + (" (thin: drawn)" if planned else " (drawn)"), (*drawn, *planned)),
        Panel("mean reward" if width == 1 else f"mean reward (thick: the last {width})", (*raw, *smooth)),
    ]
    if series.levels:
        levels = tuple(Line(name, "steps", values) for name, values in series.levels.items())
        panels.append(Panel("level of the ladder", levels))
    return tuple(panels)


def _smooth(values: Values, width: int) -> Values:
    """At each value the mean of it and those just before; a gap stays a gap."""
    found: list[float | None] = []
    for at, value in enumerate(values):
        window = [other for other in values[max(0, at - width + 1) : at + 1] if other is not None]
        found.append(None if value is None else math.fsum(window) / len(window))
    return tuple(found)


def _draw(series: RunSeries, path: Path) -> None:
    panels = prepare_panels(series)
    with make_figure(width=9.0, height=_HEIGHTS[len(panels)]) as figure:
        colors = _choose_colors(series.names)
        all_axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=_HEIGHT_RATIOS[: len(panels)])
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw_panel(axes, panel, series.positions, colors)
        all_axes[0].set_ylim(bottom=0.0)
        all_axes[-1].set_xlabel(series.axis, **PLAIN)
        if series.about:
            figure.suptitle(series.about, fontsize="medium", **PLAIN)
        _draw_legend(figure, colors)
        save(figure, path)


@contextmanager
def make_figure(*, width: float, height: float, dpi: int = 80) -> Iterator[Any]:
    """An empty figure that needs no display.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a picture needs matplotlib. Install it: pip install 'multiors[plots]'.") from error

    # Text of an SVG stays text, which can be read and searched.
    with rc_context({"text.usetex": False, "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def save(figure: Any, path: Path) -> None:
    """Write a figure as its name's ending says.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".svg":
            figure.savefig(path)
        else:
            _save_png(figure.canvas, path)
    except OSError as error:
        raise ConfigError(f"the picture {str(path)!r} cannot be written: {error.strerror}.") from error


def _save_png(canvas: Any, path: Path) -> None:
    """With a palette: a third of the size that matplotlib writes."""
    from PIL import Image

    canvas.draw()
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize().save(path, optimize=True)


def _draw_panel(axes: Any, panel: Panel, positions: Sequence[float], colors: Mapping[str, Any]) -> None:
    for line in panel.lines:
        values = [math.nan if value is None else value for value in line.values]
        axes.plot(positions, values, color=colors[line.source], **_STYLES[line.style])
    if all(line.style == "steps" for line in panel.lines):
        axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(panel.label, **PLAIN)
    axes.grid(visible=True, alpha=0.2)


def _draw_legend(figure: Any, colors: Mapping[str, Any]) -> None:
    """One entry per source. Its name is set afterwards: matplotlib hides labels that begin with "_"."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, linewidth=1.8) for color in colors.values()]
    places = [str(number) for number in range(len(handles))]
    columns = -(-len(handles) // _LEGEND_ROWS)
    legend = figure.legend(handles, places, loc="outside right upper", fontsize="small", ncols=columns)
    for text, name in zip(legend.get_texts(), colors, strict=True):
        text.set(text=name, **PLAIN)


def _choose_colors(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each source, the same whatever their order; beyond ten they lie on a scale."""
    ordered = sorted(names)
    if len(names) <= _MOST_BASIC_COLORS:
        return {name: f"C{ordered.index(name)}" for name in names}

    from matplotlib import colormaps

    scale = colormaps["turbo"]
    return {name: scale(ordered.index(name) / (len(names) - 1)) for name in names}
