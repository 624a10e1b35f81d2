"""That an episode's tokens are in evaluation what they are in training: against TRL's own tool loop.

When one of these breaks, TRL changed how it writes a conversation, continues it after tools, or reads a reply; what
must follow is `multiors/evaluation/policies/chat_format.py` and `generation.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import torch
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from multiors.evaluation.policies import LocalPolicy, Sampling
from multiors.evaluation.policies.chat_format import ChatFormat
from tests.conversing import SAY, begin, converse, opened, tool
from tests.tiny_policy import build_tokenizer, read_template

CHANGED = "TRL changed its tool loop: see multiors/evaluation/policies/chat_format.py"
RESULTS = [{"role": "tool", "name": "say", "content": "said"}, {"role": "tool", "name": "look", "content": "a\nwall"}]
TEMPLATES = ("qwen3_instruct_2507", "qwen3", "qwen2_5")
PROMPT = [{"role": "system", "content": "You act."}, {"role": "user", "content": "Say 'a', then look."}]
TOOLS = [SAY, tool("look")]


def trainer_of(chat: ChatFormat) -> Any:
    """What TRL's methods on tokens read of their trainer."""
    return SimpleNamespace(
        processing_class=chat.tokenizer,
        _tokenizer=chat.tokenizer,
        chat_template=chat._template,
        chat_template_kwargs={},
        _is_vlm=False,
        environment_factories={"a": None},
        _batch_environments=["a"],
        _env_tools={"a": TOOLS},
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_written_as_in_training(name: str) -> None:
    """Token by token, tools included."""
    chat = ChatFormat(build_tokenizer(read_template(name)), name=name, thinking=None)
    theirs, _, _ = GRPOTrainer._tokenize_prompts(trainer_of(chat), [PROMPT])

    assert theirs[0] == chat.render(PROMPT, TOOLS), CHANGED


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("num_results", [1, 2])
def test_results_of_tools_follow_a_reply_as_in_training(name: str, num_results: int) -> None:
    """Token by token, from the end of the reply to where the model goes on."""
    chat = ChatFormat(build_tokenizer(read_template(name)), name=name, thinking=None)
    theirs = GRPOTrainer._get_tool_suffix_ids(trainer_of(chat), RESULTS[:num_results])

    assert theirs == chat.render_next(RESULTS[:num_results]), CHANGED


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_asked_for_as_in_training(thinking: bool) -> None:
    """`enable_thinking` here is `chat_template_kwargs` of the trainer's arguments."""
    chat = ChatFormat(build_tokenizer(read_template("qwen3")), name="a", thinking=thinking)
    trainer = trainer_of(chat)
    trainer.chat_template_kwargs = {"enable_thinking": thinking}

    assert GRPOTrainer._tokenize_prompts(trainer, [PROMPT])[0][0] == chat.render(PROMPT, TOOLS), CHANGED
    assert GRPOTrainer._get_tool_suffix_ids(trainer, RESULTS) == chat.render_next(RESULTS), CHANGED


class _Environment:
    """Two tools, for TRL to call."""

    def reset(self, **columns: Any) -> None:
        """Begin."""

    def say(self, text: str) -> str:
        """say.

        Args:
            text: What to say.
        """
        return f"said {text}"

    def look(self) -> str:
        """look."""
        return "a\nwall"


@pytest.mark.anyio
async def test_a_whole_episode_has_the_tokens_of_trls_own_loop(tiny_policy: Path, tmp_path: Path) -> None:
    """The same script through TRL's trainer and through a local policy: the model reads the same in every turn."""
    look = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    replies = [
        f'<tool_call>\n{{"name": "say", "arguments": {{"text": "a"}}}}\n</tool_call>\n{look}',
        f"Now  so.{look}",
        "Done.",
    ]
    theirs, calls = await _play_in_training(tiny_policy, tmp_path, replies)
    ours, our_calls = await _play_in_evaluation(tiny_policy, replies)

    assert theirs == ours, CHANGED
    assert calls == our_calls, CHANGED


async def _play_in_training(tiny_policy: Path, folder: Path, replies: Sequence[str]) -> tuple[Any, Any]:
    return await anyio.to_thread.run_sync(_train, tiny_policy, folder, replies)


def _train(tiny_policy: Path, folder: Path, replies: Sequence[str]) -> tuple[list[list[int]], list[Any]]:
    """What the model read in each turn of the first rollout, and the calls that TRL made of its replies."""
    from datasets import Dataset
    from trl import GRPOConfig

    from tests.scripted import small_fields

    read: list[list[int]] = []
    kept: list[Any] = []

    class Trainer(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            turn = len(read)
            read.append(list(prompt_ids[0]))
            return [self._tokenizer(f"{replies[turn]}<|im_end|>")["input_ids"] for _ in prompt_ids], None

    def score(completions: Any, **columns: Any) -> list[float]:
        kept.extend(completions[0])
        return [0.0] * len(completions)

    fields = {**small_fields(folder), "max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2}
    trainer = Trainer(
        model=str(tiny_policy),
        args=GRPOConfig(**fields),
        train_dataset=Dataset.from_list([{"prompt": PROMPT}]),
        environment_factory=_Environment,
        reward_funcs=score,
    )
    trainer.train()
    calls = [message.get("tool_calls") for message in kept if message["role"] == "assistant"]
    return read[: len(replies)], calls


async def _play_in_evaluation(tiny_policy: Path, replies: Sequence[str]) -> tuple[list[list[int]], list[Any]]:
    read: list[list[int]] = []

    def load() -> Any:
        model = AutoModelForCausalLM.from_pretrained(tiny_policy)
        written = iter(replies)

        def write(*, input_ids: Any, **options: Any) -> Any:
            read.append(input_ids[0].tolist())
            return torch.cat([input_ids, torch.tensor([tokenizer(f"{next(written)}<|im_end|>")["input_ids"]])], dim=1)

        model.generate = write
        return model

    from transformers import AutoTokenizer
    from transformers.utils import get_json_schema

    environment = _Environment()
    tokenizer = await anyio.to_thread.run_sync(AutoTokenizer.from_pretrained, tiny_policy)
    model = await anyio.to_thread.run_sync(load)
    tools = await anyio.to_thread.run_sync(
        lambda: [get_json_schema(environment.look), get_json_schema(environment.say)]
    )
    results = [
        [
            {"role": "tool", "name": "say", "content": "said a"},
            {"role": "tool", "name": "look", "content": "a\nwall"},
        ],
        [{"role": "tool", "name": "look", "content": "a\nwall"}],
    ]
    policy = LocalPolicy(model, tokenizer=tokenizer, sampling=Sampling(max_tokens=200))
    async with opened(policy) as ready:
        played = await converse(ready, PROMPT, *results, start=begin(tools=tools))
    return read, [reply.message.get("tool_calls") for reply in played]


def test_trl_has_the_methods_that_are_followed() -> None:
    """`chat_format.py` follows them step by step."""
    names = ["_tokenize_prompts", "_get_tool_suffix_ids", "_generate_single_turn", "_tool_call_loop"]

    assert [] == [name for name in names if not inspect.isfunction(getattr(GRPOTrainer, name, None))], CHANGED
