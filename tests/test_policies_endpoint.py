"""Policies behind an OpenAI-compatible endpoint, against a server that answers whatever a test wants."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.evaluation.policies import EndpointPolicy, PolicyError, Reply, Sampling
from multiors.evaluation.policies.client import ChatClient
from multiors.evaluation.policies.wire import AnswerError, read_answer, split_thoughts, write_messages
from tests.conversing import SAY, asked, begin, converse, opened
from tests.schema_strategies import any_json
from tests.servers.chat import complete, go_on, serve_chat
from tests.servers.launch import ServerHandle

Chat = Callable[..., AbstractContextManager[ServerHandle]]

SERVED_BY_VLLM = {"id": "m", "owned_by": "vllm"}
KEY = "sk-secret+key/0123456789="


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerHandle]]:
    """Two server processes, for all tests of this module."""
    with serve_chat() as first, serve_chat() as second:
        yield [first, second]


@pytest.fixture
def chat(servers: list[ServerHandle]) -> Chat:
    """Gives the fields of a scenario to the next of the servers."""
    free = iter(servers)

    def script(**fields: Any) -> AbstractContextManager[ServerHandle]:
        server = next(free)
        server.ask("PUT", "/_scenario", fields)
        return nullcontext(server)

    return script


def policy_at(server: ServerHandle, **options: Any) -> EndpointPolicy:
    """A policy behind the server, which gives up soon."""
    return EndpointPolicy(f"{server.url}/v1", **{"retries": 1, "timeout_s": 20.0, **options})


def called(arguments: Any, *, name: Any = "say", **fields: Any) -> dict[str, Any]:
    """A tool call as endpoints write it."""
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def bodies(server: ServerHandle) -> list[Any]:
    """Of the chat requests so far."""
    return [request["body"] for request in server.counts().details["requests"]]


async def talk(server: ServerHandle, *turns: Any, **options: Any) -> list[Reply]:
    """The replies to one conversation with a policy behind the server."""
    async with opened(policy_at(server, **options)) as policy:
        return await converse(policy, *(turns or [asked("Hello.")]))


# -- what is asked


@pytest.mark.anyio
async def test_a_request_carries_the_conversation_the_tools_and_the_sampling(chat: Chat) -> None:
    """Nothing of how a reply is sampled is left to the server."""
    with chat() as server:
        sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=33)
        await talk(server, sampling=sampling, thinking=False, extra_body={"min_p": 0.1})
        body = bodies(server)[0]

    seed = body.pop("seed")
    assert {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello."}],
        "tools": [SAY],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "max_tokens": 33,
        "chat_template_kwargs": {"enable_thinking": False},
        "min_p": 0.1,
    } == body
    assert 0 <= seed < 2**31


@pytest.mark.anyio
async def test_seeds_depend_on_episode_and_turn_alone(chat: Chat) -> None:
    """Two policies that play the same episodes ask with the same seeds, and no two turns have the same."""
    with chat() as server:
        async with opened(policy_at(server)) as policy:
            for seed in (1, 2, 1):
                await converse(policy, asked("A."), asked("B."), start=begin(seed))
        seeds = [body["seed"] for body in bodies(server)]

    assert seeds[:2] == seeds[4:]
    assert 4 == len(set(seeds))


@pytest.mark.anyio
async def test_an_empty_list_of_tools_is_not_sent(chat: Chat) -> None:
    """Some servers refuse it."""
    with chat() as server:
        async with opened(policy_at(server)) as policy:
            await converse(policy, asked("A."), start=begin(tools=()))
        body = bodies(server)[0]

    assert "tools" not in body


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ({"owned_by": "vllm"}, {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}),
        ({"owned_by": "sglang"}, {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}),
        (
            {"owned_by": "me", "status": {"value": "loaded"}},
            {"generation_config": '{"do_sample": true, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}'},
        ),
        ({"owned_by": "llamacpp", "status": {"value": "loaded"}}, {}),
        ({"owned_by": "openai"}, {}),
    ],
)
async def test_servers_that_are_known_do_not_sample_by_the_models_own_settings(
    chat: Chat, served: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """vLLM, SGLang and transformers are told what their models' generation_config would decide otherwise."""
    usual = {"model", "messages", "tools", "temperature", "top_p", "max_tokens", "seed"}
    with chat(models=[{"id": "m", **served}]) as server:
        await talk(server)
        body = bodies(server)[0]

    assert expected == {name: value for name, value in body.items() if name not in usual}


