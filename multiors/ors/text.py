"""Text of servers and of exceptions, made fit for an error message, a log line or the policy."""

from __future__ import annotations

import re
from collections.abc import Iterable

from multiors.ors.tools.wording import clip
from multiors.ors.tools.wording import one_line as fold

__all__ = ["one_line", "redact"]

_LIMIT = 500
# Encoded headers, keys and session ids that a server echoes; no sentence has words like these.
_TOKEN = re.compile(r"[A-Za-z0-9+/_=-]{64,}|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")


def one_line(text: str) -> str:
    """`text` as one short line without terminal escapes or control characters."""
    return clip(fold(text), _LIMIT)


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` without `secrets`, longest first, so that none survives inside another, and without encoded tokens."""
    for secret in sorted({secret for secret in secrets if secret}, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")

    return _TOKEN.sub("[redacted]", text)
