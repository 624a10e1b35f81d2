"""Tools of a server as Python methods: names, signatures, calls, and what transformers makes of them."""

from __future__ import annotations

import inspect
import json
import keyword
import pickle
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import SourceError
from multiors.ors.tools import (
    RESERVED_TOOL_NAMES,
    BoundParameter,
    BoundTool,
    bind_arguments,
    bind_tools,
    describe_tools,
    make_method,
    render_tools,
)
from tests.schema_strategies import UNREADABLE

CASES = json.loads((Path(__file__).parent / "data" / "tool_specifications.json").read_text(encoding="utf-8"))["cases"]

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
TRICKY_NAMES = st.sampled_from(
    [
        *(
            "",
            "_",
            "__init__",
            "a-b",
            "a b",
            "a_b",
            "a.b",
            "a_b_2",
            "import",
            "import_",
            "self",
            "reset",
            "reset_",
            "2x",
        ),
        *("tool_2x", "Args", "xReturns", "Raises", "None", "e\u0301", "\u00e9", "\ufb01x", "fix", "x\u00b7y", "\u00b2"),
        *("x" * 64, "x" * 65, "x" * 80),
    ]
)
NAMES = TRICKY_NAMES | ANY_TEXT
TRICKY_TEXT = st.lists(
    st.sampled_from(
        [
            *(
                "Args:",
                "Returns:",
                "Raises:",
                "\n",
                "\n\n",
                "    ",
                "\t",
                "x:",
                "x (int):",
                "(choices: [1, 2])",
                "(CHOICES:",
            ),
            *(
                ")",
                "\x1b[31m",
                "\x1b]0;t\x07",
                "\x07",
                "\x9b1m",
                "\r\n",
                "\u2028",
                "\ud800",
                "\u202e",
                '"""',
                "{x}",
                "word",
            ),
        ]
    ),
    max_size=12,
).map("".join)


def specify(name: str = "act", *, description: Any = "Act.", required: Any = None, **properties: Any) -> dict[str, Any]:
    """A tool specification whose parameters have the given schemas; all are required unless said otherwise."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return {"name": name, "description": description, "input_schema": schema}


def bind(*specs: Mapping[str, Any]) -> tuple[BoundTool, ...]:
    """The specifications bound, after transformers was seen to show each."""
    tools = bind_tools(specs)
    render_tools(tools)
    return tools


def make_class(*tools: BoundTool) -> Any:
    """A class with the tools as methods, each of which returns its bound arguments as JSON."""

    def call(instance: object, tool: BoundTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return json.dumps({"tool": tool.wire_name, "arguments": bind_arguments(tool, args, kwargs)})

    return type("Room", (), {tool.name: make_method(tool, class_name="Room", call=call) for tool in tools})


# -- the table of specifications


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["spec"]["name"][:20])
def test_every_specification_binds_under_its_own_wire_names(case: dict[str, Any]) -> None:
    """A tool gets the Python names of the table and keeps the server's own for the wire."""
    (tool,) = bind(case["spec"])

    assert case["binds_as"] == {tool.name: {p.name: p.wire_name for p in tool.parameters}}
    assert case["spec"]["name"] == tool.wire_name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["spec"]["name"][:20])
def test_every_specification_reaches_the_wire(case: dict[str, Any]) -> None:
    """A call with all arguments by Python name arrives with the server's tool and parameter names."""
    (tool,) = bind(case["spec"])
    room = make_class(tool)()
    sent = json.loads(getattr(room, tool.name)(**{p.name: p.wire_name for p in tool.parameters}))

    assert {"tool": tool.wire_name, "arguments": {p.wire_name: p.wire_name for p in tool.parameters}} == sent


def test_all_specifications_together_bind_as_each_alone() -> None:
    """Names that do not clash do not depend on the other tools."""
    together = bind(*(case["spec"] for case in CASES))

    assert [bind(case["spec"])[0] for case in CASES] == list(together)


# -- methods, as TRL finds and calls them


def test_tools_are_found_as_trl_finds_them() -> None:
    """Each tool is a plain public function of the class."""
    room = make_class(*bind(*(case["spec"] for case in CASES)))()
    found = [name for name, _ in inspect.getmembers(type(room), predicate=inspect.isfunction)]

    assert sorted(name for case in CASES for name in case["binds_as"]) == found
    assert not any(name.startswith("_") or name in ("reset", "get_reward") for name in found)


