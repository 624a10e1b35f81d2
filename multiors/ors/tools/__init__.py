"""Tool specifications of a server → typed Python methods that transformers can show to a policy.

`wording` makes text fit to read, `references` resolves `$ref` and `allOf`, `schemas` turns JSON Schema into types and
words, `binding` gives names and makes the methods. Nothing here knows a session or generates source text.
"""

from __future__ import annotations

from multiors.ors.tools.binding import (
    RESERVED_TOOL_NAMES,
    BoundParameter,
    BoundTool,
    bind_arguments,
    bind_tools,
    describe_tools,
    make_method,
    render_tools,
)

__all__ = [
    "RESERVED_TOOL_NAMES",
    "BoundParameter",
    "BoundTool",
    "bind_arguments",
    "bind_tools",
    "describe_tools",
    "make_method",
    "render_tools",
]
