"""The rollout log: what is written can be read back as it was, nothing is lost in silence, and nothing ends a run."""

from __future__ import annotations

import json
import math
import signal
import threading
import warnings
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from trl import GRPOConfig

from multiors import (
    MultiOpenRewardSpec,
    ORSSource,
    RewardPart,
    RolloutRecord,
    SourceReward,
    StepRecord,
    UnscoredReason,
)
from multiors.errors import ConfigError
from multiors.redaction import REDACTED, Redactor
from multiors.rollout_log import RolloutLog, read_rollouts
from multiors.rollout_log.lines import parse, render
from tests.commands import run_python
from tests.sample_records import make_record, make_records
from tests.scripted import small_fields, train
from tests.servers.launch import ServerHandle

LIMIT_BYTES = 16 * 1024**2
SMALL_FILE_BYTES = 64 * 1024


def as_line(record: RolloutRecord, *secrets: str, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """A record as it is written."""
    return render(record, Redactor(secrets), limit_bytes=limit_bytes)


def list_names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


# -- records as lines

texts = st.text(max_size=40)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=4)
optional_numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
reasons = st.none() | st.sampled_from(list(UnscoredReason))
steps = st.builds(
    StepRecord,
    tool=texts,
    arguments=objects,
    output=texts,
    reward=optional_numbers,
    finished=st.booleans(),
    failure=reasons,
    duration_s=st.floats(min_value=0, allow_infinity=False),
)
RECORD_FIELDS: Mapping[str, st.SearchStrategy[Any]] = {
    "source": texts,
    "task_index": st.none() | st.integers(),
    "slot": st.none() | st.integers(min_value=0),
    "step": st.integers(min_value=0),
    "reward": optional_numbers,
    "outcome": optional_numbers,
    "parts": st.dictionaries(texts, optional_numbers, max_size=3),
    "reason": reasons,
    "error": st.none() | texts,
    "finished": st.booleans(),
    "steps": st.lists(steps, max_size=3).map(tuple),
    "messages": st.lists(objects, max_size=3).map(tuple),
    "prompt": st.lists(objects, max_size=2).map(tuple),
    "session": st.none() | texts,
    "opening_s": st.none() | st.floats(min_value=0, allow_infinity=False),
    "num_tokens": st.none() | st.integers(0, 2**40),
    "episode": st.none() | st.integers(min_value=0),
    "seed": st.none() | st.integers(0, 2**63 - 1),
    "num_prompt_tokens": st.none() | st.integers(0, 2**40),
    "num_sampled_tokens": st.none() | st.integers(0, 2**40),
    "policy_s": st.none() | st.floats(min_value=0, allow_infinity=False),
    "duration_s": st.none() | st.floats(min_value=0, allow_infinity=False),
    "num_attempts": st.none() | st.integers(min_value=1),
}
records = st.builds(RolloutRecord, **RECORD_FIELDS)


@given(record=records)
def test_a_record_comes_back_as_it_was(record: RolloutRecord) -> None:
    """Whatever JSON can hold is restored exactly, None included."""
    line = as_line(record)

    assert record == parse(line)
    assert [line] == [each + b"\n" for each in line.split(b"\n")[:-1]]


def test_every_field_of_a_record_is_tried() -> None:
    """The property above covers the fields that there are, those of steps included."""
    assert {field.name for field in fields(RolloutRecord)} == set(RECORD_FIELDS)
    assert {field.name for field in fields(StepRecord)} == set(json.loads(as_line(make_record()))["steps"][0])


@given(head=texts, tail=texts)
def test_half_of_a_surrogate_pair_comes_back(head: str, tail: str) -> None:
    """What a tokenizer or a server leaves of a character is kept, in a line that is UTF-8."""
    record = make_record(messages=({"role": "assistant", "content": f"{head}\ud83d {tail}"},))
    line = as_line(record)

    assert record == parse(line)
    assert line.isascii()