def test_a_method_tells_python_what_it_takes() -> None:
    """Name, signature, annotations and documentation are those of a method written by hand."""
    (tool,) = bind(specify("say", text={"type": "string"}, times={"type": "integer", "default": 2}, required=["text"]))
    room = make_class(tool)

    assert "(text: str, times: int = 2) -> str" == str(inspect.signature(room().say))
    assert {"text": str, "times": int, "return": str} == room.say.__annotations__
    assert ("say", "Room.say") == (room.say.__name__, room.say.__qualname__)
    assert "Act.\n\nArgs:\n    text: No description given.\n    times: Default 2" == room.say.__doc__
    assert isinstance(room.say, types.FunctionType)


def test_a_bound_method_renders_like_the_function() -> None:
    """Transformers shows the same for the method of an instance, which is what TRL passes."""
    from transformers.utils.chat_template_utils import get_json_schema

    (tool,) = bind(specify("say", text={"type": "string", "description": "What."}))
    schema = get_json_schema(make_class(tool)().say)
    properties = {"text": {"type": "string", "description": "What."}}
    parameters = {"type": "object", "properties": properties, "required": ["text"]}
    function = {"name": "say", "description": "Act.", "parameters": parameters, "return": {"type": "string"}}

    assert {"type": "function", "function": function} == schema
    assert [schema] == render_tools([tool])


def test_a_server_string_is_never_an_annotation() -> None:
    """A type named by a server is looked up, never evaluated."""
    (tool,) = bind(specify(x={"type": "__import__('os').abort()"}, y={"enum": ["__import__('os').abort()"]}))

    assert [Any, Literal["__import__('os').abort()"]] == [p.annotation for p in tool.parameters]


def test_methods_of_two_classes_do_not_share_state() -> None:
    """The same specification bound twice gives two functions."""
    (tool,) = bind(specify())
    first, second = make_class(tool), make_class(tool)

    assert first.act is not second.act


# -- calls


@pytest.mark.parametrize(
    ("args", "kwargs", "sent"),
    [
        ((), {"user_id": 1}, {"user-id": 1}),
        ((1,), {}, {"user-id": 1}),
        ((1, "b"), {}, {"user-id": 1, "b": "b"}),
        ((1,), {"b": None}, {"user-id": 1, "b": None}),
    ],
)
def test_only_what_was_given_is_sent(args: tuple[Any, ...], kwargs: dict[str, Any], sent: dict[str, Any]) -> None:
    """Omitted optionals stay omitted, whatever their default; what was given goes as it is, null included."""
    properties: dict[str, Any] = {"b": {"type": "string", "default": "x"}, "user-id": {"type": "integer"}}
    (tool,) = bind(specify(required=["user-id"], **properties))

    assert sent == bind_arguments(tool, args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "The tool 'act' is missing the argument 'a'. It takes: a, b (optional)."),
        ((), {"b": 1}, "The tool 'act' is missing the argument 'a'. It takes: a, b (optional)."),
        ((), {"a": 1, "c": 2}, "The tool 'act' got an unknown argument 'c'. It takes: a, b (optional)."),
        ((), {"a": 1, "\x1b[31m": 2}, "The tool 'act' got an unknown argument '\\x1b[31m'. It takes: a, b (optional)."),
        ((1,), {"a": 1}, "The tool 'act' got the argument 'a' twice. It takes: a, b (optional)."),
        ((1, 2, 3), {}, "The tool 'act' got 3 arguments. It takes: a, b (optional)."),
    ],
)
def test_a_bad_call_says_what_the_tool_takes(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    """A wrong call raises one line that names the argument and what exists, fit for the policy."""
    (tool,) = bind(specify(a={"type": "string"}, b={"type": "string"}, required=["a"]))

    with pytest.raises(TypeError, match=re.escape(message)):
        bind_arguments(tool, args, kwargs)


def test_an_argument_called_self_reaches_the_tool() -> None:
    """The instance takes no name away from the arguments."""
    (tool,) = bind(
        specify(self={"type": "string"}, cls={"type": "string"}, args={"type": "string"}, kwargs={"type": "string"})
    )
    given_names = {"self_": "a", "cls": "b", "args": "c", "kwargs": "d"}
    sent = json.loads(make_class(tool)().act(**given_names))["arguments"]

    assert {"self": "a", "cls": "b", "args": "c", "kwargs": "d"} == sent


def test_unknown_names_do_not_reach_the_wire() -> None:
    """Translating a name the tool does not have is an error."""
    (tool,) = bind(specify())

    with pytest.raises(KeyError, match="nobody"):
        tool.to_wire({"nobody": 1})


# -- names


@pytest.mark.parametrize(
    ("wire_names", "names"),
    [
        (["run-query", "run_query"], {"run-query": "run_query_2", "run_query": "run_query"}),
        (["a.b", "a-b", "a b"], {"a b": "a_b", "a-b": "a_b_2", "a.b": "a_b_3"}),
        (["reset", "reset_"], {"reset": "reset_2", "reset_": "reset_"}),
        (["_x", "x", "__x"], {"x": "x", "__x": "x_2", "_x": "x_3"}),
        (["", "-", "3d"], {"": "tool", "-": "tool_2", "3d": "tool_3d"}),
        (["e\u0301tude", "\ufb01nd"], {"e\u0301tude": "\u00e9tude", "\ufb01nd": "find"}),
        (["close", "metadata", "finished"], {"close": "close_", "metadata": "metadata_", "finished": "finished_"}),
    ],
)
def test_clashing_names_stay_apart(wire_names: list[str], names: dict[str, str]) -> None:
    """A name that is right as it is keeps it; the others are told apart in the order of their names."""
    specs = [specify(name) for name in wire_names]

    assert names == {tool.wire_name: tool.name for tool in bind(*specs)}
    assert names == {tool.wire_name: tool.name for tool in bind(*reversed(specs))}


def test_callers_reserve_names_too() -> None:
    """A name that the caller's class uses is taken like the trainer's."""
    tools = bind_tools([specify("play"), specify("stop")], reserved=frozenset({"play"}))

    assert ["play_", "stop"] == [tool.name for tool in tools]


def test_long_names_stay_apart() -> None:
    """Names over 64 characters are cut to 64 and differ where the server's differ, alone or together."""
    specs = [specify("x" * 70 + end) for end in ("a", "b")]
    names = [tool.name for tool in bind(*specs)]

    assert [64, 64] == [len(name) for name in names]
    assert names == [bind(spec)[0].name for spec in specs]
    assert names[0] != names[1]


@given(st.lists(NAMES, unique=True, max_size=12))
def test_any_names_bind_reversibly(wire_names: list[str]) -> None:
    """Whatever a server calls its tools and parameters, Python and the wire have one name each for every one."""
    schema: dict[str, Any] = {"properties": {name: {} for name in wire_names}}
    tools = bind(*({"name": name, "description": "Act.", "input_schema": schema} for name in wire_names))
    names = [tool.name for tool in tools]
    parameter_names = [p.name for tool in tools[:1] for p in tool.parameters]

    assert wire_names == [tool.wire_name for tool in tools]
    assert [wire_names] * len(tools) == [[p.wire_name for p in tool.parameters] for tool in tools]
    assert len(wire_names) == len(set(names))
    assert len(wire_names) == len(set(parameter_names))
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in names + parameter_names)
    assert all(not name.startswith("_") and len(name) <= 64 for name in names + parameter_names)
    assert RESERVED_TOOL_NAMES.isdisjoint(names)


