"""A run with keys and secrets that its servers give away, in a process of its own, with everything logged.

Run as `python -m tests.secret_run '<options as JSON>'`. Writes to its folder what the library made: a file for each
kind of text, the folders `rollouts` and `checkpoints`, and the records as a pickle. The rest stands on its output.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from multiors import MultiOpenRewardSpec, ORSSource, RolloutLog, RolloutRecord, RolloutUpload
from multiors.cli import main as run_command
from tests.scripted import ConcurrentScriptedTrainer, call, small_fields, train

__all__ = ["Options", "run"]

NUM_STEPS = 3


@dataclass(frozen=True)
class Options:
    """Where the servers are, and what is secret."""

    folder: str
    policy: str
    own_url: str
    """A server with `Telling`."""

    raw_url: str
    """A server whose calls answer with an error that holds everything."""

    broken_url: str
    """A server that gives everything away before training."""

    session_url: str
    api_url: str
    own_key: str
    own_secret: str
    hosted_secret: str
    mix_secret: str


def answer(conversation: str, row: int) -> str:
    """Call the tool of the environment once."""
    if "<tool_response>" in conversation:
        return "done"

    return call("tell", text="it") if "Telling" in conversation else call("act", text="it")


def make_spec(options: Options, **more: Any) -> MultiOpenRewardSpec:
    """A mix of a server of one's own, one of another kind, and an environment of the platform's."""
    return MultiOpenRewardSpec(
        {
            "own": ORSSource(options.own_url, retries=0, api_key=options.own_key, secrets={"OWN": options.own_secret}),
            "raw": ORSSource(options.raw_url, api_key=options.own_key, secrets={"OWN": options.own_secret}),
            "hosted": ORSSource(
                "lab/telling",
                session_url=options.session_url,
                retries=0,
                secrets={"HOSTED": (options.hosted_secret, ["example.org"]), "SHARED": None},
            ),
        },
        secrets={"SHARED": (options.mix_secret, ["example.org"])},
        **more,
    )


def run(options: Options) -> None:
    """Train, look at everything, and break it."""
    folder = Path(options.folder)
    records: list[RolloutRecord] = []
    said: dict[str, list[str]] = {"errors": [], "reprs": []}

    with RolloutUpload("run", api_url=options.api_url) as upload:
        log = RolloutLog(folder / "rollouts")
        spec = make_spec(options, rollout_log=log, on_rollouts=[upload, records.extend])
        fields = small_fields(folder / "checkpoints") | {"save_strategy": "steps", "save_steps": NUM_STEPS}
        batch = {"max_steps": NUM_STEPS, "num_generations": 2, "per_device_train_batch_size": 12}
        args = GRPOConfig(**spec.training_arguments(**fields, **batch))
        trainer = train(spec, Path(options.policy), args, script=answer, trainer_class=ConcurrentScriptedTrainer)

    sources = [source for source in spec.sources.values() if isinstance(source, ORSSource)]
    factories: Any = spec.environment_factory
    things: list[Any] = [spec, *sources, log, upload, args, factories, spec.reward_funcs]
    things += [source.blueprint for source in sources] + [factory() for factory in factories.values()]
    said["reprs"] = [f"{thing!r} {thing!s}" for thing in things]
    said["dataset"] = [repr(spec.train_dataset.features), json.dumps(spec.train_dataset.to_list())]
    said["plan"] = [str(spec.plan()), json.dumps(spec.plan().to_json())]
    said["tools"] = list(spec.describe_tools().values())
    said["trainer"] = [json.dumps(trainer.state.log_history)]
    said["record_errors"] = [str(record.error) for record in records]
    said["told_after_failures"] = [
        step.output for record in records for step in record.steps if step.failure is not None
    ]
    said["commands"] = [run_commands(options, folder)]
    said["errors"] = [*break_it(options), *break_scoring(spec)]
    (folder / "records").write_bytes(pickle.dumps(records))

    for name, texts in said.items():
        (folder / name).write_text("\n".join(texts), encoding="utf-8", errors="surrogatepass")


def run_commands(options: Options, folder: Path) -> str:
    """What the commands print about a run file with these servers."""
    path = folder / "run.yaml"
    path.write_text(
        f"sources:\n"
        f"  own: {{target: '{options.own_url}'}}\n"
        f"  hosted: {{target: lab/telling, session_url: '{options.session_url}'}}\n",
        encoding="utf-8",
    )
    other_path = folder / "broken.yaml"
    other_path.write_text(f"sources: {{broken: {{target: lab/broken, session_url: '{options.session_url}'}}}}\n")
    output = StringIO()
    looks = (["preview", "--tools"], ["check", "--probe"], ["check", "--json", "--probe"])
    commands = [[look[0], str(each), *look[1:]] for each in (path, other_path) for look in looks]

    with redirect_stdout(output), redirect_stderr(output):
        for command in commands:
            print(f"$ multiors {' '.join(command)}")  # noqa: T201  into the text that is returned
            print(catch(partial(run_command, command)))  # noqa: T201  as above

    return output.getvalue()


def break_it(options: Options) -> list[str]:
    """The errors of sources that cannot be used, with their tracebacks."""
    secrets: Any = {"OWN": options.own_secret}
    strange: Any = {"OWN": [options.own_secret]}
    targets: Any = [options.own_url, f"{options.own_url}#{options.own_key}", 3]
    broken: list[Callable[[], object]] = [
        lambda: ORSSource(options.broken_url, api_key=options.own_key, secrets=secrets).tools,
        lambda: ORSSource(options.broken_url, api_key=options.own_key, secrets=secrets).task_list,
        lambda: ORSSource("lab/broken", session_url=options.session_url, secrets=secrets).tools,
        lambda: ORSSource("lab/nothing", session_url=options.session_url, secrets=secrets).task_list,
        lambda: ORSSource("lab/telling", session_url=options.session_url, secrets=secrets).tools,
        lambda: ORSSource(options.own_url, api_key=options.own_key, secrets=secrets, split="no").task_list,
        lambda: ORSSource(options.own_url, api_key=options.own_key, secrets=strange).tools,
        lambda: ORSSource(options.own_url.replace("//", f"//me:{options.own_key}@")).tools,
        lambda: ORSSource(f"{options.own_url}/?key={options.own_key}").tools,
        lambda: ORSSource(targets).tools,
        lambda: make_spec(options, weights={"own": 1.0}).train_dataset,
    ]
    return [catch(each) for each in broken]


def break_scoring(spec: MultiOpenRewardSpec) -> list[str]:
    """The error of a reward column in which an environment stands."""
    return [catch(lambda: spec.reward_funcs(environments=[object(), *spec.sources.values()]))]


def catch(function: Callable[[], object]) -> str:
    """The traceback of what a function raises. Empty: nothing."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  whatever it is, its text is looked at
        return "".join(traceback.format_exception(error))

    return ""


def main(options: Options) -> None:
    """Run, with everything that is logged at any level in a file, and every warning."""
    folder = Path(options.folder)
    handler = logging.FileHandler(folder / "log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.DEBUG, handlers=[handler], force=True)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(options)

    (folder / "warnings").write_text("\n".join(str(each.message) for each in caught), encoding="utf-8")


if __name__ == "__main__":
    os.environ["OPENREWARD_LOG_LEVEL"] = "DEBUG"
    main(Options(**json.loads(sys.argv[1])))
