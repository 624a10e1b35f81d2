"""Policies that run in this process: each episode its own luck, its tokens as in training, the model left as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from multiors.errors import ConfigError
from multiors.evaluation.policies import LocalPolicy, Policy, PolicyError, Reply, Sampling
from multiors.evaluation.policies.generation import Row, draw_gumbel, find_end_tokens, generate
from multiors.evaluation.policies.seeds import derive_seed
from tests.conversing import asked, begin, converse, opened

TOLD = [{"role": "tool", "name": "say", "content": "said"}]
SHORT = Sampling(max_tokens=24)


@pytest.fixture(scope="module")
def model(tiny_policy: Path) -> Any:
    """The tiny model in double precision, where padding changes no token."""
    return AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float64)


@pytest.fixture(scope="module")
def tokenizer(tiny_policy: Path) -> Any:
    """The tiny model's tokenizer."""
    return AutoTokenizer.from_pretrained(tiny_policy)


def local(model: Any, tokenizer: Any, **options: Any) -> LocalPolicy:
    """A policy of the tiny model that writes short replies."""
    return LocalPolicy(model, tokenizer=tokenizer, **{"sampling": SHORT, **options})


def prompt(seed: int) -> list[dict[str, Any]]:
    """A prompt whose length depends on the seed."""
    return asked("Say something. " * (1 + seed % 5))


async def converse_all(policy: Policy, seeds: Sequence[int], *, at_once: bool) -> dict[int, list[Reply]]:
    """Two turns of each episode, all at once or one after another."""
    replies: dict[int, list[Reply]] = {}

    async def play(seed: int) -> None:
        replies[seed] = await converse(policy, prompt(seed), TOLD, start=begin(seed))

    async with anyio.create_task_group() as group:
        for seed in seeds:
            if at_once:
                group.start_soon(play, seed)
            else:
                await play(seed)
    return replies


# -- luck


@pytest.mark.anyio
@pytest.mark.parametrize(
    "sampling", [SHORT, Sampling(temperature=0.7, top_p=0.9, top_k=20, max_tokens=24), Sampling(0.0, max_tokens=24)]
)
async def test_a_reply_does_not_depend_on_who_else_is_asked(model: Any, tokenizer: Any, sampling: Sampling) -> None:
    """Alone or among others of other lengths, an episode writes the same."""
    async with opened(local(model, tokenizer, sampling=sampling)) as policy:
        together = await converse_all(policy, range(9), at_once=True)
        alone = await converse_all(policy, range(9), at_once=False)

    assert alone == together


@pytest.mark.anyio
async def test_luck_is_the_episodes_and_the_turns(model: Any, tokenizer: Any) -> None:
    """The same seed writes the same again, another seed something else, and greedy writing has no luck."""
    async with opened(local(model, tokenizer)) as policy:
        first, again, other = [(await converse(policy, prompt(0), start=begin(seed)))[0] for seed in (1, 1, 2)]
    async with opened(local(model, tokenizer, sampling=Sampling(0.0, max_tokens=24))) as policy:
        greedy = [(await converse(policy, prompt(0), start=begin(seed)))[0] for seed in (1, 2)]

    assert first == again
    assert first != other
    assert greedy[0] == greedy[1]


def test_neighbouring_episodes_have_nothing_in_common() -> None:
    """The seed of a turn is of the asked size and differs for every episode and turn."""
    seeds = {derive_seed(seed, turn, num_bits=31) for seed in range(100) for turn in range(10)}

    assert 1000 == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3), st.integers(1, 50))
def test_noise_is_a_function_of_key_and_position(keys: list[int], size: int) -> None:
    """That of the published hash, in unsigned numbers; no other row and no length has a part in it."""
    bits = np.array(keys, dtype=np.uint64)[:, None] + np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(factor)
    bits ^= bits >> np.uint64(33)
    expected = -np.log(-np.log1p(-((bits >> np.uint64(32)).astype(float) + 0.5) / 2**32))

    drawn = draw_gumbel(torch.tensor(keys), size).numpy()

    # What is far below zero is drawn never, and rounded.
    assert np.all(np.isclose(expected, drawn, rtol=0, atol=1e-3) | ((expected < -2) & (drawn < -1.9)))


