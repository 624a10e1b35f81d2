"""What the processes of a training run tell each other. Every process makes the same calls in the same order."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TypeVar

__all__ = ["find_rank", "gather", "is_distributed", "is_first_process"]

T = TypeVar("T")


def is_distributed() -> bool:
    """Whether there are several processes."""
    import torch.distributed

    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    return bool(has_group and torch.distributed.get_world_size() > 1)


def is_first_process() -> bool:
    """Whether this process is the one that speaks for all."""
    return find_rank() == 0


def find_rank() -> int:
    """Number of this process, from 0."""
    import torch.distributed

    return torch.distributed.get_rank() if is_distributed() else 0


def gather(items: list[T]) -> list[T]:
    """The items of all processes, in the order of the processes."""
    if not is_distributed():
        return items

    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object

    device = PartialState().device
    # TRL runs async reward functions in a thread of their own, in which the process's device is not chosen yet.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        gathered: list[T] = gather_object(items)
        return gathered
