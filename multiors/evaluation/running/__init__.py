"""Episodes, many at once, each with a record at its end."""

from __future__ import annotations

__all__: list[str] = []
