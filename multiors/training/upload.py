"""`RolloutUpload`: sends rollouts of the platform's environments to the platform, where its pages show them.

Decides that training neither waits for the platform nor fails because of it: what cannot be sent is said once and
counted. The SDK's own class for this is not used: it asks the platform up to three times before a rollout's first
message, waits for that without a deadline, and prints its failures to standard output instead of reporting them
(openreward 0.1.167, `api/rollouts/rollout.py`); address, headers and events are the SDK's. How a rollout becomes events
is decided in `events`.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import httpx
from openreward._version import USER_AGENT

from multiors.errors import ConfigError
from multiors.ors import ORSSource
from multiors.records import RolloutRecord
from multiors.redaction import Redactor
from multiors.training.events import Destination, Events, make_events

__all__ = ["RolloutUpload"]

logger = logging.getLogger("multiors.training")

_MAX_WAITING = 64
_MAX_EVENTS = 128  # in one request, as the SDK (`client.py`)
_MAX_BYTES = 1_000_000
_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 60.0
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
_TOO_MANY = 429


class RolloutUpload:
    """Uploads the rollouts of catalogue environments; pass it as `on_rollouts`.

    Rollouts of other sources are left alone. Uploading runs in a thread of its own; a rollout that finds the thread too
    far behind is not uploaded. Each rollout is sent with its prompt, messages, tool calls, results and step rewards,
    and with the source's environment, variant and split; keys and secrets of the mix are taken out.

    Args:
        run_name: Under which name the platform shows the rollouts together.
        api_key: The platform's key. None: OPENREWARD_API_KEY.
        api_url: The platform's interface. None: that of the sources.

    Raises:
        ConfigError: There is no key, or no name.

    Example:
        >>> upload = RolloutUpload("first mix", api_key="...")
        >>> upload.num_uploaded
        0
    """

    def __init__(self, run_name: str, *, api_key: str | None = None, api_url: str | None = None) -> None:
        key = api_key or os.environ.get("OPENREWARD_API_KEY")

        if not key:
            raise ConfigError("RolloutUpload has no key for the platform. Pass api_key=... or set OPENREWARD_API_KEY.")

        if not run_name.strip():
            raise ConfigError(f"RolloutUpload: run_name={run_name!r} is no name. Pass the name of the run.")

        self.run_name = run_name
        self.num_uploaded = 0
        self.num_failed = 0
        self._api_key = key
        self._api_url = None if api_url is None else api_url.rstrip("/")
        self._sources: dict[str, ORSSource] = {}
        self._urls: dict[str, str] = {}
        self._redactor = Redactor([key])
        self._lock = threading.Lock()
        self._reported: set[str] = set()
        self._waiting: queue.Queue[list[RolloutRecord] | None] = queue.Queue(_MAX_WAITING)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"RolloutUpload({self.run_name!r})"

    def __enter__(self) -> RolloutUpload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def join(self, sources: Mapping[str, Any], hidden: Sequence[str]) -> None:
        """Be told the sources of a mix, once their servers were asked; the mix does it.

        Args:
            sources: By name.
            hidden: Keys and secrets, which are not uploaded.

        Raises:
            ConfigError: None of them is on the platform, or the platform's interface is not known.
        """
        found = {
            name: source for name, source in sources.items() if isinstance(source, ORSSource) and not source._is_url
        }
        urls = {name: self._api_url or source.blueprint.endpoints[0].api_url for name, source in found.items()}

        if not found:
            raise ConfigError(
                f"{self!r}: no source of the mix is on the platform; {sorted(sources)} have addresses of their own. "
                f"Leave it out."
            )

        if not all(urls.values()):
            raise ConfigError(
                f"{self!r}: the address of the platform's interface is not known. Pass api_url=... or set "
                f"OPENREWARD_API_URL."
            )

        self._sources, self._urls = found, {name: url for name, url in urls.items() if url}
        self._redactor = Redactor([self._api_key, *hidden])

    def __call__(self, records: list[RolloutRecord]) -> None:
        """Have the records uploaded that are of the platform's; never waits and never raises."""
        mine = [record for record in records if record.source in self._sources]

        if not mine:
            return

        with self._lock:
            if self._thread is None:
                self._ending.clear()
                self._thread = threading.Thread(target=self._work, name="multiors rollout upload", daemon=True)
                self._thread.start()
                atexit.register(self.close)

        try:
            self._waiting.put_nowait(mine)
        except queue.Full:
            self._fail("the platform is slower than the training", len(mine))

    def close(self) -> None:
        """Upload what is waiting, without pauses between attempts, and end the thread; a later rollout begins anew."""
        with self._lock:
            thread, self._thread = self._thread, None

        if thread is None:
            return

        atexit.unregister(self.close)
        self._ending.set()

        with suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_TIMEOUT_S)
            thread.join(_CLOSE_TIMEOUT_S)

        if thread.is_alive():
            logger.warning("%r was still uploading after %.0f s; what is left is lost.", self, _CLOSE_TIMEOUT_S)

        if self.num_failed:
            logger.warning("%r: %d rollouts were not uploaded, %d were.", self, self.num_failed, self.num_uploaded)

    # On the thread

    def _work(self) -> None:
        headers = {"x-api-key": self._api_key, "User-Agent": USER_AGENT}

        with httpx.Client(headers=headers, timeout=_TIMEOUT_S) as client:
            sender = _Sender(client, self._ending)

            while (batch := self._waiting.get()) is not None:
                for url in dict.fromkeys(self._urls[record.source] for record in batch):
                    self._upload(sender, url, [record for record in batch if self._urls[record.source] == url])

    def _upload(self, sender: _Sender, url: str, records: Sequence[RolloutRecord]) -> None:
        rollouts = list(self._make_events(sender, url, records))
        starts = [rollout.start for rollout in rollouts]
        rest = [event for rollout in rollouts for event in rollout.rest]

        try:
            # The beginnings first: the platform takes a message only for a rollout that it knows.
            for part in (*_split(starts), *_split(rest)):
                sender.post(f"{url}/v1/rollouts", part)
        except httpx.HTTPStatusError as error:
            self._fail(f"the platform answered HTTP {error.response.status_code}", len(rollouts))
        except Exception as error:  # noqa: BLE001  nothing about an upload may end a training run
            self._fail(f"the platform cannot be reached ({type(error).__name__})", len(rollouts))
        else:
            self.num_uploaded += len(rollouts)

    def _make_events(self, sender: _Sender, url: str, records: Sequence[RolloutRecord]) -> Iterator[Events]:
        destinations = {
            name: Destination(
                environment=source.blueprint.endpoints[0].deployment,
                environment_id=sender.find_id(url, source.blueprint.endpoints[0].deployment),
                variant=source.blueprint.endpoints[0].environment,
                split=source.blueprint.options.split,
            )
            for name, source in self._sources.items()
            if name in {record.source for record in records}
        }

        for record in records:
            try:
                now_ms = int(time.time() * 1000)
                yield make_events(
                    record, destinations[record.source], self._redactor, run_name=self.run_name, time_ms=now_ms
                )
            except Exception as error:  # noqa: BLE001  a record may hold anything of a user's
                self._fail(f"a rollout of source {record.source!r} cannot be sent ({type(error).__name__})", 1)

    def _fail(self, why: str, num_rollouts: int) -> None:
        with self._lock:
            self.num_failed += num_rollouts
            is_new = why not in self._reported
            self._reported.add(why)

        if is_new:
            logger.warning(
                "%r: %d rollouts were not uploaded: %s. Training goes on; the end says how many.",
                self,
                num_rollouts,
                why,
            )