@pytest.mark.anyio
async def test_a_server_that_lists_nothing_yet_samples_as_it_is_told(chat: Chat) -> None:
    """`transformers serve` lists a model once it is loaded, and is greedy unless it is told otherwise before."""
    with chat(models=[]) as server:
        async with opened(policy_at(server, model="m")) as policy:
            await converse(policy, asked("A."))
        body = bodies(server)[0]

    assert json.loads(body["generation_config"])["do_sample"] is True


@pytest.mark.anyio
async def test_replies_and_results_go_back_as_they_came(chat: Chat) -> None:
    """Thoughts keep their field, calls their ids, and a result without an id answers the first call of its name."""
    calls = [called('{"text": "a"}'), called('{"text": "b"}', id="c2")]
    answers = [complete(None, tool_calls=calls, reasoning="Let me see.", finish_reason="tool_calls"), complete()]
    results = [{"role": "tool", "name": "say", "content": text} for text in ("A", "B")]
    with chat(answers=answers) as server:
        replies = await talk(server, asked("Say."), results)
        sent = bodies(server)[1]["messages"]

    assert [
        {"role": "user", "content": "Say."},
        {"role": "assistant", "content": "", "reasoning": "Let me see.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "name": "say", "content": "A"},
        {"role": "tool", "tool_call_id": "c2", "name": "say", "content": "B"},
    ] == sent
    assert "Let me see." == replies[0].message["reasoning_content"]
    assert [{"text": "a"}, {"text": "b"}] == [c["function"]["arguments"] for c in replies[0].message["tool_calls"]]


@pytest.mark.anyio
async def test_thoughts_stay_here_where_an_endpoint_refuses_them(chat: Chat) -> None:
    """With send_thoughts=False the field is left out; the record has it all the same."""
    with chat(answers=[complete(reasoning_content="Hm.")]) as server:
        replies = await talk(server, asked("A."), asked("B."), send_thoughts=False)
        sent = bodies(server)[1]["messages"]

    assert {"role": "assistant", "content": "Done."} == sent[1]
    assert ["Hm.", "Hm."] == [reply.message["reasoning_content"] for reply in replies]


@pytest.mark.anyio
async def test_no_more_replies_are_asked_for_at_once_than_allowed(chat: Chat) -> None:
    """The limit holds whatever the runner does."""
    with chat() as server:
        async with opened(policy_at(server, max_concurrent_replies=2)) as policy, anyio.create_task_group() as group:
            for seed in range(12):
                group.start_soon(lambda seed: converse(policy, asked("A."), start=begin(seed)), seed)
        counts = server.counts()

    assert 12 == len(counts.details["requests"])
    assert counts.max_in_flight["chat"] <= 2


# -- what is answered


@pytest.mark.anyio
async def test_a_reply_says_how_many_tokens_it_took(chat: Chat) -> None:
    """Tokens are the server's count."""
    with chat() as server:
        reply = (await talk(server))[0]

    assert (7, 3, False, ()) == (
        reply.num_prompt_tokens,
        reply.num_sampled_tokens,
        reply.is_truncated,
        reply.malformed_calls,
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "message", "is_truncated"),
    [
        (complete("A", finish_reason="length"), {"content": "A"}, True),
        (
            complete(None, finish_reason="length", reasoning_content="…"),
            {"content": "", "reasoning_content": "…"},
            True,
        ),
        (complete("<think>why</think>\n\nA"), {"content": "A", "reasoning_content": "why"}, False),
        (complete("why</think>A"), {"content": "A", "reasoning_content": "why"}, False),
        (complete("<think>wh", finish_reason="length"), {"content": "", "reasoning_content": "wh"}, True),
        (complete("a <think> in the text"), {"content": "a <think> in the text"}, False),
        (complete(None, refusal="No."), {"content": "No."}, False),
        (complete([{"type": "text", "text": "A"}]), {"content": "A"}, False),
        (
            complete(
                [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text", "text": "A"}]
            ),
            {"content": "A", "reasoning_content": "t"},
            False,
        ),
        (complete("A", usage="many"), {"content": "A"}, False),
    ],
)
async def test_text_and_thoughts_are_told_apart(
    chat: Chat, answer: Any, message: dict[str, Any], is_truncated: bool
) -> None:
    """Thoughts are found in either field, in marks within the text, and in parts; never in the content."""
    with chat(answers=[answer]) as server:
        reply = (await talk(server))[0]

    assert {"role": "assistant", **message} == reply.message
    assert is_truncated == reply.is_truncated


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (called("{not json"), "say: the arguments are no JSON"),
        (called("[1]"), "say: the arguments are a list, not an object"),
        (called(7), "say: the arguments are a number, not an object"),
        (called("{}", name=None), "call number 1 names no tool"),
        ("say", "call number 1 names no tool"),
        (called("[" * 100_000), "say: the arguments are no JSON"),
        (called("{bad", name="sa\x1b[31my"), "say: the arguments are no JSON"),
    ],
)
async def test_a_call_that_cannot_be_read_is_told_in_one_line(chat: Chat, broken: Any, said: str) -> None:
    """It is no exception, the other calls of the message stand, and what goes back can be read by any server."""
    answer = complete("", tool_calls=[broken, called({"text": "b"}, id=None)])
    with chat(answers=[answer]) as server:
        reply = (await talk(server, asked("A."), asked("B.")))[0]
        sent = bodies(server)[1]["messages"][1]

    assert [{"text": "b"}] == [each["function"]["arguments"] for each in reply.message["tool_calls"]]
    assert 1 == len(reply.malformed_calls)
    assert reply.malformed_calls[0].startswith(said)
    assert reply.malformed_calls[0].isprintable()
    assert ['{"text": "b"}'] == [each["function"]["arguments"] for each in sent["tool_calls"]]


