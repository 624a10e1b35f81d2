"""The same model behind a real `transformers serve` and in this process, with the tools of a real ORS server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import transformers
from packaging.version import Version

from multiors import MultiOpenRewardSpec, ORSSource
from multiors.evaluation.policies import EndpointPolicy, LocalPolicy, Policy, PolicyError, Reply, Sampling
from tests.conversing import begin, opened
from tests.playing import factories
from tests.servers.launch import ServerHandle
from tests.servers.serving import serve_model
from tests.speaking_policy import LAST_WORDS, build_speaking_policy

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"),
    reason="`transformers serve` lists no model",
)

WORDS = ("oak",)
GREEDY = Sampling(temperature=0.0, max_tokens=60)


@pytest.fixture(scope="module")
def make_environment(echo_server: ServerHandle) -> Iterator[Callable[[], Any]]:
    """Makes environments of the real server, which are closed at the end."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, env_name="echo")})
    yield factories(spec)["echo"]
    spec.close()


@pytest.fixture(scope="module")
def tools(make_environment: Callable[[], Any]) -> list[Any]:
    """The environment's tools, as training shows them."""
    from transformers.utils import get_json_schema

    return [get_json_schema(make_environment().echo)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tools: list[Any]) -> Path:
    """Folder of a model that knows what to call."""
    return build_speaking_policy(tmp_path_factory.mktemp("speaking"), words=WORDS, tools=tools)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The model behind `transformers serve`."""
    with serve_model(model, tmp_path_factory.mktemp("serve") / "log.txt") as address:
        yield address


async def play(policy: Policy, make_environment: Callable[[], Any], tools: Any, task_index: int) -> Any:
    """An episode: the replies, and the reward that the environment gave."""
    environment = make_environment()
    prompt = await anyio.to_thread.run_sync(lambda: environment.reset(task_index=task_index))
    conversation = policy.start(begin(task_index, tools=tools))
    replies: list[Reply] = [await conversation.reply([{"role": "user", "content": prompt}])]

    for call in replies[0].message.get("tool_calls", []):
        function = call["function"]
        output = await anyio.to_thread.run_sync(lambda: environment.echo(**function["arguments"]))  # noqa: B023  # awaited
        replies.append(await conversation.reply([{"role": "tool", "name": function["name"], "content": output}]))
    await conversation.end()
    return replies, environment.reward


@pytest.fixture(params=["endpoint", "endpoint with a tokenizer", "local"])
def policy(request: pytest.FixtureRequest, model: Path) -> Policy:
    """The same model in three ways."""
    if request.param == "local":
        return LocalPolicy(model, sampling=GREEDY)

    url = request.getfixturevalue("url")
    tokenizer = str(model) if "tokenizer" in request.param else None
    return EndpointPolicy(url, sampling=GREEDY, retries=0, tokenizer=tokenizer)


@pytest.mark.anyio
async def test_a_served_and_a_local_model_play_the_same_episodes(
    policy: Policy, make_environment: Callable[[], Any], tools: Any
) -> None:
    """They call the real tool with the right word, hear it, say their last words, and take as many tokens."""
    played = []
    async with opened(policy) as ready:
        for task_index in range(len(WORDS)):
            played.append(await play(ready, make_environment, tools, task_index))

    calls = [replies[0].message["tool_calls"][0]["function"] for replies, _ in played]
    assert [{"name": "echo", "arguments": {"text": word}} for word in WORDS] == calls
    assert [LAST_WORDS] * len(WORDS) == [replies[1].message["content"] for replies, _ in played]
    assert [1.0] * len(WORDS) == [reward for _, reward in played]
    assert not any(reply.is_truncated or reply.malformed_calls for replies, _ in played for reply in replies)
    assert all(reply.num_prompt_tokens and reply.num_sampled_tokens for replies, _ in played for reply in replies)


@pytest.mark.anyio
async def test_a_served_model_samples_with_the_episodes_luck(url: str, tools: Any) -> None:
    """`transformers serve` is greedy unless it is told otherwise: it is told. One after another, seeds repeat."""
    written = []
    async with opened(EndpointPolicy(url, sampling=Sampling(temperature=3.0, max_tokens=20), retries=0)) as policy:
        for seed in (1, 1, 2, 3):
            conversation = policy.start(begin(seed, tools=tools))
            written.append((await conversation.reply([{"role": "user", "content": "Say oak."}])).message["content"])

    assert written[0] == written[1]
    assert 3 == len(set(written))


@pytest.mark.anyio
async def test_transformers_serve_loses_a_reply_that_ends_in_the_middle_of_a_call(url: str, tools: Any) -> None:
    """When this fails, it answers now: docs/policies.md need not advise a tokenizer for it any more."""
    async with opened(EndpointPolicy(url, sampling=Sampling(0.0, max_tokens=3), retries=0)) as policy:
        with pytest.raises(PolicyError, match="it answered 500"):
            await policy.start(begin(tools=tools)).reply([{"role": "user", "content": "Say oak."}])


@pytest.mark.anyio
async def test_a_served_model_stops_at_its_tokens(url: str, model: Path, tools: Any) -> None:
    """The reply is truncated, and says so, where it ends in the middle of a call too."""
    policy = EndpointPolicy(url, sampling=Sampling(0.0, max_tokens=3), retries=0, tokenizer=str(model))
    async with opened(policy) as ready:
        reply = await ready.start(begin(tools=tools)).reply([{"role": "user", "content": "Say oak."}])

    assert reply.is_truncated
    assert "tool_calls" not in reply.message
    assert 3 == reply.num_sampled_tokens
