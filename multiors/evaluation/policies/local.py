"""A policy that runs in this process: a model of transformers, from a folder, a hub or in memory.

Decides how an episode's tokens grow: the prompt is written by the chat template once; what the model samples is kept as
it was sampled; what tools answer is appended in the template's words. Nothing is tokenized twice, as in training.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.to_thread

from multiors.errors import ConfigError
from multiors.evaluation.policies.batching import Batcher
from multiors.evaluation.policies.policy import Conversation, Message, PolicyError, Reply, Sampling, Start
from multiors.evaluation.policies.seeds import derive_seed
from multiors.ors.text import one_line

if TYPE_CHECKING:
    from multiors.evaluation.policies.chat_format import ChatFormat

__all__ = ["LocalPolicy"]

_WEIGHTS = (".safetensors", ".bin")
_SAMPLE_BYTES = 1 << 16


class LocalPolicy:
    """A model of transformers, asked in batches.

    Replies that are asked for at the same time are written together; what one writes does not depend on the others,
    up to rounding. Each reply's tokens are drawn with the luck of its episode and turn, so that two policies with the
    same tokenizer that play the same episodes differ by what they are, not by chance.

    Args:
        model: A folder, a model's name on the hub, or a loaded model, which stays where it is unless `device` is given.
        tokenizer: The same, of its tokenizer. None: the model's own.
        sampling: How replies are sampled.
        max_batch_size: Replies that are written at the same time, at most.
        device: Where the model runs, as torch names it. None: the first GPU, or the CPU.
        name: For people. None: the folder's or the model's.
        thinking: Whether the chat template asks for thoughts (`enable_thinking`). None: the template's default.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        sampling: Sampling = Sampling(),  # noqa: B008  # it is frozen
        max_batch_size: int = 64,
        device: str | None = None,
        name: str | None = None,
        thinking: bool | None = None,
    ) -> None:
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size is {max_batch_size!r}; it is 1 or more.")

        self._is_path = isinstance(model, str | Path)
        source = str(model) if self._is_path else str(getattr(model, "name_or_path", "") or type(model).__name__)
        is_folder = self._is_path and Path(source).is_dir()
        self.name = name or (Path(source).absolute().name if is_folder else source)
        self._digest = _digest(Path(source)) if is_folder else None
        self.max_concurrent_replies = max_batch_size
        self.sees_images = False
        self.secrets: Sequence[str] = ()
        self._source = source
        self._model = None if self._is_path else model
        self._given_tokenizer = tokenizer
        self._sampling = sampling
        self._device = device
        self._thinking = thinking
        self._batcher: Batcher[_Request, Reply | PolicyError] = Batcher(self._answer, max_size=max_batch_size)
        self._format: ChatFormat | None = None

    def describe(self) -> Mapping[str, Any]:
        """Kind, name, model, a digest of its weights where they lie in a folder, and sampling."""
        return {
            "kind": "local",
            "name": self.name,
            "model": self._source,
            "weights": self._digest,
            "sampling": asdict(self._sampling),
            "thinking": self._thinking,
        }

    async def open(self) -> None:
        """Load model and tokenizer.

        Raises:
            ConfigError: They cannot be loaded, or the chat template cannot be used with tools.
        """
        await anyio.to_thread.run_sync(self._load)

    def start(self, start: Start) -> Conversation:
        """Begin an episode."""
        return _Conversation(self._batcher, start)

    async def close(self) -> None:
        """Let go of the model, if it was loaded here."""
        self._format = None
        if self._is_path:
            self._model = None

    def _load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from multiors.evaluation.policies.chat_format import ChatFormat
        from multiors.evaluation.policies.generation import find_end_tokens, find_limit

        _check_adapter(Path(self._source), self.name)
        own = self._source if self._given_tokenizer is None else self._given_tokenizer
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(own)) if isinstance(own, str | Path) else own
            model = AutoModelForCausalLM.from_pretrained(self._source, dtype="auto") if self._is_path else self._model
        except (OSError, ValueError, ImportError, KeyError) as error:
            raise ConfigError(
                f"policy {self.name!r}: {self._source!r} cannot be loaded: {one_line(str(error)).rstrip('.')}. Pass a "
                f"folder that `save_pretrained` wrote, with its tokenizer, or a model's name on the hub."
            ) from error

        self._format = ChatFormat(tokenizer, name=self.name, thinking=self._thinking)
        device = self._device or ("cuda" if self._is_path and torch.cuda.is_available() else None)
        self._model = model.to(device) if model is not None and device is not None else model
        self._end_tokens = find_end_tokens(model, tokenizer)
        self._limit = find_limit(model)

    def _answer(self, requests: Sequence[_Request]) -> list[Reply | PolicyError]:
        """Answer a batch; runs in a thread."""
        answers: list[Reply | PolicyError | None] = [self._prepare(request) for request in requests]
        rows = [request for request, answer in zip(requests, answers, strict=True) if answer is None]
        written = iter(self._write(rows) if rows else [])
        return [
            self._read(request.episode, next(written)) if answer is None else answer
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _prepare(self, request: _Request) -> Reply | PolicyError | None:
        """Put what is new into the episode's tokens. The answer, if it is known before the model is asked."""
        if self._format is None:
            return PolicyError(f"policy {self.name!r}: it is not open.")

        episode = request.episode
        try:
            if not episode.ids:
                new = self._format.render(request.messages, episode.start.tools)
            else:
                new = self._format.render_next(request.messages) if request.messages else []
        except PolicyError as error:
            return error

        if self._limit is not None and len(episode.ids) + len(new) >= self._limit:
            return Reply(
                {"role": "assistant", "content": ""},
                num_prompt_tokens=len(episode.ids) + len(new),
                num_sampled_tokens=0,
                is_truncated=True,
            )

        episode.ids += new
        return None

    def _write(self, requests: Sequence[_Request]) -> list[list[int]]:
        from multiors.evaluation.policies.generation import Row, generate

        assert self._format is not None
        rows = []
        for request in requests:
            episode = request.episode
            left = self._sampling.max_tokens if self._limit is None else self._limit - len(episode.ids)
            seed = derive_seed(episode.start.seed, episode.turn, num_bits=63)
            rows.append(Row(episode.ids, min(left, self._sampling.max_tokens), seed))

        try:
            return generate(
                self._model,
                rows,
                sampling=self._sampling,
                end_tokens=self._end_tokens,
                padding=self._format.tokenizer.pad_token_id,
            )
        except RuntimeError as error:  # torch's: no memory left, a device that failed
            if isinstance(error, PolicyError):
                raise
            raise PolicyError(
                f"policy {self.name!r}: {len(rows)} replies to conversations of up to {max(len(r.ids) for r in rows)} "
                f"tokens could not be written: {one_line(str(error))}. If memory is short, lower max_batch_size."
            ) from error

    def _read(self, episode: _Conversation, written: list[int]) -> Reply:
        assert self._format is not None
        message, malformed = self._format.parse(written, prefix=episode.ids, tools=episode.start.tools)
        num_prompt_tokens = len(episode.ids)
        episode.ids += written
        episode.turn += 1
        return Reply(
            message,
            num_prompt_tokens=num_prompt_tokens,
            num_sampled_tokens=len(written),
            is_truncated=not written or written[-1] not in self._end_tokens,
            malformed_calls=tuple(malformed),
        )


class _Request(NamedTuple):
    episode: _Conversation
    messages: Sequence[Message]


class _Conversation:
    def __init__(self, batcher: Batcher[_Request, Reply | PolicyError], start: Start) -> None:
        self._batcher = batcher
        self.start = start
        self.ids: list[int] = []
        """Prompt, and everything since, as the model sees it."""

        self.turn = 0
        """Replies so far."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        answer = await self._batcher.ask(_Request(self, messages))

        if isinstance(answer, PolicyError):
            raise answer
        return answer

    async def end(self) -> None:
        self.ids = []


def _check_adapter(folder: Path, name: str) -> None:
    """Check that an adapter can be loaded onto its model, if the folder holds one."""
    is_adapter = (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()

    if is_adapter and importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"policy {name!r}: {str(folder)!r} holds an adapter, and the package peft is not installed. Run pip "
            f"install 'multiors[peft]', or merge the adapter into its model and pass that."
        )


def _digest(folder: Path) -> str:
    """Of the names and sizes of a folder's weights and parts of their content: another checkpoint has another."""
    digest = hashlib.sha256()

    for path in sorted(each for each in folder.iterdir() if each.suffix in _WEIGHTS):
        size = path.stat().st_size
        digest.update(f"{path.name}/{size}/".encode())

        with path.open("rb") as file:
            for position in range(0, size, max(_SAMPLE_BYTES, size // 8)):
                file.seek(position)
                digest.update(file.read(_SAMPLE_BYTES))

    return digest.hexdigest()[:16]
