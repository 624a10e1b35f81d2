"""Text of servers and of exceptions, made fit for an error message, a log line or the policy."""

from __future__ import annotations

from collections.abc import Iterable

from multiors.ors.tools.wording import clip
from multiors.ors.tools.wording import one_line as fold

__all__ = ["one_line", "redact"]

_LIMIT = 500


def one_line(text: str) -> str:
    """`text` as one short line without terminal escapes or control characters."""
    return clip(fold(text), _LIMIT)


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` replaced, longest first, so that none survives inside another."""
    for secret in sorted({secret for secret in secrets if secret}, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")

    return text
