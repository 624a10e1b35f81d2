"""The commands `multiors evaluate` and `multiors compare`: their options, progress, and what they print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiors.commands.options import (
    add_run_file,
    count,
    index,
    loading,
    number,
    print_json,
    read_run_file,
    say_written,
    seconds,
)
from multiors.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from multiors.evaluation import EvaluationRun
    from multiors.evaluation.folder import EpisodeKey
    from multiors.evaluation.results import ArmResult, Comparison
    from multiors.records import RolloutRecord

__all__ = ["add_compare", "add_evaluate"]

_EPISODES = 4  # of each task
# What a run file's `training:` says unless the command line does, and what holds if neither does.
_OF_TRAINING: Mapping[str, tuple[str, Any]] = {
    "temperature": ("temperature", 1.0),
    "top_p": ("top_p", 1.0),
    "top_k": ("top_k", None),
    "max_tokens": ("max_completion_length", 1024),
    "max_completion_tokens": ("max_completion_length", None),
    "max_turns": ("max_tool_calling_iterations", 50),
}

_EVALUATE_EXAMPLES = """examples:
  multiors evaluate run.yaml --policy output/checkpoint-100 --output after
  multiors evaluate run.yaml --policy Qwen/Qwen3-4B --output before --num-tasks 64
  multiors evaluate run.yaml --policy http://127.0.0.1:8000/v1 --output served --concurrency 256
  multiors evaluate run.yaml --policy random --output random             valid tool calls at random, as a baseline
  multiors evaluate run.yaml --policy oracle:solve --output best         a function of yours
  multiors compare before after --html report.html

The policy writes as in training: what `training:` says of temperature, top_p, top_k, max_completion_length and
max_tool_calling_iterations holds here too, unless an option says otherwise. The same command again goes on where it was
stopped, by Ctrl-C or otherwise. An endpoint's key is read from MULTIORS_POLICY_API_KEY.
"""

_COMPARE_EXAMPLES = """examples:
  multiors compare before after                          two evaluations, task by task
  multiors compare before after --html report.html       also as a page, with every episode
  multiors compare uniform/ curriculum/                  folders with one evaluation per training run (seed)
  multiors compare before after --json | jq .macro