def test_characters_that_end_lines_elsewhere_are_kept() -> None:
    """A record is one line whatever its texts hold."""
    text = "one\ntwo\r\x0b\x0c\x1c\x85\u2028\u2029three\x1b[31m\x00"
    record = make_record(error=text)

    assert record == parse(as_line(record))
    assert 1 == as_line(record).count(b"\n")


def test_what_json_has_not_is_told(tmp_path: Path) -> None:
    """Images, bytes, arrays, numbers of numpy and torch, NaN and odd keys become what says it best."""
    odd = {
        "image": Image.new("RGB", (640, 480)),
        "bytes": b"12345",
        "array": numpy.arange(3),
        "numpy": numpy.float32(0.5),
        "torch": torch.tensor(2),
        "nan": math.nan,
        "infinite": [math.inf, -math.inf],
        "set": {"b", "a"},
        "digits": 10**5000,
        "deep": (1, (2, (3,))),
        5: "five",
        ("a", 1): "pair",
    }
    odd["itself"] = odd
    content = parse(as_line(make_record(messages=(odd,), parts={"short": numpy.float32(0.25)})))

    assert {"short": 0.25} == content.parts
    assert {
        "image": "[image of 640 x 480 pixels, RGB]",
        "bytes": "[5 bytes]",
        "array": [0, 1, 2],
        "numpy": 0.5,
        "torch": 2,
        "nan": "NaN",
        "infinite": ["Infinity", "-Infinity"],
        "set": ["a", "b"],
        "digits": "[whole number of 16610 bits]",
        "deep": [1, [2, [3]]],
        "5": "five",
        "('a', 1)": "pair",
        "itself": "[nested too deeply]",
    } == content.messages[0]


