"""A policy small enough to train on a laptop: a Qwen3 of about 0.1 million random weights, and its tokenizer.

Nothing is downloaded. The chat template is the one of Qwen3's instruct models that ships inside the installed TRL, byte
for byte, because TRL recognises a template by its exact text and derives from it how to parse tool calls and which
tokens are the assistant's.

The tokenizer is a byte-level BPE trained on the scripted episodes. What never changes is one token: the whole system
prompt of each environment, and the fixed pieces of a tool call. So small a policy has better uses for its attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trl
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

__all__ = ["Policy", "build_model", "build_tokenizer", "read_chat_template"]

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
_SPECIAL_TOKENS = (PADDING, "<|im_start|>", END_OF_TURN)
_MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_CALL_PHRASES = (
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '": "',
    '": ',
    '", "',
    '"}}\n</tool_call>',
    "}}\n</tool_call>",
    "<tool_response>\n",
    "\n</tool_response>",
)
_VOCABULARY_SIZE = 640
_MAX_TOKENS = 512

# Qwen's pre-tokenizer: contractions, words with their leading space, single digits, punctuation, line breaks, blanks.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Policy:
    """A model and the tokenizer it was made for."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def save(self, folder: Path) -> None:
        """Write both to a folder, from which transformers and `multiors evaluate` load them."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def read_chat_template() -> str:
    """The chat template of Qwen3 instruct models, as the installed TRL carries it."""
    return (Path(trl.__file__).parent / "chat_templates" / "qwen3_instruct_2507.jinja").read_text(encoding="utf-8")


def build_tokenizer(
    conversations: Iterable[Sequence[dict[str, Any]]], toolsets: Iterable[Sequence[Any]]
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on conversations, with each environment's system prompt as a single token.

    Args:
        conversations: Chat messages, as the policy will see and write them.
        toolsets: The tools of each environment, in any form that chat templates accept.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer = _wrap(backend)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # bytes that no transcript holds must be writable too
        show_progress=False,
    )
    texts = [tokenizer.apply_chat_template(list(messages), tokenize=False) for messages in conversations]
    backend.train_from_iterator(texts, trainer=trainer)
    tokenizer = _wrap(backend)
    prompts = [_system_prompt(tokenizer, tools) for tools in toolsets]
    phrases = (*_MARKUP_TOKENS, *_CALL_PHRASES, *prompts)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in phrases])
    return trl.add_response_schema(tokenizer)


def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> PreTrainedModel:
    """A randomly initialised Qwen3 for this tokenizer: two layers of width 64, about 0.1 million weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=256,
        max_position_embeddings=_MAX_TOKENS,
        tie_word_embeddings=True,
        initializer_range=0.08,  # 0.02, the default, is meant for wide layers and learns much slower here
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def _wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        padding_side="left",
        model_max_length=_MAX_TOKENS,
    )
    tokenizer.chat_template = read_chat_template()
    return tokenizer


def _system_prompt(tokenizer: PreTrainedTokenizerFast, tools: Sequence[Any]) -> str:
    """The system prompt that these tools render to, between the markers of the chat format."""
    text = str(tokenizer.apply_chat_template([{"role": "user", "content": ""}], tools=list(tools), tokenize=False))
    return text.split(END_OF_TURN, 1)[0].removeprefix("<|im_start|>")