@pytest.mark.anyio
@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
async def test_a_call_without_arguments_is_a_call(chat: Chat, arguments: Any) -> None:
    """Servers write it in four ways."""
    with chat(answers=[complete("", tool_calls=[called(arguments)])]) as server:
        reply = (await talk(server))[0]

    assert [{}] == [each["function"]["arguments"] for each in reply.message["tool_calls"]]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "it has no choices"),
        ({"choices": []}, "it has no choices"),
        ({"choices": None, "error": {"message": "boom"}}, "it has no choices and the error .*boom"),
        ([], "it is a list, not an object"),
        ("null", "it is null, not an object"),
        ({"choices": [None]}, "the message of its first choice is null"),
        ({"choices": [{"message": None}]}, "the message of its first choice is null"),
        ({"choices": [{"message": "text"}]}, "the message of its first choice is a text"),
        (complete(17), "the content of its message is a number, not a text"),
        (complete([1]), "the content of its message is a list, not a text"),
        (complete("", tool_calls={"a": 1}), "the tool_calls of its message are an object, not a list"),
        ("<html>", "its answer is no JSON"),
        ("", "its answer is no JSON"),
        ("[" * 200_000, "its answer is no JSON"),
    ],
)
async def test_an_answer_without_a_reply_is_an_error_of_the_endpoint(chat: Chat, answer: Any, said: str) -> None:
    """It says nothing about the policy, so the episode is not recorded."""
    with chat(answers=[answer]) as server, pytest.raises(PolicyError, match=said) as raised:
        await talk(server)

    assert str(raised.value).isprintable()


@pytest.mark.anyio
async def test_an_answer_of_any_size_is_not_kept(chat: Chat) -> None:
    """Reading stops where no reply can be so long."""
    with (
        chat(num_padding=17 * 1024**2) as server,
        pytest.raises(PolicyError, match=r"more than 16,777,216 bytes"),
    ):
        await talk(server)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cut": True}, "the connection broke in the middle of its answer"),
        ({"hangs": True}, "it did not answer in 0.2 s"),
        ({"statuses": [500] * 9}, "it answered 500: scripted refusal"),
        ({"statuses": [503] * 9, "refusal": "a\x1b[2Jb"}, "it answered 503"),
        ({"statuses": [401]}, "it answered 401: .*MULTIORS_POLICY_API_KEY"),
        ({"statuses": [404], "refusal": {"detail": "no such model"}}, "it answered 404: no such model"),
        ({"statuses": [422], "refusal": {"detail": [{"loc": 1}]}}, "it answered 422: nothing.*extra_body"),
    ],
)
async def test_a_failure_of_the_endpoint_is_told_in_one_line(chat: Chat, fields: dict[str, Any], said: str) -> None:
    """With the address, the model, what was answered and what helps."""
    options = {"timeout_s": 0.2, "retries": 0} if "hangs" in fields else {}
    with chat(**fields) as server, pytest.raises(PolicyError, match=said) as raised:
        await talk(server, **options)

    assert str(raised.value).startswith(f"{server.url}/v1, model 'm': ")
    assert str(raised.value).isprintable()


