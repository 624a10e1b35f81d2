"""`ORSSource`: one ORS environment, as a part of a mix or alone in the place of TRL's `OpenRewardSpec`.

Decides what is asked of a server and when: nothing at construction, then the address and environment, the task list and
the tools, each once and cached. Holds `weight` and `reward` for the mix without knowing what they mean.
"""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread

from multiors.errors import ConfigError, SourceError
from multiors.ors.discovery import TaskList, fetch_tasks, find_replicas, translate_errors
from multiors.ors.probing import fetch_tools
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.environment import EnvironmentFactory
from multiors.ors.rollouts.opening import has_random_prompt
from multiors.ors.rows import fold_into_columns, last_rewards
from multiors.ors.sessions.limits import DEFAULT_MAX_CONCURRENT_CALLS, Cap
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.sessions.session import Secrets, SessionTimeouts, pair_secrets, secret_values
from multiors.ors.target import Endpoint, is_url, resolve_endpoint, show_target
from multiors.ors.tools import BoundTool, bind_tools, describe_tools, render_tools

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["ORSSource"]

T = TypeVar("T")


class ORSSource:
    """One ORS environment.

    Takes every argument of TRL's `OpenRewardSpec` with the same meaning, offers its three properties, and adds what a
    mix needs. Construction sends no request.

    Args:
        target: A catalogue name ("owner/name") or the URL of an ORS server, taken as written. A list of URLs names
            equal servers: each session goes to the least loaded one that answers.
        num_tasks: At most so many tasks, from the first. None: all.
        split: Which split's tasks to draw.
        indices: Exactly these task indices, in this order; not together with `num_tasks`.
        api_key: This source's key. None: OPENREWARD_API_KEY for a catalogue name, no key for a URL.
        secrets: Secrets for each session. A name the SDK does not know takes a pair (value, [allowed hosts]).
        env_name: Which environment of the server; "owner/name" where the URL is that of a platform with split hosts.
        include_metadata: Whether task specifications are fetched. False asks for their number only.
        discover_task_tools: Whether short sessions are opened to find tools that only some tasks have.
        task_tools_discovery_index: The one task to probe. None: each of `indices`, or else task 0.
        variant: The ORS variant of a catalogue environment.
        weight: This source's share of the mix, relative to the others'. None: all sources weigh the same.
        reward: How step rewards become one, and the user's own reward functions (`multiors.SourceReward`).
        session_url: Session address of a platform whose hosts follow no rule. None: derived, or OPENREWARD_SESSION_URL.
        open_timeout_s: Seconds for opening a session, and for each thing asked before training.
        call_timeout_s: Seconds for one tool call.
        max_sessions: Sessions open at once, per process; not fewer than the rollouts of a batch. None: no limit.
        max_concurrent_calls: Tool calls and openings under way at once, per process.

    Raises:
        ConfigError: An argument is wrong.

    Example:
        >>> source = ORSSource("http://127.0.0.1:8001", env_name="sorting", num_tasks=64, weight=2.0)
        >>> source
        ORSSource('http://127.0.0.1:8001', env_name='sorting')
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        num_tasks: int | None = None,
        split: str = "train",
        indices: Sequence[int] | None = None,
        api_key: str | None = None,
        secrets: Secrets | None = None,
        env_name: str | None = None,
        include_metadata: bool = True,
        discover_task_tools: bool = True,
        task_tools_discovery_index: int | None = None,
        variant: str | None = None,
        weight: float | None = None,
        reward: Any = None,
        session_url: str | None = None,
        open_timeout_s: float = 600.0,
        call_timeout_s: float = 600.0,
        max_sessions: int | None = None,
        max_concurrent_calls: int = DEFAULT_MAX_CONCURRENT_CALLS,
    ) -> None:
        self._targets = self._check_targets(target, env_name)
        self._target, self._is_url = target, is_url(self._targets[0])  # as TRL's spec, whose tests read them
        self.label = env_name or show_target(self._targets[0])
        self.weight = weight
        self.reward = reward
        self._num_tasks = num_tasks
        self._split = split
        self._indices = None if indices is None else list(indices)
        self._api_key = api_key
        self._secrets = secrets
        self._env_name = env_name
        self._include_metadata = include_metadata
        self._discover_task_tools = discover_task_tools
        self._task_tools_discovery_index = task_tools_discovery_index
        self._variant = variant
        self._session_url = session_url
        self._timeouts = SessionTimeouts(open_s=open_timeout_s, call_s=call_timeout_s)
        self.max_sessions = max_sessions
        self._max_concurrent_calls = max_concurrent_calls
        self._mix_cap: Cap | None = None
        self._check_arguments()
        self._forget()

    @classmethod
    def from_openreward_spec(cls, spec: Any) -> ORSSource:
        """Read the target and options of TRL's `OpenRewardSpec`.

        Raises:
            AttributeError: TRL keeps them elsewhere now.
        """
        return cls(
            spec._target,
            num_tasks=spec._num_tasks,
            split=spec._split,
            indices=spec._indices,
            api_key=spec._api_key,
            secrets=spec._secrets,
            env_name=spec._env_name,
            include_metadata=spec._include_metadata,
            discover_task_tools=spec._discover_task_tools,
            task_tools_discovery_index=spec._task_tools_discovery_index,
        )

    def __repr__(self) -> str:
        name = "" if self._env_name is None else f", env_name={self._env_name!r}"
        targets = [show_target(target) for target in self._targets]
        return f"ORSSource({(targets[0] if len(targets) == 1 else targets)!r}{name})"

    def named(self, label: str, *, mix_cap: Cap | None = None) -> ORSSource:
        """A copy under another name, with a class and sessions of its own, and within the cap of a mix."""
        twin = copy.copy(self)
        twin.label = label
        twin._mix_cap = mix_cap
        twin._forget()
        return twin

    # TRL's three slots, for use alone

    @property
    def train_dataset(self) -> Dataset:
        """The tasks as rows: `prompt` (empty, TRL appends the environment's), `task_index`, and the tasks' own keys.

        As TRL's spec does it. Keys that TRL would take for its own, and keys whose values Arrow cannot hold unchanged,
        are left out of the columns; then a warning says so and the column `task` holds each task as JSON text.
        """
        tasks = self.task_list
        return self._cached("dataset", lambda: fold_into_columns(tasks, self.label))

    @property
    def environment_factory(self) -> EnvironmentFactory:
        """A picklable callable that makes one environment per rollout."""
        return EnvironmentFactory(self.blueprint)

    @property
    def reward_funcs(self) -> Callable[..., list[float | None]]:
        """The last reward of each rollout; None where nothing scored it.

        Raises:
            ConfigError: The source has a `reward` of its own, which only a mix composes.
        """
        if self.reward is not None:
            raise ConfigError(
                f"source {self.label!r}: reward=... is composed by a mix. Use MultiOpenRewardSpec({{'name': source}}), "
                f"or give the functions to the trainer's reward_funcs."
            )
        return last_rewards

    # What the mix reads

    @property
    def task_list(self) -> TaskList:
        """The tasks, fetched at first use."""
        return self._cached("tasks", lambda: get_runtime().run(self.fetch_tasks))

    def find_task(self, task_index: int) -> str | None:
        """The JSON text of the task at an index, if task specifications were fetched and it is among them."""
        tasks = self._cache.get("tasks")

        if tasks is None or tasks.specs is None:
            return None

        specs: dict[int, str] = self._cached("specs", lambda: dict(zip(tasks.indices, tasks.specs, strict=True)))
        return specs.get(task_index)

    @property
    def tools(self) -> tuple[BoundTool, ...]:
        """The environment's tools as typed methods, fetched at first use."""
        return self._cached("tools", lambda: get_runtime().run(self.fetch_tools))

    @property
    def blueprint(self) -> Blueprint:
        """What opens sessions of this source, here or in a process it is pickled to."""
        tools = self.tools
        endpoints = self._cached("endpoints", self._resolve)
        own_cap = Cap(
            self.identity,
            f"source {self.label!r}",
            max_sessions=self.max_sessions,
            max_concurrent_calls=self._max_concurrent_calls,
        )
        return self._cached(
            "blueprint",
            lambda: Blueprint(
                label=self.label,
                identity=self.identity,
                endpoints=endpoints,
                split=self._split,
                tools=tools,
                timeouts=self._timeouts,
                terminal=self._cache["terminal"],
                caps=(own_cap,) if self._mix_cap is None else (own_cap, self._mix_cap),
                secrets=pair_secrets(self._secrets, endpoints[0], self.label),
            ),
        )

    def describe_tools(self) -> str:
        """A table of the tools as the policy sees them, with renames and what its schema loses."""
        return describe_tools(self.tools)

    async def prepare(self) -> None:
        """Fetch everything the mix needs. Runs on the runtime's loop."""
        await self.fetch_tasks()
        await self.fetch_tools()

    async def fetch_tasks(self) -> TaskList:
        """Fetch the task list, unless it was."""
        if "tasks" not in self._cache:
            endpoint = (await self._find_endpoints())[0]
            self._cache["tasks"] = await fetch_tasks(
                get_runtime(),
                endpoint,
                label=self.label,
                split=self._split,
                num_tasks=self._num_tasks,
                indices=self._indices,
                include_metadata=self._include_metadata,
                timeout_s=self._timeouts.open_s,
            )

        tasks: TaskList = self._cache["tasks"]
        return tasks

    async def fetch_tools(self) -> tuple[BoundTool, ...]:
        """Fetch and bind the tools, unless they were; a tool that transformers cannot render fails here."""
        if "tools" not in self._cache:
            endpoint = (await self._find_endpoints())[0]
            listing = await fetch_tools(
                get_runtime(),
                endpoint,
                label=self.label,
                split=self._split,
                probe_indices=self._probe_indices(),
                secrets=pair_secrets(self._secrets, endpoint, self.label),
                timeouts=self._timeouts,
            )
            self._cache["terminal"] = listing.terminal
            self._cache["tools"] = await anyio.to_thread.run_sync(self._bind_tools, listing.specs)

        bound: tuple[BoundTool, ...] = self._cache["tools"]
        return bound

    def _bind_tools(self, specs: Sequence[object]) -> tuple[BoundTool, ...]:
        try:
            tools = bind_tools(specs)
            render_tools(tools)
        except SourceError as error:
            raise SourceError(f"source {self.label!r}: {error}") from error

        return tools

    async def has_random_prompt(self) -> bool:
        """Whether two sessions of its first task give different prompts. Runs on the runtime's loop."""
        tasks, endpoints = await self.fetch_tasks(), await self._find_endpoints()
        await self.fetch_tools()

        with translate_errors(self.label, endpoints[0], self._timeouts.open_s, secrets=secret_values(self._secrets)):
            return await has_random_prompt(self.blueprint, tasks.indices[0])

    async def _find_endpoints(self) -> tuple[Endpoint, ...]:
        if "endpoints" not in self._cache:
            self._cache["endpoints"] = await find_replicas(
                get_runtime(), self._resolve(), label=self.label, split=self._split, timeout_s=self._timeouts.open_s
            )

        endpoints: tuple[Endpoint, ...] = self._cache["endpoints"]
        return endpoints

    def _resolve(self) -> tuple[Endpoint, ...]:
        return tuple(
            resolve_endpoint(
                target,
                label=self.label,
                env_name=self._env_name,
                variant=self._variant,
                api_key=self._api_key,
                session_url=self._session_url,
            )
            for target in self._targets
        )

    def _probe_indices(self) -> list[int]:
        if not self._discover_task_tools:
            return []
        if self._task_tools_discovery_index is not None:
            return [self._task_tools_discovery_index]
        return sorted(set(self._indices)) if self._indices is not None else [0]

    def _cached(self, key: str, make: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._cache:
                self._cache[key] = make()

            cached: T = self._cache[key]
            return cached

    def _forget(self) -> None:
        self.identity = uuid.uuid4().hex
        self._cache: dict[str, Any] = {}
        self._lock = threading.RLock()

    @staticmethod
    def _check_targets(target: object, env_name: str | None) -> tuple[str, ...]:
        targets = [target] if isinstance(target, str) else target
        label = env_name or show_target(str(target))

        if not isinstance(targets, Sequence) or not targets or not all(_is_text(each) for each in targets):
            raise ConfigError(
                f"source {label!r}: target={target!r} is no text. Pass 'owner/name', 'http://host:port', or a list of "
                f"URLs of equal servers."
            )

        different = {each.strip().rstrip("/").lower() for each in targets}

        if len(targets) > 1 and (len(different) < len(targets) or not all(is_url(each) for each in targets)):
            raise ConfigError(
                f"source {label!r}: {[show_target(each) for each in targets]!r} names equal servers, so each is a URL "
                f"and stands there once."
            )

        return tuple(targets)

    def _check_arguments(self) -> None:
        if self._num_tasks is not None and self._indices is not None:
            raise ConfigError(
                f"source {self.label!r}: num_tasks={self._num_tasks} and indices=... were both given. Pass one of them."
            )
        if self._num_tasks is not None:
            self._check_count("num_tasks", self._num_tasks, minimum=1)
        if self._indices is not None and not self._indices:
            raise ConfigError(f"source {self.label!r}: indices=[] names no task. Pass at least one, or leave it out.")
        for index in self._indices if self._indices is not None else ():
            self._check_count("indices", index, minimum=0)
        if self._task_tools_discovery_index is not None:
            self._check_count("task_tools_discovery_index", self._task_tools_discovery_index, minimum=0)
        if self.max_sessions is not None:
            self._check_count("max_sessions", self.max_sessions, minimum=1)
        self._check_count("max_concurrent_calls", self._max_concurrent_calls, minimum=1)
        timeouts: dict[str, object] = {
            "open_timeout_s": self._timeouts.open_s,
            "call_timeout_s": self._timeouts.call_s,
        }
        for name, seconds in timeouts.items():
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
                raise ConfigError(f"source {self.label!r}: {name}={seconds!r} is not a positive number of seconds.")

    def _check_count(self, name: str, value: object, *, minimum: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigError(
                f"source {self.label!r}: {name} holds {value!r}; it takes whole numbers from {minimum} upwards."
            )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
