"""How good a policy is: real episodes of every task, before and after training.

Episodes follow the same chat format as in training (tool results are appended as tokens, nothing is tokenized twice),
with sampling at temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import parse_response

from multiors import SessionError
from multiors.quickstart.policy import Policy
from multiors.quickstart.report import Measurement, summarize
from multiors.quickstart.warmstart import Score, tools_of

__all__ = ["measure_policy"]

_BATCH_SIZE = 64
_MAX_TURNS = 4
_MAX_NEW_TOKENS = 48  # the longest turn of a scripted episode has about 30


@dataclass
class _Conversation:
    """An episode in progress."""

    environment: Any
    tools: Sequence[Any]
    ids: list[int]
    """Prompt, and everything since, as the policy sees it."""

    message: dict[str, Any] = field(default_factory=dict)
    """What the policy wrote in the latest turn."""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Tool calls of the latest turn."""
        return [call["function"] for call in self.message.get("tool_calls") or []]


def measure_policy(
    policy: Policy,
    factories: Mapping[str, Callable[[], Any]],
    *,
    tasks: Sequence[tuple[str, int]],
    score: Score,
    seed: int,
    on_episode: Callable[[], None] = lambda: None,
) -> dict[str, Measurement]:
    """Play every (environment, task_index) of `tasks` once and summarize the rewards per environment.

    Args:
        factories: A factory of environments by name.
        on_episode: Called after each episode.
    """
    rewards: dict[str, list[float | None]] = {name: [] for name in factories}
    pool: dict[str, list[Any]] = {name: [] for name in factories}
    was_training = policy.model.training
    policy.model.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            for start in range(0, len(tasks), _BATCH_SIZE):
                batch = tasks[start : start + _BATCH_SIZE]
                borrowed = [(name, pool[name].pop() if pool[name] else factories[name]()) for name, _ in batch]
                conversations = [
                    _open(policy.tokenizer, environment, task_index=task_index)
                    for (_, environment), (_, task_index) in zip(borrowed, batch, strict=True)
                ]
                _converse(policy, conversations)
                scored = score(
                    [environment for _, environment in borrowed],
                    [[conversation.message] for conversation in conversations],
                )
                for (name, environment), reward in zip(borrowed, scored, strict=True):
                    rewards[name].append(reward)
                    environment._close()
                    pool[name].append(environment)
                    on_episode()
    finally:
        policy.model.train(was_training)
    return {name: summarize(values) for name, values in rewards.items()}


def _open(tokenizer: PreTrainedTokenizerFast, environment: Any, *, task_index: int) -> _Conversation:
    prompt = environment.reset(task_index=task_index)
    tools = tools_of(environment)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tools=tools, add_generation_prompt=True, return_dict=False
    )
    return _Conversation(environment, tools, list(ids))


def _converse(policy: Policy, batch: Sequence[_Conversation]) -> None:
    """Let the policy write and the tools answer, until no episode calls a tool or the turns are used up."""
    active = list(batch)
    for turn in range(_MAX_TURNS):
        for conversation, written in zip(active, _generate(policy, active), strict=True):
            conversation.message = parse_response(
                policy.tokenizer, written, prefix=conversation.ids, tools=list(conversation.tools)
            )
            conversation.ids += written
        active = [conversation for conversation in active if conversation.calls]
        if not active or turn == _MAX_TURNS - 1:
            return
        for conversation in active:
            conversation.ids += _answer(policy.tokenizer, conversation)


def _generate(policy: Policy, batch: Sequence[_Conversation]) -> list[list[int]]:
    tokenizer = policy.tokenizer
    width = max(len(conversation.ids) for conversation in batch)
    padded = [[int(tokenizer.pad_token_id)] * (width - len(c.ids)) + c.ids for c in batch]
    mask = [[0] * (width - len(c.ids)) + [1] * len(c.ids) for c in batch]
    output = policy.model.generate(
        input_ids=torch.tensor(padded),
        attention_mask=torch.tensor(mask),
        max_new_tokens=_MAX_NEW_TOKENS,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    rows = output[:, width:].tolist()
    end = tokenizer.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def _answer(tokenizer: PreTrainedTokenizerFast, conversation: _Conversation) -> list[int]:
    """Run the calls of the latest turn, and return the tokens in which the policy reads their results."""
    results = []
    offered = {tool.__name__: tool for tool in conversation.tools}
    for call in conversation.calls:
        tool = offered.get(call["name"])
        if tool is None:
            result = f"There is no tool {call['name']!r}."
        else:
            try:
                result = str(tool(**call["arguments"]))
            except SessionError as error:  # the call was refused; the text is for the policy
                result = str(error)
        results.append({"role": "tool", "name": call["name"], "content": result})
    calls = [{"type": "function", "function": call} for call in conversation.calls]
    before = [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "tool_calls": calls}]
    prefix = tokenizer.apply_chat_template(before, tokenize=False).removesuffix("\n")
    text = tokenizer.apply_chat_template([*before, *results], tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text[len(prefix) :], add_special_tokens=False)["input_ids"])
