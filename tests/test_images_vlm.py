"""A model that takes images trains on them: TRL's trainers, a small Qwen3-VL and images from real servers.

The model samples each turn for itself, with the images as TRL gives them to it; a script then says something else.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from trl import GRPOTrainer

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord
from multiors.rollout_log import read_rollouts
from tests.scripted import (
    ConcurrentScriptedTrainer,
    Script,
    ScriptedTrainer,
    call,
    make_arguments,
    make_trainer,
    train,
)
from tests.servers.features import png
from tests.servers.launch import ServerHandle, serve
from tests.tiny_vlm import IMAGE_TOKEN

IMAGE = f"<|vision_start|>{IMAGE_TOKEN * 4}<|vision_end|>"
REMARK = f"[image: image/png, {len(png((0, 0, 255))) * 3 // 4:,} bytes]"
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


class Watched:
    """Samples each turn for real, and keeps what the policy was shown and what it was trained on."""

    shown: list[str]
    trained_on: list[tuple[str, list[str], int]]
    """Row for row: its text, the colours of its images, and how many of its tokens are said to be of images."""

    def _generate_single_turn(self: Any, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        self.shown += map(self._tokenizer.decode, prompt_ids)
        GRPOTrainer._generate_single_turn(self, prompt_ids, *args, **kwargs)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]  # stands before a trainer

    def _get_per_token_logps_and_entropies(self: Any, model: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        colours = iter(name_colours(self.processing_class, kwargs["pixel_values"], kwargs["image_grid_thw"]))

        for row, ids in enumerate(input_ids):
            images = [next(colours) for _ in range(kwargs["num_images"][row])]
            num_tokens = int(kwargs["mm_token_type_ids"][row].sum())
            self.trained_on.append((self._tokenizer.decode(ids, skip_special_tokens=True), images, num_tokens))

        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)  # type: ignore[misc]


class Stock(Watched, ScriptedTrainer):
    """TRL's trainer."""


class Concurrent(Watched, ConcurrentScriptedTrainer):
    """Ours."""


def name_colours(processor: Any, pixel_values: torch.Tensor, grids: torch.Tensor) -> list[str]:
    """The colour of each image, in order, by what the processor makes of pictures of these colours."""
    pictures = [Image.new("RGB", (4, 4), colour) for colour in COLOURS.values()]
    known = processor.image_processor(images=pictures)["pixel_values"].chunk(len(COLOURS))
    images = pixel_values.split(grids.prod(-1).tolist())
    return [next(name for name, it in zip(COLOURS, known, strict=True) if torch.equal(it, image)) for image in images]


def look(conversation: str, row: int) -> str:
    """Even rows do well; odd rows stare at a picture, look at none, or say the wrong word."""
    is_good = row % 2 == 0

    if "<tool_response>" in conversation:
        return "done"
    if "Say " in conversation:
        word = conversation.rpartition("Say ")[2].partition(".")[0]
        return call("echo", text=word if is_good else "wrong")
    if "before" in conversation:
        return call("look" if is_good else "stare")

    return call("look") if is_good else "Nothing."


@pytest.fixture(scope="module")
def gallery() -> Iterator[ServerHandle]:
    """`Pictures` and `Echo`."""
    with serve("Pictures", "Echo") as server:
        yield server


def make_sources(server: ServerHandle, *names: str) -> dict[str, ORSSource]:
    """Images in prompts and tool results, in tool results, and nowhere; nothing is said about the model."""
    sources = {
        "shown": ORSSource(server.url, env_name="pictures", split="prompt"),
        "called": ORSSource(server.url, env_name="pictures", split="tool"),
        "echo": ORSSource(server.url, env_name="echo"),
    }
    return {name: sources[name] for name in names}


