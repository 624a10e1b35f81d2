"""The commands `multiors init` and `multiors schema`: a run file to begin with, and what editors know of run files."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multiors.commands.options import print_json
from multiors.errors import ConfigError
from multiors.shell import write_command

__all__ = ["add_init", "add_schema"]

_INIT_EXAMPLES = """examples:
  multiors init                                        write run.yaml
  multiors init - | less                               only show it
  multiors init my.yaml --url http://127.0.0.1:8001    with the environments of a server; may be repeated
"""

_SCHEMA_EXAMPLES = """examples:
  multiors schema > run.schema.json

Editors that know YAML complete and check a run file whose first line is
  # yaml-language-server: $schema=run.schema.json
"""

_TIMEOUT_S = 10.0

_EXAMPLE = [("sort", "http://127.0.0.1:8001", "sorting"), ("heat", "http://127.0.0.1:8001", "thermostat")]

_HEAD = """\
# yaml-language-server: $schema=run.schema.json
# `multiors schema > run.schema.json` writes the schema, by which editors complete and check this file.
#
#   multiors check FILE       is everything there that a run needs?
#   multiors preview FILE     what will be drawn?
#   multiors train FILE       train; also under torchrun and accelerate
#   multiors evaluate FILE --policy output --output after
#
# Secrets do not stand here: ${VARIABLE} takes one from the environment, under `api_key` and `secrets` of a source.

seed: 0                           # decides the order of tasks
model: Qwen/Qwen3-0.6B            # a name on the Hub, or a folder
# model: {name: Qwen/Qwen3-0.6B, init_kwargs: {attn_implementation: sdpa}}

training:                         # any field of TRL's GRPOConfig; on the command line: --max-steps 50
  output_dir: output
  max_steps: 200
  num_generations: 8              # rollouts of a prompt
  per_device_train_batch_size: 8  # rollouts of a step, on each device
  gradient_accumulation_steps: 4  # a batch is this × rollouts of a step × devices; num_generations of each prompt
  max_completion_length: 1024     # tokens of a rollout after its prompt, over all turns
  max_tool_calling_iterations: 8  # turns
  learning_rate: 1.0e-6
  logging_steps: 1
  save_steps: 50
  report_to: none                 # trackio, wandb, ...

sources:                          # the environments, by a name of yours
"""

_SOURCE_HINTS = """\
    # split: train
    # num_tasks: 64               # at most
    # max_failing_rollouts: 256   # end the training when its environment has failed more often
    # reward: {range: [0, 1], unscored: 0.0}   # 0.0 for rollouts in which the policy gave up; failures stay unscored
    # api_key: ${MY_SERVER_KEY}
    # secrets: {HF_TOKEN: "${HF_TOKEN}"}
"""

_TAIL = """\

# curriculum: learning_progress   # shares that follow what is being learned
# circuit_breaker: true           # leave a source out while its environment fails
# rollout_log: rollouts           # every rollout as a line of JSON

evaluation:                       # of `multiors evaluate`, and in training
  num_tasks: 32                   # of each source, at most
  episodes: 2                     # of each task
  # split: test                   # default: the split of each source
  # every_steps: 50               # also evaluate while training
"""


def add_init(commands: Any) -> None:
    """Add `init` to the command line."""
    parser = commands.add_parser(
        "init",
        help="write a run file to begin with",
        description="Write a run file with comments. Nothing is overwritten.",
        epilog=_INIT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", nargs="?", default="run.yaml", metavar="FILE", help="'-' is standard output (default: run.yaml)"
    )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="ask this server for its environments, and make them the sources; may be repeated",
    )
    parser.set_defaults(run=_run_init)


def add_schema(commands: Any) -> None:
    """Add `schema` to the command line."""
    parser = commands.add_parser(
        "schema",
        help="print the JSON Schema of run files, for editors",
        description="Print the JSON Schema of run files, with the fields of the installed TRL.",
        epilog=_SCHEMA_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run_schema)


def _run_init(options: argparse.Namespace) -> int:
    from multiors.config.reading import dump_yaml

    sources = _ask(options.url) if options.url else _EXAMPLE
    body = "".join(
        f"  {name}:\n"
        + "".join(f"    {line}\n" for line in dump_yaml(_describe(target, environment)).splitlines())
        + ("    weight: 1.0                   # its share of the prompts, relative to the others'\n")
        + (_SOURCE_HINTS if position == 0 else "")
        for position, (name, target, environment) in enumerate(sources)
    )
    text = _HEAD.replace("FILE", "run.yaml" if options.file == "-" else options.file) + body + _TAIL

    if options.file == "-":
        print(text, end="")
    else:
        _write_new(Path(options.file), text)
        print(f"wrote {options.file}; next: {write_command('check', options.file)}", file=sys.stderr)

    return 0


def _run_schema(options: argparse.Namespace) -> int:
    from multiors.config import make_schema

    print_json(make_schema())
    return 0


def _describe(target: str, environment: str | None) -> Mapping[str, str]:
    return {"target": target} if environment is None else {"target": target, "env_name": environment}


def _ask(urls: Sequence[str]) -> list[tuple[str, str, str | None]]:
    """Name, address and environment of a source for each environment of the servers."""
    from multiors.ors.preparation import list_environments
    from multiors.training.table import TABLE_COLUMNS

    found: list[tuple[str, str, str | None]] = []
    taken = set(TABLE_COLUMNS)

    for url in urls:
        environments: Sequence[str | None] = list_environments(url, timeout_s=_TIMEOUT_S) or [None]
        for environment in environments:
            wanted = re.sub(r"[^A-Za-z0-9_-]+", "-", environment or "").strip("-") or "source"
            name = next(name for name in _number(wanted) if name not in taken)
            taken.add(name)
            found.append((name, url, environment))

    return found


def _number(name: str) -> Any:
    """The name, then with a number behind it."""
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{str(path)!r} is there, and nothing is overwritten. Choose another name.") from None
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}. Choose another place.") from error
