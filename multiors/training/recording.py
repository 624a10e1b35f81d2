"""Who is told of the rollouts of a mix: the rollout log, and the user's functions.

Decides what leaves this process without the keys and secrets of the mix, and that the log begins and ends with the run.
How a record is written is decided in `multiors.rollout_log`, how it is uploaded in `upload`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from multiors.errors import ConfigError
from multiors.ors import ORSSource
from multiors.ors.sessions.secrets import secret_values
from multiors.records import RolloutRecord
from multiors.rollout_log import RolloutLog
from multiors.training.upload import RolloutUpload

__all__ = ["Listeners", "LogTarget", "Recording"]

OnRollouts = Callable[[list[RolloutRecord]], None]
Listeners = OnRollouts | Sequence[OnRollouts]
LogTarget = str | os.PathLike[str] | RolloutLog


class Recording:
    """Passes the records of a mix on.

    Args:
        on_rollouts: The user's function or functions. None: there is none.
        log: The log, or its folder. None: nothing is written.
        sources: The sources of the mix by name, whose keys and secrets no log may hold.
    """

    def __init__(self, on_rollouts: Listeners | None, log: LogTarget | None, sources: Mapping[str, Any]) -> None:
        given = () if on_rollouts is None else (on_rollouts,) if callable(on_rollouts) else tuple(on_rollouts)

        if not all(callable(each) for each in given):
            raise ConfigError("on_rollouts holds something that cannot be called. Pass a function, or a list of them.")

        self._log = log if isinstance(log, RolloutLog) or log is None else RolloutLog(log)
        self._listeners: tuple[OnRollouts, ...] = given
        self._sources = sources
        self._is_prepared = False

    @property
    def listener(self) -> OnRollouts | None:
        """What the reward columns call with the records of a batch. None: nobody wants them."""
        return None if self._log is None and not self._listeners else self._pass_on

    def start(self) -> None:
        """Begin the log's file, when the sources have asked their servers.

        Raises:
            ConfigError: It cannot be written, or no rollout of this mix can be uploaded.
        """
        self._prepare()

        if self._log is not None:
            self._log.start(list(self._sources))

    def close(self) -> None:
        """Write what is waiting, and end the log's file."""
        if self._log is not None:
            self._log.close()

    def _pass_on(self, records: list[RolloutRecord]) -> None:
        self._prepare()

        if self._log is not None:
            self._log.write(records)

        for each in self._listeners:
            each(records)

    def _prepare(self) -> None:
        """Tell them once what is only known when the sources have asked their servers: which secrets are used."""
        if self._is_prepared:
            return

        hidden = [secret for source in self._sources.values() for secret in _find_secrets(source)]

        if self._log is not None:
            self._log.hide(hidden)

        for each in self._listeners:
            if isinstance(each, RolloutUpload):
                each.join(self._sources, hidden)

        self._is_prepared = True


def _find_secrets(source: Any) -> Iterator[str]:
    if isinstance(source, ORSSource):
        yield from source.blueprint.hidden
    else:  # another spec, which keeps them where TRL's does, if it has any
        spec = getattr(source, "_spec", None)
        yield getattr(spec, "_api_key", None) or ""
        yield from secret_values(getattr(spec, "_secrets", None))
