"""Takes known keys and secrets out of texts, also where they were encoded on the way.

Decides in which forms a secret is looked for: as it is, escaped as JSON or Python escapes it and however often, as in a
URL, and in base64, in which headers carry it. Knows no server and no file, and no secret that it was not told.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["REDACTED", "Redactor"]

REDACTED = "[redacted]"

# What is shorter keeps no secret, and without it a text would lose half of its words.
_LEAST_CHARACTERS = 4
# Of shorter secrets the base64 form is a few letters, which other texts have by chance.
_LEAST_ENCODED_BYTES = 8
# Characters that no form of a text changes, apart from base64.
_UNCHANGED = re.compile(r"[A-Za-z0-9_.-]+")

_ESCAPES = zip("bfnrt", "\b\f\n\r\t", strict=True)
_SHORT_FORMS = {" ": [r"\+"], **{character: [rf"\\{{1,16}}{letter}"] for letter, character in _ESCAPES}}


class Redactor:
    """Replaces secrets in texts by a mark.

    Args:
        secrets: The secrets; those of fewer than four characters are passed over.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = sorted({secret.strip() for secret in secrets}, key=len, reverse=True)
        used = [secret for secret in given if len(secret) >= _LEAST_CHARACTERS]
        encoded = sorted({form for secret in used for form in _encode(secret)}, key=len, reverse=True)

        # The longer first, so that no secret survives inside another.
        patterns = [*map(_match, used), *map(re.escape, encoded)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None
        self._signs = [*(_UNCHANGED.findall(secret) for secret in used), *([form] for form in encoded)]

    def is_in(self, text: str) -> bool:
        """Whether a text holds a secret; for a JSON text, inside or between its strings."""
        # A quick look first: parts that stand in every form of a secret.
        if self._pattern is None or not any(all(part in text for part in parts) for parts in self._signs):
            return False

        return self._pattern.search(text) is not None

    def hide(self, text: str) -> str:
        """`text` without the secrets."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None and self.is_in(text) else text

    def hide_in(self, value: Any) -> Any:
        """A JSON value without the secrets, in its strings and its keys."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide_in(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_in(each) for each in value]

        return value


def _match(secret: str) -> str:
    """A pattern of the secret as it is, escaped and as in a URL."""
    return "".join(map(_match_character, secret))


def _match_character(character: str) -> str:
    if _UNCHANGED.fullmatch(character):
        return re.escape(character)

    units = character.encode("utf-16-be", "surrogatepass")
    pairs = (units[position : position + 2].hex() for position in range(0, len(units), 2))
    percents = "".join(f"%{octet:02x}" for octet in character.encode("utf-8", "surrogatepass"))
    forms = [
        rf"\\{{0,16}}{re.escape(character)}",
        "".join(rf"\\{{1,16}}u{pair}" for pair in pairs),
        rf"\\{{1,16}}x{ord(character):02x}",
        rf"\\{{1,16}}U{ord(character):08x}",
        percents,
    ]
    forms += _SHORT_FORMS.get(character, [])

    return f"(?:{forms[0]}|(?i:{'|'.join(forms[1:])}))"


def _encode(secret: str) -> Iterator[str]:
    """What base64 makes of the secret, alone or in JSON, wherever it stands, without the characters it shares."""
    for text in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
        octets = text.encode("utf-8", "surrogatepass")

        if len(octets) < _LEAST_ENCODED_BYTES:
            continue

        for num_before, num_shared in ((0, 0), (1, 2), (2, 3)):
            encoded = b64encode(bytes(num_before) + octets).decode("ascii")
            core = encoded[num_shared : (num_before + len(octets)) * 8 // 6]
            yield from {core, core.translate(str.maketrans("+/", "-_"))}