@pytest.mark.anyio
async def test_an_endpoint_that_went_away_is_an_error_of_the_endpoint() -> None:
    """It is told as one that cannot be reached."""
    with serve_chat() as server:
        policy = policy_at(server, retries=0)
        await policy.open()
        server.kill()
        with pytest.raises(PolicyError, match=r"it cannot be reached \("):
            await converse(policy, asked("A."))
        await policy.close()


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "times"), [(429, 3), (503, 3), (408, 3), (400, 1), (403, 1)])
async def test_only_failures_that_may_pass_are_tried_again(chat: Chat, status: int, times: int) -> None:
    """Busy and broken endpoints are asked again, refusals are not."""
    with chat(statuses=[status] * 9) as server:
        with pytest.raises(PolicyError, match=f"it answered {status}"):
            await talk(server, retries=2)
        requests = bodies(server)

    assert times == len(requests)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "the request exceeds the available context size (4096 tokens), try increasing it",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    ],
)
async def test_a_conversation_that_is_too_long_is_a_truncated_reply(chat: Chat, text: str) -> None:
    """It is what the policy did, so the episode ends and is recorded."""
    with chat(statuses=[400], refusal={"error": {"message": text}}) as server:
        reply = (await talk(server))[0]

    assert reply.is_truncated
    assert {"role": "assistant", "content": ""} == reply.message


@pytest.mark.anyio
async def test_a_redirect_is_not_followed(chat: Chat) -> None:
    """Neither key nor conversation goes to a host that nobody named."""
    with chat() as other, chat(redirect_to=other.url) as server:
        with pytest.raises(PolicyError, match=r"it answered 307.*Redirects are not followed"):
            await talk(server, api_key=KEY)
        headers = other.counts().details["headers"]

    assert [] == headers


@given(any_json)
def test_no_answer_is_a_surprise(body: Any) -> None:
    """Whatever JSON an endpoint sends is a reply or an error of the endpoint."""
    for whole in (
        body,
        {"choices": [body]},
        complete(body),
        complete("", tool_calls=[body]),
        {"choices": [{"message": body}]},
    ):
        calls: Any = []
        with suppress(AnswerError):
            calls = read_answer(whole, turn=0).calls

        assert all(isinstance(each["function"]["arguments"], dict) for each in calls)


@given(st.text(), st.text())
def test_thoughts_in_marks_are_split_without_loss(thoughts: str, text: str) -> None:
    """What stands between the marks are the thoughts, what follows is the text."""
    if "think>" in thoughts + text:
        return

    assert (thoughts.strip(), text.lstrip()) == split_thoughts(f"<think>{thoughts}</think>{text}")
    assert ("", text) == split_thoughts(text)


def test_a_result_that_answers_no_call_is_told_by_the_user() -> None:
    """Servers refuse a tool message that answers nothing."""
    written = write_messages([{"role": "tool", "name": "say", "content": "no"}], open_calls=[])

    assert [{"role": "user", "content": "no"}] == written


def test_images_go_in_their_address() -> None:
    """As PNG in base64, which every endpoint that sees can read."""
    from PIL import Image

    content = [{"type": "image", "image": Image.new("RGB", (2, 2))}, {"type": "text", "text": "What is it?"}]
    parts: Any = write_messages([{"role": "user", "content": content}], open_calls=[])[0]["content"]

    assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert {"type": "text", "text": "What is it?"} == parts[1]


# -- with the model's tokenizer


