"""Images in prompts and tool results: shown to models that take them, and otherwise refused or left out as asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, UnscoredReason
from multiors.errors import ConfigError, SessionError, SourceError
from multiors.ors.content import ImageBlock, describe_images
from multiors.ors.rollouts.factory import EnvironmentFactory
from tests.playing import factories, play, score
from tests.scripted import call, make_arguments, make_trainer, train
from tests.servers.features import png
from tests.servers.launch import ServerHandle, serve

UNOPENED = "The environment could not be opened. There is nothing to do here."


@pytest.fixture(scope="module")
def gallery() -> Iterator[ServerHandle]:
    """`Pictures`."""
    with serve("Pictures") as server:
        yield server


def make_factory(server: ServerHandle, split: str, **options: Any) -> EnvironmentFactory:
    """The factory of a source alone."""
    return ORSSource(server.url, split=split, **options).environment_factory


def colour(block: dict[str, Any]) -> Any:
    """The colour of a picture that a policy is shown."""
    assert isinstance(block["image"], Image.Image)
    return block["image"].getpixel((0, 0))


def test_a_policy_that_takes_images_sees_them_in_place(gallery: ServerHandle) -> None:
    """Blocks of text and images keep their order, as pictures that a processor takes."""
    environment: Any = make_factory(gallery, "prompt", images="show")()
    prompt = environment.reset(task_index=0, prompt=[{"role": "user", "content": ""}])
    answer = environment.look()
    mute = environment.stare()
    environment._close()

    assert ["text", "image", "text"] == [block["type"] for block in prompt]
    assert (255, 0, 0) == colour(prompt[1])
    assert [{"type": "text", "text": "It is blue:"}, "image"] == [answer[0], answer[1]["type"]]
    assert (0, 0, 255) == colour(answer[1])
    assert ["image"] == [block["type"] for block in mute]
    assert [1.0, 0.5] == environment.rewards
    assert environment.last_output.startswith("[image: image/png, ")


def test_images_are_left_out_where_that_is_asked_for(gallery: ServerHandle, caplog: pytest.LogCaptureFixture) -> None:
    """With images='drop' the text remains, an answer without text is the usual one, and that is said once."""
    environment: Any = make_factory(gallery, "prompt", images="drop")()
    with caplog.at_level(logging.WARNING, "multiors.ors"):
        prompts = [environment.reset(task_index=0) for _ in range(2)]
        answers = [environment.look(), environment.stare()]
    environment._close()

    assert ["before\nafter"] * 2 == prompts
    assert ["It is blue:", "(no output)"] == answers
    assert ["the prompt holds images, which the policy is not shown"] == [
        record.getMessage().partition("0: ")[2] for record in caplog.records
    ]


def test_a_prompt_of_images_alone_cannot_be_left_out(gallery: ServerHandle) -> None:
    """A policy that is shown nothing has no task: the rollout is unscored, and its session is closed."""
    environment: Any = make_factory(gallery, "only", images="drop")()
    prompt = environment.reset(task_index=0)
    gallery.wait_until(lambda counts: not counts.active)
    episode = environment._episode()

    assert UNOPENED == prompt
    assert (False, "the prompt has images only, which the policy is not shown") == (episode.opened, episode.error)


@pytest.mark.parametrize(("split", "tool"), [("broken", None), ("tool", "squint")])
def test_an_image_that_cannot_be_read_is_the_environments_fault(
    gallery: ServerHandle, split: str, tool: str | None
) -> None:
    """Bytes that are no picture make a rollout unreachable, or break it off; never a crash, never a score."""
    environment: Any = make_factory(gallery, split, images="show")()
    prompt = environment.reset(task_index=0)
    if tool is not None:
        with pytest.raises(SessionError, match=r"The tool failed; the episode cannot go on\."):
            getattr(environment, tool)()
    gallery.wait_until(lambda counts: not counts.active)

    assert (UNOPENED if tool is None else "Look.") == prompt
    assert "an image that cannot be read" in environment._episode().error
    assert [] == [reward for reward in environment.rewards if reward is not None]


def test_without_a_decision_an_image_in_a_prompt_stops_training(gallery: ServerHandle) -> None:
    """Where nobody said what the model takes, nothing is left out in silence."""
    environment: Any = make_factory(gallery, "prompt")()

    with pytest.raises(SourceError, match=r"task 1: the environment sent an image, .* not known to take images\. Pass"):
        environment.reset(task_index=1)
    assert {} == gallery.wait_until(lambda counts: not counts.active).active


def test_an_image_that_a_tool_sends_to_a_text_policy_stops_training(
    gallery: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """TRL swallows what tools raise, so the refusal comes when the rollout is scored, and names the remedy."""
    spec = MultiOpenRewardSpec({"gallery": ORSSource(gallery.url, split="tool")})
    arguments = make_arguments(spec, tmp_path, per_device_train_batch_size=2, num_generations=2, max_steps=1)

    with pytest.raises(SourceError, match=r"source 'gallery', task \d: .* takes text only\. Pass images='drop'"):
        train(spec, tiny_policy, arguments, script=lambda text, row: call("look") if "blue" not in text else "ok")
    assert {} == gallery.wait_until(lambda counts: not counts.active).active


def test_an_environment_that_scores_itself_refuses_too(gallery: ServerHandle) -> None:
    """Where no column scores the rollout, the refusal comes when it is asked for its reward; its session ends."""
    slots = MultiOpenRewardSpec({"gallery": ORSSource(gallery.url, split="tool")}, num_slots=2).for_async()
    environment: Any = slots.environment_factory["gallery"]()
    environment.reset(task_index=0)
    with pytest.raises(SessionError, match=r"The tool answered with an image, which cannot be shown here\."):
        environment.look()

    refused = r"source 'gallery', task 0: .* not known to take images\. Pass images='drop'"
    with pytest.raises(SourceError, match=refused):
        environment.get_reward()
    assert {} == gallery.wait_until(lambda counts: not counts.active).active


def test_what_a_trainers_model_takes_is_read_off_its_processor(
    gallery: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A trainer with a tokenizer has a model of text: the first reset refuses, before a step is spent."""
    spec = MultiOpenRewardSpec({"gallery": ORSSource(gallery.url, split="prompt")})
    arguments = make_arguments(spec, tmp_path, per_device_train_batch_size=2, num_generations=2, max_steps=1)
    trainer = make_trainer(spec, tiny_policy, arguments)

    with pytest.raises(SourceError, match=r"source 'gallery', task \d: .* takes text only"):
        trainer.train()


