"""Keys and secrets stay where they belong: servers get them, and nothing else that the library writes has them.

The run is `tests/secret_run.py`. Its servers tell all they were trusted with, as it is and encoded, wherever they can:
in prompts, in results, in errors and in answers to the first question. What an environment writes into a prompt or a
result is data, which the policy is given as it is, and with it the records in memory; what is written down is redacted.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

from multiors import RolloutRecord, UnscoredReason, read_rollouts
from tests.secret_run import Options
from tests.servers.launch import serve
from tests.servers.platform import API_KEY, serve_platform
from tests.servers.raw import serve_raw
from tests.servers.telling import encode_anyhow
from tests.warm import run_warm

pytestmark = pytest.mark.timeout(300)

OWN_KEY = "canary-own-key-A1b2C3"
OWN_SECRET = 'canary-"own"/+secret-\u00fc'
HOSTED_SECRET = "canary-hosted-secret-D4e5F6"
MIX_SECRET = "canary-mix-secret-G7h8I9"
VARIABLE_SECRET = "canary-variable-J1k2L3"
CANARIES = (OWN_KEY, OWN_SECRET, HOSTED_SECRET, MIX_SECRET, VARIABLE_SECRET, API_KEY)
# What the servers that get them are told.
OWN = " ".join(map(encode_anyhow, (OWN_KEY, OWN_SECRET)))


class Seen(NamedTuple):
    """What the run left."""

    folder: Path
    output: str
    records: list[RolloutRecord]
    uploads: str


@pytest.fixture(scope="module")
def seen(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A training run and everything that can be asked about it, with four servers that keep nothing to themselves."""
    folder = tmp_path_factory.mktemp("secrets")
    answer = json.dumps({"ok": False, "reason": "input_validation", "error": OWN})
    with (
        serve("tests.servers.telling:Telling") as own,
        serve_raw(result=answer) as raw,
        serve_raw(answers={"/tools": OWN, "/task_range": {"tasks": 3, "told": OWN}}) as broken,
        serve_raw(list_environments=None, answers={"/tools": encode_anyhow(API_KEY)}) as broken_hosted,
        serve_platform(
            {"lab/telling": own.url, "lab/broken": broken_hosted.url}, secrets={"lab/telling": ["HF_TOKEN"]}
        ) as platform,
    ):
        options = Options(
            folder=str(folder),
            policy=str(tiny_policy),
            own_url=own.url,
            raw_url=raw.url,
            broken_url=broken.url,
            session_url=platform.session_url,
            api_url=platform.api_url,
            own_key=OWN_KEY,
            own_secret=OWN_SECRET,
            hosted_secret=HOSTED_SECRET,
            mix_secret=MIX_SECRET,
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "OPENREWARD_API_KEY": API_KEY,
            "OPENREWARD_API_URL": platform.api_url,
            "HF_TOKEN": VARIABLE_SECRET,
            "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-m", "tests.secret_run", json.dumps(asdict(options))]
        ended = run_warm(command, timeout=240, env=environment)
        assert ended.returncode == 0, ended.stderr
        records = pickle.loads((folder / "records").read_bytes())
        (folder / "records").unlink()
        yield Seen(folder, ended.stdout + ended.stderr, records, json.dumps(platform.counts()["uploads"]))


def find_leaks(text: str) -> list[str]:
    """Canaries in a text, with what stands around them; also those that can be decoded from it."""
    decoded = [unquote(text), re.sub(r"\\+u00fc", "\u00fc", re.sub(r'\\+(["/\\])', r"\1", text))]

    for run in re.findall(r"[A-Za-z0-9+/_-]{12,}", text):
        for offset in range(4):
            part = run[offset:].replace("-", "+").replace("_", "/")
            part = part[: len(part) - (len(part) % 4 == 1)]
            octets = b64decode(part + "=" * (-len(part) % 4))
            plain = octets.decode("utf-8", "replace")
            decoded.append(re.sub(r"\\+u00fc", "\u00fc", re.sub(r'\\+(["/\\])', r"\1", plain)))

    return [
        f"{canary}: ...{each[max(0, each.index(canary) - 80) : each.index(canary) + 40]}"
        for each in [text, *decoded]
        for canary in CANARIES
        if canary in each
    ]