def test_endless_nesting_is_cut() -> None:
    """A value nested deeper than Python can follow is written down to a depth."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    line = as_line(make_record(messages=({"content": deep},)))
    del deep[:]

    assert b"[nested too deeply]" in line


@pytest.mark.parametrize(
    "line",
    ["", "null", "[]", "{}", '"text"', '{"source": "a"}', "{" * 3, "[" * 100_000, '{"steps": 3, "reason": null}'],
)
def test_what_is_no_record_is_refused(line: str) -> None:
    """A line of another kind is an error, whatever it is."""
    with pytest.raises(ValueError, match="this is no rollout record: "):
        parse(line)


def test_fields_of_a_later_version_are_passed_over() -> None:
    """A line with more than this version knows still gives the record."""
    values = {**json.loads(as_line(make_record())), "colour": "red"}

    assert make_record() == parse(json.dumps(values))


# -- secrets


def encodings(secret: str) -> list[str]:
    """Ways in which environments show what they were sent."""
    header = b64encode(json.dumps({"TOKEN": [secret, []]}).encode()).decode()
    return [
        secret,
        f"Bearer {secret}!",
        json.dumps({"X-Secrets": secret}),
        json.dumps([secret], ensure_ascii=False),
        repr({"token": secret}),
        f"https://example.org/?key={quote(secret, safe='')}&a=1",
        header,
        json.dumps(json.dumps([json.dumps(secret)])),
        ascii({"token": secret}),
        header.replace("+", "-").replace("/", "_"),
        b64encode(f"user:{secret}".encode()).decode(),
    ]


@given(secret=st.text(max_size=40).map("¤canary{}".format), choice=st.integers(0, 10), data=st.data())
def test_a_secret_is_in_no_line(secret: str, choice: int, data: st.DataObject) -> None:
    """As it is, in JSON, in a URL, as Python shows it or in base64: what could be decoded again is not written."""
    shown = encodings(secret)[choice]
    place = data.draw(st.sampled_from(["output", "argument", "key", "prompt", "error", "session", "message"]))
    step = StepRecord("t", {"x": shown} if place == "argument" else {shown: 1} if place == "key" else {}, output=shown)
    record = {
        "prompt": make_record(prompt=({"role": "user", "content": shown},)),
        "error": make_record(error=shown),
        "session": make_record(session=shown),
        "message": make_record(messages=({"role": "tool", "content": [{"type": "text", "text": shown}]},)),
    }.get(place, make_record(steps=(step,)))
    written = parse(as_line(record, secret))
    leaves = json.dumps(written.to_json(), ensure_ascii=False)

    assert REDACTED in leaves
    assert not any(json.dumps(form, ensure_ascii=False)[1:-1] in leaves for form in encodings(secret))


def test_the_longer_of_two_secrets_goes_first() -> None:
    """A secret that holds another leaves nothing of itself."""
    record = make_record(error="key-123-long and key-123")

    assert f"{REDACTED} and {REDACTED}" == parse(as_line(record, "key-123", "key-123-long", "")).error


def test_what_is_too_short_to_be_a_secret_is_written() -> None:
    """An override such as "1" or "on" does not take these letters out of every text."""
    record = make_record(error="on the 1st of May")

    assert record == parse(as_line(record, "1", "on", "May", " ", ""))


def test_our_own_words_are_no_secrets() -> None:
    """A secret that is also the name of a source, a part, a reason or a field leaves the record readable."""
    record = make_record(source="sort", reward=None, reason=UnscoredReason.NO_SCORE, parts={"sort": 1.0})
    written = parse(as_line(record, "sort", "no_score", "steps", "null"))

    assert ("sort", UnscoredReason.NO_SCORE, {"sort": 1.0}) == (written.source, written.reason, written.parts)


def test_a_record_without_secrets_is_not_changed() -> None:
    """Nothing but secrets is replaced: long encoded texts and ids are data here."""
    text = f"{'QUJD' * 40} 123e4567-e89b-12d3-a456-426614174000"
    record = make_record(error=text, session="123e4567-e89b-12d3-a456-426614174000")

    assert record == parse(as_line(record, "some-secret-value"))


# -- records that are too large


@given(sizes=st.lists(st.integers(0, 40_000), max_size=12), character=st.sampled_from(["a", "é", "\U0001f680", "\x00"]))
def test_a_record_fits_its_limit(sizes: list[int], character: str) -> None:
    """Long texts are cut to one length, with a mark; what fits is not touched."""
    messages = tuple({"role": "tool", "content": character * size} for size in sizes)
    record = make_record(messages=messages)
    line = as_line(record, limit_bytes=20_000)
    written = parse(line)

    assert len(line) <= 20_000
    assert (written == record) == (len(as_line(record)) <= 20_000)
    assert written == record or "clipped" in line.decode()
    assert (record.reward, record.slot, record.parts) == (written.reward, written.slot, written.parts)


def test_a_cut_says_how_much_is_missing() -> None:
    """The beginning of a long text is kept, and the mark has its length."""
    written = parse(as_line(make_record(error="ab" * 50_000), limit_bytes=20_000))

    assert written.error is not None
    assert written.error.startswith("ababab")
    assert written.error.endswith("… [clipped: 10000 of 100000 characters]")


def test_thousands_of_steps_are_left_out() -> None:
    """Where no cutting helps, the record is written without its steps and messages."""
    many = tuple(StepRecord(f"tool-{n}") for n in range(10_000))
    written = parse(as_line(make_record(steps=many), limit_bytes=20_000))

    assert make_record(steps=(), messages=(), prompt=()) == written


def test_a_secret_is_hidden_before_a_text_is_cut() -> None:
    """No cut leaves the first half of a secret behind."""
    record = make_record(error="x" * 9_990 + "canary-secret-0123456789" + "x" * 50_000)
    line = as_line(record, "canary-secret-0123456789", limit_bytes=20_000)

    assert b"canary" not in line


# -- files


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    """The records of a folder are those that were handed over, in order, in one file with a head."""
    log = RolloutLog(tmp_path / "new" / "folder")
    log.start(["echo", "sort"])
    written = make_records(300)
    for first in range(0, 300, 10):
        log.write(written[first : first + 10])
    log.close()
    (path,) = log.folder.iterdir()
    header = json.loads(path.read_bytes().splitlines()[0])

    assert written == list(read_rollouts(log.folder))
    assert written == list(read_rollouts(path))
    assert ("rollouts-000001-rank0.jsonl", 0) == (path.name, log.num_lost)
    assert ("multiors rollouts", 1, ["echo", "sort"], 0) == tuple(
        header[key] for key in ("format", "version", "sources", "rank")
    )
    assert {"multiors", "begun"} < set(header)


def test_a_log_that_was_closed_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """Closing ends the file, and no later run touches it, whether with the same log or with another."""
    log = RolloutLog(tmp_path)
    log.write(make_records(1))
    log.close()
    before = (tmp_path / "rollouts-000001-rank0.jsonl").read_bytes()
    log.write(make_records(2))
    log.close()
    again = RolloutLog(tmp_path)
    again.start()
    again.close()

    assert [f"rollouts-00000{n}-rank0.jsonl" for n in (1, 2, 3)] == list_names(tmp_path)
    assert before == (tmp_path / "rollouts-000001-rank0.jsonl").read_bytes()
    assert make_records(1) + make_records(2) == list(read_rollouts(tmp_path))


def test_two_logs_of_one_rank_share_no_file(tmp_path: Path) -> None:
    """Two programs that write to one folder at once each have a file."""
    logs = [RolloutLog(tmp_path), RolloutLog(tmp_path)]
    for log in logs:
        log.start()
    for log in logs:
        log.write(make_records(5))
        log.close()

    assert ["rollouts-000001-rank0.jsonl", "rollouts-000002-rank0.jsonl"] == list_names(tmp_path)
    assert 2 * make_records(5) == list(read_rollouts(tmp_path))


def test_each_rank_has_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name says which process of a run wrote the file; files of one number are read by rank."""
    for rank in (10, 2, 0):
        monkeypatch.setenv("RANK", str(rank))
        log = RolloutLog(tmp_path)
        log.write([make_record(step=rank)])
        log.close()

    assert [f"rollouts-000001-rank{rank}.jsonl" for rank in (0, 10, 2)] == list_names(tmp_path)
    assert [0, 2, 10] == [record.step for record in read_rollouts(tmp_path)]


