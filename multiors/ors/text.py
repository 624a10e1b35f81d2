"""Text of servers and of exceptions, made fit for an error message, a log line or the policy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from multiors.ors.tools.wording import clip
from multiors.ors.tools.wording import one_line as fold
from multiors.redaction import REDACTED, Redactor

__all__ = ["one_line", "show"]

_LIMIT = 500
# Encoded headers, keys and session ids that a server echoes; no sentence has words like these.
_TOKEN = re.compile(r"[A-Za-z0-9+/_=-]{64,}|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")


def one_line(text: str) -> str:
    """`text` as one short line without terminal escapes or control characters."""
    return clip(fold(text), _LIMIT)


def show(text: str, secrets: Iterable[str]) -> str:
    """`text` as one short line without `secrets`, as they are or encoded, and without what else looks encoded."""
    return one_line(_TOKEN.sub(REDACTED, _find_redactor(frozenset(secrets)).hide(text)))


@lru_cache(maxsize=64)
def _find_redactor(secrets: frozenset[str]) -> Redactor:
    return Redactor(secrets)
