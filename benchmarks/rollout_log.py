"""What does the rollout log cost the training step, and how fast does it write?

Rollouts of 20 kB as a mix of environments makes them: a prompt, 16 tool calls with their results, and the messages. In
batches of 64 they are handed to the log, as reward columns do it, while the thread that trains sleeps, computes, or
hands over without a pause. `render_alone` is a record's way into a line, `write_alone` the limit: the finished lines
written to one file.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._report import measure, parse_arguments, summarize, write_report
from multiors import RolloutLog, RolloutRecord, StepRecord, read_rollouts
from multiors.redaction import Redactor
from multiors.rollout_log.lines import render

_BATCH = 64
_NUM_BATCHES = 40
_NUM_CALLS = 16
_REPEATS = 5
_SIDES = ("without_log", "with_log")
_LIMIT_BYTES = 16 * 1024**2
_SECRETS = ("hf_0123456789abcdefghijklmnop", "sk-0123456789abcdefghijklmnopqrstuvwx", "correct horse battery staple")


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_batches, repeats = (2, 2) if arguments.quick else (_NUM_BATCHES, _REPEATS)
    batch = [make_record(slot) for slot in range(_BATCH)]
    redactor = Redactor(_SECRETS)
    lines = [render(record, redactor, limit_bytes=_LIMIT_BYTES) for record in batch]

    with tempfile.TemporaryDirectory() as folder:
        handed = [_hand_over(Path(folder) / f"{repeat}", batch, num_batches) for repeat in range(repeats + 1)][1:]
        beside = {side: _compute(Path(folder) / side, batch, num_batches, side=side) for side in _SIDES}
        render_s = measure(lambda: [render(record, redactor, limit_bytes=_LIMIT_BYTES) for record in batch], repeats)
        write_s = measure(lambda: _write(Path(folder) / "lines", lines), repeats)
        read_s = measure(lambda: sum(1 for _ in read_rollouts(Path(folder) / "1")), repeats)

    num_records, line_bytes = num_batches * _BATCH, statistics.mean(map(len, lines))
    results = {
        "record_bytes": round(line_bytes),
        "step_thread": summarize([sum(each["waits_s"]) / num_records * 1e6 for each in handed], "us"),
        "longest_wait": summarize([max(each["waits_s"]) * 1e6 for each in handed], "us"),
        "whole": summarize([num_records * line_bytes / each["whole_s"] / 1e6 for each in handed], "mb_per_s"),
        "render_alone": summarize([seconds / _BATCH * 1e6 for seconds in render_s], "us"),
        "write_alone": summarize([seconds / _BATCH * 1e6 for seconds in write_s], "us"),
        "read": summarize([num_records / seconds for seconds in read_s], "records_per_s"),
        "beside_computing": {name: summarize(seconds) for name, seconds in beside.items()},
    }
    settings = {"batch": _BATCH, "num_batches": num_batches, "num_secrets": len(_SECRETS), "repeats": repeats}
    write_report(arguments.json, results, settings=settings)


def make_record(slot: int) -> RolloutRecord:
    """A rollout of about 20 kB."""
    output = "".join(f"{n:04d} the quick brown fox jumps over the lazy dog;\n" for n in range(10))
    steps = tuple(
        StepRecord("run", {"command": f"sed -n {n},+20p file_{slot}.py"}, output=output, reward=0.0, duration_s=0.2)
        for n in range(_NUM_CALLS)
    )
    messages = tuple(
        message
        for step in steps
        for message in (
            {
                "role": "assistant",
                "content": "I look at the next part of the file.",
                "tool_calls": [{"type": "function", "function": {"name": "run", "arguments": dict(step.arguments)}}],
            },
            {"role": "tool", "name": "run", "content": step.output},
        )
    )
    return RolloutRecord(
        source="code",
        task_index=slot,
        slot=slot,
        step=0,
        reward=1.0,
        outcome=1.0,
        parts={"brevity": 0.5},
        reason=None,
        error=None,
        finished=True,
        steps=steps,
        messages=messages,
        prompt=({"role": "user", "content": "Find the error in this program, and correct it. " * 20},),
        session="0f8fad5b-d9cb-469f-a165-70867728950e",
        opening_s=0.3,
    )


def _hand_over(folder: Path, batch: list[RolloutRecord], num_batches: int) -> dict[str, Any]:
    """Seconds of each call on the step's thread with a pause after it, and of writing everything without one."""
    log = _make_log(folder.with_suffix(".paused"))
    waits_s = []

    for _ in range(num_batches):
        waits_s.append(_time(lambda: log.write(batch)))
        log.flush()  # as it has done when the next step is scored

    log.close()
    log = _make_log(folder)

    def write_all() -> None:
        for _ in range(num_batches):
            log.write(batch)
        log.close()

    return {"waits_s": waits_s, "whole_s": _time(write_all)}


def _compute(folder: Path, batch: list[RolloutRecord], num_batches: int, *, side: str) -> list[float]:
    """Seconds of a fixed computation in Python, during which a batch is written or nothing is."""
    log = _make_log(folder)
    seconds = []

    for _ in range(num_batches):
        if side == "with_log":
            log.write(batch)
        seconds.append(_time(lambda: sum(n * n for n in range(400_000))))
        log.flush()

    log.close()
    return seconds


def _make_log(folder: Path) -> RolloutLog:
    log = RolloutLog(folder, max_files=1000)
    log.hide(_SECRETS)
    log.start(["code"])
    return log


def _write(path: Path, lines: list[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    for line in lines:
        os.write(descriptor, line)

    os.close(descriptor)


def _time(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
