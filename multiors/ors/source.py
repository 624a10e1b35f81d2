"""`ORSSource`: one ORS environment, as a part of a mix or alone in the place of TRL's `OpenRewardSpec`.

Decides what is asked of a server and when: nothing at construction, then the address and environment, the task list and
the tools, each once and cached. Holds `weight` and `reward` for the mix without knowing what they mean.
"""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import anyio.to_thread

from multiors.errors import ConfigError, SourceError
from multiors.ors.arguments import (
    check_choice,
    check_count,
    check_failures,
    check_overrides,
    check_seconds,
    check_targets,
    check_tasks,
)
from multiors.ors.discovery import TaskList, fetch_tasks, find_replicas, translate_errors
from multiors.ors.platform import fetch_average_rewards, list_required_secrets
from multiors.ors.probing import ToolListing, fetch_tools
from multiors.ors.remarks import Say, warn
from multiors.ors.rollouts.blueprint import Blueprint, Images
from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.ors.rollouts.opening import has_random_prompt
from multiors.ors.rows import fold_into_columns, last_rewards
from multiors.ors.sessions.limits import DEFAULT_MAX_CONCURRENT_CALLS, Cap
from multiors.ors.sessions.options import SessionOptions, SessionTimeouts
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.sessions.secrets import GivenSecrets, Secrets, check_secrets, find_secrets, pair_secrets
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
        secrets: Secrets for each session. A name the SDK does not know takes a pair (value, [allowed hosts]). None for
            a value takes that of the mix, or else of the environment variable of this name; so it is with secrets that
            the platform says the environment requires.
        env_name: Which environment of the server; "owner/name" where the URL is that of a platform with split hosts.
        include_metadata: Whether task specifications are fetched. False asks for their number only.
        discover_task_tools: Whether short sessions are opened to find tools that only some tasks have.
        task_tools_discovery_index: The one task to probe. None: each of `indices`, or else task 0.
        variant: The ORS variant of a catalogue environment.
        task_difficulty: Whether the platform is asked what others' rollouts of each task earned on average, for the
            column `avg_reward`.
        toolset: A toolset of the SDK's, such as "claude-code", whose tools each session has as well.
        env_overrides: Environment variables of the environment's container. Platforms only.
        images: What is done with images in prompts and tool results: "show" them to the policy, "drop" them, or "auto":
            shown if the trainer's model takes images, otherwise an error.
        weight: This source's share of the mix, relative to the others'. None: all sources weigh the same.
        task_curriculum: In a mix, decides which of its tasks are drawn. None: all, in turn.
        reward: How step rewards become one, and the user's own reward functions (`multiors.SourceReward`).
        session_url: Session address of a platform whose hosts follow no rule. None: derived, or OPENREWARD_SESSION_URL.
        open_timeout_s: Seconds for opening a session, and for each thing asked before training.
        call_timeout_s: Seconds for one tool call.
        retries: How often a session that failed to open is tried anew, unless its server is away.
        on_failure: What a rollout does in which the environment failed: it stays "unscored", or it ends the training,
            "stop". Decided by a mix.
        max_failing_rollouts: How many such rollouts are borne in one run; one more ends the training. None: any number.
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
        secrets: GivenSecrets | None = None,
        env_name: str | None = None,
        include_metadata: bool = True,
        discover_task_tools: bool = True,
        task_tools_discovery_index: int | None = None,
        variant: str | None = None,
        task_difficulty: bool = False,
        toolset: str | None = None,
        env_overrides: Mapping[str, str] | None = None,
        images: Images = "auto",
        weight: float | None = None,
        task_curriculum: Any = None,
        reward: Any = None,
        session_url: str | None = None,
        open_timeout_s: float = 600.0,
        call_timeout_s: float = 600.0,
        retries: int = 2,
        on_failure: Literal["unscored", "stop"] = "unscored",
        max_failing_rollouts: int | None = None,
        max_sessions: int | None = None,
        max_concurrent_calls: int = DEFAULT_MAX_CONCURRENT_CALLS,
    ) -> None:
        self._targets = check_targets(target, env_name)
        self._target, self._is_url = target, is_url(self._targets[0])  # as TRL's spec, whose tests read them
        self.label = env_name or show_target(self._targets[0])
        self.weight, self.task_curriculum, self.reward = weight, task_curriculum, reward
        self.on_failure = on_failure
        self.max_failing_rollouts = max_failing_rollouts
        self._num_tasks = num_tasks
        self.split = split
        self._indices = None if indices is None else list(indices)
        self._api_key = api_key
        self._secrets = secrets
        self.env_name = env_name
        self._include_metadata = include_metadata
        self._discover_task_tools = discover_task_tools
        self._task_tools_discovery_index = task_tools_discovery_index
        self._variant = variant
        self._task_difficulty = task_difficulty
        self._toolset = toolset
        self._env_overrides = env_overrides
        self._images = images
        self._retries = retries
        self._session_url = session_url
        self._timeouts = SessionTimeouts(open_s=open_timeout_s, call_s=call_timeout_s)
        self.max_sessions = max_sessions
        self._max_concurrent_calls = max_concurrent_calls
        self._mix_cap: Cap | None = None
        self._mix_secrets: Secrets | None = None
        self._say: Say = warn
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
        name = "" if self.env_name is None else f", env_name={self.env_name!r}"
        targets = [show_target(target) for target in self._targets]
        return f"ORSSource({(targets[0] if len(targets) == 1 else targets)!r}{name})"

    def named(self, label: str, *, mix_cap: Cap | None = None, mix_secrets: Secrets | None = None) -> ORSSource:
        """A copy under another name, with a class and sessions of its own, within the cap and with secrets of a mix."""
        twin = copy.copy(self)
        twin.label = label
        twin._mix_cap = mix_cap
        twin._mix_secrets = mix_secrets
        twin._forget()
        return twin

    def inspected(self, *, timeout_s: float, say: Say) -> ORSSource:
        """A copy for a look before training: it waits for nothing longer, and says to `say` what it would warn of.

        The limits of a mix do not hold for it.
        """
        twin = self.named(self.label, mix_secrets=self._mix_secrets)
        open_s, call_s = min(timeout_s, self._timeouts.open_s), min(timeout_s, self._timeouts.call_s)
        twin._timeouts = replace(self._timeouts, open_s=open_s, call_s=call_s)
        twin._say = say
        return twin

    def evaluated(self, label: str, *, split: str | None = None) -> ORSSource:
        """A copy to be evaluated, with sessions of its own, on the tasks of another split if one is named.

        `num_tasks` and `indices` say which tasks of the source's own split are used, and hold for no other.
        """
        twin = self.named(label, mix_cap=self._mix_cap, mix_secrets=self._mix_secrets)

        if split is not None and split != self.split:
            twin.split, twin._num_tasks, twin._indices = split, None, None

        return twin

    @property
    def address(self) -> str:
        """Where it is, as messages may show it."""
        return ", ".join(map(show_target, self._targets))

    @property
    def mix_max_sessions(self) -> int | None:
        """Sessions of the whole mix open at once. None: no limit, or no mix."""
        return None if self._mix_cap is None else self._mix_cap.max_sessions

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
        self.remark_group_scores()
        return EnvironmentFactory(self.blueprint)

    @property
    def reward_funcs(self) -> Callable[..., list[float | None]]:
        """The last reward of each rollout; None where nothing scored it.

        Raises:
            ConfigError: The source has a `reward` or a `task_curriculum` of its own, which only a mix knows.
        """
        if self.task_curriculum is not None:
            raise ConfigError(
                f"source {self.label!r}: task_curriculum=... is followed by a mix. Use "
                f"MultiOpenRewardSpec({{'name': source}}), or leave it out."
            )
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

    @property
    def task_digest(self) -> tuple[str, str | None]:
        """A digest of the tasks' indices, and one of their specifications. None: these were not fetched."""
        return self._cached("task_digest", self.task_list.digest)

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
        tools, endpoints = self.tools, self._cache["endpoints"]
        listing: ToolListing = self._cache["listing"]
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
                options=replace(self._cache["options"], has_messages=listing.message_blocks is not None),
                tools=tools,
                terminal=listing.terminal,
                caps=(own_cap,) if self._mix_cap is None else (own_cap, self._mix_cap),
                images=self._images,
                group_blocks=(listing.message_blocks or ()) if listing.scores_groups else None,
                retries=self._retries,
            ),
        )

    @property
    def scores_groups(self) -> bool:
        """Whether the environment compares the rollouts of a group."""
        return self.blueprint.group_blocks is not None

    def remark_group_scores(self) -> None:
        """Say that the environment compares the rollouts of a group, if it does, where nobody asks it to."""
        if self.scores_groups:
            self._say(
                f"source {self.label!r}: this environment can also score a group's rollouts together, which is not "
                f"done; only the rewards of its tools count. Pass reward=SourceReward(parts=(GroupScore(),)) in a mix "
                f"to have it done."
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
            tasks = await fetch_tasks(
                get_runtime(),
                endpoint,
                label=self.label,
                split=self.split,
                num_tasks=self._num_tasks,
                indices=self._indices,
                include_metadata=self._include_metadata,
                timeout_s=self._timeouts.open_s,
            )
            self._cache["tasks"] = await self._add_difficulty(tasks, endpoint) if self._task_difficulty else tasks

        found: TaskList = self._cache["tasks"]
        return found

    async def _add_difficulty(self, tasks: TaskList, endpoint: Endpoint) -> TaskList:
        by_index = await fetch_average_rewards(
            get_runtime(), endpoint, label=self.label, split=self.split, timeout_s=self._timeouts.open_s
        )
        return replace(tasks, avg_rewards=[by_index.get(index) for index in tasks.indices])

    async def fetch_tools(self, probe_indices: Sequence[int] | None = None) -> tuple[BoundTool, ...]:
        """Fetch and bind the tools, unless they were; a tool that transformers cannot render fails here.

        `probe_indices` are the tasks that are looked at for tools of their own. None: those that the source says.
        """
        if "tools" not in self._cache:
            listing = await fetch_tools(
                get_runtime(),
                (await self._find_endpoints())[0],
                await self._find_options(),
                label=self.label,
                probe_indices=self._probe_indices() if probe_indices is None else probe_indices,
                say=self._say,
            )
            self._cache["listing"] = listing
            self._cache["tools"] = await anyio.to_thread.run_sync(self._bind_tools, listing.specs)

        bound: tuple[BoundTool, ...] = self._cache["tools"]
        return bound

    async def _find_options(self) -> SessionOptions:
        if "options" not in self._cache:
            self._cache["options"] = await self._make_options((await self._find_endpoints())[0])

        options: SessionOptions = self._cache["options"]
        return options

    async def _make_options(self, endpoint: Endpoint) -> SessionOptions:
        required = await list_required_secrets(
            get_runtime(), endpoint, label=self.label, timeout_s=self._timeouts.open_s, say=self._say
        )
        secrets = find_secrets(self._secrets, self._mix_secrets, required, label=self.label)

        if self._env_overrides and not endpoint.is_platform:
            self._say(
                f"source {self.label!r}: env_overrides are sent to {endpoint.session_url}, which is no platform; "
                f"servers of the openreward SDK ignore them. Start the server with these environment variables."
            )

        return SessionOptions(
            split=self.split,
            timeouts=self._timeouts,
            toolset=self._toolset,
            env_overrides=self._env_overrides,
            secrets=pair_secrets(secrets, endpoint, self.label),
        )

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
        hidden = self.blueprint.options.hidden

        with translate_errors(self.label, endpoints[0], self._timeouts.open_s, secrets=hidden):
            return await has_random_prompt(self.blueprint, tasks.indices[0])

    async def _find_endpoints(self) -> tuple[Endpoint, ...]:
        if "endpoints" not in self._cache:
            self._cache["endpoints"] = await find_replicas(
                get_runtime(), self._resolve(), label=self.label, split=self.split, timeout_s=self._timeouts.open_s
            )

        endpoints: tuple[Endpoint, ...] = self._cache["endpoints"]
        return endpoints

    def _resolve(self) -> tuple[Endpoint, ...]:
        return tuple(
            resolve_endpoint(
                target,
                label=self.label,
                env_name=self.env_name,
                variant=self._variant,
                api_key=self._api_key,
                session_url=self._session_url,
            )
            for target in self._targets
        )

    def _probe_indices(self) -> list[int]:
        if not self._discover_task_tools and self._toolset is None:
            return []
        if self._task_tools_discovery_index is not None:
            return [self._task_tools_discovery_index]
        if self._indices is None:
            return [0]
        return sorted(set(self._indices)) if self._discover_task_tools else self._indices[:1]

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

    def _check_arguments(self) -> None:
        check_tasks(self.label, self._num_tasks, self._indices)
        check_choice(self.label, "images", self._images, get_args(Images))
        check_failures(self.label, self.on_failure, self.max_failing_rollouts)
        check_overrides(self.label, self._env_overrides)
        if self._secrets is not None:
            check_secrets(self._secrets, f"source {self.label!r}")
        if self._task_tools_discovery_index is not None:
            check_count(self.label, "task_tools_discovery_index", self._task_tools_discovery_index, minimum=0)
        if self.max_sessions is not None:
            check_count(self.label, "max_sessions", self.max_sessions, minimum=1)
        check_count(self.label, "max_concurrent_calls", self._max_concurrent_calls, minimum=1)
        check_count(self.label, "retries", self._retries, minimum=0)
        check_seconds(self.label, "open_timeout_s", self._timeouts.open_s)
        check_seconds(self.label, "call_timeout_s", self._timeouts.call_s)
