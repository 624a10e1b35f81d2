"""Whatever the pages show is run, and whatever they list is complete.

A page's blocks run in order, in one namespace and one empty folder, against real servers. `python` blocks are executed,
`text` blocks are the output of the block before, `console` blocks are commands with their output, and a block under
`<!-- file: NAME -->` is a file that later blocks use (`refused file`: a run file with mistakes). A block that cannot
run says why: `<!-- not run: REASON -->`, and so does one whose output differs from run to run: `not compared`.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import multiors
import multiors.errors
from multiors import (
    CheckReport,
    CircuitBreaker,
    GroupScore,
    MultiOpenRewardSpec,
    ORSSource,
    RewardPart,
    SourceReward,
    TRLSource,
    UnscoredReason,
)
from multiors.checks.findings import LEVELS, SUBJECTS
from multiors.cli import main
from multiors.config import (
    CircuitBreakerConfig,
    EvaluationConfig,
    ModelConfig,
    OtherSourceConfig,
    PartConfig,
    RewardConfig,
    RunConfig,
    SourceConfig,
    load_run_file,
)
from multiors.errors import ConfigError
from multiors.evaluation import EvaluationCallback
from multiors.quickstart.options import add_arguments
from multiors.records import RolloutRecord
from multiors.rewards import gradient_values, metric_values, share_values
from tests.scripted import small_fields
from tests.servers.launch import ServerHandle, serve
from tests.servers.platform import Platform, serve_platform

ROOT = Path(__file__).parent.parent
PACKAGE = Path(multiors.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("benchmarks/*.md"), *sorted(ROOT.glob("examples/**/*.md"))]
LANGUAGES = {"python", "text", "yaml", "console"}
RUNNABLE = [
    page for page in PAGES if re.search(r"^```(python|console)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# -- reading pages


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str

    line: int
    """Line of its first character, from 1."""

    file: str | None
    """Name of the file that it is."""

    is_refused: bool
    """Whether it is a run file with mistakes."""

    reason: str | None
    """Why it is not run."""

    is_compared: bool = True
    """Whether its commands print what it shows."""


_DIRECTIVE = re.compile(r"<!-- (file|refused file|not run|not compared): (.+) -->")


def read_blocks(page: Path) -> list[Block]:
    """The page's fenced blocks, in order."""
    blocks = []
    directives: dict[str, str] = {}
    language: str | None = None
    start = 0
    body: list[str] = []

    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if language is None and line.startswith("```"):
            language, start, body = line[3:].strip(), number + 1, []
        elif language is not None and line == "```":
            text = "".join(f"{each}\n" for each in body)
            refused = directives.get("refused file")
            file = directives.get("file", refused)
            is_compared = "not compared" not in directives
            blocks.append(
                Block(language, text, start, file, refused is not None, directives.get("not run"), is_compared)
            )
            language, directives = None, {}
        elif language is not None:
            body.append(line)
        elif found := _DIRECTIVE.fullmatch(line):
            directives[found[1]] = found[2]
        elif line.strip():
            directives = {}

    return blocks


def read_prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def read_tables(page: str, heading: str) -> list[list[str]]:
    """The rows of every table under a heading, without their headers."""
    section = re.split(rf"^#+ {re.escape(heading)}$", read_prose(ROOT / page), flags=re.MULTILINE)[1]
    lines = re.split(r"^#+ ", section, flags=re.MULTILINE)[0].splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    rules = [number for number, row in enumerate(rows) if set("".join(row)) <= set("-: ")]
    headers = {number - 1 for number in rules} | set(rules)
    return [[cell.strip() for cell in row] for number, row in enumerate(rows) if number not in headers]


def read_names(page: str, heading: str) -> list[str]:
    """The code in the first column of every table under a heading."""
    return [name for row in read_tables(page, heading) for name in re.findall(r"`([^`]+)`", row[0])]


# -- running pages


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """Serves the catalogue name that the pages use."""
    with serve("Many") as server, serve_platform({"Eigent/SETA": server.url}) as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def feature_server() -> Iterator[ServerHandle]:
    """Environments with roles and with scores of groups, at the third address that the pages use."""
    with serve("Dialogue", "Judged") as server:
        yield server


