"""How much of a tool's JSON Schema reaches the model, beside TRL's own binder?

What the model sees of a tool is what `transformers.utils.get_json_schema` makes of its method. Each tool of the corpus
is bound by both binders, and what its server says is taken apart into facts:
- `tool`: it can be called. `parameter`: so can a parameter be given.
- `type`: the JSON types of a value; of items and of a mapping's values it is `items`. `enum`: all values allowed.
- `nesting`: a property inside an object. `required`: whether a parameter must be given; of nested ones that they must.
- `default`: its value. `description`: its whole text, blank space and control characters aside.
- `bounds`: one number, pattern or format that values must obey. They are counted apart, since no type hint holds any.

A fact survives `typed`, in the same place of the shown schema, or in `words`: in the parameter's description, behind
the name of the nested property it is about. A tool that a binder cannot bind, that transformers cannot show, or that a
trainer does not find loses all its facts; these tools are named. Goal: at least 95 % of all facts but bounds survive.

Two corpora: `ordinary` has tools as pydantic writes their schemas, `odd` has those that test the binder's edges.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks._facts import KINDS, find_survival, list_facts
from benchmarks._report import parse_arguments, write_report

__all__ = ["main"]

_ROOT = Path(__file__).parents[1]

# What a binder shows of a tool, and its parameters' names by the server's; None and the reason where it shows nothing.
Shown = tuple[Mapping[str, Any] | None, Mapping[str, str], str]
Binder = Callable[[Mapping[str, Any]], Shown]


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    logging.disable(logging.WARNING)  # TRL's binder warns of each tool that it leaves out
    corpora = {name: specs[:3] if arguments.quick else specs for name, specs in _read_corpora().items()}
    binders: Mapping[str, Binder] = {"multiors": _show_ours, "trl": _show_trls}
    results = {
        corpus: {binder: _measure(specs, show) for binder, show in binders.items()}
        for corpus, specs in {**corpora, "all": [spec for specs in corpora.values() for spec in specs]}.items()
    }
    num_tools = {name: len(specs) for name, specs in corpora.items()}
    write_report(arguments.json, results, settings={"num_tools": num_tools, "transformers": version("transformers")})


def _read_corpora() -> dict[str, Sequence[Mapping[str, Any]]]:
    ordinary = json.loads((_ROOT / "benchmarks" / "data" / "tool_schemas.json").read_text(encoding="utf-8"))
    odd = json.loads((_ROOT / "tests" / "data" / "tool_specifications.json").read_text(encoding="utf-8"))
    return {"ordinary": ordinary["tools"], "odd": [case["spec"] for case in odd["cases"]]}


def _show_ours(spec: Mapping[str, Any]) -> Shown:
    from multiors.ors.tools import bind_tools, render_tools

    tools = bind_tools([spec])
    (shown,) = render_tools(tools)
    return shown["function"], {each.wire_name: each.name for each in tools[0].parameters}, ""


def _show_trls(spec: Mapping[str, Any]) -> Shown:
    """As TRL's trainer would: an environment of the one tool, its public methods, and their schemas."""
    from transformers.utils import get_json_schema
    from trl.experimental.openreward.environment import _RolloutEnvironment

    environment_class = type("Environment", (_RolloutEnvironment,), {})

    try:
        instance = environment_class(
            base_url="http://unused", _client=object(), _env=object(), _tool_specs=[dict(spec)]
        )
        members = inspect.getmembers(environment_class, predicate=inspect.isfunction)
        names = [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]
        schemas = [get_json_schema(getattr(instance, name)) for name in names]
    except Exception as error:  # noqa: BLE001  whatever it raises is what is counted
        return None, {}, type(error).__name__

    return (schemas[0]["function"], {}, "") if schemas else (None, {}, "left out")


def _measure(specs: Sequence[Mapping[str, Any]], show: Binder) -> dict[str, Any]:
    counts: Counter[tuple[str, str]] = Counter()
    lost_tools: dict[str, str] = {}

    for spec in specs:
        shown, names, reason = show(spec)
        if shown is None:
            lost_tools[spec["name"]] = reason
        counts.update((fact.kind, find_survival(fact, shown, names)) for fact in list_facts(spec))

    by_kind = {kind: _summarize(counts, [kind]) for kind in KINDS}
    others = [kind for kind in KINDS if kind != "bounds"]
    crashed = [name for name, reason in lost_tools.items() if reason != "left out"]
    return {
        "facts": _summarize(counts, others),
        "bounds": by_kind.pop("bounds"),
        "by_kind": by_kind,
        "num_tools": len(specs),
        "num_tools_crashed": len(crashed),
        "num_tools_left_out": len(lost_tools) - len(crashed),
        "lost_tools": lost_tools,
    }


def _summarize(counts: Counter[tuple[str, str]], kinds: Sequence[str]) -> dict[str, Any]:
    typed, words, lost = (sum(counts[kind, how] for kind in kinds) for how in ("typed", "words", "lost"))
    number = typed + words + lost
    survived = None if number == 0 else round((typed + words) / number, 4)
    return {"survived_fraction": survived, "num_facts": number, "num_typed": typed, "num_in_words": words}


if __name__ == "__main__":
    main()
