"""Text of servers, policies and users as people are shown it: inert, and nothing of it hidden.

A terminal sequence, a direction mark or a lone surrogate is not dropped but written as a character that can be seen, so
that a reader sees what a policy saw. Line ends and tabs stay, and the joiners that scripts and emoji need.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["fold", "reveal"]

_KEPT = "\n\t\u200c\u200d"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_PICTURES = 0x2400  # Unicode has a picture of each of the first 32 control characters
_DELETE = 0x7F


class _Visible(dict[int, str]):
    """Code point → what is written for it, made when it is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = character

        if character not in _KEPT and unicodedata.category(character) in _HIDDEN:
            shown = chr(_PICTURES + code) if code < 0x20 else "\u2421" if code == _DELETE else f"⟨U+{code:04X}⟩"

        self[code] = shown
        return shown


_VISIBLE = _Visible()


def reveal(text: str, limit: int) -> str:
    """`text` with its line ends and with what is invisible made visible; of a longer one the beginning, which is said.

    Args:
        text: Anything.
        limit: Characters of it that are shown, at most.
    """
    shown = text[:limit].replace("\r\n", "\n").translate(_VISIBLE)
    return shown if len(text) <= limit else f"{shown}… [clipped: {limit:,} of {len(text):,} characters]"


def fold(text: str, limit: int = 200) -> str:
    """`text` as one line with what is invisible made visible."""
    line = re.sub(r"\s+", " ", text[: limit + 1]).strip().translate(_VISIBLE)
    return line if len(text) <= limit else f"{line[: limit - 1].rstrip()}…"