class PageRun:
    """A page being run: its names, its folder, and what stands in for what a reader has."""

    def __init__(self, page: Path, stand_ins: Mapping[str, str], fields_: Mapping[str, Any]) -> None:
        self._page = page
        self._stand_ins = stand_ins
        self._fields = fields_
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._output = ""
        self._exit_code = 0

    def run(self, block: Block) -> None:
        where = f"{_name(self._page)}:{block.line}"

        if block.file is not None:
            path = Path(block.file)
            path.write_text(self._adapt(block.text), encoding="utf-8")
            if block.language == "yaml":
                with pytest.raises(ConfigError) if block.is_refused else nullcontext():
                    load_run_file(path)
        elif block.language == "python":
            self._output = self._run_python(block)
        elif block.language == "text":
            assert block.text.rstrip() == self._output.rstrip(), f"{where}: the page shows another output"
        elif block.language == "console":
            shown, self._output = block.text, self._run_console(block)
            assert block.is_compared or not self._exit_code, f"{where}: {self._output}"
            assert not block.is_compared or shown.rstrip() == self._output.rstrip(), (
                f"{where}: the page shows another output"
            )
        else:
            pytest.fail(f"{where}: a block of {block.language!r} cannot be run; say why with <!-- not run: ... -->")

    def _run_python(self, block: Block) -> str:
        code = compile("\n" * (block.line - 1) + self._adapt(block.text), _name(self._page), "exec")
        output = io.StringIO()

        with redirect_stdout(output):
            exec(code, self._names)  # noqa: S102  the page's own text

        return self._restore(output.getvalue())

    def _run_console(self, block: Block) -> str:
        """The block as it would look with the real output after each command."""
        shown = []
        exit_code = 0

        for line in block.text.splitlines():
            if line == "$ echo $?":
                shown += [line, str(exit_code)]
            elif line.startswith("$ multiors "):
                output = io.StringIO()
                arguments = shlex.split(line)[2:]
                short = ["--max-steps", "1"] if arguments[0] == "train" else []
                with redirect_stdout(output), redirect_stderr(output):
                    exit_code = main([*arguments, *short])
                shown += [line, *self._restore(output.getvalue()).rstrip().splitlines()]

        self._exit_code = exit_code
        return "\n".join(shown)

    def _adapt(self, text: str) -> str:
        """What a reader has, replaced by what the tests have: addresses, a model, a small run on a CPU."""
        for written, real in self._stand_ins.items():
            text = text.replace(written, real)

        # `training:` of a run file.
        missing = {name: value for name, value in self._fields.items() if f"  {name}: " not in text}
        lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in missing.items())
        if "  max_steps: " in text:
            text = re.sub(r"(?m)^training:\n", lambda found: found[0] + lines, text)

        own = {name: value for name, value in self._fields.items() if f"{name}=" not in text}
        self._names["small_fields"] = own
        text = re.sub(r"(training_arguments|GRPOConfig)\((?!\s*\*\*)", r"\1(**small_fields, ", text)
        return text.replace("max_steps=200", "max_steps=2")

    def _restore(self, text: str) -> str:
        for written, real in self._stand_ins.items():
            text = text.replace(real, written)
        return text


