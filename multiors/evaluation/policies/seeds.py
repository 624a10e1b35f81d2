"""Luck, spread from an episode over its turns and their tokens."""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(seed: int, position: int, *, num_bits: int) -> int:
    """The seed of one part of what has a seed, 0 <= seed < 2**num_bits.

    Hashed, so that neighbours have nothing in common.

    Args:
        seed: An episode's, or a turn's.
        position: Which turn of the episode, or token of the turn, from 0.
        num_bits: At most 64.
    """
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - num_bits)