The candidate is better or worse where the adjusted p value is below 0.05; otherwise it says what difference could have
been seen.
"""


def add_evaluate(commands: Any) -> None:
    """Add `evaluate` to the command line."""
    parser = commands.add_parser(
        "evaluate",
        help="play a policy on every environment of a run file",
        description="Play a policy on every environment of a run file, outside training, and write each episode to a "
        "folder that `multiors compare` reads.",
        epilog=_EVALUATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_file(parser)
    parser.add_argument(
        "--policy",
        required=True,
        metavar="POLICY",
        help="a folder or Hub name of a model, the URL of an OpenAI-compatible endpoint, 'random', 'silent' (never "
        "calls a tool), or 'module:function'",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the folder for the episodes")
    what = parser.add_argument_group("what is played")
    what.add_argument("--source", action="append", metavar="NAME", help="only this source; may be repeated")
    what.add_argument(
        "--num-tasks", type=count, metavar="N", help="tasks of each source, at most (default: the run file's, or all)"
    )
    what.add_argument(
        "--episodes", type=count, metavar="N", help="episodes of each task (default: the run file's, or 4)"
    )
    what.add_argument(
        "--split", metavar="NAME", help="whose tasks are played (default: the run file's, or those of each source)"
    )
    what.add_argument(
        "--seed",
        type=index,
        metavar="N",
        help="decides tasks and luck; compare evaluations of one seed (default: the run file's, or 0)",
    )
    _add_policy_arguments(parser.add_argument_group("the policy"))
    _add_limits(parser.add_argument_group("limits"))
    parser.add_argument(
        "--replay-failed", action="store_true", help="also play those episodes again in which the environment failed"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run_evaluate)


def _add_limits(group: Any) -> None:
    group.add_argument(
        "--max-turns", type=index, metavar="N", help="replies whose calls are made (default: the run file's, or 50)"
    )
    group.add_argument(
        "--max-completion-tokens",
        type=count,
        metavar="N",
        help="tokens of an episode after its prompt (default: the run file's max_completion_length, or any)",
    )
    group.add_argument(
        "--timeout", type=seconds, default=3600.0, metavar="S", help="seconds of an episode (default: 3600)"
    )
    group.add_argument(
        "--concurrency", type=count, metavar="N", help="episodes under way at once (default: 64 or more)"
    )
    group.add_argument(
        "--retries",
        type=index,
        default=1,
        metavar="N",
        help="times an episode with a lost session is replayed (default: 1)",
    )


def _add_policy_arguments(group: Any) -> None:
    group.add_argument("--model", metavar="NAME", help="which model of an endpoint (default: the only one)")
    group.add_argument("--tokenizer", metavar="NAME", help="a folder or Hub name (default: the model's own)")
    group.add_argument("--temperature", type=number, metavar="T", help="0 is greedy (default: the run file's, or 1)")
    group.add_argument("--top-p", type=number, metavar="P", help="(default: the run file's, or 1)")
    group.add_argument("--top-k", type=count, metavar="K", help="(default: the run file's, or all tokens)")
    group.add_argument(
        "--max-tokens",
        type=count,
        metavar="N",
        help="of one reply (default: the run file's max_completion_length, or 1024)",
    )
    group.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the chat template asks for thoughts (default: as the run file's chat_template_kwargs say)",
    )
    group.add_argument(
        "--batch", type=count, metavar="N", help="replies of a model at once, or requests to an endpoint"
    )


def add_compare(commands: Any) -> None:
    """Add `compare` to the command line."""
    parser = commands.add_parser(
        "compare",
        help="say whether one policy is better than another, and where",
        description="Compare two evaluations task by task, or two folders of evaluations training run by training run: "
        "differences with 95 % intervals and adjusted p values for each environment, and overall.",
        epilog=_COMPARE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("reference", type=Path, help="the folder of one evaluation, or of several")
    parser.add_argument("candidate", type=Path, help="the same, of the policy that may be better")
    parser.add_argument(
        "--score",
        choices=("reward", "outcome"),
        default="reward",
        help="what an episode is worth: the reward as the run file composes it (default), or its outcome alone",
    )
    parser.add_argument(
        "--success-at", type=number, metavar="X", help="from which score on an episode is a success, for pass@k"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page that needs no network")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write Markdown")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the differences as .png or .svg")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run_compare)


def _run_evaluate(options: argparse.Namespace) -> int:
    from multiors.config import build_spec
    from multiors.evaluation import Limits, Sampling, evaluate, summarize
    from multiors.evaluation.policies.choosing import choose_policy, names_model

    config = read_run_file(options)
    asked = config.evaluation
    said = {name: _choose(getattr(options, name), config.training, name) for name in _OF_TRAINING}
    thinking = options.thinking

    if thinking is None and names_model(options.policy):
        thinking = (config.training.get("chat_template_kwargs") or {}).get("enable_thinking")

    with loading("the policy"):
        policy = choose_policy(
            options.policy,
            model=options.model,
            sampling=Sampling(**{name: said[name] for name in ("temperature", "top_p", "top_k", "max_tokens")}),
            thinking=thinking,
            tokenizer=options.tokenizer,
            max_concurrent_replies=options.batch,
        )

    limits = Limits(said["max_turns"], said["max_completion_tokens"], options.timeout)

    with build_spec(config) as spec, _shown() as watcher, watcher.saying_what_is_kept():
        run = evaluate(
            _choose_sources(spec.sources, options.source),
            policy,
            options.output,
            num_tasks=options.num_tasks or asked.num_tasks,
            episodes_per_task=options.episodes or asked.episodes or _EPISODES,
            split=options.split or asked.split,
            seed=asked.seed if options.seed is None else options.seed,
            limits=limits,
            max_concurrent_episodes=options.concurrency,
            retries=options.retries,
            replay_failed=options.replay_failed,
            watcher=watcher,
        )

    _print(summarize(run), as_json=options.json)
    return 0


def _choose(given: Any, training: Mapping[str, Any], name: str) -> Any:
    field, otherwise = _OF_TRAINING[name]
    said = training.get(field) if given is None else given
    return otherwise if said is None or (name == "top_k" and said == 0) else said  # 0 is all tokens for TRL


def _run_compare(options: argparse.Namespace) -> int:
    from multiors.evaluation import compare
    from multiors.evaluation.comparing import read_arm
    from multiors.evaluation.comparison import draw_result, to_html, to_markdown, write_page

    paths = (options.reference, options.candidate)
    arms = [read_arm(path) for path in paths]
    names = (paths[0].absolute().name, paths[1].absolute().name)
    found = compare(*arms, names=names, value=options.score, success_at=options.success_at)

    if options.html is not None:
        write_page(to_html(found, *arms), options.html)
    if options.markdown is not None:
        write_page(to_markdown(found), options.markdown)
    if options.picture is not None:
        draw_result(found, options.picture)

    say_written(options.html, options.markdown, options.picture)
    _print(found, as_json=options.json)
    return 0


def _choose_sources(sources: Any, names: Sequence[str] | None) -> Any:
    unknown = [name for name in names or () if name not in sources]

    if unknown:
        raise ConfigError(f"--source {unknown[0]!r} is not in the run file; its sources are {list(sources)}.")

    return {name: source for name, source in sources.items() if names is None or name in names}


def _print(found: ArmResult | Comparison, *, as_json: bool) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from multiors.evaluation.comparison import print_result, to_text

    if as_json:
        print_json(asdict(found))
    elif sys.stdout.isatty():
        print_result(found, Console(highlight=False))
    else:
        print(to_text(found))


@contextmanager
def _shown() -> Iterator[_Bars]:
    """A bar for each source on a terminal; elsewhere a line for each quarter."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )

    progress = Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=4)

    # Before rich 14.3 one that is disabled ends with an empty line.
    with nullcontext() if progress.disable else progress:
        yield _Bars(progress)