def test_the_search_finds_what_is_hidden() -> None:
    """Each canary is found in each form in which the servers tell it, and is not found elsewhere."""
    for canary in CANARIES:
        forms = [form for form in encode_anyhow(canary).split(" ") if form not in ("X-Secrets:", "Basic")]

        assert 6 == len(forms)
        assert [] == [form for form in forms if not find_leaks(form)]

    assert [] == find_leaks("canary-own aGVsbG8gd29ybGQgaGVsbG8gd29ybGQ= nothing")


# -- the run was what it should be


def test_the_environments_told_their_secrets(seen: Seen) -> None:
    """Sources of all three kinds were played, and policies read secrets in results and prompts, as data."""
    outputs = {record.source: "" for record in seen.records}
    for record in seen.records:
        outputs[record.source] += json.dumps([step.output for step in record.steps] + [*record.prompt])

    assert {"own", "raw", "hosted"} == set(outputs)
    assert OWN_SECRET in json.loads(json.dumps(" ".join(s.output for r in seen.records for s in r.steps)))
    assert HOSTED_SECRET in outputs["hosted"]
    assert MIX_SECRET in outputs["hosted"]
    assert VARIABLE_SECRET in outputs["hosted"]
    assert any(OWN_SECRET in str(record.prompt) for record in seen.records)


def test_the_environments_failed_in_every_way(seen: Seen) -> None:
    """There were rollouts whose session did not open, whose tool raised and whose call was refused, and scored ones."""
    reasons = {record.reason for record in seen.records}
    failures = {step.failure for record in seen.records for step in record.steps}

    assert {None, UnscoredReason.UNREACHABLE, UnscoredReason.TOOL_ERROR} <= reasons
    assert {None, UnscoredReason.TOOL_ERROR, UnscoredReason.BAD_CALL} <= failures


# -- and nothing that was written has them


def test_the_commands_looked_at_everything(seen: Seen) -> None:
    """Both commands showed the environments that work, and said what is wrong with the one that does not."""
    text = (seen.folder / "commands").read_text(encoding="utf-8")

    assert "Traceback" not in text
    assert (2, 4) == (text.count("$ multiors preview"), text.count("$ multiors check"))
    assert "tell" in text
    assert "'broken'" in text


@pytest.mark.parametrize(
    "name",
    [
        "log",
        "warnings",
        "errors",
        "reprs",
        "dataset",
        "plan",
        "tools",
        "trainer",
        "record_errors",
        "told_after_failures",
        "commands",
    ],
)
def test_no_secret_is_in_what_the_library_says(seen: Seen, name: str) -> None:
    """Logs at every level, warnings, errors with tracebacks, reprs, rows, plans, tables, metrics and commands."""
    text = (seen.folder / name).read_text(encoding="utf-8", errors="surrogatepass")

    assert len(text) > 20 or name == "warnings"
    assert [] == find_leaks(text)


def test_no_secret_is_on_the_output(seen: Seen) -> None:
    """What the process printed has none, whichever library printed it."""
    assert [] == find_leaks(seen.output)


def test_no_secret_is_in_a_checkpoint(seen: Seen) -> None:
    """No byte of what is saved has one."""
    files = [path for path in (seen.folder / "checkpoints").rglob("*") if path.is_file()]
    leaks = [path.name for path in files for canary in CANARIES if canary.encode() in path.read_bytes()]
    texts = [leak for path in files if path.suffix in (".json", ".jsonl") for leak in find_leaks(path.read_text())]

    assert {"trainer_state.json", "training_args.bin"} <= {path.name for path in files}
    assert [] == leaks + texts


def test_no_secret_is_in_the_rollout_log(seen: Seen) -> None:
    """Every rollout is in the log, and what it says of secrets is a mark."""
    texts = [path.read_text(encoding="utf-8") for path in (seen.folder / "rollouts").iterdir()]
    written = list(read_rollouts(seen.folder / "rollouts"))

    assert [(r.source, r.slot, r.reward, r.reason) for r in seen.records] == [
        (r.source, r.slot, r.reward, r.reason) for r in written
    ]
    assert any("[redacted]" in text for text in texts)
    assert [] == [leak for text in texts for leak in find_leaks(text)]


def test_no_secret_is_uploaded(seen: Seen) -> None:
    """The platform gets the rollouts of its environments, with marks where they told secrets."""
    assert "[redacted]" in seen.uploads
    assert [] == find_leaks(seen.uploads)
