"""The warm start: scripted episodes against the real servers, and supervised training on what the scripts wrote.

A policy of random weights never writes a tool call, so reinforcement learning would have nothing to choose from. The
scripts teach it the form. They also leak some of the answers: a script knows the right one in one case of five, and
otherwise draws uniformly from the valid ones, which with four of them makes it right in two cases of five. Without that
hint a policy of this size learns from the rewards alone what it can, but takes several times as long and often less.

Loss is taken on the assistant's tokens only, as TRL's training template marks them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast
from trl import get_training_chat_template

from multiors.quickstart.environments import (
    BIN_BY_ITEM,
    CELSIUS_BY_TEA,
    ENGLISH_BY_ADJECTIVE,
    ENGLISH_BY_NOUN,
    PLATE_BY_TARGET,
)
from multiors.quickstart.policy import Policy

__all__ = ["SCRIPTS", "Call", "Episode", "Score", "Script", "encode_episode", "fit", "play", "tools_of"]

Call = tuple[str, dict[str, Any]]
Script = Callable[[str, random.Random], Generator[Call, str, str]]
Score = Callable[[Sequence[Any], Sequence[Sequence[dict[str, Any]]]], Sequence[float | None]]
"""The rewards of played episodes, given the environment of each and what was said in it, of which the end is judged."""

T = TypeVar("T")

_KNOWS = 0.2  # how often a script knows the right answer; otherwise it draws

_RESERVED = frozenset({"reset", "get_reward"})
_GOODBYE = "Done."


@dataclass(frozen=True)
class Episode:
    """One scripted episode."""

    environment: str
    messages: tuple[dict[str, Any], ...]
    reward: float | None
    """None: unscored."""


def _answer(rng: random.Random, right: T, options: Sequence[T]) -> T:
    return right if rng.random() < _KNOWS else rng.choice(options)


def _recycling(prompt: str, rng: random.Random) -> Generator[Call, str, str]:
    item = prompt.removeprefix("Sort this: ").removesuffix(".")
    yield "drop", {"item": item, "bin": _answer(rng, BIN_BY_ITEM[item], sorted(set(BIN_BY_ITEM.values())))}
    return _GOODBYE


def _teahouse(prompt: str, rng: random.Random) -> Generator[Call, str, str]:
    order = yield "take_order", {"guest": prompt.split()[0]}
    tea = order.split()[2]
    yield "brew", {"tea": tea, "celsius": _answer(rng, CELSIUS_BY_TEA[tea], list(CELSIUS_BY_TEA.values()))}
    return _GOODBYE


def _observatory(prompt: str, rng: random.Random) -> Generator[Call, str, str]:
    target = prompt.split()[1]
    directions, minutes = zip(*PLATE_BY_TARGET.values(), strict=True)
    direction, exposure = PLATE_BY_TARGET[target]
    yield (
        "expose",
        {
            "target": target,
            "direction": _answer(rng, direction, directions),
            "minutes": _answer(rng, exposure, minutes),
        },
    )
    return _GOODBYE


def _museum(prompt: str, rng: random.Random) -> Generator[Call, str, str]:
    label = yield "read_label", {}
    words = zip(label.split(), (ENGLISH_BY_ADJECTIVE, ENGLISH_BY_NOUN), strict=True)
    return ", ".join(f"{word} means {_answer(rng, english[word], list(english.values()))}" for word, english in words)


SCRIPTS: dict[str, Script] = {
    "recycling": _recycling,
    "teahouse": _teahouse,
    "observatory": _observatory,
    "museum": _museum,
}
"""A scripted player by environment. It is given the prompt, yields calls, is sent each call's result, and returns what
it says last."""


def tools_of(environment: Any) -> list[Callable[..., Any]]:
    """The tools that TRL offers to the policy: the public methods of the environment's class, but for its own two."""
    methods = {name: member for name, member in vars(type(environment)).items() if callable(member)}
    return [getattr(environment, name) for name in sorted(methods) if name[0] != "_" and name not in _RESERVED]


def play(
    name: str,
    environment: Any,
    *,
    task_index: int,
    rng: random.Random,
    score: Score,
    scripts: Mapping[str, Script] = SCRIPTS,
) -> Episode:
    """Let the script of environment `name` play one task, on the server behind `environment`, and score it."""
    prompt = environment.reset(task_index=task_index)
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    script = scripts[name](prompt, rng)
    try:
        tool, arguments = next(script)
        while True:
            function = {"name": tool, "arguments": arguments}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
            )
            output = getattr(environment, tool)(**arguments)
            messages.append({"role": "tool", "name": tool, "content": output})
            tool, arguments = script.send(output)
    except StopIteration as stop:
        messages.append({"role": "assistant", "content": stop.value})
    return Episode(name, tuple(messages), score([environment], [messages[1:]])[0])


def fit(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    tools_by_environment: Mapping[str, Sequence[Any]],
    steps: int,
    rng: random.Random,
    on_step: Callable[[float], None] = lambda loss: None,
    batch_size: int = 24,
    learning_rate: float = 6e-3,
) -> float:
    """Train the policy to write what the scripts wrote. Returns the loss of the last step.

    Args:
        steps: Optimizer steps; each draws `batch_size` episodes with replacement.
        on_step: Called with the loss after every step.
    """
    model, tokenizer = policy.model, policy.tokenizer
    template = get_training_chat_template(tokenizer)
    examples = [
        encode_episode(tokenizer, episode, tools_by_environment[episode.environment], template=template)
        for episode in episodes
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 1.0) * max(1.0 - step / steps, 0.05)
    )
    model.train()
    last_loss = float("nan")
    for _ in range(steps):
        batch = rng.choices(examples, k=batch_size)
        ids = pad_sequence([ids for ids, _ in batch], batch_first=True, padding_value=int(tokenizer.pad_token_id))
        labels = pad_sequence([labels for _, labels in batch], batch_first=True, padding_value=-100)
        mask = pad_sequence([torch.ones_like(ids) for ids, _ in batch], batch_first=True)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        last_loss = float(loss.detach())
        on_step(last_loss)
    return last_loss


def encode_episode(tokenizer: PreTrainedTokenizerFast, episode: Episode, tools: Sequence[Any], *, template: str) -> Any:
    """Token ids of an episode, and labels that ignore everything the policy does not write."""
    encoded = tokenizer.apply_chat_template(
        list(episode.messages),
        tools=list(tools),
        chat_template=template,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids = torch.tensor(encoded["input_ids"])
    return ids, ids.masked_fill(torch.tensor(encoded["assistant_masks"]) == 0, -100)
