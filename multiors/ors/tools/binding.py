"""Tool specifications of an ORS server → typed Python methods, without generating source text.

Decides the Python names of tools and parameters, the docstring that transformers reads, and how the policy's arguments
become the server's. It does not know sessions: a method hands its arguments to the function it was made with.

Names: what is no identifier, begins with an underscore, is a keyword, or is taken is renamed, never dropped, and the
wire keeps the server's own name.
- Text is NFKC-normalised, as Python does with identifiers; each run of other characters becomes one underscore, and
  leading underscores go: `run-query` → `run_query`, `_hidden` → `hidden`. Letters of all scripts stay.
- What then does not begin with a letter gets `tool_` or `arg_` in front: `0th` → `arg_0th`.
- A keyword or reserved name gets an underscore behind: `import` → `import_`, `reset` → `reset_`, `self` → `self_`.
- More than 64 characters, which model APIs refuse, are cut, and a hash of the whole name takes the end.
- Names that would be equal get `_2`, `_3`, … in the order of the server's names; a name that is right as it is wins.

Keep in step with transformers' `get_json_schema` and with how TRL collects tools from a class and calls them.
"""

from __future__ import annotations

import hashlib
import inspect
import keyword
import re
import types
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from multiors.errors import SourceError
from multiors.ors.tools.schemas import ParameterReading, read_input_schema
from multiors.ors.tools.wording import clean_text, clip, defuse_sections, one_line, quote_name

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

RESERVED_TOOL_NAMES = frozenset(
    {"reset", "get_reward", "reward", "rewards", "metadata", "finished", "last_output", "close"}
)
"""Names that TRL or the rollout environment uses: no tool is called so in Python."""

_MAX_NAME = 64
_UNDESCRIBED = "No description given."
# transformers ends the `Args:` block where these words stand before a colon, also inside a parameter's name.
_ENDS_SECTION = re.compile(r"(?:Args|Returns|Raises)\Z")


@dataclass(frozen=True, slots=True)
class BoundParameter:
    """One parameter of a tool, as the policy sees it."""

    name: str
    """Its Python name, which the policy uses."""

    wire_name: str
    """Its name on the server."""

    annotation: Any
    required: bool

    default: Any = field(hash=False)
    """What the server says it takes when the parameter is left out; shown, never sent. None: it says nothing."""

    description: str
    """One line: the server's description, then what the annotation cannot say."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """One tool, as the policy sees it. Pickles, and equals another of the same specification."""

    name: str
    """Its Python name, which the policy uses."""

    wire_name: str
    """Its name on the server."""

    description: str
    parameters: tuple[BoundParameter, ...]
    """Required ones first; otherwise in the server's order."""

    losses: tuple[str, ...] = ()
    """What of the server's specification the policy reads in words instead of types, or not at all."""

    @property
    def docstring(self) -> str:
        """Description and parameters in the form transformers parses."""
        lines = [f"    {parameter.name}: {parameter.description}" for parameter in self.parameters]
        return "\n".join([self.description, "", "Args:", *lines]) if lines else self.description

    @property
    def annotations(self) -> dict[str, Any]:
        """Types of the parameters, and of what the tool returns."""
        return {**{parameter.name: parameter.annotation for parameter in self.parameters}, "return": str}

    @property
    def signature(self) -> inspect.Signature:
        """Signature as a method, `self` included."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [
            inspect.Parameter(
                parameter.name,
                kind,
                default=inspect.Parameter.empty if parameter.required else parameter.default,
                annotation=parameter.annotation,
            )
            for parameter in self.parameters
        ]
        return inspect.Signature([inspect.Parameter("self", kind), *parameters], return_annotation=str)

    def to_wire(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by Python name → the same arguments by the server's names. Nothing is added.

        Raises:
            KeyError: The tool has no parameter of that name.
        """
        wire_name_by_name = {parameter.name: parameter.wire_name for parameter in self.parameters}
        return {wire_name_by_name[name]: value for name, value in arguments.items()}