def test_noise_has_gumbels_distribution() -> None:
    """Also far out in its tail, where among many tokens the drawn ones are; rows are independent."""
    noise = draw_gumbel(torch.arange(20), 100_000).double()
    levels = torch.tensor([-1.5, -0.5, 0.0, 1.0, 3.0, 6.0, 9.0], dtype=torch.float64)
    expected = 1 - torch.exp(-torch.exp(-levels))

    found = torch.stack([(noise > level).double().mean() for level in levels])

    errors = (expected * (1 - expected) / noise.numel()).sqrt()
    assert bool(((found - expected).abs() < 4 * errors).all())
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.02


def test_noise_samples_from_the_models_own_distribution(model: Any, tokenizer: Any) -> None:
    """Over many seeds each first token comes as often as its probability says, within five standard errors."""
    ids = tokenizer("Say", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1].float() / 0.5
    expected = torch.softmax(logits, dim=-1)
    num_rows = 4000
    rows = [Row(ids, 1, seed) for seed in range(num_rows)]

    written = generate(model, rows, sampling=Sampling(temperature=0.5), end_tokens=[], padding=0)

    counts = torch.bincount(torch.tensor(written)[:, 0], minlength=len(expected)) / num_rows
    errors = (expected * (1 - expected) / num_rows).sqrt() + 1 / num_rows
    assert bool(((counts - expected).abs() < 5 * errors).all())


def test_two_models_with_equal_seeds_differ_where_they_disagree_alone(model: Any, tokenizer: Any) -> None:
    """Of two models that hardly differ, almost every reply begins with the same token: they share their luck."""
    other = AutoModelForCausalLM.from_pretrained(model.name_or_path, dtype=torch.float64)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.001)
    rows = [Row(tokenizer("Say", add_special_tokens=False)["input_ids"], 1, seed) for seed in range(300)]

    written = [generate(each, rows, sampling=Sampling(), end_tokens=[], padding=0) for each in (model, other)]

    num_equal = sum(first == second for first, second in zip(*written, strict=True))
    assert num_equal > 280
    assert len({tuple(each) for each in written[0]}) > 50


@pytest.mark.parametrize(("sampling", "largest"), [(Sampling(top_k=3), 3), (Sampling(top_p=0.05), 60)])
def test_only_the_likeliest_tokens_are_drawn_from(model: Any, tokenizer: Any, sampling: Sampling, largest: int) -> None:
    """By top_k and top_p."""
    rows = [Row(tokenizer("Say", add_special_tokens=False)["input_ids"], 1, seed) for seed in range(300)]

    written = generate(model, rows, sampling=sampling, end_tokens=[], padding=0)

    assert 1 < len({tuple(each) for each in written}) <= largest


# -- ends


def test_each_row_ends_by_itself(model: Any, tokenizer: Any) -> None:
    """At the end of its turn, which is kept, or where its own tokens are used up."""
    ids = tokenizer("Say", add_special_tokens=False)["input_ids"]
    free = generate(model, [Row(ids, 30, seed) for seed in range(4)], sampling=Sampling(), end_tokens=[], padding=0)
    end = free[0][5]

    rows = [Row(ids, 30, 0), Row(ids, 3, 1), Row(ids, 30, 2), Row(ids, 1, 3)]
    written = generate(model, rows, sampling=Sampling(), end_tokens=[end], padding=0)

    assert free[0][: free[0].index(end) + 1] == written[0]
    assert (free[1][:3], free[3][:1]) == (written[1], written[3])


@pytest.mark.anyio
async def test_a_reply_whose_tokens_are_used_up_is_truncated(model: Any, tokenizer: Any) -> None:
    """And says how many it read and wrote."""
    async with opened(local(model, tokenizer, sampling=Sampling(max_tokens=5))) as policy:
        replies = await converse(policy, prompt(0), TOLD, start=begin(3))

    assert [True, True] == [reply.is_truncated for reply in replies]
    assert [5, 5] == [reply.num_sampled_tokens for reply in replies]
    assert replies[1].num_prompt_tokens > replies[0].num_prompt_tokens + 5  # type: ignore[operator]  # both are known


