"""The class of a source's environments, and the factory that a trainer is given.

Decides that a source has one class in each process, named like the source, with a typed method per tool.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.environment import RolloutEnvironment
from multiors.ors.rollouts.opening import Opening, open_ahead
from multiors.ors.rollouts.showing import Shown
from multiors.ors.tools import BoundTool, make_method

__all__ = ["EnvironmentFactory", "make_environment_class"]


@dataclass(frozen=True, slots=True)
class EnvironmentFactory:
    """Makes the environments of one source; a value, so that it pickles to a spawned rollout worker."""

    blueprint: Blueprint

    def __call__(self) -> RolloutEnvironment:
        """A fresh environment, always of the same class in one process."""
        return make_environment_class(self.blueprint, RolloutEnvironment)()

    def open_ahead(self, *, task_index: object = None, **_columns: Any) -> Opening | None:
        """Start opening the session that a reset with this row will take. None: the row has no task index."""
        return open_ahead(self.blueprint, task_index) if isinstance(task_index, int) else None


_class_by_key: dict[tuple[str, type], type] = {}
_class_lock = threading.Lock()


def make_environment_class(
    blueprint: Blueprint, base: type[RolloutEnvironment], **attributes: Any
) -> type[RolloutEnvironment]:
    """The one subclass of `base` that stands for a source in this process, named like the source.

    TRL compares classes exactly, so asking again for the same source and base returns the same class.
    """
    with _class_lock:
        key = (blueprint.identity, base)

        if key not in _class_by_key:
            methods = {
                tool.name: make_method(tool, class_name=blueprint.label, call=_call_tool) for tool in blueprint.tools
            }
            namespace = {**methods, **attributes, "_blueprint": blueprint, "_reported": set()}
            _class_by_key[key] = type(blueprint.label, (base,), namespace)

        return _class_by_key[key]


def _call_tool(
    environment: RolloutEnvironment, tool: BoundTool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Shown:
    return environment._call(tool, args, kwargs)