def test_files_are_bounded_in_size_and_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full file is followed by the next, and the oldest beyond the number is deleted, which is said once."""
    written = make_records(60, error="x" * 10_000)
    log = RolloutLog(tmp_path, max_file_bytes=SMALL_FILE_BYTES, max_files=3)
    log.write(written)
    log.close()
    read = list(read_rollouts(tmp_path))
    dropped = [message for message in caplog.messages if "was deleted" in message]

    assert [f"rollouts-0000{n:02}-rank0.jsonl" for n in (8, 9, 10)] == list_names(tmp_path)
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= SMALL_FILE_BYTES
    assert written[-len(read) :] == read
    assert 1 == len(dropped)
    assert "max_files=3 files, so the oldest, rollouts-000001-rank0.jsonl, was deleted" in dropped[0]


def test_files_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another rank's files nor anything else in the folder is deleted or read."""
    others = ["rollouts-000001-rank1.jsonl", "notes.jsonl", "rollouts-1-rank0.jsonl"]
    for name in others[1:]:
        (tmp_path / name).write_text("mine\n")
    monkeypatch.setenv("RANK", "1")
    for rank in (1, 0, 0):
        monkeypatch.setenv("RANK", str(rank))
        log = RolloutLog(tmp_path, max_files=1)
        log.write([make_record(step=rank)])
        log.close()

    assert sorted([*others, "rollouts-000002-rank0.jsonl"]) == list_names(tmp_path)
    assert [1, 0] == [record.step for record in read_rollouts(tmp_path)]


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    """A log that gets no record makes no folder."""
    log = RolloutLog(tmp_path / "folder")
    log.close()

    assert [] == list_names(tmp_path)
    assert f"RolloutLog('{tmp_path}/folder')" == repr(log)


