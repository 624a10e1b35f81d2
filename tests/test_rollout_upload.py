"""Rollouts on the platform: what is sent, in the SDK's form, and that no failure of it reaches training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, RolloutUpload, StepRecord, UnscoredReason
from multiors.errors import ConfigError
from multiors.redaction import Redactor
from multiors.training.events import Destination, Events, make_events
from tests import sample_records
from tests.commands import run_python
from tests.scripted import make_arguments, train
from tests.servers.launch import ServerHandle
from tests.servers.platform import Platform, serve_platform

pytestmark = pytest.mark.timeout(120)

DESTINATION = Destination("lab/echo", "id-1", "hard", "test")


def make_record(**changes: Any) -> RolloutRecord:
    """A rollout of two calls, the first of a tool that does not exist, with a terminal submission after them."""
    played: dict[str, Any] = {
        "reward": 1.5,
        "parts": {"brevity": 0.5},
        "steps": (
            StepRecord("echo", {"text": "oak"}, output="oak", reward=0.25),
            StepRecord("answer", {"message": "done"}, output="right", reward=1.0, finished=True),
        ),
        "messages": (
            {"role": "assistant", "content": "", "tool_calls": [_call("shout", {})]},
            {"role": "tool", "name": "shout", "content": '{"error": "Unknown tool shout."}'},
            {"role": "assistant", "content": "I try.", "tool_calls": [_call("echo", {"text": "oak"})]},
            {"role": "tool", "name": "echo", "content": "oak"},
            {"role": "assistant", "content": "done"},
        ),
        "prompt": (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Say oak."}]},
        ),
    }
    return sample_records.make_record(**played | changes)


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def make(record: RolloutRecord, *secrets: str) -> Events:
    """The events of a record."""
    return make_events(record, DESTINATION, Redactor(secrets), run_name="run", time_ms=5)


def pick(events: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Some fields of the messages among events, None where one is missing."""
    return [tuple(event.get(name) for name in names) for event in events if event["eventType"] == "message"]


# -- a rollout as events


def test_a_rollout_becomes_a_conversation() -> None:
    """Prompt, messages, calls and results come in order, and a step without a message comes at the end."""
    events = make(make_record())

    assert [
        ("system_message", None, "Be brief.", None),
        ("user_message", None, "[image]\nSay oak.", None),
        ("tool_call", "shout", "{}", "call-0"),
        ("tool_result", None, '{"error": "Unknown tool shout."}', "call-0"),
        ("assistant_message", None, "I try.", None),
        ("tool_call", "echo", '{"text": "oak"}', "call-1"),
        ("tool_result", None, "oak", "call-1"),
        ("assistant_message", None, "done", None),
        ("tool_call", "answer", '{"message": "done"}', "call-2"),
        ("tool_result", None, "right", "call-2"),
    ] == pick(events.rest, "type", "name", "content", "callId")


def test_a_reward_stands_on_the_result_of_its_step() -> None:
    """Each step's reward is that of its own result, and a call that reached no environment has none."""
    scored = pick(make(make_record()).rest, "type", "reward", "isFinished")

    assert [(None, None), (0.25, False), (1.0, True)] == [each[1:] for each in scored if each[0] == "tool_result"]
    assert {(None, None)} == {each[1:] for each in scored if each[0] != "tool_result"}


def test_a_rollout_says_where_it_is_from() -> None:
    """Environment, variant, split and step stand in their fields, the rest of the record beside them."""
    events = make(make_record())
    metadata = events.start.pop("metadata")
    told = {
        name: events.start[name] for name in ("environment", "environment_id", "variant", "split", "runName", "step")
    }
    info = [event["rollout_info"] for event in events.rest if event["eventType"] == "rollout_update"]

    assert {
        "environment": "lab/echo",
        "environment_id": "id-1",
        "variant": "hard",
        "split": "test",
        "runName": "run",
        "step": 2,
    } == told
    assert {"source": "echo", "slot": 7, "reward": 1.5, "outcome": 1.0, "parts": {"brevity": 0.5}} == {
        name: metadata[name] for name in ("source", "slot", "reward", "outcome", "parts")
    }
    assert [{"task_index": 3, "current_step": 2, "harness": "multiors"}] == info


