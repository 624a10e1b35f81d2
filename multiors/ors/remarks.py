"""How something is said that is odd about a source and no error: as a warning, unless someone listens."""

from __future__ import annotations

import warnings
from collections.abc import Callable

__all__ = ["Say", "warn"]

Say = Callable[[str], None]
"""Takes a remark that names its source."""


def warn(remark: str) -> None:
    """Say it to whoever runs the program."""
    warnings.warn(remark, stacklevel=2)