# -- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"folder": 3}, "folder=3 is no path"),
        ({"folder": ""}, "folder='' is no path"),
        ({"folder": __file__}, "test_rollout_log.py' is a file"),
        ({"folder": "a", "max_file_bytes": 100}, "max_file_bytes=100 is no whole number from 65536 upwards"),
        ({"folder": "a", "max_files": 0}, "max_files=0 is no whole number from 1 upwards"),
        ({"folder": "a", "max_files": True}, "max_files=True is no whole number"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], told: str) -> None:
    """What cannot be a log is an error at once."""
    with pytest.raises(ConfigError, match=told):
        RolloutLog(**arguments)


def test_a_folder_that_cannot_be_made_is_found_at_the_start(tmp_path: Path) -> None:
    """Training does not begin with a log that cannot be written."""
    log = RolloutLog(tmp_path / "file" / "folder")
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"file/folder' cannot be written: Not a directory\. Choose another folder\."):
        log.start()


def test_a_folder_that_goes_away_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where no file can be made, records are counted as lost, which is said once and at the end."""
    log = RolloutLog(tmp_path / "folder")
    (tmp_path / "folder").write_text("")
    log.write(make_records(2))
    log.write(make_records(3))
    log.close()
    log.close()

    assert 5 == log.num_lost
    assert 2 == len(caplog.messages)
    assert "lacks 1 rollouts or more: File exists. Training goes on" in caplog.messages[0]
    assert "5 rollouts of this process are not in the rollout log" in caplog.messages[1]


def test_a_record_that_is_no_json_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An object of a user's that cannot be written costs its own record only, and shows nothing of itself."""

    class Odd:
        def __repr__(self) -> str:
            return "canary-secret"

    log = RolloutLog(tmp_path)
    odd = make_record(messages=({"content": Odd()},))
    log.write([make_record(slot=0), odd, odd, make_record(slot=1)])
    log.close()

    assert make_records(2) == list(read_rollouts(tmp_path))
    assert 2 == log.num_lost
    assert 1 == len([message for message in caplog.messages if "cannot be written as JSON (TypeError)" in message])
    assert "canary" not in caplog.text


_FULL = """
import logging, resource, sys
from multiors.rollout_log import RolloutLog
from tests.sample_records import make_records

logging.basicConfig(level=logging.WARNING, format="%(message)s")
log = RolloutLog(sys.argv[1])
log.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
log.write(make_records(20, error="x" * 4_000))
log.close()
log.write(make_records(1, error="y" * 40_000))
log.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write(make_records(1))
log.close()
print(log.num_lost)
"""


def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path: Path) -> None:
    """What no longer fits is counted, no half line stays, and with room again the log goes on."""
    ended = run_python(_FULL, str(tmp_path))
    warned = ended.stderr.splitlines()
    read = list(read_rollouts(tmp_path))

    assert ("15\n", 0) == (ended.stdout, ended.returncode), ended.stderr
    assert make_records(6, error="x" * 4_000) + make_records(1) == read
    assert 1 == len([line for line in warned if "File too large. Training goes on" in line])
    assert ["14 rollouts", "15 rollouts"] == [line[:11] for line in warned if "are not in the rollout log" in line]


# -- the thread