@pytest.mark.anyio
async def test_a_conversation_as_long_as_the_model_reads_is_truncated(model: Any, tokenizer: Any) -> None:
    """Shortly before, the reply gets what is left; after it, there is none."""
    limit = model.config.max_position_embeddings
    async with opened(local(model, tokenizer)) as policy:
        words = 100
        length = (await converse(policy, asked("a " * words)))[0].num_prompt_tokens
        one_more = (await converse(policy, asked("a " * (words + 1))))[0].num_prompt_tokens
        assert length is not None
        assert one_more is not None
        fitting = words + (limit - length - 1) // (one_more - length)
        replies = [
            (await converse(policy, asked("a " * number), start=begin(1)))[0] for number in (fitting, 2 * fitting)
        ]

    left = limit - (replies[0].num_prompt_tokens or 0)
    assert 0 < left < 24
    assert left == replies[0].num_sampled_tokens
    assert [True, True] == [reply.is_truncated for reply in replies]
    assert ({"role": "assistant", "content": ""}, 0) == (replies[1].message, replies[1].num_sampled_tokens)


# -- calls


class _Scripted(torch.nn.Module):
    """The tiny model with a mouth of its own: it writes given tokens, whatever it reads."""

    def __init__(self, model: Any, replies: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.inner, self._replies, self.read = model, [list(each) for each in replies], []  # type: ignore[var-annotated]
        self.config, self.device, self.name_or_path = model.config, model.device, "scripted"
        self.generation_config = model.generation_config

    def generate(self, *, input_ids: Any, **options: Any) -> Any:
        """What is scripted, after what was read."""
        self.read.append(input_ids[0].tolist())
        return torch.cat([input_ids, torch.tensor([self._replies.pop(0)])], dim=1)


@pytest.mark.anyio
async def test_calls_are_read_and_tokens_go_on_as_they_were_sampled(model: Any, tokenizer: Any) -> None:
    """What is read in the second turn begins with what was read and written in the first, token by token."""
    texts = ['<tool_call>\n{"name": "say",   "arguments": {"text": "a"}}\n</tool_call><|im_end|>', "Done.<|im_end|>"]
    # Not as the tokenizer would write it: byte by byte.
    written = [tokenizer.convert_tokens_to_ids(list("X")) + tokenizer(text)["input_ids"] for text in texts]
    scripted = _Scripted(model, written)
    async with opened(local(scripted, tokenizer)) as policy:
        replies = await converse(policy, prompt(0), TOLD)

    first, second = scripted.read
    assert [{"name": "say", "arguments": {"text": "a"}}] == [
        call["function"] for call in replies[0].message["tool_calls"]
    ]
    assert not replies[0].is_truncated
    assert first + written[0] == second[: len(first) + len(written[0])]
    assert "said" in tokenizer.decode(second[len(first) + len(written[0]) :])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "num_malformed"),
    [
        ('<tool_call>\n{"name": "say", "arguments": [1]}\n</tool_call><|im_end|>', 1),
        ('<tool_call>\n{"name": "say", "arg', 0),
        ("<tool_call>\nsay\n</tool_call><|im_end|>", 0),
    ],
)
async def test_what_training_would_not_call_is_not_called(
    model: Any, tokenizer: Any, text: str, num_malformed: int
) -> None:
    """Arguments that are no object are told of; text that only looks like a call is text."""
    async with opened(local(_Scripted(model, [tokenizer(text)["input_ids"]]), tokenizer)) as policy:
        reply = (await converse(policy, prompt(0)))[0]

    assert "tool_calls" not in reply.message
    assert num_malformed == len(reply.malformed_calls)


@pytest.mark.anyio
async def test_images_are_refused(model: Any, tokenizer: Any) -> None:
    """With the remedy; texts in blocks are joined."""
    image = [{"role": "user", "content": [{"type": "image", "image": object()}]}]
    texts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    async with opened(local(model, tokenizer)) as policy:
        reply = (await converse(policy, texts))[0]
        with pytest.raises(PolicyError, match="reads text only"):
            await converse(policy, image)

    assert reply == (await _once(local(model, tokenizer), asked("a\nb")))


async def _once(policy: LocalPolicy, messages: Sequence[Any]) -> Reply:
    async with opened(policy) as ready:
        return (await converse(ready, messages))[0]


# -- the model