def bind_tools(specs: Sequence[object], *, reserved: frozenset[str] = frozenset()) -> tuple[BoundTool, ...]:
    """Bind a server's tool specifications to Python names and types.

    Args:
        specs: Objects with `name`, `description` and `input_schema`, as the server lists them.
        reserved: Names that no tool may have in Python, besides `RESERVED_TOOL_NAMES`.

    Returns:
        One tool per server name, in the order given. Of several specifications of one name the first is kept; if they
        differ, that is a loss.

    Raises:
        SourceError: A specification is no object, or its name is no text.
    """
    taken = RESERVED_TOOL_NAMES | reserved
    spec_by_name: dict[str, Mapping[str, Any]] = {}
    contested = set()

    for i, spec in enumerate(specs):
        name = spec.get("name") if isinstance(spec, Mapping) else None
        if not isinstance(spec, Mapping) or not isinstance(name, str):
            raise SourceError(
                f"tool number {i + 1} of the server has the name {clip(repr(name), 80)}; a tool's name is text, and "
                f"without it the tool cannot be called. Correct the tool on the server."
            )
        if name not in spec_by_name:
            spec_by_name[name] = spec
        elif _bind_tool(name, spec_by_name[name]) != _bind_tool(name, spec):
            contested.add(name)

    names = _assign_names(spec_by_name, prefix="tool_", is_taken=taken.__contains__)
    tools = []

    for wire_name, spec in spec_by_name.items():
        tool = replace(_bind_tool(wire_name, spec), name=names[wire_name])
        if wire_name in contested:
            loss = "the server sent another specification of this tool too; the first one is used"
            tool = replace(tool, losses=(*tool.losses, loss))
        tools.append(tool)
    return tuple(tools)


def make_method(
    tool: BoundTool, *, class_name: str, call: Callable[[Any, BoundTool, tuple[Any, ...], dict[str, Any]], Any]
) -> types.FunctionType:
    """Make the method that the policy calls.

    Args:
        tool: What the method is called, takes and says about itself.
        class_name: Class that the method is going to be in, for its qualified name.
        call: Gets the instance, the tool, and the arguments as they came; nothing is checked before.

    Returns:
        A plain function for a class namespace.
    """

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return call(self, tool, args, kwargs)

    method.__name__ = tool.name
    method.__qualname__ = f"{class_name}.{tool.name}"
    method.__doc__ = tool.docstring
    method.__annotations__ = tool.annotations
    method.__signature__ = tool.signature  # type: ignore[attr-defined]  # read by inspect, unknown to typeshed
    return method  # type: ignore[return-value]  # mypy has functions as callables