class Waits:
    """An object of a record that keeps the writer until it is told."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def tolist(self) -> str:
        self.told.wait()
        return "went on"


def test_the_step_goes_on_while_the_disk_waits(tmp_path: Path) -> None:
    """Handing over needs no one to write: while the writer stands still, records are taken."""
    waits = Waits()
    log = RolloutLog(tmp_path)
    log.write([make_record(messages=({"content": waits},))])
    for _ in range(30):
        log.write(make_records(8))
    waits.told.set()
    log.close()

    assert 1 + 30 * 8 == len(list(read_rollouts(tmp_path)))


def test_too_much_that_waits_is_waited_for(tmp_path: Path) -> None:
    """When more waits than may, the next record waits with it; none is left out."""
    waits = Waits()
    log = RolloutLog(tmp_path)
    log.write([make_record(messages=({"content": waits},))])

    def hand_over() -> None:
        for record in make_records(100):
            log.write([record])

    waiting = threading.Thread(target=hand_over)
    waiting.start()
    waiting.join(timeout=0.5)
    assert waiting.is_alive()
    waits.told.set()
    waiting.join()
    log.close()

    assert (101, 0) == (len(list(read_rollouts(tmp_path))), log.num_lost)


def test_records_are_taken_as_they_are(tmp_path: Path) -> None:
    """What is done with the list afterwards changes nothing."""
    waits = Waits()
    log = RolloutLog(tmp_path)
    given_records = [make_record(messages=({"content": waits},)), *make_records(3)]
    log.write(given_records)
    given_records.clear()
    waits.told.set()
    log.close()

    assert 4 == len(list(read_rollouts(tmp_path)))


_LEAVE = """
import signal, sys
from multiors.rollout_log import RolloutLog
from tests.sample_records import make_records

log = RolloutLog(sys.argv[1])
log.write(make_records(200))
"""


@pytest.mark.parametrize(
    ("last_line", "exit_code"),
    [("", 0), ("raise RuntimeError('it broke')", 1), ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT)],
)
def test_a_process_that_ends_has_written_everything(tmp_path: Path, last_line: str, exit_code: int) -> None:
    """Without `close()`, in good order, after an error or by Ctrl-C: every record is there."""
    ended = run_python(f"{_LEAVE}\n{last_line}", str(tmp_path))

    assert exit_code == ended.returncode, ended.stderr
    assert make_records(200) == list(read_rollouts(tmp_path))


_FORK = """
import os, sys
from multiors.rollout_log import RolloutLog
from tests.sample_records import make_record

log = RolloutLog(sys.argv[1])
log.write([make_record(step=1)])
child = os.fork()
log.write([make_record(step=2 if child else 3)])
if child:
    os.waitpid(child, 0)
log.close()
os._exit(0)
"""


def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path) -> None:
    """The child writes beside its parent, not into its parent's file."""
    ended = run_python(_FORK, str(tmp_path))
    steps_by_file = [[record.step for record in read_rollouts(path)] for path in sorted(tmp_path.iterdir())]

    assert 0 == ended.returncode, ended.stderr
    assert [[1, 2], [3]] == sorted(steps_by_file)


