"""What HTTP, the SDK and an answer that is not ORS can raise, and what it means.

One list for whoever opens sessions and for whoever asks before training, so that what is contained in the one place is
contained in the other.
"""

from __future__ import annotations

import aiohttp
from openreward.api._session.http import AuthenticationError, _RemoteSSEError
from openreward.api.errors import OpenRewardError

from multiors.errors import SessionError

__all__ = ["ANSWER_ERRORS", "NETWORK_ERRORS", "OPEN_ERRORS", "explain", "is_connection_error"]

NETWORK_ERRORS = (
    aiohttp.ClientError,
    OpenRewardError,
    OSError,
    SessionError,
    _RemoteSSEError,  # a server that refused a session in its event stream
)
"""A server could not be reached, went away, or refused."""

ANSWER_ERRORS = (
    AssertionError,  # the SDK's way to say that a server gave no session id
    AttributeError,  # its way to say that a prompt is not what ORS defines
    LookupError,
    RecursionError,  # JSON that is nested a thousand times
    TypeError,
    ValueError,
)
"""A server's answer is not what ORS defines."""

OPEN_ERRORS = (*NETWORK_ERRORS, AuthenticationError, *ANSWER_ERRORS)
"""What opening a session can raise, a deadline included; anything else is a bug and stops training."""


def explain(error: BaseException) -> str:
    """What went wrong, in a sentence: the last of several attempts stands for all."""
    last = _last_attempt(error)

    if last is not error:
        return f"{explain(last)} (after {len(error.errors)} attempts)"  # type: ignore[attr-defined]  # of the SDK's

    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror if isinstance(error.os_error.strerror, str) else str(error.os_error)
        return f"cannot connect to {error.host}:{error.port} ({reason.partition(' [')[0]})"

    return f"{type(error).__name__}: {error}".rstrip(": ")


def is_connection_error(error: BaseException) -> bool:
    """Whether a server could not be reached, or went away; also where the SDK gave up after several attempts."""
    return isinstance(_last_attempt(error), aiohttp.ClientConnectionError | ConnectionError)


def _last_attempt(error: BaseException) -> BaseException:
    """The error of the last of several attempts that the SDK made; of one that was not repeated, itself."""
    attempts = getattr(error, "errors", None)
    last = attempts[-1] if isinstance(attempts, list) and attempts else error
    return last if isinstance(last, BaseException) else error