@pytest.mark.parametrize("page", RUNNABLE, ids=_name)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(
    page: Path,
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    feature_server: ServerHandle,
    platform: Platform,
    tiny_policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every block that is not marked runs as it stands, prints what follows it, and leaves no session open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OPENREWARD_API_KEY", platform.api_key)
    monkeypatch.setenv("OPENREWARD_SESSION_URL", platform.session_url)
    stand_ins = {
        "http://127.0.0.1:8001": mixed_server.url,
        "http://127.0.0.1:8002": echo_server.url,
        "http://127.0.0.1:8003": feature_server.url,
        "Qwen/Qwen3-4B": str(tiny_policy),
    }
    run = PageRun(page, stand_ins, {**small_fields(tmp_path / "output"), "max_completion_length": 16})

    for block in read_blocks(page):
        if block.reason is None:
            run.run(block)

    del run
    sys.modules.pop("scoring", None)
    gc.collect()
    for server in (mixed_server, echo_server, feature_server):
        assert {} == server.wait_until(lambda counts: not counts.active).active


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_block_is_skipped_without_a_reason(page: Path) -> None:
    """A block has a language that is run, or says in a sentence why it is not."""
    silent = [
        f"{_name(page)}:{block.line}"
        for block in read_blocks(page)
        if block.reason is None
        and (
            block.language not in LANGUAGES
            or (block.language == "console" and re.search(r"^\$ (?!multiors |echo \$\?$)", block.text, re.MULTILINE))
            or (block.language == "console" and "$ " not in block.text)
        )
    ]

    assert [] == silent


# -- links


def slugify(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown and GitHub make it of plain words."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def anchors(page: Path) -> set[str]:
    """What a link to the page may name behind its #."""
    return {slugify(found) for found in re.findall(r"^#+ (.+)$", read_prose(page), re.MULTILINE)}


@pytest.mark.parametrize("page", LINKING, ids=_name)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository, and every anchor a heading of it."""
    broken = []

    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", read_prose(page)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert [] == broken


def test_every_page_is_in_the_navigation() -> None:
    """No page can be found by its file name only."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = [path for section in sections for pages in section.values() for each in pages for path in each.values()]

    assert sorted(page.name for page in PAGES[1:]) == sorted(listed)


def test_every_page_is_reached_from_the_first_one() -> None:
    """index.md names every other page."""
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([^)#]+\.md)", text))

    assert {page.name for page in PAGES[1:]} - {"index.md"} == listed


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/pictures").iterdir()), ids=_name)
def test_pictures_are_small_and_ask_no_other_host(picture: Path) -> None:
    """A picture is below 150 kB, is shown somewhere, and loads nothing when a page shows it."""
    loaded = re.findall(rb"url\((?!#)|@import|<image|<script|/root/|/tmp/|/home/", picture.read_bytes())
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    assert picture.stat().st_size < 150_000
    assert picture.suffix == ".png" or [] == loaded
    assert f"pictures/{picture.name})" in pages


# -- the reference


def read_reference() -> list[str]:
    """The names that the pages of the reference take from docstrings."""
    pages = sorted((ROOT / "docs").glob("reference*.md"))
    return [
        name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


@pytest.mark.parametrize("module", ["multiors", "multiors.evaluation", "multiors.mixing.curricula"])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """What `__all__` names has an entry, once, and a docstring that it is made from."""
    found = import_module(module)
    listed = read_reference()

    assert [] == [name for name in found.__all__ if listed.count(f"{module}.{name}") != 1]
    assert [] == [
        name for name in found.__all__ if inspect.isroutine(value := getattr(found, name)) and not value.__doc__
    ]
    assert [] == [
        name for name in found.__all__ if isinstance(value := getattr(found, name), type) and not value.__doc__
    ]


def test_what_pages_and_examples_import_is_in_the_reference() -> None:
    """Every name of the package that a reader is shown can be looked up."""
    scripts = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    blocks = [
        block.text for page in PAGES for block in read_blocks(page) if block.language == "python" and not block.reason
    ]
    imported = {
        f"{node.module}.{alias.name}"
        for text in [*scripts, *blocks]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "multiors"
        for alias in node.names
    }
    found = {import_name(name): name for name in imported}
    listed = [import_name(name) for name in read_reference()]

    assert [] == sorted(name for value, name in found.items() if value not in listed)


def import_name(name: str) -> Any:
    """What a dotted name stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


# -- tables that must be complete


def test_the_arguments_of_a_spec_are_listed() -> None:
    """training.md lists the arguments of MultiOpenRewardSpec."""
    expected = list(inspect.signature(MultiOpenRewardSpec).parameters)

    assert expected == read_names("docs/training.md", "Arguments of the spec")


def test_the_arguments_of_an_evaluation_in_training_are_listed() -> None:
    """training.md lists the arguments of EvaluationCallback, each with its default."""
    parameters = inspect.signature(EvaluationCallback).parameters.values()
    expected = [(p.name, "–" if p.default is inspect.Parameter.empty else f"`{p.default!r}`") for p in parameters]

    assert expected == [(row[0].strip("`"), row[1]) for row in read_tables("docs/training.md", "With a callback")]


def test_the_arguments_of_a_source_are_listed() -> None:
    """sources.md lists the arguments of ORSSource, each with its default."""
    parameters = inspect.signature(ORSSource).parameters.values()
    expected = [(p.name, "–" if p.default is inspect.Parameter.empty else f"`{p.default!r}`") for p in parameters]

    assert expected == [(row[0].strip("`"), row[1]) for row in read_tables("docs/sources.md", "Arguments")]


def test_the_arguments_of_another_environment_are_listed() -> None:
    """other-environments.md lists the arguments of TRLSource, each with its default."""
    expected = [(f"`{p.name}`", f"`{p.default!r}`") for p in inspect.signature(TRLSource).parameters.values()]

    assert expected == [
        (row[0], row[1]) for row in read_tables("docs/other-environments.md", "Environments that are not ORS")
    ]


def test_the_reasons_are_listed_in_both_places() -> None:
    """concepts.md and rewards.md name the eight reasons."""
    expected = [reason.value for reason in UnscoredReason]

    assert expected == read_names("docs/concepts.md", "Why a rollout is unscored")
    assert sorted(expected) == sorted(read_names("docs/rewards.md", "Which reason"))


def test_the_environments_faults_are_told_from_the_policys() -> None:
    """concepts.md says of each reason whose doing it is."""
    rows = read_tables("docs/concepts.md", "Why a rollout is unscored")
    expected = ["the environment's" if reason.is_infrastructure else "the policy's" for reason in UnscoredReason]

    assert expected == [row[2] for row in rows]


def test_the_fields_of_rewards_are_listed() -> None:
    """rewards.md lists the fields of SourceReward, RewardPart and GroupScore."""
    assert [each.name for each in fields(SourceReward)] == read_names("docs/rewards.md", "SourceReward")
    assert [each.name for each in fields(RewardPart)] == read_names("docs/rewards.md", "RewardPart")
    assert [each.name for each in fields(GroupScore)] == read_names("docs/rewards.md", "GroupScore")


def test_the_metrics_are_listed() -> None:
    """rewards.md names every metric that is logged."""
    record = RolloutRecord("sort", 0, 0, 0, 1.0, 1.0, {}, None, None, finished=True, steps=(), num_tokens=1)
    groups = gradient_values([("sort", [0.0, 1.0])])
    names = [*metric_values("sort", [record]), *share_values(["sort"], ["sort"]), *groups]
    expected = {re.sub(r"unscored/\w+", "unscored/<reason>", name.replace("sort", "<source>")) for name in names}

    assert expected == set(read_names("docs/rewards.md", "What is logged"))


def test_the_fields_of_a_record_are_listed() -> None:
    """rewards.md lists the fields of RolloutRecord."""
    assert [each.name for each in fields(RolloutRecord)] == read_names("docs/rewards.md", "Records")


def test_the_settings_of_a_circuit_breaker_are_listed() -> None:
    """failures.md lists the fields of CircuitBreaker with their defaults, which are those of the run file."""
    expected = [(f"`{each.name}`", str(each.default)) for each in fields(CircuitBreaker)]
    in_run_file = [(f"`{name}`", str(field.default)) for name, field in CircuitBreakerConfig.model_fields.items()]

    assert expected == in_run_file
    assert expected == [(row[0], row[1]) for row in read_tables("docs/failures.md", "Settings")]
    assert expected == [(row[0], row[1]) for row in read_tables("docs/run-file.md", "Circuit breaker")]


def test_what_a_check_looks_at_is_listed() -> None:
    """checking.md lists the subjects, the levels, and the keys of the JSON."""
    assert [*SUBJECTS, *LEVELS] == read_names("docs/checking.md", "What is looked at")
    assert list(CheckReport((), ()).to_json()) == [
        row[0].strip("`") for row in read_tables("docs/checking.md", "For machines")
    ]


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Top level", RunConfig),
        ("A model", ModelConfig),
        ("Evaluation", EvaluationConfig),
        ("A source", SourceConfig),
        ("An environment that is no ORS server", OtherSourceConfig),
        ("Circuit breaker", CircuitBreakerConfig),
        ("A reward", RewardConfig),
        ("A part", PartConfig),
    ],
)
def test_the_keys_of_a_run_file_are_listed(heading: str, model: Any) -> None:
    """run-file.md lists every key of the run file."""
    assert list(model.model_fields) == read_names("docs/run-file.md", heading)


def test_the_options_of_the_quickstart_are_listed() -> None:
    """quickstart.md lists the command's options."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    expected = [action.option_strings[0] for action in parser._actions]

    assert expected == read_names("docs/quickstart.md", "Options")


def test_the_quickstarts_rewards_are_those_of_its_results_file() -> None:
    """Every line of the table of rewards stands in the results file, and no seed is left out."""
    results = json.loads((ROOT / "benchmarks/results/quickstart_learning.json").read_text(encoding="utf-8"))["results"]
    lines = [
        f"| {seed.removeprefix('seed_')} | `{name}` | {found['best_reward']:g} | {found['before_reward']:.2f} "
        f"| {found['after_reward']:.2f} | {found['first_third_reward']:.2f} | {found['last_third_reward']:.2f} "
        f"| {found['scored_fraction']:.0%} |"
        for seed, run in results.items()
        for name, found in run["environments"].items()
    ]
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")

    assert 12 == len(lines)
    assert lines == [line for line in lines if line in page]


def test_measured_numbers_are_those_of_the_results_files() -> None:
    """why.md quotes what the benchmarks wrote."""
    results = {
        name: json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))["results"]
        for name in ("task_list", "schedule_building")
    }
    tasks, slots = results["task_list"]["by_num_tasks"]["100"], results["schedule_building"]["100000_slots"]
    theirs, ours = slots["interleave_datasets"]["worst_deviation_slots"], slots["multiors"]["worst_deviation_slots"]
    expected = [
        f"{tasks['trl_dataset']['http_requests']} requests for 100 tasks, where this library sent "
        f"{tasks['multiors']['http_requests']} (`benchmarks/results/task_list.json`)",
        f"one source was {theirs:g} slots away from its share at the end of a batch, where this library's schedule was "
        f"{ours:g} away (`benchmarks/results/schedule_building.json`)",
    ]
    text = " ".join(read_prose(ROOT / "docs/why.md").split())

    assert [] == [sentence for sentence in expected if sentence not in text]


def read_results(name: str) -> dict[str, Any]:
    """What a benchmark wrote."""
    results: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))[
        "results"
    ]
    return results


