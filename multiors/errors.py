"""The exceptions that multiors raises for its own rules.

Each is also the builtin it stands for, so `except ValueError` keeps working, and each pickles (no custom `__init__`),
because rollouts run in spawned workers. Exceptions of the SDK, TRL and users' code keep their own type and get a note
that says in which source, task and session they happened.

    MultiORSError
    ├─ ConfigError      (ValueError)    the run file or an argument is wrong
    ├─ SourceError      (ValueError)    a source cannot be used: no tasks, wrong split, another environment answers
    ├─ RoutingError     (LookupError)   a row names no source; two tools clash
    ├─ RewardError      (ValueError)    a reward function broke its contract
    ├─ SessionError     (RuntimeError)  a session or a tool call failed
    └─ ComparisonError  (ValueError)    two runs cannot be compared
"""

from __future__ import annotations

__all__ = [
    "ComparisonError",
    "ConfigError",
    "MultiORSError",
    "RewardError",
    "RoutingError",
    "SessionError",
    "SourceError",
]


class MultiORSError(Exception):
    """Root of every error that multiors raises for a rule of its own."""


class ConfigError(MultiORSError, ValueError):
    """An argument, a trainer setting or a key of the run file is wrong."""


class SourceError(MultiORSError, ValueError):
    """A source cannot be used: unreachable, wrong environment or split, no tasks."""


class RoutingError(MultiORSError, LookupError):
    """A row names no source, or rows arrive in another order than the schedule's."""


class RewardError(MultiORSError, ValueError):
    """A reward function broke its contract: wrong length, not a number."""


class SessionError(MultiORSError, RuntimeError):
    """A session or a tool call failed; the text is safe to show to the policy."""


class ComparisonError(MultiORSError, ValueError):
    """Two runs cannot be compared."""
