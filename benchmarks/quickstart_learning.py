"""Does the quickstart learn in every environment, and how long does it take?

Runs the whole command for seeds that were not used to choose its settings, and keeps each environment's reward before
and after, in the first and in the last third of training.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._report import parse_arguments, write_report
from multiors.quickstart.options import Effort, add_arguments
from multiors.quickstart.run import run_quickstart

__all__ = ["main"]

_SEEDS = (21, 22, 23)


def main() -> None:
    """Run the quickstart once per seed."""
    arguments = parse_arguments(__doc__ or "")
    seeds = _SEEDS[:1] if arguments.quick else _SEEDS
    results = {f"seed_{seed}": _run(seed, is_quick=arguments.quick) for seed in seeds}
    write_report(arguments.json, results, settings={"seeds": list(seeds)})


def _run(seed: int, *, is_quick: bool) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    with tempfile.TemporaryDirectory() as folder:
        output_dir = Path(folder) / "run"
        words = ["--seed", str(seed), "--output-dir", str(output_dir), *(["--steps", "2"] if is_quick else [])]
        effort = Effort(scripted_episodes=8, warm_start_steps=2, episodes_per_task=1) if is_quick else Effort()

        if run_quickstart(parser.parse_args(words), effort=effort) != 0:
            raise SystemExit("the quickstart failed; it said why")

        summary = json.loads((output_dir / "summary.json").read_text(encoding="utf-8"))

    return {
        "steps": summary["steps"],
        "wall_s": summary["seconds"]["total"],
        "scripts_reward": {name: each["reward"] for name, each in summary["scripts"].items()},
        "environments": {
            name: {
                "best_reward": each["best"],
                **{f"{when}_reward": each[when]["reward"] for when in ("before", "after", "first_third", "last_third")},
                "scored_fraction": each["training"]["scored_fraction"],
                "planned_share": each["planned_share"],
                "realised_share": each["realised_share"],
            }
            for name, each in summary["environments"].items()
        },
    }


if __name__ == "__main__":
    main()