def environment_time_lines() -> list[str]:
    """The rows of the table of what concurrency saves."""
    return [
        f"| {rollouts.removesuffix('_rollouts')} | {latency.removesuffix('_ms')} ms "
        f"| {cell['stock']['median_s']:.2f} | {cell['concurrent']['median_s']:.2f} "
        f"| {cell['http_floor']['median_s']:.2f} | {cell['latency_floor_s']:.2f} "
        f"| {cell['ratios']['stock_to_concurrent']:.1f} × |"
        for rollouts, cells in read_results("environment_time").items()
        for latency, cell in cells.items()
    ]


def open_sessions_lines() -> list[str]:
    """The rows of the table of many open sessions."""
    names = {"http": "bare HTTP", "sdk": "the SDK", "multiors": "multiors"}
    return [
        f"| {sessions.removesuffix('_sessions')} | {name} | {found[side]['opened_per_s']:.0f} "
        f"| {found[side]['called_per_s']:.0f} | {found[side]['memory_per_session_kb']:.0f} "
        f"| {found[side]['idle']['cpu_cores']:.2f} | {found[side]['max_open_files']} |"
        for sessions, found in read_results("open_sessions").items()
        for side, name in names.items()
    ]


@pytest.mark.parametrize("lines", [environment_time_lines, open_sessions_lines])
def test_measured_tables_are_those_of_the_results_files(lines: Callable[[], list[str]]) -> None:
    """Every row of concurrency.md's tables is what the benchmark wrote, and no row is left out."""
    page = (ROOT / "docs/concurrency.md").read_text(encoding="utf-8").splitlines()

    assert len(lines()) >= 6
    assert [] == [line for line in lines() if line not in page]