def test_a_processor_says_that_images_are_shown(gallery: ServerHandle, tiny_vlm: Path, tmp_path: Path) -> None:
    """A trainer whose processing class has an image processor has a model that takes images."""
    spec = MultiOpenRewardSpec({"gallery": ORSSource(gallery.url, split="prompt")})
    arguments = make_arguments(spec, tmp_path, per_device_train_batch_size=2, num_generations=2, max_steps=1)
    make_trainer(spec, tiny_vlm, arguments)
    environment = play(factories(spec)["gallery"], ("look", {}))
    scored = score(spec.reward_funcs, [("gallery", environment)], completions=[[]], slot=[0])

    assert [1.0] == scored.rewards["gallery"]


def test_a_record_keeps_images_as_remarks(gallery: ServerHandle) -> None:
    """A step's output says where an image stood, of what kind and size; a picture is no text."""
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec(
        {"gallery": ORSSource(gallery.url, split="tool", images="show")}, on_rollouts=records.extend
    )
    environment = play(factories(spec)["gallery"], ("look", {}))
    score(spec.reward_funcs, [("gallery", environment)], completions=[[]], slot=[0])
    size = len(png((0, 0, 255))) * 3 // 4

    assert f"It is blue:\n[image: image/png, {size:,} bytes]" == records[0].steps[0].output
    assert None is records[0].reason


def test_images_is_one_of_three_words() -> None:
    """Another word is an error at construction."""
    with pytest.raises(ConfigError, match=r"images='hide' is not known\. Pass one of \['auto', 'show', 'drop'\]"):
        ORSSource("http://127.0.0.1:1", images="hide")  # type: ignore[arg-type]  # that is the point


def test_remarks_leave_text_as_it_is() -> None:
    """Text around images stays character for character."""
    assert "a\n b \n[image: image/gif, 3 bytes]" == describe_images(["a", " b ", ImageBlock("AAAA", "image/gif")])


def test_a_refusal_is_no_reason() -> None:
    """There is no reason for a rollout that was refused: it is not scored, it stops."""
    assert "image" not in {reason.value for reason in UnscoredReason}