class _Bars:
    """Shows how an evaluation goes on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._rewards: dict[str, list[float]] = {}
        self._num_over: dict[str, int] = {}
        self._num_all = 0
        self._num_before = 0
        self._folder: Path | None = None

    def begin(self, run: EvaluationRun, left: Sequence[EpisodeKey]) -> None:
        """Say what there is to do."""
        self._num_all = len(left)
        self._num_before = num_played = run.manifest.num_episodes - len(left)
        self._folder = run.folder
        kept = f"; {num_played:,} were played before" if num_played else ""
        self._say(f"{len(left):,} episodes of {len(run.manifest.sources)} sources go to {run.folder}{kept}")

        for name, plan in run.manifest.sources.items():
            waiting = sum(source == name for source, _, _ in left)
            total = run.manifest.episodes_per_task * len(plan.tasks)
            self._bars[name] = self._progress.add_task(name, total=total, completed=total - waiting, said="")
            self._rewards[name], self._num_over[name] = [0.0, 0.0], 0

    def add(self, record: RolloutRecord) -> None:
        """Show the mean so far, over what was scored."""
        name = record.source
        self._num_over[name] += 1

        if record.reward is not None:
            self._rewards[name][0] += record.reward
            self._rewards[name][1] += 1

        total, num_scored = self._rewards[name]
        mean = "–" if not num_scored else f"{total / num_scored:.3g}"
        unscored = self._num_over[name] - int(num_scored)
        said = f"mean {mean}" + (f", {unscored:,} unscored" if unscored else "")
        self._progress.update(self._bars[name], advance=1, said=said)
        num_over = sum(self._num_over.values())

        if self._progress.disable and num_over * 4 // self._num_all > (num_over - 1) * 4 // self._num_all:
            self._say(f"{num_over:,} of {self._num_all:,} episodes")

    @contextmanager
    def saying_what_is_kept(self) -> Iterator[None]:
        """Say what an interrupt leaves, and how to go on."""
        try:
            yield
        except KeyboardInterrupt:
            if self._folder is not None:
                num_kept = self._num_before + sum(self._num_over.values())
                self._say(
                    f"{num_kept:,} of {self._num_before + self._num_all:,} episodes are kept in {self._folder}; the "
                    f"same command plays the others"
                )
            raise

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, soft_wrap=True)
