"""Values of a run file that may be written shorter: read into the longer form, and both are in the schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

__all__ = ["Shorthand"]


@dataclass(frozen=True)
class Shorthand:
    """Marks a type as one whose values may be written shorter."""

    read: Callable[[object], object]
    """Makes the longer form of a short one, and leaves everything else as it is."""

    describe: Callable[[dict[str, Any]], dict[str, Any]]
    """JSON Schema of the short form, from that of the longer one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        longer = handler(core)
        return {"anyOf": [self.describe(longer), longer]}