@pytest.mark.anyio
async def test_with_a_tokenizer_an_endpoint_only_goes_on_with_texts(chat: Chat, tiny_policy: Path) -> None:
    """Each text is the one before, what was written, the end of the turn, and the results in the template's words."""
    call = '<tool_call>\n{"name": "say", "arguments": {"text": "a"}}\n</tool_call>'
    results = [{"role": "tool", "name": "say", "content": "A"}]
    with chat(answers=[go_on(call), go_on("Done.", finish_reason="length")], models=[SERVED_BY_VLLM]) as server:
        replies = await talk(server, asked("Say a."), results, tokenizer=str(tiny_policy), thinking=False)
        first, second = bodies(server)

    assert first["prompt"].endswith("<|im_start|>user\nSay a.<|im_end|>\n<|im_start|>assistant\n")
    assert '"name": "say"' in first["prompt"]
    response = "<|im_end|>\n<|im_start|>user\n<tool_response>\nA\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert first["prompt"] + call + response == second["prompt"]
    assert {"messages", "tools", "chat_template_kwargs"}.isdisjoint(first)
    assert first["skip_special_tokens"] is False
    assert [{"name": "say", "arguments": {"text": "a"}}] == [c["function"] for c in replies[0].message["tool_calls"]]
    assert ("Done.", True, 7, 3) == (
        replies[1].message["content"],
        replies[1].is_truncated,
        replies[1].num_prompt_tokens,
        replies[1].num_sampled_tokens,
    )


@pytest.mark.anyio
async def test_text_that_only_looks_like_a_call_is_text(chat: Chat, tiny_policy: Path) -> None:
    """As in training; arguments that are no object are told of."""
    texts = ['<tool_call>\n{"name": "say", "arg', '<tool_call>\n{"name": "say", "arguments": [1]}\n</tool_call>']
    with chat(answers=[go_on(text) for text in texts]) as server:
        replies = await talk(server, asked("A."), asked("B."), tokenizer=str(tiny_policy))

    assert [0, 1] == [len(reply.malformed_calls) for reply in replies]
    assert not any("tool_calls" in reply.message for reply in replies)


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [go_on(None), go_on(7), {"choices": [1]}, {}, None])
async def test_an_answer_without_a_text_is_an_error_of_the_endpoint(chat: Chat, tiny_policy: Path, answer: Any) -> None:
    """As one without a reply is."""
    with chat(answers=[answer]) as server, pytest.raises(PolicyError, match="its answer holds no reply"):
        await talk(server, tokenizer=str(tiny_policy))


@pytest.mark.anyio
async def test_a_tokenizer_that_cannot_be_loaded_is_an_error_before_the_first_episode(chat: Chat) -> None:
    """It names the tokenizer."""
    with chat() as server, pytest.raises(ConfigError, match="the tokenizer '/no/such' cannot be loaded"):
        await talk(server, tokenizer="/no/such")


# -- which model


@pytest.mark.anyio
async def test_the_only_model_need_not_be_named(chat: Chat) -> None:
    """It is found in the endpoint's list, and is the policy's name."""
    with chat() as server:
        async with opened(policy_at(server)) as policy:
            described = policy.describe()

    assert ("m", "m") == (described["model"], described["name"])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"models": [{"id": "a"}, {"id": "b\x1b[2J"}, 7]}, "serves 2 models: 'a', 'b'.*model="),
        ({"models": []}, "serves 0 models: none"),
        ({"models": "many"}, "serves 0 models: none"),
        ({"models": None}, "cannot be used: it answered 404"),
        ({"models_status": 401}, "cannot be used: it answered 401: .*MULTIORS_POLICY_API_KEY"),
    ],
)
async def test_a_model_that_cannot_be_told_is_an_error_before_the_first_episode(
    chat: Chat, fields: dict[str, Any], said: str
) -> None:
    """The error lists what there is."""
    with chat(**fields) as server, pytest.raises(ConfigError, match=said):
        async with opened(policy_at(server)):
            pass


@pytest.mark.anyio
async def test_a_named_model_needs_no_list(chat: Chat) -> None:
    """Hosted endpoints need not say what they serve."""
    with chat(models=None) as server:
        reply = (await talk(server, model="mine"))[0]
        body = bodies(server)[0]

    assert "mine" == body["model"]
    assert "Done." == reply.message["content"]