def test_an_unscored_rollout_says_why() -> None:
    """The reason is sent, and no number stands in place of the reward."""
    events = make(make_record(reward=None, outcome=None, reason=UnscoredReason.SESSION_LOST, error="it went away"))

    assert ("session_lost", "it went away") == (events.start["metadata"]["reason"], events.start["metadata"]["error"])
    assert "reward" not in events.start["metadata"]


def test_nothing_secret_is_in_an_event() -> None:
    """Secrets that an environment printed are taken out of messages, arguments, results and errors."""
    secret = "canary-0123456789"
    step = StepRecord("echo", {"text": secret}, output=f"you said {secret}", reward=1.0)
    record = make_record(
        steps=(step, step),
        error=f"failed with {secret}",
        messages=(
            {"role": "assistant", "content": secret, "tool_calls": [_call("echo", {"text": secret})]},
            {"role": "tool", "name": "echo", "content": f"you said {secret}"},
        ),
    )
    events = make(record, secret)

    assert secret not in json.dumps([events.start, events.rest])


def test_texts_are_made_fit_for_json() -> None:
    """Null bytes go and halves of surrogate pairs are written out, as the SDK does it."""
    events = make(make_record(prompt=({"role": "user", "content": "a\x00b\ud83d"},), messages=(), steps=()))

    assert [("a" + "b\\ud83d",)] == pick(events.rest, "content")


# -- to the platform


@pytest.fixture(scope="module")
def platform(echo_server: ServerHandle, mixed_server: ServerHandle) -> Iterator[Platform]:
    """Serves two catalogue names."""
    with serve_platform({"lab/echo": echo_server.url, "lab/mixed": mixed_server.url}) as stand_in:
        yield stand_in


class Played(NamedTuple):
    """What a training run left."""

    records: list[RolloutRecord]
    uploads: list[list[dict[str, Any]]]
    upload: RolloutUpload


def make_source(platform: Platform) -> ORSSource:
    """A catalogue environment on the stand-in."""
    return ORSSource("lab/echo", session_url=platform.session_url, api_key=platform.api_key, split="test")