@pytest.mark.anyio
@pytest.mark.parametrize("is_training", [True, False])
async def test_a_loaded_model_is_left_as_it_was(model: Any, tokenizer: Any, is_training: bool) -> None:
    """Its mode, its settings, and the random state of the process."""
    model.train(is_training)
    model.generation_config = GenerationConfig(temperature=0.6, top_k=20, do_sample=True, repetition_penalty=1.3)
    before, state = model.generation_config.to_dict(), torch.random.get_rng_state()

    await _once(local(model, tokenizer), prompt(0))

    assert is_training == model.training
    assert before == model.generation_config.to_dict()
    assert torch.equal(state, torch.random.get_rng_state())
    model.eval()


@pytest.mark.anyio
async def test_the_models_own_way_of_sampling_is_not_used(model: Any, tokenizer: Any) -> None:
    """Its generation_config says what ends a reply, and nothing on how it is drawn: as in training."""
    plain = await _once(local(model, tokenizer), prompt(0))
    own = {"temperature": 0.1, "top_k": 1, "do_sample": True, "repetition_penalty": 1.9, "max_new_tokens": 2}
    model.generation_config = GenerationConfig(**own)
    configured = await _once(local(model, tokenizer), prompt(0))
    model.generation_config = GenerationConfig()

    assert plain == configured


def test_every_declared_end_ends_a_reply(model: Any, tokenizer: Any) -> None:
    """The tokenizer's, and those of the generation_config."""
    model.generation_config = GenerationConfig(eos_token_id=[3, 4])
    ends = find_end_tokens(model, tokenizer)
    model.generation_config = GenerationConfig()

    assert [tokenizer.eos_token_id, 3, 4] == ends


@pytest.mark.anyio
async def test_a_broken_model_is_an_error(tiny_policy: Path, tokenizer: Any) -> None:
    """It is not a policy that writes the token of the lowest number."""
    broken = AutoModelForCausalLM.from_pretrained(tiny_policy)
    broken.model.norm.weight.data.fill_(math.nan)

    with pytest.raises(PolicyError, match="NaN"):
        await _once(local(broken, tokenizer), prompt(0))


@pytest.fixture
def in_folders(tiny_policy: Path) -> list[LocalPolicy]:
    """Two policies of the same folder, made outside the event loop, for which their look at it would be too long."""
    return [LocalPolicy(tiny_policy, sampling=SHORT) for _ in range(2)]


@pytest.mark.anyio
async def test_a_folder_is_loaded_and_let_go(in_folders: list[LocalPolicy], tiny_policy: Path) -> None:
    """It writes something, and says which weights it has."""
    policy, same = in_folders
    from_folder = await _once(policy, prompt(0))
    with pytest.raises(PolicyError, match="it is not open"):
        await converse(policy, prompt(0))

    assert from_folder.num_sampled_tokens
    assert policy.describe() == same.describe()
    assert json.dumps(policy.describe())
    assert tiny_policy.name == policy.name


def test_another_checkpoint_in_the_same_folder_is_another_policy(tmp_path: Path) -> None:
    """An evaluation does not go on with weights that were replaced."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(100_000))
    before = LocalPolicy(tmp_path).describe()
    weights.write_bytes(bytes(99_999) + b"x")

    assert before != LocalPolicy(tmp_path).describe()


def test_what_cannot_be_loaded_is_an_error_before_the_first_episode(tmp_path: Path) -> None:
    """It names the folder and what belongs there."""
    with pytest.raises(ConfigError, match=r"cannot be loaded.*save_pretrained"):
        anyio.run(LocalPolicy(tmp_path).open)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("template", "said"), [(None, "has no chat template"), ("{{ messages[0].content }}", "cannot be used with tools")]
)
async def test_a_template_that_cannot_be_used_is_an_error_before_the_first_episode(
    model: Any, tiny_policy: Path, template: str | None, said: str
) -> None:
    """Training would refuse it too."""
    tokenizer = await anyio.to_thread.run_sync(AutoTokenizer.from_pretrained, tiny_policy)
    tokenizer.chat_template = template

    with pytest.raises(ConfigError, match=said):
        await local(model, tokenizer).open()


def test_a_batch_has_room_for_one_at_least(tiny_policy: Path) -> None:
    """Anything less would wait for ever."""
    with pytest.raises(ConfigError, match="max_batch_size is 0"):
        LocalPolicy(tiny_policy, max_batch_size=0)
