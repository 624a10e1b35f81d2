"""Answers are text of strangers, and some scorers run them as Python. Here it is decided which text may be run.

While an answer is scored, the interpreter refuses to run code that was made of text in that thread, unless the answer
is plain arithmetic or a plain list. Neither can name, call or import anything, and neither grows: no names, no
attributes, no powers; lists without operators.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

__all__ = ["AnswerIsCodeError", "is_plain", "scoring"]

_MAX_ARITHMETIC = 2000
_ARITHMETIC = re.compile(r"[\d\s+\-*/().]*|-?0x[\da-f]+", re.ASCII)
_LIST = re.compile(r"""(?:[\d\s,.\-\[\]]|'[\w .+\-]*'|"[\w .+\-]*")*""", re.ASCII)


class AnswerIsCodeError(Exception):
    """A scorer wanted to run an answer as code."""


class _Scoring(threading.local):
    refuses_code = False


_scoring = _Scoring()


def is_plain(text: str) -> bool:
    """Whether a text may be run as Python: arithmetic without powers, or a list of numbers and words."""
    if len(text) <= _MAX_ARITHMETIC and "**" not in text and _ARITHMETIC.fullmatch(text):
        return True
    return _LIST.fullmatch(text) is not None


@contextmanager
def scoring(answer: str | None) -> Iterator[None]:
    """Inside, this thread runs nothing that was made of text, unless the answer is plain.

    Raises:
        AnswerIsCodeError: From where code was to be run; a scorer may catch it.
    """
    _watch_code()
    _scoring.refuses_code = answer is not None and not is_plain(answer)
    try:
        yield
    finally:
        _scoring.refuses_code = False


@cache
def _watch_code() -> None:
    """Have the interpreter ask before it runs code. It asks until the process ends: such a hook cannot be removed."""
    sys.addaudithook(_refuse_code)


def _refuse_code(event: str, _: tuple[Any, ...]) -> None:
    # `eval`, `exec` and an import all raise this event before the first instruction runs.
    if event == "exec" and _scoring.refuses_code:
        raise AnswerIsCodeError("the answer would be run as code")
