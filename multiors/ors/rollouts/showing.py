"""What a policy is shown of a prompt, and whether it is shown images.

Decides by the source's `images` and by what is known of the trainer's model, which whoever knows the trainer notes here
for the sources it plays in this process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from multiors.errors import SourceError
from multiors.ors.content import Prompt, put_before, show_blocks
from multiors.ors.rollouts.blueprint import Blueprint

__all__ = ["Shown", "note_model", "show_prompt", "shows_images"]

Shown = str | list[dict[str, Any]]
"""What a chat template takes as content: text, or blocks of text and images."""

_sees_images: dict[str, bool] = {}
"""Whether the policy that plays a source takes images, by the source's identity. Not there: not known."""


def note_model(identities: Iterable[str], *, sees_images: bool) -> None:
    """Note whether the policy that will play some sources in this process takes images."""
    _sees_images.update(dict.fromkeys(identities, sees_images))


def shows_images(blueprint: Blueprint, task_index: int | None) -> bool:
    """Whether the policy is shown the images of a source, or the text beside them alone.

    Args:
        blueprint: Of the source.
        task_index: The task in which there is one, for the message.

    Raises:
        SourceError: Neither was decided.
    """
    sees_images = _sees_images.get(blueprint.identity)

    if blueprint.images == "show" or (blueprint.images == "auto" and sees_images):
        return True

    if blueprint.images == "drop":
        return False

    model = "takes text only" if sees_images is False else "is not known to take images"
    raise SourceError(
        f"source {blueprint.label!r}, task {task_index}: the environment sent an image, and the policy's model "
        f"{model}. Pass images='drop' to the source to show the policy the text alone, images='show' for a model that "
        f"takes images, or remove the source."
    )


def show_prompt(prompt: Prompt, row: Any) -> Shown:
    """What a trainer adds to the last message of a row's prompt; what comes before that is put into the row.

    Args:
        prompt: The environment's.
        row: The row's own messages. Anything else: there are none, and all messages are shown as one.

    Raises:
        SessionError: An image cannot be read.
    """
    if not isinstance(row, list) or not row:
        return show_blocks(prompt.flatten())

    put_before(row, prompt.leading)

    if prompt.messages and not row[-1]["content"]:
        row[-1]["role"] = prompt.messages[-1].role

    return show_blocks(prompt.last)
