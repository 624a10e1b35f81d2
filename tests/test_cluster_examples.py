"""What the examples for GPUs and clusters say is understood by those who read it; on a CPU no more can be run.

Their scripts run with stand-ins for the programs of a cluster, which write down what they are called with. That is read
by the parsers of accelerate, TRL and the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from multiors.commands.options import read_run_file
from multiors.commands.training import add_train, expand_training_flags
from multiors.config import RunConfig, build_spec, load_run_file

ROOT = Path(__file__).parents[1]
ENGINES = sorted((ROOT / "examples/accelerate").glob("*.yaml"))
RUN_FILES = sorted((ROOT / "examples/with-vllm").glob("*.yaml"))
PAGES = [*sorted((ROOT / "examples").glob("*/README.md")), ROOT / "docs/many-processes.md"]
ROLLOUTS = 64
"""In a generation batch of each of the examples with vLLM."""


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the examples are typed there."""
    monkeypatch.chdir(ROOT)


# -- configurations of accelerate


def parse_launch(arguments: list[str]) -> argparse.Namespace:
    """What `accelerate launch` understands of its arguments."""
    from accelerate.commands.launch import launch_command_parser

    launch: argparse.Namespace = launch_command_parser().parse_args(arguments)
    return launch


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: path.stem)
def test_accelerate_knows_all_keys_of_a_configuration(path: Path) -> None:
    """Its own reader refuses unknown ones at the top, and below them stand options of `accelerate launch`."""
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    options = vars(parse_launch(["script.py"]))

    assert {*config.fsdp_config, *config.deepspeed_config} <= set(options)
    assert ("bf16", False, 4) == (config.mixed_precision, config.use_cpu, config.num_processes)


def test_the_configurations_are_of_four_engines() -> None:
    """DDP, FSDP2, ZeRO-2 and ZeRO-3."""
    told = {path.stem: yaml.safe_load(path.read_text()) for path in ENGINES}

    assert {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED", "deepspeed_zero3": "DEEPSPEED"} == {
        name: config["distributed_type"] for name, config in told.items()
    }
    assert [2, 2, 3] == [
        told["fsdp2"]["fsdp_config"]["fsdp_version"],
        told["deepspeed_zero2"]["deepspeed_config"]["zero_stage"],
        told["deepspeed_zero3"]["deepspeed_config"]["zero_stage"],
    ]


_PLUGIN = """
import json, os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
launch, *_ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", sys.argv[1], "script.py"]))
os.environ.update(prepare_multi_gpu_env(launch))
plugin = FullyShardedDataParallelPlugin()
print(json.dumps([plugin.fsdp_version, plugin.reshard_after_forward, plugin.state_dict_type.name]))
"""


def test_processes_are_told_of_fsdp2() -> None:
    """From what the launcher leaves in their environment they build FSDP2 that saves the whole model."""
    command = [sys.executable, "-c", _PLUGIN, "examples/accelerate/fsdp2.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

    assert [2, True, "FULL_STATE_DICT"] == json.loads(done.stdout)


# -- run files


def read_command(arguments: list[str]) -> RunConfig:
    """The run file of a `multiors train`, with its options."""
    parser = add_train(argparse.ArgumentParser().add_subparsers())
    return read_run_file(parser.parse_args(expand_training_flags(parser, arguments)))


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_a_run_file_with_vllm_is_one_for_the_trainer(path: Path, tmp_path: Path) -> None:
    """The mix refuses none of its fields, and neither does `GRPOConfig`."""
    from trl import GRPOConfig

    here = {"use_cpu": True, "bf16": False, "output_dir": str(tmp_path)}

    with build_spec(load_run_file(path)) as spec:
        args = GRPOConfig(**spec.training_arguments(**{**load_run_file(path).training, **here}))

    assert (True, path.stem) == (args.use_vllm, args.vllm_mode)


def test_the_run_files_with_vllm_are_one_run() -> None:
    """They differ in how it is run: the mode of vLLM, and how the batch is made up."""
    one, other = (load_run_file(path).model_dump() for path in RUN_FILES)
    ways = ("vllm_", "gradient_accumulation_steps")
    told = [{n: v for n, v in each.pop("training").items() if not n.startswith(ways)} for each in (one, other)]

    assert told[0] == told[1]
    assert one == other


# -- scripts

_STAND_IN = f"""#!{sys.executable}
import json, os, subprocess, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
gpus = os.environ.get("CUDA_VISIBLE_DEVICES")

if name == "scontrol":
    print("first", "second", "third", sep="\\n")
if name == "srun":
    size = next(index for index, each in enumerate(arguments) if not each.startswith("--"))
    arguments, command = arguments[:size], arguments[size:]
if name == "accelerate" and os.environ.get("SLURM_NODEID", "0") == "0":
    open(os.environ["IS_SERVED"]).close()  # opens when the other one is there
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([name, gpus, arguments]) + "\\n")
if name == "srun":
    tasks = int(next(each for each in arguments if each.startswith("--ntasks=")).partition("=")[2])
    for node in range(tasks):
        subprocess.run(command, env={{**os.environ, "SLURM_NODEID": str(node)}}, check=True)
if name == "trl":
    open(os.environ["IS_SERVED"], "w").close()
"""


class Call(NamedTuple):
    """How a program was called."""

    name: str
    gpus: str | None
    arguments: list[str]


def run_script(name: str, *arguments: str, folder: Path) -> list[Call]:
    """The calls of a script to the programs of a cluster."""
    calls = folder / "calls.jsonl"
    os.mkfifo(folder / "is-served")

    for program in ("scontrol", "srun", "accelerate", "trl"):
        (folder / program).write_text(_STAND_IN)
        (folder / program).chmod(0o755)

    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "IS_SERVED": str(folder / "is-served"),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_NODELIST": "nodes[1-3]",
    }
    subprocess.run(["bash", f"examples/with-vllm/{name}", *arguments], env=environment, timeout=60, check=True)
    return [Call(*json.loads(line)) for line in calls.read_text().splitlines()]