@given(st.lists(NAMES, unique=True, max_size=8), st.randoms(use_true_random=False))
def test_names_do_not_depend_on_the_servers_order(wire_names: list[str], random: Any) -> None:
    """The same tools in another order get the same Python names."""
    shuffled = random.sample(wire_names, len(wire_names))
    first = {tool.wire_name: tool.name for tool in bind_tools([specify(name) for name in wire_names])}
    second = {tool.wire_name: tool.name for tool in bind_tools([specify(name) for name in shuffled])}

    assert first == second


# -- descriptions


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("One line.", "One line."),
        ("", "No description given."),
        (" \n\t ", "No description given."),
        (None, "No description given."),
        (7, "No description given."),
        ("\x07\x1b[0m", "No description given."),
        ("First.\n    Then:\n        code\n\n\n\n    Last.", "First.\nThen:\n    code\n\nLast."),
        ("Args:\n    x: y\n\nReturns:\n    z", "Args :\n    x: y\n\nReturns :\n    z"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07bell\x07 \x9b2Jclear \x1bc", "red bell clear"),
        ("a\u202eb\ud800c\u200b\r\nd\u2028e", "abc\nd\ne"),
        ('"""\n{x} \\n \'', '"""\n{x} \\n \''),
    ],
)
def test_descriptions_are_shown_clean(sent: object, shown: str) -> None:
    """The policy reads a tool's description with its lines, without sequences for terminals or docstring parsers."""
    (tool,) = bind_tools([specify(description=sent, x={"type": "string"})])
    (schema,) = render_tools([tool])

    assert shown == tool.description == schema["function"]["description"]


