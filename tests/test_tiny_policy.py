"""The tiny policy is what TRL takes for a model of its family."""

from __future__ import annotations

from pathlib import Path


def test_the_tokenizer_knows_every_byte(tiny_policy: Path) -> None:
    """Any text comes back as it was."""
    from transformers import AutoTokenizer

    text = "".join(map(chr, range(1, 0x250))) + "\u4e00\U0001f680 é"
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    back = tokenizer.decode(tokenizer(text)["input_ids"])

    assert text == back


def test_tool_calls_are_parsed_as_trl_parses_them(tiny_policy: Path) -> None:
    """TRL recognises the chat template and reads tool calls written in it."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import add_response_schema, parse_response

    tokenizer = add_response_schema(AutoTokenizer.from_pretrained(tiny_policy))
    written = '<tool_call>\n{"name": "echo", "arguments": {"text": "oak"}}\n</tool_call><|im_end|>'
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "Say oak."}], add_generation_prompt=True)
    message = parse_response(tokenizer, tokenizer(written)["input_ids"], prefix=asked["input_ids"])

    assert [{"name": "echo", "arguments": {"text": "oak"}}] == [call["function"] for call in message["tool_calls"]]


def test_the_model_is_tiny_and_runs(tiny_policy: Path) -> None:
    """It has about a hundred thousand parameters, and a forward pass is finite."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    logits = model(torch.tensor([[1, 2, 3]])).logits

    assert model.num_parameters() < 200_000
    assert bool(torch.isfinite(logits).all())