@pytest.fixture(scope="module")
def played(
    platform: Platform, mixed_server: ServerHandle, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Played:
    """Two steps of a mix of a catalogue environment and a server of one's own."""
    records: list[RolloutRecord] = []
    sources = {
        "seta": make_source(platform),
        "sort": ORSSource(mixed_server.url, env_name="sorting", discover_task_tools=False),
    }
    with RolloutUpload("first mix", api_key=platform.api_key, api_url=platform.api_url) as upload:
        spec = MultiOpenRewardSpec(sources, on_rollouts=[upload, records.extend])
        args = make_arguments(
            spec,
            tmp_path_factory.mktemp("upload"),
            max_steps=2,
            num_generations=2,
            per_device_train_batch_size=4,
        )
        train(spec, tiny_policy, args)

    return Played(records, platform.counts()["uploads"], upload)


def test_a_run_is_uploaded(played: Played) -> None:
    """Every rollout of the catalogue environment is on the platform, none of the other's, and all are counted."""
    events = [event for upload in played.uploads for event in upload]
    starts = [event for event in events if event["eventType"] == "rollout"]
    mine = [record for record in played.records if record.source == "seta"]

    assert 4 == len(mine)
    assert {"seta", "sort"} == {record.source for record in played.records}
    assert [(record.slot, record.reward) for record in mine] == [
        (start["metadata"]["slot"], start["metadata"].get("reward")) for start in starts
    ]
    assert {("first mix", "lab/echo", "id of lab/echo", "test")} == {
        (start["runName"], start["environment"], start["environment_id"], start["split"]) for start in starts
    }
    assert (4, 0) == (played.upload.num_uploaded, played.upload.num_failed)


def test_every_event_belongs_to_a_rollout_that_was_begun(played: Played) -> None:
    """The beginnings are taken before any message, and each rollout has its messages numbered from 0."""
    known: set[str] = set()
    indices: dict[str, list[int]] = {}
    for upload in played.uploads:
        for event in upload:
            if event["eventType"] == "rollout":
                known.add(event["eventId"])
            elif event["eventType"] == "message":
                assert event["rolloutEventId"] in known
                indices.setdefault(event["rolloutEventId"], []).append(event["index"])

    assert known == set(indices)
    assert all(list(range(len(found))) == found for found in indices.values())


def test_a_batch_takes_two_requests(played: Played) -> None:
    """One for the beginnings and one for the rest, not several for each rollout."""
    kinds = [{event["eventType"] for event in upload} for upload in played.uploads]

    assert [{"rollout"}, {"rollout_update", "message"}] * 2 == kinds


def test_the_events_are_those_of_the_sdk(played: Played, platform: Platform) -> None:
    """The SDK's own class sends events of the same fields to the same address. If this fails, change ours."""
    from openreward import OpenReward
    from openreward.api.rollouts.serializers.base import AssistantMessage, ToolCall, ToolResult, UserMessage
    from openreward.models import RolloutInfo

    platform.reset_counts()
    client = OpenReward(api_key=platform.api_key, base_url=platform.api_url)
    client.config.send_loop_config.base_url = platform.api_url
    rollout = client.rollout.create("run", "name", environment="lab/echo", split="test", metadata={"source": "seta"})
    rollout.log(UserMessage("Say oak."), rollout_info=RolloutInfo(task_index=1, current_step=1, harness="multiors"))
    rollout.log(AssistantMessage("I do."))
    rollout.log(ToolCall("echo", '{"text": "oak"}', "call-0"))
    rollout.log(ToolResult("oak", "call-0"), reward=1.0, is_finished=True)
    client.rollout.close()
    theirs, ours = describe_events(platform.counts()["uploads"]), describe_events(played.uploads)

    # What the SDK sends without need or we with it: an empty field, or the step of a rollout.
    extra = {"environment_id", "isFinished", "metadata", "step", "variant", "variant_id"}
    assert {kind: fields - extra for kind, fields in theirs.items()} == {
        kind: fields - extra for kind, fields in ours.items()
    }


def describe_events(uploads: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, set[str]]:
    """The fields of each kind of event."""
    fields: dict[str, set[str]] = {}
    for event in [event for upload in uploads for event in upload]:
        fields.setdefault(event.get("type", event["eventType"]), set()).update(event)
    return fields


@pytest.fixture
def upload(platform: Platform) -> Iterator[RolloutUpload]:
    """An upload that knows its mix, to a platform that has seen nothing."""
    platform.reset_counts()
    platform.tell()
    upload = RolloutUpload("run", api_key=platform.api_key, api_url=platform.api_url)
    source = make_source(platform)
    source.blueprint  # noqa: B018  asks the server
    upload.join({"echo": source}, [])
    yield upload
    upload.close()


def test_a_failure_that_may_pass_is_tried_again(platform: Platform, upload: RolloutUpload) -> None:
    """A server error does not cost the rollout, and its events arrive once."""
    platform.tell(failed_uploads=2, upload_status=503)
    upload([make_record()])
    upload.close()
    kinds = Counter(event["eventType"] for each in platform.counts()["uploads"] for event in each)

    assert (1, 0) == (upload.num_uploaded, upload.num_failed)
    assert {"rollout": 1, "rollout_update": 1, "message": 10} == kinds


def test_a_platform_that_refuses_is_said_once(
    platform: Platform, upload: RolloutUpload, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be uploaded is counted, said once and at the end, and raises nothing; later ones are tried."""
    platform.tell(failed_uploads=2, upload_status=403)
    for _ in range(3):
        upload([make_record(), make_record()])
    upload.close()
    told = [message for message in caplog.messages if "RolloutUpload" in message]

    assert (2, 4) == (upload.num_uploaded, upload.num_failed)
    assert [
        "RolloutUpload('run'): 2 rollouts were not uploaded: the platform answered HTTP 403. Training goes on; the end "
        "says how many.",
        "RolloutUpload('run'): 4 rollouts were not uploaded, 2 were.",
    ] == told
    assert platform.api_key not in caplog.text


def test_a_platform_that_is_away_costs_nothing(
    platform: Platform, upload: RolloutUpload, caplog: pytest.LogCaptureFixture
) -> None:
    """An address where nothing listens is tried, said and counted; closing does not wait for the pauses."""
    upload._urls = {"echo": "http://127.0.0.1:1"}
    upload([make_record()])
    upload.close()

    assert (0, 1) == (upload.num_uploaded, upload.num_failed)
    assert 1 == len([message for message in caplog.messages if "cannot be reached (ConnectError)" in message])


def test_a_step_does_not_wait_for_a_platform_that_hangs(platform: Platform, upload: RolloutUpload) -> None:
    """While the platform answers nothing, rollouts are taken, and those that are too many are counted as lost."""
    with platform.process.paused():
        for _ in range(100):
            upload([make_record()])
        lost = upload.num_failed

    upload.close()

    assert lost >= 30
    assert 100 == upload.num_uploaded + upload.num_failed


def test_many_events_go_in_parts(platform: Platform, upload: RolloutUpload) -> None:
    """No request has more than 128 events or, if it has several, more than a megabyte."""
    long = make_record(messages=tuple({"role": "assistant", "content": "x" * 300_000} for _ in range(7)), steps=())
    many = make_record(messages=tuple({"role": "assistant", "content": f"{n}"} for n in range(300)), steps=())
    upload([long, many])
    upload.close()
    uploads = platform.counts()["uploads"]

    assert (2, 0) == (upload.num_uploaded, upload.num_failed)
    assert all(len(each) <= 128 for each in uploads)
    assert all(len(each) == 1 or len(json.dumps(each)) < 1_100_000 for each in uploads)
    assert 2 * (1 + 1 + 2) + 307 == sum(map(len, uploads))


def test_a_rollout_that_cannot_be_sent_costs_itself_only(platform: Platform, upload: RolloutUpload) -> None:
    """A record with an odd object is counted, and the others of its batch are sent."""
    upload([make_record(), make_record(prompt=("odd",)), make_record()])
    upload.close()

    assert (2, 1) == (upload.num_uploaded, upload.num_failed)


# -- what is refused


def test_without_a_key_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing key is an error where the upload is made, not in training."""
    with pytest.raises(ConfigError, match=r"no key for the platform\. Pass api_key=\.\.\. or set OPENREWARD_API_KEY\."):
        RolloutUpload("run")

    monkeypatch.setenv("OPENREWARD_API_KEY", "canary")
    assert "RolloutUpload('run')" == repr(RolloutUpload("run"))


def test_without_a_name_it_is_refused() -> None:
    """A run has a name."""
    with pytest.raises(ConfigError, match="run_name=' ' is no name"):
        RolloutUpload(" ", api_key="k")


def test_a_mix_without_the_platform_is_refused(echo_server: ServerHandle) -> None:
    """Where nothing could be uploaded, that is said when training begins."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, on_rollouts=RolloutUpload("run", api_key="k"))

    with pytest.raises(ConfigError, match=r"no source of the mix is on the platform; \['echo'\] have addresses of"):
        spec._recording.start()


def test_an_unknown_address_is_refused(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is not sent to a guessed address."""
    spec = MultiOpenRewardSpec({"echo": make_source(platform)}, on_rollouts=RolloutUpload("run", api_key="k"))

    with pytest.raises(ConfigError, match=r"interface is not known\. Pass api_url=\.\.\. or set OPENREWARD_API_URL\."):
        spec._recording.start()


def test_what_is_no_function_is_refused() -> None:
    """`on_rollouts` takes a function or several."""
    with pytest.raises(ConfigError, match="on_rollouts holds something that cannot be called"):
        MultiOpenRewardSpec({"a": ORSSource("http://127.0.0.1:1")}, on_rollouts=[print, 3])  # type: ignore[list-item]  # the point


_LEAVE = """
import sys
from multiors import ORSSource, RolloutRecord, RolloutUpload
key = sys.argv[3]
upload = RolloutUpload("run", api_key=key, api_url=sys.argv[1])
source = ORSSource("lab/echo", session_url=sys.argv[2], api_key=key)
source.blueprint
upload.join({"echo": source}, [])
prompt = ({"role": "user", "content": "Say oak."},)
upload([RolloutRecord("echo", 0, 0, 0, None, None, {}, None, None, finished=False, steps=(), prompt=prompt)])
"""


def test_what_is_waiting_at_exit_is_uploaded(platform: Platform) -> None:
    """A process that ends without `close()` uploads what it has, and prints nothing."""
    platform.reset_counts()
    ended = run_python(_LEAVE, platform.api_url, platform.session_url, platform.api_key)

    assert ("", 0) == (ended.stdout, ended.returncode), ended.stderr
    assert 3 == sum(map(len, platform.counts()["uploads"]))
