"""Replies of a model of transformers, many at once, each with its own luck.

Decides how a token is drawn: the highest of the log-probabilities, each with Gumbel noise made of the row's seed. That
samples exactly from the model, what a row draws does not depend on who else is in the batch, and two models with equal
seeds draw the same token wherever they agree. Padding changes sums in their last digits, so that rows are equal up to
rounding. Imports torch: load it late.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from multiors.evaluation.policies.policy import PolicyError, Sampling
from multiors.evaluation.policies.seeds import derive_seed

__all__ = ["Row", "draw_gumbel", "find_end_tokens", "find_limit", "generate"]

# As signed numbers, which is what torch has; products overflow as those of unsigned ones do.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FACTORS = (0xFF51AFD7ED558CCD - 2**64, 0xC4CEB9FE1A85EC53 - 2**64)


class Row(NamedTuple):
    """What a reply is asked for."""

    ids: Sequence[int]
    """The conversation so far."""

    max_tokens: int
    """At least 1."""

    seed: int


def generate(
    model: Any, rows: Sequence[Row], *, sampling: Sampling, end_tokens: Sequence[int], padding: int
) -> list[list[int]]:
    """Tokens of a reply to each row, the end of the turn included where it was written.

    The model is in evaluation mode meanwhile, and as before afterwards.

    Raises:
        PolicyError: The model gives no numbers.
    """
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([[padding] * (width - len(row.ids)) + list(row.ids) for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows], device=model.device)
    config = _configure(model, end_tokens, padding, max_tokens=max(row.max_tokens for row in rows))

    with _evaluating(model, config), torch.no_grad():
        written = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=_draws(rows, sampling),
            stopping_criteria=StoppingCriteriaList([_Budgets(rows, width, model.device)]),
        )

    return [
        _cut(tokens[: row.max_tokens], end_tokens)
        for tokens, row in zip(written[:, width:].tolist(), rows, strict=True)
    ]


def find_end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a reply: the tokenizer's, and those that the model declares."""
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    declared = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    own = tokenizer.eos_token_id
    return declared if own is None or own in declared else [own, *declared]


def find_limit(model: Any) -> int | None:
    """Tokens of a conversation that the model can read. None: it does not say."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) else None


def _cut(tokens: list[int], end_tokens: Sequence[int]) -> list[int]:
    end = next((position for position, token in enumerate(tokens) if token in end_tokens), len(tokens))
    return tokens[: end + 1]


def _configure(model: Any, end_tokens: Sequence[int], padding: int, *, max_tokens: int) -> GenerationConfig:
    """The model's own settings without those on how a token is drawn, which are ours."""
    config = copy.deepcopy(model.generation_config) if model.generation_config is not None else GenerationConfig()
    drawing = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "penalty_alpha")
    lengths = ("max_length", "min_length", "min_new_tokens", "max_time", "stop_strings")

    for name in (*drawing, *lengths):
        setattr(config, name, None)
    config.update(
        do_sample=False,  # the highest is taken after noise was added
        num_beams=1,
        repetition_penalty=1.0,
        max_new_tokens=max_tokens,
        eos_token_id=list(end_tokens),
        pad_token_id=padding,
        use_cache=True,
        disable_compile=True,
        return_dict_in_generate=False,
    )
    return config


@contextmanager
def _evaluating(model: Any, config: GenerationConfig) -> Iterator[None]:
    """In evaluation mode, and with no settings of its own: `generate` would fill gaps of ours with them."""
    was_training, own_config = model.training, model.generation_config
    model.eval()
    model.generation_config = config

    try:
        yield
    finally:
        model.generation_config = own_config
        model.train(was_training)


def _draws(rows: Sequence[Row], sampling: Sampling) -> LogitsProcessorList:
    steps: list[LogitsProcessor] = [_Checked()]

    if sampling.temperature > 0:
        if sampling.temperature != 1:
            steps.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k is not None:
            steps.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            steps.append(TopPLogitsWarper(sampling.top_p))
        steps.append(_Noise(rows))
    return LogitsProcessorList(steps)


class _Checked(LogitsProcessor):
    """Refuses a model that is broken: the highest of what is no number would be some token."""

    def __init__(self) -> None:
        self._is_checked = False

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if not self._is_checked and bool(scores.isnan().any()):
            raise PolicyError("the model's scores of the next token are not numbers (NaN): its weights are broken.")

        self._is_checked = True
        return scores


class _Noise(LogitsProcessor):
    """Adds Gumbel noise: a hash of the row's seed, the step and the token, the same on every device."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._seeds = [row.seed for row in rows]
        self._step = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        keys = torch.tensor([derive_seed(seed, self._step, num_bits=63) for seed in self._seeds], device=scores.device)
        self._step += 1
        # A row at a time stays in the cache of a CPU, three times as quick; a GPU is quicker with all at once.
        parts = keys.split(1 if scores.device.type == "cpu" else len(keys))
        return scores + torch.cat([draw_gumbel(part, scores.shape[-1]) for part in parts])


def draw_gumbel(keys: Any, size: int) -> Any:
    """Gumbel noise, `size` values for each of the keys; a value depends on its key and position alone.

    The bits are those of SplitMix64 with the finalizer of MurmurHash3.
    """
    bits = keys[:, None] + torch.arange(size, device=keys.device) * _STEP
    for factor in (*_FACTORS, None):
        bits ^= (bits >> 33) & 0x7FFFFFFF  # as of an unsigned number
        if factor is not None:
            bits *= factor

    # Small values are kept exactly: among many tokens they decide.
    uniform = ((bits >> 32) & 0xFFFFFFFF).float().add_(0.5).mul_(2.0**-32)
    return uniform.neg_().log1p_().neg_().log_().neg_()


class _Budgets(StoppingCriteria):
    """Ends each row when its own tokens are used up."""

    def __init__(self, rows: Sequence[Row], width: int, device: Any) -> None:
        self._ends = torch.tensor([width + row.max_tokens for row in rows], device=device)

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return self._ends <= input_ids.shape[1]