class _Sender:
    """Speaks to the platform."""

    def __init__(self, client: httpx.Client, ending: threading.Event) -> None:
        self._client = client
        self._ending = ending
        self._ids: dict[str, str | None] = {}

    def find_id(self, url: str, environment: str) -> str | None:
        """The platform's id of an environment, asked once. None: it does not say, and finds it by its name."""
        if environment not in self._ids:
            try:
                answer = self._client.get(f"{url}/v1/environments/{environment}")
                found = answer.raise_for_status().json()
            except (httpx.HTTPError, ValueError):  # the events then go without
                return None

            self._ids[environment] = found.get("id") if isinstance(found, dict) else None

        return self._ids[environment]

    def post(self, url: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Send events, again and again where that may help; their ids keep the platform from counting them twice.

        Raises:
            httpx.HTTPError: They were not taken.
        """
        for pause_s in (*_PAUSES_S, None):
            try:
                answer = self._client.post(url, json={"events": list(events)})
                answer.raise_for_status()
                return
            except httpx.HTTPError as error:
                if pause_s is None or not _may_pass(error):
                    raise

            self._ending.wait(pause_s)


def _may_pass(error: httpx.HTTPError) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == _TOO_MANY or error.response.is_server_error

    return isinstance(error, httpx.TransportError)


def _split(events: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Parts of a size that the platform takes; an event that is larger alone goes alone."""
    part: list[Mapping[str, Any]] = []
    size_bytes = 0

    for event in events:
        event_bytes = len(json.dumps(event))

        if part and (len(part) == _MAX_EVENTS or size_bytes + event_bytes > _MAX_BYTES):
            yield part
            part, size_bytes = [], 0

        part.append(event)
        size_bytes += event_bytes

    if part:
        yield part