@pytest.mark.parametrize("trainer_class", [Stock, Concurrent])
def test_images_in_prompts_and_tool_results_are_trained_on(
    gallery: ServerHandle, tiny_vlm: Path, tmp_path: Path, trainer_class: Any
) -> None:
    """Beside a source of text, each image stands in its place, with its pixels, in sampling, training and records."""
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec(
        make_sources(gallery, "shown", "called", "echo"),
        on_rollouts=records.extend,
        rollout_log=tmp_path / "log",
    )
    fields: dict[str, Any] = {"per_device_train_batch_size": 6, "num_generations": 2, "max_steps": 1}
    args = make_arguments(spec, tmp_path, generation_kwargs={"max_new_tokens": 1}, **fields)
    trainer = make_trainer(spec, tiny_vlm, args, script=look, trainer_class=trainer_class)
    trainer.shown, trainer.trained_on = [], []
    trainer.train()
    counts = gallery.wait_until(lambda counts: not counts.active)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    seen = {
        name: sorted((images, num_tokens) for text, images, num_tokens in trainer.trained_on if word in text)
        for name, word in (("shown", "before"), ("called", "\nLook.\n"), ("echo", "Say "))
    }

    assert {
        "shown": [(["red", "blue"], 8)] * 2,
        "called": [([], 0), (["blue"], 4)],
        "echo": [([], 0)] * 2,
    } == seen
    assert any(f"before{IMAGE}after" in text for text in trainer.shown)
    assert any(f"<tool_response>\nIt is blue:{IMAGE}\n</tool_response>" in text for text in trainer.shown)
    assert {
        ("shown", 1.0, f"It is blue:\n{REMARK}"),
        ("shown", 0.5, REMARK),
        ("called", 1.0, f"It is blue:\n{REMARK}"),
        ("called", None, None),
    } == {
        (record.source, record.reward, record.steps[0].output if record.steps else None)
        for record in records
        if record.source != "echo"
    }
    assert 6 == len(records) == len(list(read_rollouts(tmp_path / "log")))
    assert [True] == [math.isfinite(loss) for loss in losses]
    assert not counts.active


def be_silent(conversation: str, row: int) -> str:
    """Look at nothing; but say something, where that is asked for."""
    return look(conversation, row) if "Say " in conversation else "Nothing."


def miss(conversation: str, row: int) -> str:
    """Call a tool that there is not."""
    return "done" if "<tool_response>" in conversation else call("nothing")


def train_for_a_step(
    server: ServerHandle,
    model: Path,
    folder: Path,
    *names: str,
    script: Script = look,
    trainer_class: Any = ScriptedTrainer,
    **fields: Any,
) -> float:
    """The loss of one step; sessions are closed whatever happens."""
    with MultiOpenRewardSpec(make_sources(server, *names)) as spec:
        args = make_arguments(spec, folder, num_generations=2, max_steps=1, **fields)
        trainer = train(spec, model, args, script=script, trainer_class=trainer_class)
        return next(float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)


def test_trl_takes_no_batch_in_which_some_prompts_have_images(
    gallery: ServerHandle, tiny_vlm: Path, tmp_path: Path
) -> None:
    """Where some prompts show images and nothing else does, TRL 1.16 hands the processor None for the others."""
    with pytest.raises(TypeError, match=r"only a single or a list of entries is supported but got type=<class 'None"):
        train_for_a_step(gallery, tiny_vlm, tmp_path, "shown", "echo", script=be_silent, per_device_train_batch_size=4)
    assert not gallery.wait_until(lambda counts: not counts.active).active


def test_trl_takes_no_part_of_a_batch_without_its_images(gallery: ServerHandle, tiny_vlm: Path, tmp_path: Path) -> None:
    """Where a forward pass has no image of its batch's, TRL 1.16 gives the model an empty tensor of pixels."""
    parts: dict[str, Any] = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    with pytest.raises(RuntimeError, match=r"repeats must have the same size as input along dim, but got"):
        train_for_a_step(gallery, tiny_vlm, tmp_path, "called", **parts)
    assert not gallery.wait_until(lambda counts: not counts.active).active


def test_trl_takes_no_prompts_with_images_from_a_processor_of_arrays(
    gallery: ServerHandle, tiny_vlm: Path, tmp_path: Path
) -> None:
    """Without torchvision a processor returns arrays, unless told otherwise; TRL 1.16 cannot split them for a call."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_vlm, folder)
    settings = folder / "processor_config.json"
    settings.write_text(settings.read_text(encoding="utf-8").replace('"return_tensors": "pt",', ""), encoding="utf-8")

    with pytest.raises(AttributeError, match=r"'list' object has no attribute 'prod'"):
        train_for_a_step(gallery, folder, tmp_path, "shown", script=miss, per_device_train_batch_size=2)
    assert not gallery.wait_until(lambda counts: not counts.active).active


@pytest.mark.parametrize(("names", "script"), [(("shown", "echo"), be_silent), (("called",), look)])
@pytest.mark.parametrize("size", [1, 2])
def test_ours_takes_batches_of_which_a_part_has_images(
    gallery: ServerHandle, tiny_vlm: Path, tmp_path: Path, names: tuple[str, ...], script: Script, size: int
) -> None:
    """Sources with and without images mix, and so do rollouts that looked at an image and rollouts that did not."""
    fields: dict[str, Any] = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": 2 * len(names) // size,
    }
    loss = train_for_a_step(
        gallery,
        tiny_vlm,
        tmp_path,
        *names,
        script=script,
        trainer_class=ConcurrentScriptedTrainer,
        **fields,
    )

    assert math.isfinite(loss)
    assert not gallery.wait_until(lambda counts: not counts.active).active