def bind_arguments(tool: BoundTool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call by the server's names; only what was given.

    Raises:
        TypeError: An argument is unknown, missing, or given twice. The text names it and what exists, and is safe
            for the policy to read.
    """
    names = [parameter.name for parameter in tool.parameters]
    takes = ", ".join(p.name if p.required else f"{p.name} (optional)" for p in tool.parameters) or "nothing"
    problem = None

    if len(args) > len(names):
        problem = f"got {len(args)} arguments"
    for name in kwargs:
        if name not in names:
            problem = problem or f"got an unknown argument {_quote_argument(name)}"
        elif name in names[: len(args)]:
            problem = problem or f"got the argument '{name}' twice"
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    missing = [f"'{p.name}'" for p in tool.parameters if p.required and p.name not in arguments]
    if missing:
        problem = problem or f"is missing the argument {' and '.join(missing)}"

    if problem:
        raise TypeError(f"The tool '{tool.name}' {problem}. It takes: {clip(takes, 500)}.")
    return tool.to_wire(arguments)


def render_tools(tools: Iterable[BoundTool]) -> list[dict[str, Any]]:
    """The JSON schemas that the policy sees, made by transformers from every tool's method.

    Raises:
        SourceError: transformers cannot show a tool.
    """
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    rendered = []

    for tool in tools:
        try:
            rendered.append(get_json_schema(make_method(tool, class_name="Tools", call=_call_nothing)))
        except (DocstringParsingException, TypeHintParsingException, TypeError, ValueError) as error:
            raise SourceError(
                f"tool {tool.wire_name!r}: transformers cannot show it to the policy: {one_line(str(error))}. "
                f"Change the tool's name, description or schema on the server, or leave the tool out."
            ) from error
    return rendered


def describe_tools(tools: Iterable[BoundTool]) -> str:
    """A plain-text table: each tool with its parameters, its name on the server if that differs, and its losses."""
    rows = [(_describe_name(tool.name, tool.wire_name), _describe_parameters(tool), tool.losses) for tool in tools]
    width = max([len("tool"), *(len(name) for name, _, _ in rows if len(name) <= 40)])
    lines = [f"{'tool':<{width}}  parameters"]

    for name, parameters, losses in rows:
        lines.append(f"{name:<{width}}  {parameters or '(none)'}")
        lines += [f"{'':<{width}}    loss: {one_line(loss)}" for loss in losses]
    return "\n".join(line.rstrip() for line in lines)


def _describe_name(name: str, wire_name: str) -> str:
    return name if name == wire_name else f"{name} (on the server: {quote_name(wire_name)})"


def _describe_parameters(tool: BoundTool) -> str:
    texts = []

    for parameter in tool.parameters:
        kind = inspect.formatannotation(parameter.annotation).replace("typing.", "").replace("NoneType", "None")
        default = "" if parameter.required else f" = {clip(one_line(repr(parameter.default)), 40)}"
        texts.append(f"{_describe_name(parameter.name, parameter.wire_name)}: {clip(one_line(kind), 80)}{default}")
    return ", ".join(texts)


def _call_nothing(instance: Any, tool: BoundTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    raise TypeError(f"The tool '{tool.name}' is here to be shown, not to be called.")


def _bind_tool(wire_name: str, spec: Mapping[str, Any]) -> BoundTool:
    """Bind all of a tool but its Python name, which depends on the other tools."""
    reading = read_input_schema(spec.get("input_schema"))
    names = _assign_names(
        [parameter.wire_name for parameter in reading.parameters],
        prefix="arg_",
        is_taken=lambda name: name == "self" or _ENDS_SECTION.search(name) is not None,
    )
    parameters = [_bind_parameter(parameter, names[parameter.wire_name]) for parameter in reading.parameters]
    description = spec.get("description")
    losses = reading.losses

    if description is not None and not isinstance(description, str):
        losses = (*losses, "its description is no text")
    text = clean_text(description) if isinstance(description, str) else ""
    text = text or clean_text(reading.description) or _UNDESCRIBED
    return BoundTool(
        name=wire_name,
        wire_name=wire_name,
        description=defuse_sections(text),
        # A signature has required parameters first.
        parameters=tuple(sorted(parameters, key=lambda parameter: not parameter.required)),
        losses=losses,
    )


def _bind_parameter(reading: ParameterReading, name: str) -> BoundParameter:
    description = reading.description

    if reading.remark:
        remark = reading.remark[0].upper() + reading.remark[1:]
        end = "" if description.endswith((".", "!", "?", ":", ";")) else "."
        description = f"{description}{end} {remark}" if description else remark
    return BoundParameter(
        name=name,
        wire_name=reading.wire_name,
        annotation=reading.annotation,
        required=reading.required,
        default=reading.default,
        description=defuse_sections(description or _UNDESCRIBED),
    )


def _assign_names(wire_names: Iterable[str], *, prefix: str, is_taken: Callable[[str], bool]) -> dict[str, str]:
    """A Python name for each of the server's names, no two alike; the order of the names does not matter."""
    stems = {wire_name: _make_stem(wire_name, prefix) for wire_name in wire_names}
    names = {wire: wire for wire, stem in stems.items() if wire == stem and not _is_barred(stem, is_taken)}
    used = set(names.values())

    for wire_name in sorted(stems.keys() - names.keys()):
        stem = stems[wire_name]
        name = _append(stem, "_") if _is_barred(stem, is_taken) else stem
        number = 2
        while name in used or _is_barred(name, is_taken):
            name = _append(stem, f"_{number}")
            number += 1
        names[wire_name] = name
        used.add(name)
    return names


def _make_stem(wire_name: str, prefix: str) -> str:
    normal = unicodedata.normalize("NFKC", one_line(wire_name))
    # Both tests: identifiers may hold combining marks that `\w`, and so transformers' docstring parser, does not match.
    kept = "".join(ch if ch == "_" or (ch.isalnum() and f"a{ch}".isidentifier()) else " " for ch in normal)
    stem = "_".join(kept.lstrip("_ ").split())

    if not stem.isidentifier():
        stem = prefix + stem if stem else prefix.rstrip("_")
    if len(stem) > _MAX_NAME:
        digest = hashlib.sha256(wire_name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        stem = _append(stem, f"_{digest}")
    return stem


def _append(stem: str, suffix: str) -> str:
    return stem[: _MAX_NAME - len(suffix)] + suffix


def _is_barred(name: str, is_taken: Callable[[str], bool]) -> bool:
    return keyword.iskeyword(name) or is_taken(name)


def _quote_argument(name: object) -> str:
    return clip(repr(name), 80)