def test_the_schema_describes_a_tool_that_has_no_description() -> None:
    """The description of the input stands in for a missing one."""
    spec = {"name": "act", "description": " ", "input_schema": {"description": "What it takes.", "properties": {}}}

    assert "What it takes." == bind(spec)[0].description


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("First.\nSecond: more.\n\n  Third.", "First. Second: more. Third."),
        ("Pick (choices: [1, 2])", "Pick (choices : [1, 2])"),
        ("Pick (Choice\u017f: no)", "Pick (Choice\u017f : no)"),
        ("x\n\nReturns: y\nx: z", "x Returns : y x: z"),
        ("(str): odd", "(str): odd"),
        (": odd", ": odd"),
        ("", "No description given."),
        (["odd"], "No description given."),
    ],
)
def test_parameter_descriptions_are_one_line(sent: object, shown: str) -> None:
    """Lines are folded, and nothing in them is taken for a section, another parameter or an enum."""
    tools = bind_tools([specify(x={"type": "string", "description": sent}, y={"type": "string"})])
    (schema,) = render_tools(tools)
    properties = schema["function"]["parameters"]["properties"]

    assert {"type": "string", "description": shown} == properties["x"]
    assert {"type": "string", "description": "No description given."} == properties["y"]


def test_long_descriptions_are_kept() -> None:
    """Nothing is cut from a description, and the parser stays quick."""
    text = "word " * 20_000 + "end"
    (schema,) = render_tools(bind_tools([specify(description=text, x={"description": text})]))

    assert text == schema["function"]["description"]
    assert text == schema["function"]["parameters"]["properties"]["x"]["description"]


@given(TRICKY_TEXT | ANY_TEXT, TRICKY_TEXT | ANY_TEXT, TRICKY_TEXT)
def test_any_descriptions_are_shown_as_bound(tool_text: str, first: str, second: str) -> None:
    """Transformers shows exactly the descriptions that were bound, and they are UTF-8 without control characters."""
    (tool,) = bind_tools([specify(description=tool_text, x={"description": first}, y={"description": second})])
    (schema,) = render_tools([tool])
    properties = schema["function"]["parameters"]["properties"]
    shown = [schema["function"]["description"], *(properties[p.name]["description"] for p in tool.parameters)]

    assert [tool.description, *(p.description for p in tool.parameters)] == shown
    assert all("enum" not in schema for schema in properties.values())
    assert not UNREADABLE.search("".join(shown))


# -- records, duplicates, errors


def test_tools_pickle_and_compare() -> None:
    """A bound tool survives the way to another process, and equals another of the same specification."""
    tools = bind(*(case["spec"] for case in CASES))
    back = pickle.loads(pickle.dumps(tools))

    assert tools == back
    assert tools == bind(*json.loads(json.dumps([case["spec"] for case in CASES])))
    assert render_tools(tools) == render_tools(back)
    assert len({*tools, *back}) == len(tools)


def test_a_tool_sent_twice_is_one_tool() -> None:
    """Equal specifications of one name are one tool without a loss."""
    assert bind(specify(x={"type": "string"})) == bind(specify(x={"type": "string"}), specify(x={"type": "string"}))


def test_a_second_specification_is_reported() -> None:
    """Of two different specifications of one name the first is used, and that is said."""
    (tool,) = bind(specify(x={"type": "string"}), specify(y={"type": "string"}))

    assert ["x"] == [p.name for p in tool.parameters]
    assert ("the server sent another specification of this tool too; the first one is used",) == tool.losses


@pytest.mark.parametrize("spec", [{"description": "x"}, {"name": None}, {"name": 5}, {"name": ["a"]}, None, "act"])
def test_a_tool_without_a_name_is_an_error(spec: object) -> None:
    """What cannot be called stops the source, with the tool's place in the list."""
    with pytest.raises(SourceError, match=r"tool number 2 of the server has the name .*Correct the tool on the server"):
        bind_tools([specify(), spec])


@pytest.mark.parametrize(("name", "annotation"), [("x", set[int]), ("return", str), ("Returns", str)])
def test_what_transformers_cannot_show_is_an_error(name: str, annotation: object) -> None:
    """The dry run names the tool, whether a type, a name or a description is at fault."""
    parameter = BoundParameter(name, name, annotation, required=True, default=None, description="x")
    broken = BoundTool("act", "act", "Act.", (parameter,))

    with pytest.raises(SourceError, match=r"tool 'act': transformers cannot show it to the policy: .*on the server"):
        render_tools([broken])


def test_tools_are_described_in_plain_text() -> None:
    """The table shows names, names on the server, types, defaults and losses."""
    optional_class: dict[str, Any] = {"class": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    tools = bind(
        specify("go", to={"enum": ["a", "b"]}, n={"type": "integer", "minimum": 1, "default": 3}, required=["to"]),
        specify("run-query", **optional_class),
        specify("\x07stop"),
    )
    text = """\
tool                                    parameters
go                                      to: Literal['a', 'b'], n: int = 3
                                          loss: n: in words only: at least 1
run_query (on the server: "run-query")  class_ (on the server: class): Optional[str]
stop (on the server: "\\u0007stop")      (none)"""

    assert text == describe_tools(tools)


def test_no_tools_are_described_too() -> None:
    """A source without tools has an empty table."""
    assert "tool  parameters" == describe_tools([])