@pytest.mark.anyio
async def test_an_endpoint_that_is_away_is_an_error_before_the_first_episode() -> None:
    """Also with a named model."""
    policy = EndpointPolicy("http://127.0.0.1:9/v1", model="m", retries=0)

    with pytest.raises(ConfigError, match=r"127.0.0.1:9/v1 cannot be used: it cannot be reached"):
        await policy.open()

    await policy.close()


# -- keys


@pytest.mark.anyio
async def test_no_key_goes_to_a_server_that_it_is_not_for(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of OpenAI's client are for OpenAI's host: no other gets a header of theirs."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Api-Key: {KEY}\nAuthorization: Bearer {KEY}\nCookie: a={KEY}")

    with chat() as server:
        await talk(server)
        details = server.counts().details

    assert 2 == len(details["headers"])
    assert KEY not in str(details)
    assert not any({"authorization", "cookie", "x-api-key"} & set(headers) for headers in details["headers"])


@pytest.mark.anyio
async def test_a_key_that_was_given_goes_to_its_server(chat: Chat) -> None:
    """As a bearer token, with every request."""
    with chat() as server:
        await talk(server, api_key=KEY)
        headers = server.counts().details["headers"]

    assert [f"Bearer {KEY}"] * 2 == [each["authorization"] for each in headers]


@pytest.mark.parametrize(
    ("url", "is_theirs"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com:8443/v1", False),
        ("https://api.openai.com.example.org/v1", False),
        ("https://notapi.openai.com/v1", False),
        ("http://127.0.0.1:8000/v1", False),
    ],
)
def test_only_openais_own_host_gets_its_variable(monkeypatch: pytest.MonkeyPatch, url: str, is_theirs: bool) -> None:
    """Encrypted, on its own port; everyone else must be given a key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    client = ChatClient(url, api_key=None, timeout_s=1.0, retries=0)

    assert ([KEY] if is_theirs else []) == client.secrets


@pytest.mark.anyio
async def test_a_key_is_never_shown(chat: Chat, caplog: pytest.LogCaptureFixture) -> None:
    """Not by repr, describe, errors and their causes, or logs, also where the server echoes it."""
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"message": f"Incorrect API key provided: {KEY}."}}
    shown = []

    with chat(statuses=[400, 200, 200], refusal=echo, answers=[{"error": echo}, complete(KEY)]) as server:
        async with opened(policy_at(server, api_key=KEY, extra_body={"user": KEY})) as policy:
            for _ in range(2):
                with pytest.raises(PolicyError) as raised:
                    await converse(policy, asked("A."))
                shown.append("".join(traceback.format_exception(raised.value)))
            shown += [repr(policy), str(policy.describe()), repr(vars(policy)["_client"])]
    with chat(models_status=401, refusal=echo) as server:
        with pytest.raises(ConfigError) as refused:
            await policy_at(server, api_key=KEY).open()
        shown.append("".join(traceback.format_exception(refused.value)))

    assert "[redacted]" in shown[0]
    assert "[redacted]" in shown[-1]
    assert [] == [text for text in shown if KEY in text]
    assert KEY not in caplog.text


# -- arguments


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("localhost:8000/v1", {}, "no address of a server"),
        ("ftp://host/v1", {}, "no address of a server"),
        ("http://", {}, "no address of a server"),
        ("http://host:x/v1", {}, "no address of a server"),
        ("http://me:sk-secret@host/v1", {}, "holds a user"),
        (f"http://host/v1?key={KEY}", {}, "holds a user, a query"),
        ("http://host/v1", {"max_concurrent_replies": 0}, "max_concurrent_replies is 0"),
        ("http://host/v1", {"timeout_s": 0}, "timeout_s is 0"),
        ("http://host/v1", {"retries": -1}, "retries is -1"),
        ("http://host/v1", {"api_key": "a b\n"}, "the key of the endpoint holds spaces"),
    ],
)
def test_wrong_arguments_are_refused_at_once(url: str, options: dict[str, Any], said: str) -> None:
    """Before anything is asked, and without showing what may be a key."""
    with pytest.raises(ConfigError, match=said) as raised:
        EndpointPolicy(url, **options)

    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": 0}, {"max_tokens": 0}]
)
def test_sampling_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    """The error names the setting and its range."""
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is "):
        Sampling(**options)
