"""A random Qwen3 of a hundred thousand parameters and a byte-level tokenizer, built in seconds without a hub.

It carries the chat template that TRL recognises by its exact text, so tool calls are parsed and trained on as for the
real models of that family. It writes nonsense: tests that need sense script the completions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["CONTEXT_LENGTH", "build_tiny_policy", "build_tokenizer", "read_template"]

CONTEXT_LENGTH = 4096

_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_VOCABULARY_SIZE = 640


def build_tiny_policy(folder: Path, *, seed: int = 0) -> Path:
    """Save model and tokenizer to the folder, which transformers and TRL take as a model's name."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer(read_template("qwen3_instruct_2507"))
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.08,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def read_template(name: str) -> str:
    """A chat template as TRL keeps it."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def build_tokenizer(template: str, *, named_tokens: Mapping[str, str] | None = None) -> Any:
    """Byte-level pair encoding with all 256 bytes, trained on what a tool conversation looks like.

    Args:
        template: Its chat template.
        named_tokens: Further special tokens, by the attribute that names them.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE - len(_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=specials,
        show_progress=False,
    )
    call = json.dumps({"name": "submit", "arguments": {"text": "a word", "number": 12.5, "flag": True}})
    tokenizer.train_from_iterator([template, call], trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _TOKENS])

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_max_length=CONTEXT_LENGTH,
        extra_special_tokens=dict(named_tokens or {}),
    )
    wrapped.chat_template = template
    return wrapped
