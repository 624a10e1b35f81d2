"""A policy behind an OpenAI-compatible chat endpoint: vLLM, SGLang, `transformers serve`, or a hosted one.

Decides what is asked of an endpoint and what its answers and failures say about the policy: a failure says nothing,
except that a conversation was too long for the model.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from multiors.errors import ConfigError
from multiors.evaluation.policies.client import ChatClient, EndpointError
from multiors.evaluation.policies.policy import Conversation, Message, PolicyError, Reply, Sampling, Start
from multiors.evaluation.policies.seeds import derive_seed
from multiors.evaluation.policies.wire import (
    Answer,
    AnswerError,
    Continuation,
    read_answer,
    read_continuation,
    split_thoughts,
    write_messages,
)
from multiors.redaction import Redactor

if TYPE_CHECKING:
    from multiors.evaluation.policies.chat_format import ChatFormat

__all__ = ["EndpointPolicy"]

_NO_LIST = (404, 405, 501)
_WITH_SPECIAL_TOKENS = ("vllm", "sglang")

T = TypeVar("T")


_TRANSFORMERS: Mapping[str, Any] = {"status": {}}
"""What tells a model that `transformers serve` lists."""


class EndpointPolicy:
    """A model behind an OpenAI-compatible endpoint.

    Args:
        base_url: Where `/chat/completions` is, usually ending in /v1.
        model: The model's name there. None: the only one there is.
        sampling: How replies are sampled.
        api_key: Sent to `base_url` only. None: the variable OPENAI_API_KEY if `base_url` is OpenAI's own, no key
            otherwise.
        max_concurrent_replies: Requests at the same time, at most.
        timeout_s: Seconds for one attempt at a reply.
        retries: Attempts after the first where the endpoint is away, busy or fails by itself (408, 409, 429, 5xx).
        extra_body: Further fields of every request; they win over ours.
        thinking: Whether the chat template asks for thoughts, as vLLM, SGLang and transformers take it. None: as the
            endpoint does by default.
        send_thoughts: Whether earlier thoughts go back in the field they came in. Endpoints that refuse the field need
            False.
        tokenizer: The model's tokenizer, its folder or name on the hub. With it, conversations are written and calls
            are read here as in training, and the endpoint only goes on with texts (`/completions`): for those that do
            not parse calls, or lose a reply where they cannot.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008  # it is frozen
        api_key: str | None = None,
        max_concurrent_replies: int = 32,
        timeout_s: float = 600.0,
        retries: int = 5,
        extra_body: Mapping[str, Any] | None = None,
        thinking: bool | None = None,
        send_thoughts: bool = True,
        tokenizer: Any = None,
    ) -> None:
        if max_concurrent_replies < 1:
            raise ConfigError(f"max_concurrent_replies is {max_concurrent_replies!r}; it is 1 or more.")

        self._client = ChatClient(base_url, api_key=api_key, timeout_s=timeout_s, retries=retries)
        self._model = model
        self._sampling = sampling
        self._extra_body = dict(extra_body or {})
        self._thinking = thinking
        self._tokenizer = tokenizer
        self._served: Mapping[str, Any] = {}
        """What the endpoint says of the model."""

        self._format: ChatFormat | None = None
        self._limiter: anyio.CapacityLimiter | None = None
        self.tokenizing: anyio.CapacityLimiter | None = None
        """Lets one thread at a time use the tokenizer."""

        self.name = model or self._client.url
        self.max_concurrent_replies = max_concurrent_replies
        self.sees_images = tokenizer is None
        self.secrets: Sequence[str] = self._client.secrets
        self.sends_thoughts = send_thoughts

    def __repr__(self) -> str:
        return f"EndpointPolicy({self._client.url!r}, model={self._model!r})"

    def describe(self) -> Mapping[str, Any]:
        """Kind, name, address, sampling, and what else is asked for. The model is known once it is open."""
        tokenizer = self._tokenizer
        described = {
            "kind": "endpoint",
            "name": self.name,
            "base_url": self._client.url,
            "model": self._model,
            "sampling": asdict(self._sampling),
            "thinking": self._thinking,
            "send_thoughts": self.sends_thoughts,
            "tokenizer": None if tokenizer is None else str(getattr(tokenizer, "name_or_path", tokenizer)),
            "extra_body": self._extra_body,
        }
        hidden: dict[str, Any] = Redactor(self._client.secrets).hide_in(described)
        return hidden

    async def open(self) -> None:
        """Find out what is served.

        Raises:
            ConfigError: The endpoint is away or refuses the key, or which model is meant cannot be told.
        """
        self._limiter = anyio.CapacityLimiter(self.max_concurrent_replies)
        self.tokenizing = anyio.CapacityLimiter(1)
        try:
            await self._client.open()
            await self._prepare()
        except BaseException:
            await self._client.close()
            raise

    async def _prepare(self) -> None:
        if self._tokenizer is not None:
            self._format = await anyio.to_thread.run_sync(self._load_format)

        is_listed = True

        try:
            models = await self._client.list_models()
        except EndpointError as error:
            if self._model is None or error.status not in _NO_LIST:
                raise ConfigError(f"{self._client.url} cannot be used: {error}") from None
            models, is_listed = {}, False

        if self._model is None:
            self._model = self.name = self._choose(list(models))
        # `transformers serve` lists nothing before it has loaded a model, which the first request makes it do.
        self._served = models.get(self._model, {} if models or not is_listed else _TRANSFORMERS)

    def start(self, start: Start) -> Conversation:
        """Begin an episode."""
        return _Conversation(self, start) if self._format is None else _TextConversation(self, self._format, start)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(self, start: Start, sent: Sequence[Mapping[str, Any]], *, turn: int) -> Answer | None:
        """The endpoint's answer to a conversation. None: it is too long for the model.

        Args:
            start: What the episode began with.
            sent: The conversation as the endpoint has it.
            turn: Replies so far.

        Raises:
            PolicyError: There is none.
        """
        asked: dict[str, Any] = {"messages": sent}
        if start.tools:  # some servers refuse an empty list
            asked["tools"] = list(start.tools)

        answered = await self._send(self._client.complete, self._build_request(start, turn, **asked))
        return None if answered is None else self._check(lambda: read_answer(answered[0], turn=turn))

    async def go_on(self, start: Start, text: str, *, turn: int) -> Continuation | None:
        """How the endpoint goes on with a text. None: it is too long for the model.

        Raises:
            PolicyError: It does not.
        """
        answered = await self._send(self._client.continue_text, self._build_request(start, turn, prompt=text))
        return None if answered is None else self._check(lambda: read_continuation(answered[0]))

    async def _send(
        self, send: Callable[[Mapping[str, Any]], Awaitable[Any]], request: Mapping[str, Any]
    ) -> tuple[Any] | None:
        """The decoded body of an answer, whatever it is. None: the conversation is too long for the model."""
        if self._limiter is None:
            raise PolicyError(f"{self!r} is not open.")

        try:
            async with self._limiter:
                return (await send(request),)
        except EndpointError as error:
            if error.is_too_long:
                return None
            raise self._fail(str(error)) from None

    def _check(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except AnswerError as error:
            raise self._fail(f"its answer holds no reply: {self._client.show(str(error))}") from None

    def _choose(self, models: Sequence[str]) -> str:
        if len(models) == 1:
            return models[0]

        found = ", ".join(repr(self._client.show(name)) for name in models[:20]) or "none"
        raise ConfigError(
            f"{self._client.url} serves {len(models)} models: {found}. Say which one is meant with model=... (--model "
            f"on the command line)."
        )

    def _load_format(self) -> ChatFormat:
        from transformers import AutoTokenizer

        from multiors.evaluation.policies.chat_format import ChatFormat

        tokenizer = self._tokenizer
        if not hasattr(tokenizer, "apply_chat_template"):
            try:
                tokenizer = AutoTokenizer.from_pretrained(str(tokenizer))
            except (OSError, ValueError, ImportError, KeyError) as error:
                said = self._client.show(str(error)).rstrip(".")
                raise ConfigError(
                    f"the tokenizer {str(tokenizer)!r} cannot be loaded: {said}. Pass a folder or a "
                    f"model's name on the hub."
                ) from error
        return ChatFormat(tokenizer, name=self.name, thinking=self._thinking)

    def _build_request(self, start: Start, turn: int, **asked: Any) -> dict[str, Any]:
        sampling = self._sampling
        extra = _write_sampling(sampling, self._served)
        if "prompt" in asked and self._served.get("owned_by") in _WITH_SPECIAL_TOKENS:
            extra["skip_special_tokens"] = False
        if "messages" in asked and self._thinking is not None:
            extra["chat_template_kwargs"] = {"enable_thinking": self._thinking}

        # OpenAI's newer models refuse the old name, many servers do not know the new one.
        limit = "max_completion_tokens" if self._client.is_official and "messages" in asked else "max_tokens"
        return {
            "model": self._model,
            **asked,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            limit: sampling.max_tokens,
            "seed": derive_seed(start.seed, turn, num_bits=31),  # some servers have no more
            "extra_body": {**extra, **self._extra_body},
        }

    def _fail(self, what: str) -> PolicyError:
        return PolicyError(f"{self._client.url}, model {self._model!r}: {what.rstrip('.')}.")


class _Conversation:
    def __init__(self, policy: EndpointPolicy, start: Start) -> None:
        self._policy = policy
        self._start = start
        self._messages: list[Message] = []
        """As TRL has them, thoughts included."""

        self._sent: list[dict[str, Any]] = []
        """As the endpoint has them."""

        self._turn = 0

    async def reply(self, messages: Sequence[Message]) -> Reply:
        latest = self._messages[-1] if self._messages else {}
        self._messages += messages
        self._sent += write_messages(messages, open_calls=latest.get("tool_calls") or [])
        answer = await self._policy.ask(self._start, self._sent, turn=self._turn)

        if answer is None:
            return Reply({"role": "assistant", "content": ""}, num_sampled_tokens=0, is_truncated=True)

        reply = Reply(
            _as_message(answer),
            num_prompt_tokens=answer.num_prompt_tokens,
            num_sampled_tokens=answer.num_sampled_tokens,
            is_truncated=answer.is_truncated,
            malformed_calls=tuple(answer.malformed),
        )
        self._messages.append(reply.message)
        self._sent.append(answer.to_message(with_thoughts=self._policy.sends_thoughts))
        self._turn += 1
        return reply

    async def end(self) -> None:
        self._messages, self._sent = [], []


class _TextConversation:
    """An episode whose conversation is written, and whose replies are read, with the model's own tokenizer."""

    def __init__(self, policy: EndpointPolicy, format_: ChatFormat, start: Start) -> None:
        self._policy = policy
        self._format = format_
        self._start = start
        self._ids: list[int] = []
        """Prompt, and everything since, as the model sees it."""

        self._turn = 0

    async def reply(self, messages: Sequence[Message]) -> Reply:
        text = await anyio.to_thread.run_sync(self._write, messages, limiter=self._policy.tokenizing)
        went_on = await self._policy.go_on(self._start, text, turn=self._turn)

        if went_on is None:
            return Reply({"role": "assistant", "content": ""}, num_sampled_tokens=0, is_truncated=True)

        self._turn += 1
        return await anyio.to_thread.run_sync(self._read, went_on, limiter=self._policy.tokenizing)

    async def end(self) -> None:
        self._ids = []

    def _write(self, messages: Sequence[Message]) -> str:
        if not self._ids:
            self._ids = self._format.render(messages, self._start.tools)
        elif messages:
            self._ids += self._format.render_next(messages)
        return self._format.decode(self._ids)

    def _read(self, went_on: Continuation) -> Reply:
        written = self._format.encode_reply(went_on.text, is_finished=not went_on.is_truncated)
        message, malformed = self._format.parse(written, prefix=self._ids, tools=self._start.tools)
        self._ids += written
        calls = [{"id": f"call_{self._turn}_{i}", **call} for i, call in enumerate(message.get("tool_calls", []))]
        return Reply(
            {**message, "tool_calls": calls} if calls else message,
            num_prompt_tokens=went_on.num_prompt_tokens,
            num_sampled_tokens=went_on.num_sampled_tokens,
            is_truncated=went_on.is_truncated,
            malformed_calls=tuple(malformed),
        )


def _write_sampling(sampling: Sampling, served: Mapping[str, Any]) -> dict[str, Any]:
    """What a server takes beside OpenAI's fields, so that it samples as in training.

    Left to themselves, these sample by the model's generation_config: with its top_k and penalties, and those of
    transformers not at all unless it says so.
    """
    owner = served.get("owned_by")
    others = {"min_p": 0.0, "repetition_penalty": 1.0}

    if owner in ("vllm", "sglang"):
        return {"top_k": -1 if sampling.top_k is None else sampling.top_k, **others}
    if isinstance(served.get("status"), Mapping) and owner != "llamacpp":  # `transformers serve`
        config = {"do_sample": sampling.temperature > 0, "top_k": sampling.top_k or 0, **others}
        return {"generation_config": json.dumps(config)}

    return {} if sampling.top_k is None else {"top_k": sampling.top_k}


def _as_message(answer: Answer) -> dict[str, Any]:
    thoughts, text = (answer.thoughts, answer.text) if answer.thoughts else split_thoughts(answer.text)
    message: dict[str, Any] = {"role": "assistant", "content": text}

    if thoughts:
        message["reasoning_content"] = thoughts
    if answer.calls:
        message["tool_calls"] = list(answer.calls)
    return message
