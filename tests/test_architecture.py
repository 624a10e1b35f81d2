"""The rooms stay apart, and the pure ones stay pure. `docs/architecture.md` says why."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import multiors

# What each room, or module beside the rooms, may import of the others. The package itself loads names lazily.
_LEFT = {
    "errors": set(),
    "importing": {"errors"},
    "numeric": set(),
    "tables": set(),
    "records": {"errors"},
    "redaction": set(),
    "rollout_log": {"errors", "records", "redaction"},
    "ors": {"errors", "numeric", "records", "redaction"},
    "mixing": {"errors", "records", "tables"},
    "rewards": {"errors", "numeric", "records", "tables"},
    "training": {"errors", "records", "redaction", "rollout_log", "ors", "mixing", "rewards"},
    "evaluation": {
        *("errors", "numeric", "tables", "records", "redaction", "rollout_log", "ors", "rewards"),
        *("series", "pictures", "importing"),
    },
    "series": {"errors", "tables", "rollout_log", "mixing"},
    "pictures": {"errors", "series"},
    "spec": {"errors", "records", "ors", "mixing", "rewards", "training", "pictures"},
    "config": {"errors", "importing", "records", "rollout_log", "ors", "mixing", "rewards", "training", "spec"},
    "checks": {"errors", "records", "ors", "mixing", "rewards", "training", "spec", "config"},
    "preview": {"errors", "mixing", "training", "spec", "checks"},
    "launch": {"errors", "rollout_log", "mixing", "rewards", "training", "spec", "evaluation", "config"},
    "signals": set(),
    "shell": set(),
    "quickstart": {"multiors", "evaluation", "signals", "shell"},
    "serving": {"errors", "importing", "tables", "quickstart"},
    "__main__": {"cli"},
    "commands": {
        *("errors", "signals", "records", "ors", "mixing", "rewards", "training", "evaluation", "series", "pictures"),
        *("config", "checks", "preview", "launch", "serving", "rollout_log", "shell"),
    },
    "cli": {"multiors", "errors", "signals", "commands", "quickstart"},
}
_PURE = (
    "errors",
    "numeric",
    "tables",
    "records",
    "redaction",
    "mixing",
    "rewards",
    "evaluation.results",
    "evaluation.statistics",
)
_NUMERIC_IN_PURE = {"evaluation.statistics": {"scipy"}}
_IMPURE_STDLIB = {"asyncio", "datetime", "os", "random", "socket", "subprocess", "threading", "time"}
_LATE_IN_PURE = {"mixing.dataset": {"datasets", "pyarrow"}}
# These import our own modules inside functions, so that a name or --help costs nothing.
_LAZY = {
    *("multiors", "cli", "evaluation"),
    *("commands.completing", "commands.evaluating", "commands.looking", "commands.options", "commands.reporting"),
    *("commands.starting", "commands.training"),
}
_HEAVY = {"datasets", "openreward", "pyarrow", "torch", "transformers", "trl"}

_FOLDER = Path(str(importlib.util.find_spec("multiors").origin)).parent  # type: ignore[union-attr]  # it is importable
_TREES = {
    ".".join(path.relative_to(_FOLDER).with_suffix("").parts).removesuffix("__init__").removesuffix("."): ast.parse(
        path.read_text(encoding="utf-8")
    )
    for path in sorted(_FOLDER.rglob("*.py"))
}
_TREES["multiors"] = _TREES.pop("")

each_module = pytest.mark.parametrize("module", sorted(_TREES))


def _imports(tree: ast.Module, *, late: bool | None = None) -> Iterator[str]:
    """Dotted names that a module imports: at its top (late=False), below it (True), or both (None)."""
    top = set(tree.body)
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            assert node.level == 0, f"line {node.lineno}: import by full name"
        yield from names if late is None or late == (node not in top) else ()


def _own(names: Iterator[str]) -> set[str]:
    """Those of our own modules among dotted names, without the package's name."""
    ours = {name for name in names if name.split(".")[0] == "multiors"}
    return {name.removeprefix("multiors.") for name in ours}


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every call whose function is a plain name or attribute."""
    yield from ((node.lineno, ast.unparse(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call))


@each_module
def test_a_room_imports_only_rooms_to_its_left(module: str) -> None:
    """Imports follow the data flow, also those inside functions and for type checkers."""
    room = module.split(".")[0]
    imported = {name.split(".")[0] for name in _own(_imports(_TREES[module]))} - {room}

    assert room == "multiors" or set() == imported - _LEFT[room]


@each_module
def test_own_modules_are_imported_at_the_top(module: str) -> None:
    """An import of our own inside a function hides a cycle, unless it spares loading TRL and its kin."""
    type_only = {
        name
        for node in _TREES[module].body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for name in _own(_imports(ast.Module(node.body, [])))
    }
    late = _own(_imports(_TREES[module], late=True)) - type_only
    heavy = {
        name
        for name in late & set(_TREES)
        if _HEAVY & {top.split(".")[0] for top in _imports(_TREES[name], late=False)}
    }

    assert module in _LAZY or set() == late - heavy


def test_modules_import_each_other_in_one_direction() -> None:
    """There is no cycle of modules, not even for type checkers."""
    graph = {module: _own(_imports(tree)) & set(_TREES) for module, tree in _TREES.items() if module not in _LAZY}
    order = list(graphlib.TopologicalSorter(graph).static_order())

    assert set(graph) <= set(order)


def _pure_room(module: str) -> str | None:
    """The pure room that a module is in, or is. None: it is in another."""
    return next((room for room in _PURE if f"{module}.".startswith(f"{room}.")), None)


@each_module
def test_pure_rooms_need_no_world(module: str) -> None:
    """Pure rooms import the standard library without its clocks and sockets, and numpy; the statistics scipy too."""
    room = _pure_room(module)
    allowed = (set(sys.stdlib_module_names) - _IMPURE_STDLIB) | {"numpy", "multiors"}
    allowed |= _NUMERIC_IN_PURE.get(room or "", set())
    top = {name.split(".")[0] for name in _imports(_TREES[module], late=False)}
    late = {name.split(".")[0] for name in _imports(_TREES[module], late=True)}

    assert room is None or set() == top - allowed
    assert room is None or set() == late - allowed - _LATE_IN_PURE.get(module, set())


@each_module
def test_pure_rooms_import_pure_ones_only(module: str) -> None:
    """What a pure room takes from elsewhere is pure as well."""
    imported = _own(_imports(_TREES[module]))

    assert _pure_room(module) is None or set() == {name for name in imported if _pure_room(name) is None}


@each_module
def test_a_module_says_what_it_is_and_what_it_offers(module: str) -> None:
    """Every module has a docstring and `__all__`."""
    names = [
        target.id
        for node in _TREES[module].body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]

    assert ast.get_docstring(_TREES[module])
    assert "__all__" in names


@each_module
def test_modules_and_functions_are_short(module: str) -> None:
    """No module has more than 500 lines, no function more than 60."""
    functions = [node for node in ast.walk(_TREES[module]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    last = max((node.end_lineno or 0 for node in _TREES[module].body), default=0)
    long = {node.name: lines for node in functions if (lines := (node.end_lineno or 0) - node.lineno + 1) > 60}

    assert last <= 500
    assert {} == long


@each_module
def test_text_is_never_run(module: str) -> None:
    """Nothing is handed to exec or eval: what a server sends stays text."""
    assert [] == [call for call in _calls(_TREES[module]) if call[1].removeprefix("builtins.") in ("exec", "eval")]


@each_module
def test_process_variables_are_only_read(module: str) -> None:
    """No module writes to os.environ: two sources of one process would overwrite each other."""
    writes = [
        ast.unparse(node)
        for node in ast.walk(_TREES[module])
        if isinstance(node, ast.Subscript)
        and not isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value).endswith("environ")
    ]
    methods = tuple(f"environ.{name}" for name in ("setdefault", "update", "pop", "popitem", "clear"))
    calls = [name for _, name in _calls(_TREES[module]) if name.endswith((*methods, "putenv", "unsetenv"))]

    assert [] == writes + calls


def test_importing_the_package_imports_nothing_heavy() -> None:
    """`import multiors` and `multiors --help` stay quick: the heavy packages load at first use."""
    heavy = ("openreward", "trl", "torch", "transformers", "datasets", "pyarrow", "pandas", "aiohttp")
    script = f"import sys, multiors; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert "[]" == loaded.strip()


def test_the_public_face_is_small_and_sorted() -> None:
    """At most 25 public names, each to be had."""
    assert len(multiors.__all__) <= 25
    assert sorted(multiors.__all__) == list(multiors.__all__)
    assert [] == [name for name in multiors.__all__ if not hasattr(multiors, name)]