def check_server(call: Call, config: RunConfig) -> Any:
    """What TRL understands of `trl vllm-serve`, which serves the model of a run file."""
    from trl.scripts.vllm_serve import make_parser

    command, *arguments = call.arguments
    served, unknown = make_parser().parse_args_and_config(args=arguments, return_remaining_strings=True)

    assert ("vllm-serve", []) == (command, unknown)
    assert config.model is not None
    assert config.model.name == served.model
    assert str(config.training["vllm_server_base_url"]).endswith(f":{served.port}")
    return served


def count_rollouts(launch: argparse.Namespace, config: RunConfig) -> int:
    """Rollouts of a generation batch, over all processes."""
    processes = launch.num_processes or yaml.safe_load(Path(launch.config_file).read_text())["num_processes"]
    size = config.training["per_device_train_batch_size"] * config.training["gradient_accumulation_steps"]
    return int(processes) * int(size)


def test_two_gpus_generate_and_two_train(tmp_path: Path) -> None:
    """Server and training have different ones of four, and options reach the training."""
    calls = {call.name: call for call in run_script("server.sh", "--max-steps", "3", folder=tmp_path)}
    launch = parse_launch(calls["accelerate"].arguments[1:])
    command, *arguments = launch.training_script_args
    config = read_command(arguments)
    served = check_server(calls["trl"], config)

    assert ("launch", True, "multiors", "train") == (
        calls["accelerate"].arguments[0],
        launch.module,
        launch.training_script,
        command,
    )
    assert ("2,3", "0,1") == (calls["trl"].gpus, calls["accelerate"].gpus)
    assert (2, 2) == (served.tensor_parallel_size, launch.num_processes)
    assert (3, ROLLOUTS) == (config.training["max_steps"], count_rollouts(launch, config))


def test_a_job_trains_on_all_machines_but_the_last(tmp_path: Path) -> None:
    """Each has its rank and knows the first one and the server; a job that begins again goes on."""
    url = "http://environments:8001"
    calls = run_script("slurm.sh", "--set", f"sources.sort.target={url}", folder=tmp_path)
    trained = [parse_launch(call.arguments[1:]) for call in calls if call.name == "accelerate"]
    places = sorted(call.arguments for call in calls if call.name == "srun")
    configs = [read_command(launch.training_script_args[1:]) for launch in trained]
    served = check_server(next(call for call in calls if call.name == "trl"), configs[0])

    assert [
        ["--nodes=1", "--ntasks=1", "--nodelist=third"],
        ["--nodes=2", "--ntasks=2", "--nodelist=first,second"],
    ] == places
    assert [0, 1] == [launch.machine_rank for launch in trained]
    assert [(2, 16, "first", "c10d")] * 2 == [
        (launch.num_machines, launch.num_processes, launch.main_process_ip, launch.rdzv_backend) for launch in trained
    ]
    assert all(["--resume", "auto"] == launch.training_script_args[2:4] for launch in trained)
    assert 8 == served.tensor_parallel_size
    assert configs[0] == configs[1]
    assert "http://third:8000" == configs[0].training["vllm_server_base_url"]
    assert (url,) == configs[0].sources["sort"].target  # type: ignore[union-attr]  # it is an ORS source
    assert ROLLOUTS == count_rollouts(trained[0], configs[0])


# -- commands of the pages


def read_commands() -> Iterator[list[str]]:
    """The commands of the pages about many processes."""
    for page in PAGES:
        for block in re.findall(r"^```(?:console|bash)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                yield [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]


def test_the_commands_of_the_pages_are_understood() -> None:
    """Those of `accelerate launch` name files that are there, and options that it and `multiors train` have."""
    launches = [parse_launch(words[2:]) for words in read_commands() if words[:2] == ["accelerate", "launch"]]
    flags = set()

    for launch in launches:
        assert ("multiors", "train") == (launch.training_script, launch.training_script_args[0])
        flags |= {word for word in launch.training_script_args[2:] if word.startswith("--")}

    from trl import GRPOConfig

    known = {f"--{field.name.replace('_', '-')}" for field in fields(GRPOConfig)} | {"--set", "--resume", "--check"}
    named = {launch.config_file for launch in launches if launch.config_file}

    assert set() == flags - known
    assert {f"examples/accelerate/{path.name}" for path in ENGINES} == named