def test_the_table_of_schemas_is_that_of_the_results_file() -> None:
    """sources.md's table of what is kept of a schema is what the benchmark wrote."""
    ours, theirs = (read_results("schema_fidelity")["all"][binder] for binder in ("multiors", "trl"))
    kinds = [(f"`{kind}`", found, theirs["by_kind"][kind]) for kind, found in ours["by_kind"].items()]
    rows = [*kinds, ("all of these", ours["facts"], theirs["facts"]), ("`bounds`", ours["bounds"], theirs["bounds"])]
    expected = [
        [name, *(str(found[key]) for key in ("num_facts", "num_typed", "num_in_words"))]
        + [f"{each['survived_fraction']:.1%}" for each in (found, other)]
        for name, found, other in rows
    ]

    assert expected == read_tables("docs/sources.md", "What is kept of a schema")
    assert ours["facts"]["survived_fraction"] >= 0.95


# -- errors


def _text(node: ast.AST) -> str:
    """The text of a message, with an ellipsis for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


def read_messages() -> list[str]:
    """Every text of the package that may be a message."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    return [
        _text(node)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]


def read_raised() -> list[str]:
    """The texts of the package's own errors, where they are made."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    errors = set(multiors.errors.__all__)
    derived = {
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef) and errors & {base.id for base in node.bases if isinstance(base, ast.Name)}
    }
    return [
        _text(node.args[0])
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
        if node.func.id in errors | derived
    ]


def read_catalogue() -> list[str]:
    """The messages of errors.md, with an ellipsis for what differs."""
    catalogue = read_prose(ROOT / "docs/errors.md").partition("## Before any request")[2]
    return re.findall(r"^\| `([^`]+)` \|", catalogue, re.MULTILINE)


def fits(entry: str, message: str) -> bool:
    """Whether an entry of the catalogue is about a message: its parts stand in it, one after another."""
    end = 0

    for part in entry.split("…"):
        start = message.find(part, end)
        if start < 0:
            return False
        end = start + len(part)

    return True


def test_the_messages_of_the_error_catalogue_exist() -> None:
    """Each entry of errors.md fits a message of the package, so none outlives its error."""
    messages = read_messages()

    assert [] == [entry for entry in read_catalogue() if not any(fits(entry, message) for message in messages)]


# Errors of functions that the package calls with what it has checked already, and of waits that end with the run.
_UNSEEN = (
    "the schedule draws … sources, but there are rows of …",
    "slot … draws its task number …, but there are …",
    "entries for … tasks. Pass one per task, or None",
    "shares … are not a list of one number per source",
    "the shares sum to …; shares sum to 1",
    "share … at position … is not a number from 2**-40 to 1",
    "the residual … does not belong to … sources",
    "a batch of … slots cannot be divided",
    "task counts … do not fit … shares",
    "num_slots=… is not a positive whole number of batches",
    "the mix has no source. Pass at least one",
    "task counts are known for …, the sources are …",
    "it has … tasks; at least one is needed",
    "prompts_per_batch=… is not above 0",
    "a group was to be compared in a closed session",
    "nobody waits for this session any more",
)


def test_every_error_is_in_the_catalogue() -> None:
    """Each error that a person may see has an entry in errors.md, unless its text is made elsewhere."""
    entries = [entry for entry in [*read_catalogue(), *_UNSEEN] if len(re.findall(r"\w+", entry)) > 1]
    raised = [message for message in read_raised() if len(re.findall(r"\w+", message)) > 4]

    assert len(raised) > 200
    assert [] == [message for message in raised if not any(fits(entry, message) for entry in entries)]
    assert [] == [entry for entry in _UNSEEN if not any(fits(entry, message) for message in raised)]
