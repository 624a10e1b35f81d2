"""A comparison, an evaluation or a training as one HTML file that needs nothing else and asks nobody for anything.

Decides that no text of a server, policy or user can act: everything is escaped by the templates, the episodes travel as
JSON that holds no mark-up, the script writes them as text, and the page's own policy forbids whatever is not the one
style sheet and the one script of this file, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from multiors.errors import ConfigError
from multiors.evaluation.comparison.charts import lay_out_forest, lay_out_histogram
from multiors.evaluation.comparison.sheets import describe, name_arms
from multiors.evaluation.comparison.transcripts import Brief, Episodes, Key, choose, gather
from multiors.evaluation.comparison.visible import fold
from multiors.evaluation.comparison.wording import NOTHING, count, say_between, say_difference, say_p
from multiors.evaluation.folder import EvaluationRun
from multiors.evaluation.results import ArmResult, Comparison, Difference
from multiors.records import RolloutRecord

__all__ = ["embed", "name_result", "read_task_means", "render_page", "to_html", "write_page"]

_PACKAGE = "multiors.evaluation.comparison"


def to_html(result: Comparison | ArmResult, *arms: Sequence[EvaluationRun]) -> str:
    """The page of a comparison, or of one evaluation.

    Args:
        result: What was found.
        arms: The runs that it was found in: those of the reference, then those of the candidate; of one evaluation, its
            own.
    """
    value = result.value if isinstance(result, Comparison) else "reward"
    briefs = _read_briefs(arms, value)
    means = [_find_task_means(briefs, side) for side in range(len(arms))]
    common: dict[str, Any] = {
        "sheet": describe(result),
        "episodes": _find_episodes(arms, briefs),
        "runs": [_describe_run(run) for runs in arms for run in runs],
    }

    if isinstance(result, Comparison):
        return render_page(
            "comparison.html",
            **common,
            arms=name_result(result),
            comparison=result,
            forest=lay_out_forest(result),
            said=[_say(each) for each in result.sources.values()],
            overall=_say(result.macro),
            charts=[
                (fold(name), result.sources[name].verdict, lay_out_histogram(*(arm.get(name, []) for arm in means)))
                for name in result.sources
            ],
        )

    return render_page(
        "evaluation.html",
        **common,
        arms=name_result(result),
        charts=[(fold(name), None, lay_out_histogram(means[0].get(name, []), [])) for name in result.sources],
    )


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page; a file that is there is replaced.

    Raises:
        ConfigError: It cannot be written.
    """
    target = Path(path)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the page {str(target)!r} cannot be written: {error.strerror}.") from error


def name_result(result: Comparison | ArmResult) -> tuple[str, ...]:
    """How the policies are called: reference and candidate, or the one."""
    return name_arms(result) if isinstance(result, Comparison) else (fold(result.name),)


def read_task_means(
    result: Comparison | ArmResult, arms: Sequence[Sequence[EvaluationRun]]
) -> list[dict[str, list[float]]]:
    """Of each arm the mean over the scored episodes of each task, by source; of several runs all episodes together."""
    briefs = _read_briefs(arms, result.value if isinstance(result, Comparison) else "reward")
    return [_find_task_means(briefs, side) for side in range(len(arms))]


def render_page(template: str, *, episodes: Episodes, **values: Any) -> str:
    """A template with the style sheet and the script, both named in the page's policy by what they are."""
    templates = _load_templates()
    style, script = _read("style.css"), _read("script.js")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return templates.get_template(template).render(
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=version("multiors"),
        episodes=episodes,
        data=embed({"arms": list(values["arms"]), "cards": episodes.cards}),
        **values,
    )


def embed(value: object) -> Markup:
    """JSON that can stand inside a script element: no character of it can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")

    return Markup(text)


@cache
def _load_templates() -> Environment:
    return Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _read(name: str) -> str:
    return files(_PACKAGE).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read_briefs(arms: Sequence[Sequence[EvaluationRun]], value: str) -> dict[Key, list[Brief | None]]:
    briefs: dict[Key, list[Brief | None]] = {}

    for key, side, record in _read_records(arms):
        sides = briefs.setdefault(key, [None] * len(arms))
        sides[side] = Brief(getattr(record, value), record.error is not None)

    return briefs


def _find_task_means(briefs: Mapping[Key, Sequence[Brief | None]], side: int) -> dict[str, list[float]]:
    found: dict[str, dict[int, list[float]]] = {}

    for key, sides in briefs.items():
        brief = sides[side]

        if brief is not None and brief.score is not None:
            found.setdefault(key[0], {}).setdefault(key[1], []).append(brief.score)

    return {name: [sum(scores) / len(scores) for scores in by_task.values()] for name, by_task in found.items()}


def _find_episodes(arms: Sequence[Sequence[EvaluationRun]], briefs: Mapping[Key, Sequence[Brief | None]]) -> Episodes:
    """A second reading, so that no more records are held than the page shows."""
    chosen = choose(briefs)
    titles = {key: _name_episode(*key) for key in chosen}
    return gather(briefs, _read_records(arms), titles, chosen)


def _read_records(arms: Sequence[Sequence[EvaluationRun]]) -> Iterator[tuple[Key, int, RolloutRecord]]:
    """Every record with its key and side. A run of one arm has its counterpart in the other by its name, or as the only
    one.
    """
    is_one = all(len(runs) == 1 for runs in arms)

    for side, runs in enumerate(arms):
        for run in runs:
            for record in run.episodes():
                name = "" if is_one else run.name
                yield (record.source, record.task_index, record.episode, name), side, record


def _describe_run(run: EvaluationRun) -> tuple[str, str]:
    """Its folder, and what was played by whom."""
    manifest = run.manifest
    tasks = sum(len(plan.tasks) for plan in manifest.sources.values())
    policy = fold(json.dumps(manifest.policy, ensure_ascii=False), 600)
    played = f"{count(tasks, 'task')}, each {count(manifest.episodes_per_task, 'time')}, seed {manifest.seed}"
    return fold(str(run.folder), 600), f"{policy}; {played}; begun {fold(manifest.begun)}"


def _say(difference: Difference) -> str:
    interval = say_between(difference.low, difference.high, signed=True)
    certainty = "" if difference.p_adjusted is None else f", p {say_p(difference.p_adjusted)}"
    return say_difference(difference.value) + ("" if interval == NOTHING else f" ({interval})") + certainty


def _name_episode(source: str, task_index: int | None, episode: int | None, run: str) -> str:
    parts = [f"task {task_index}", f"episode {episode}", *([f"run {run}"] if run else [])]
    return ", ".join(parts)
