"""The luck of an episode, spread over its turns."""

from __future__ import annotations

import hashlib

__all__ = ["seed_of_turn"]


def seed_of_turn(seed: int, turn: int, *, num_bits: int) -> int:
    """A seed for one turn of an episode, 0 <= seed < 2**num_bits.

    Hashed, so that neighbouring episodes have nothing in common. Equal for every policy that plays the episode.

    Args:
        seed: The episode's.
        turn: Which of the policy's messages it is for, from 0.
        num_bits: At most 64.
    """
    digest = hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - num_bits)
