"""The command `multiors completion`: a script by which a shell completes the commands, their options and their values.

The script is made once, by shtab, from the parser of the command line, so completing starts no process. The fields of
`GRPOConfig` in it are those of the TRL that is installed when it is made.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["add_completion"]

_SHELLS = ("bash", "zsh", "fish")
_FOLDERS = ("DIR", "CHECKPOINT", "POLICY")

_EXAMPLES = """examples:
  multiors completion bash > ~/.local/share/bash-completion/completions/multiors
  multiors completion fish > ~/.config/fish/completions/multiors.fish
  multiors completion zsh > ~/.zfunc/_multiors
                                         with fpath=(~/.zfunc $fpath) before compinit in ~/.zshrc

New shells complete then. Write the file again after an update.
"""


def add_completion(commands: Any, root: argparse.ArgumentParser) -> None:
    """Add `completion` to the command line, whose parser is `root`."""
    parser = commands.add_parser(
        "completion",
        help="print what makes a shell complete commands and options",
        description="Print a script by which a shell completes the commands, their options and values, and for "
        "`multiors train` the fields of GRPOConfig.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=_SHELLS, help="which shell")
    parser.set_defaults(run=partial(_run_completion, root))


def _run_completion(root: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    import shtab

    for name, parser in _list_parsers(root):
        if name == "train":
            _add_fields(parser)
        for action in parser._actions:
            if action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # where shtab looks for it
            elif action.type is Path or action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # as above

    print(shtab.complete(root, options.shell))
    return 0


def _list_parsers(root: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers of the commands, by name."""
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _add_fields(parser: argparse.ArgumentParser) -> None:
    """Add the fields of `GRPOConfig`, which `multiors train` itself reads without its parser."""
    from multiors.config import list_fields

    group = parser.add_argument_group("fields of GRPOConfig")

    for name, kind in list_fields().items():
        option = f"--{name.replace('_', '-')}"
        if option in parser._option_string_actions:
            continue
        if kind == "switch":
            group.add_argument(option, action=argparse.BooleanOptionalAction, help="a switch of GRPOConfig")
        else:
            group.add_argument(option, metavar="DIR" if name.endswith("_dir") else None, help="a field of GRPOConfig")