# -- reading


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file with five records."""
    log = RolloutLog(tmp_path)
    log.write(make_records(5))
    log.close()
    return tmp_path / "rollouts-000001-rank0.jsonl"


def test_a_last_line_that_was_cut_is_left_out(written: Path) -> None:
    """What a crash left half written is said, and everything before it is read."""
    whole = written.read_bytes()
    written.write_bytes(whole[:-20])

    with pytest.warns(UserWarning, match=r"rank0.jsonl': line 6, the last, is cut off and left out"):
        read = list(read_rollouts(written.parent))

    assert make_records(4) == read


@pytest.mark.parametrize("size", [0, 10])
def test_a_file_cut_in_its_head_has_no_records(written: Path, size: int) -> None:
    """A process that was killed at once leaves a file without records, and the others are read."""
    (written.parent / "rollouts-000002-rank0.jsonl").write_bytes(written.read_bytes()[:size])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read = list(read_rollouts(written.parent))

    assert make_records(5) == read
    assert [size > 0] == [bool(caught)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1}\n', r"line 1: its first line is not the header of a rollout log\."),
        ("no json\n", r"line 1: its first line is not the header of a rollout log\."),
        ('{"format": "multiors rollouts", "version": 9}\n', "line 1: it is in format 9, and this version of multiors"),
        ('{"format": "multiors rollouts", "version": 1}\nxx\n', "line 2: this is no rollout record: JSONDecodeError"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """What is no log of this version says so, with file and line."""
    path = tmp_path / "other.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError, match=f"other.jsonl': {told}"):
        list(read_rollouts(path))


def test_where_there_is_no_log_it_says_so(tmp_path: Path) -> None:
    """A wrong path is an error before anything is read."""
    with pytest.raises(ConfigError, match="there is no rollout log at"):
        read_rollouts(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no rollout log"):
        read_rollouts(tmp_path)


def test_reading_needs_no_trainer(written: Path) -> None:
    """Who looks at a log later loads neither TRL nor the SDK."""
    heavy = ("openreward", "trl", "torch", "transformers", "datasets", "aiohttp", "numpy")
    code = (
        "import sys; from multiors.rollout_log import read_rollouts; print(len(list(read_rollouts(sys.argv[1]))), "
        f"[name for name in {heavy} if name in sys.modules])"
    )

    assert "5 []\n" == run_python(code, str(written)).stdout


# -- with a mix


class Logged(NamedTuple):
    """What training runs with one rollout log left."""

    folder: Path
    records: list[RolloutRecord]
    """Of the first run, its evaluation and the resumed run."""

    num_first: int
    """How many of them are of the first run."""


async def judge(completions: list[Any], **_: Any) -> list[float]:
    """A reward function that is awaited, so that its column runs on an event loop."""
    return [0.5] * len(completions)


@pytest.fixture(scope="module")
def logged(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Logged:
    """Three steps of a mix of three environments, an evaluation after them, and a run resumed from the first step."""
    folder = tmp_path_factory.mktemp("logged")
    records: list[RolloutRecord] = []
    num_first = 0

    def make_spec() -> MultiOpenRewardSpec:
        return MultiOpenRewardSpec(
            {
                "sort": ORSSource(mixed_server.url, env_name="sorting"),
                "heat": ORSSource(mixed_server.url, env_name="thermostat"),
                "echo": ORSSource(echo_server.url, reward=SourceReward(parts=(RewardPart(judge),))),
            },
            on_rollouts=records.extend,
            rollout_log=folder / "rollouts",
        )

    for checkpoint in (None, str(folder / "run" / "checkpoint-1")):
        spec = make_spec()
        fields = small_fields(folder / "run") | {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
        args = GRPOConfig(**spec.training_arguments(**fields, num_generations=2, per_device_train_batch_size=6))
        trainer = train(spec, tiny_policy, args, resume_from_checkpoint=checkpoint)
        if checkpoint is None:
            num_first = len(records)
            trainer.evaluate(spec.train_dataset.select(range(4)))
            spec.close()

    return Logged(folder / "rollouts", records, num_first)


def test_a_run_is_written_as_it_was(logged: Logged) -> None:
    """Every rollout of training and evaluation is read back equal to what `on_rollouts` was given, in its order."""
    assert {"sort", "heat", "echo"} == {record.source for record in logged.records}
    assert logged.records == list(read_rollouts(logged.folder))


def test_a_resumed_run_goes_on_in_a_new_file(logged: Logged) -> None:
    """Training, the evaluation after it and the resumed run each have a file, ended with them."""
    steps = [[record.step for record in read_rollouts(path)] for path in sorted(logged.folder.iterdir())]

    assert 3 == len(steps)
    assert ({1, 2, 3}, {3}, {2, 3}) == tuple(map(set, steps))
    assert logged.num_first == len(steps[0])


def test_the_head_of_a_file_names_the_sources(logged: Logged) -> None:
    """Each file says which sources the mix has."""
    heads = [json.loads(path.read_bytes().split(b"\n")[0]) for path in logged.folder.iterdir()]

    assert [["sort", "heat", "echo"]] * 3 == [head["sources"] for head in heads]


def test_a_log_that_cannot_be_written_stops_the_run_before_it_begins(echo_server: ServerHandle, tmp_path: Path) -> None:
    """The folder is tried when training begins."""
    (tmp_path / "file").write_text("")
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, rollout_log=tmp_path / "file" / "folder")

    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        spec._recording.start()


def test_without_a_log_nobody_is_told() -> None:
    """A mix that nobody listens to makes no detour."""
    spec = MultiOpenRewardSpec({"echo": ORSSource("http://127.0.0.1:1")})

    assert spec._recording.listener is None
