"""What `multiors preview` shows of a mix before it is trained: its plan, its tools, and a simulation.

Reads what the command line says of trainer and assumptions. What is drawn is decided in `multiors.mixing`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multiors.checks.mix import for_this_machine
from multiors.errors import ConfigError, MultiORSError
from multiors.mixing import PRESETS, LearningCurve, Plan, Simulation
from multiors.spec import MultiOpenRewardSpec
from multiors.training import describe_refusal

__all__ = ["Preview", "make_preview", "read_assumptions"]


@dataclass(frozen=True, slots=True)
class Preview:
    """What a mix will do. `print(preview)` shows it."""

    plan: Plan

    tools: Mapping[str, str] | None = None
    """A table of each environment's tools, by source. None: not asked for."""

    simulation: Simulation | None = None
    """None: not asked for."""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; what was not asked for is left out."""
        found: dict[str, Any] = {"plan": self.plan.to_json()}
        if self.tools is not None:
            found["tools"] = dict(self.tools)
        if self.simulation is not None:
            found["simulation"] = self.simulation.to_json()
        return found

    def __str__(self) -> str:
        tables = [f"{name}\n{table}" for name, table in (self.tools or {}).items()]
        simulations = [] if self.simulation is None else [str(self.simulation)]
        return "\n\n".join([str(self.plan), *tables, *simulations])


def make_preview(
    spec: MultiOpenRewardSpec,
    *,
    training: Mapping[str, Any] | None = None,
    shows_tools: bool = False,
    curves: Mapping[str, LearningCurve] | None = None,
) -> Preview:
    """Ask the servers, and lay the run out.

    Args:
        spec: The mix.
        training: Fields of `GRPOConfig`, for whose batches the run is laid out. None: not known.
        shows_tools: Whether tools are shown.
        curves: What a simulation assumes, by source. None: nothing is simulated.

    Raises:
        ConfigError: Trainer and mix do not go together, or what was asked for needs a trainer's batches.
    """
    if training is not None:
        _lay_out(spec, training)
    simulation = None if curves is None else spec.simulate(curves)
    return Preview(spec.plan(), spec.describe_tools() if shows_tools else None, simulation)


def read_assumptions(texts: Sequence[str]) -> dict[str, LearningCurve]:
    """Learning curves as they stand on the command line, `SOURCE=START:END:HALF_SLOTS` or `SOURCE=PRESET`.

    Raises:
        ConfigError: One of them is something else, or of a source that had one.
    """
    curves: dict[str, LearningCurve] = {}
    for text in texts:
        name, _, curve = text.partition("=")
        if name in curves:
            raise ConfigError(f"--assume {text!r}: something else was assumed of source {name!r}. Leave one out.")
        curves[name] = PRESETS[curve] if curve in PRESETS else _read_curve(text, curve)
    return curves


def _read_curve(text: str, curve: str) -> LearningCurve:
    try:
        start, end, half_slots = map(float, curve.split(":"))
    except ValueError:
        raise ConfigError(
            f"--assume {text!r} is no learning curve. Write SOURCE=START:END:HALF_SLOTS, as in sort=0.2:0.9:64, or one "
            f"of {', '.join(PRESETS)} behind the equals sign."
        ) from None  # it says only which part is no number
    try:
        return LearningCurve(start, end, half_slots)
    except ConfigError as error:
        raise ConfigError(f"--assume {text!r}: {error}") from error


def _lay_out(spec: MultiOpenRewardSpec, training: Mapping[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the trainer's own says it again
        try:
            spec.training_arguments(**for_this_machine(training))
        except MultiORSError:
            raise
        except (TypeError, ValueError, ImportError, RuntimeError, OSError) as error:
            raise ConfigError(f"training: GRPOConfig refuses these fields: {describe_refusal(error)}") from error
