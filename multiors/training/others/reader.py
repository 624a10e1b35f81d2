"""What the reward functions of somebody's spec say of its rollouts, and what is made of it.

They are called as TRL alone would call them, with the rollouts of this source only and without those in which the
environment failed, which are unscored whatever is said of them. An environment with `get_reward()` is asked by this
module; TRL is not shown that method, because beside a reward column it would count the reward twice.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from traceback import walk_tb
from typing import Any

from multiors.errors import ConfigError, RewardError
from multiors.mixing.dataset import COLUMNS
from multiors.ors.text import one_line
from multiors.records import UnscoredReason
from multiors.rewards import RewardPart, SourceReward, check_values, decide_value, naming
from multiors.training.others.environment import PlayedEnvironment
from multiors.training.readers import Reading, is_async

__all__ = ["OtherReader"]

logger = logging.getLogger("multiors.training")

_OF_THE_MIX = {*COLUMNS, "avg_reward", "tasks"}
# Columns that TRL does not pass on, or whose place it takes (TRL 1.16, GRPOTrainer._calculate_rewards).
_NO_COLUMNS = {
    *("prompt", "completion", "completion_ids", "prompts", "completions"),
    *("environments", "trainer_state", "log_extra", "log_metric"),
}
_GET_REWARD = "get_reward"

Scoring = Generator[Any, Any, list[Reading]]
"""Yields what was called, a value or an awaitable, and is sent what came of it."""


class OtherReader:
    """Reads the rollouts of a source by its own reward functions.

    Args:
        label: The source's name.
        environment_class: Of its environments.
        functions: Its reward functions.
        own_reward: The class's `get_reward`. None: it has none.
        find_task: The JSON text of the source's task at an index.
    """

    def __init__(
        self,
        label: str,
        environment_class: type[PlayedEnvironment],
        functions: Sequence[RewardPart],
        *,
        own_reward: Callable[..., Any] | None,
        find_task: Callable[[int], str | None],
    ) -> None:
        self._label = label
        self._environment_class = environment_class
        self._functions = functions
        self._asks_environment = own_reward is not None
        self._has_reported = False
        self.find_task = find_task
        self.names = [part.name for part in functions] + [_GET_REWARD] * self._asks_environment
        """Of what scores a rollout."""

        self.is_async = is_async(own_reward) or any(is_async(part.function) for part in functions)

    def owns(self, environment: object) -> bool:
        """Whether it is of this source."""
        return type(environment) is self._environment_class

    def show(self, environment: Any) -> Any:
        """The user's own object; where none could be made, what stands for it."""
        return environment if environment._own is None else environment._own

    def release(self, environment: object) -> None:
        """Nothing: objects of the user's are kept for the next rollout, as TRL keeps them."""

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[Reading] | Coroutine[Any, Any, list[Reading]]:
        """The sum of what scored each rollout; None where nothing did, or where the environment failed."""
        scoring = self._score(environments, reward, truncated, arguments)
        return _await_all(scoring) if self.is_async else _run(scoring)

    def _score(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> Scoring:
        values: dict[str, dict[int, float | None]] = {}

        for part in self._functions:
            values[part.name] = yield from self._call(part, environments, arguments)

        if self._asks_environment:
            values[_GET_REWARD] = own = {}
            for row in _find_played(environments):
                own[row] = yield from self._ask(environments[row])

            self._remark_twice(values)

        return [
            self._conclude(
                environment,
                {name: by_row.get(row) for name, by_row in values.items()},
                reward,
                is_truncated=truncated[row],
            )
            for row, environment in enumerate(environments)
        ]

    def _call(
        self, part: RewardPart, environments: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Generator[Any, Any, dict[int, float | None]]:
        """What a function says of each rollout that was played, by row.

        Where an environment of the user's raises while the function looks at it, as where it computes its reward only
        then, it is that rollout that has failed, and the function is called anew without it.
        """
        while played := _find_played(environments):
            try:
                with naming(part, source=self._label):
                    returned = yield part.function(**self._choose_arguments(environments, played, arguments))
            except Exception as error:
                failed = _find_raising(error, [environments[row] for row in played])
                if failed is None:
                    raise
                what = one_line(f"{part.name}() asked it, and it raised {type(error).__name__}: {error}")
                failed._fail(UnscoredReason.TOOL_ERROR, what)
                continue

            values = check_values(returned, source=self._label, part=part, num_rollouts=len(played))
            return dict(zip(played, values, strict=True))

        return {}

    def _ask(self, environment: PlayedEnvironment) -> Generator[Any, Any, float | None]:
        """What an environment says it is worth. None: nothing, or it failed."""
        returned: object = None

        try:
            returned = yield environment._own.get_reward()
            (value,) = check_values([returned], source=self._label, part=_OWN_REWARD, num_rollouts=1)
        except RewardError:
            what = one_line(f"get_reward() returned {returned!r}, which is no finite number")
            environment._fail(UnscoredReason.BAD_REWARD, what)
            return None
        except Exception as error:  # noqa: BLE001  code of the user's, which may raise anything
            what = one_line(f"get_reward() raised {type(error).__name__}: {error}")
            environment._fail(UnscoredReason.TOOL_ERROR, what)
            return None

        return value

    def _conclude(
        self,
        environment: PlayedEnvironment,
        values: Mapping[str, float | None],
        reward: SourceReward,
        *,
        is_truncated: bool,
    ) -> Reading:
        if reward.unfinished is not None and environment._opened and environment._find_end() is None:
            raise ConfigError(
                f"source {self._label!r}: SourceReward(unfinished=...) needs to know which episodes are over, and its "
                f"environments have neither an attribute finished nor one done that is True or False. Leave it out."
            )

        scored = [value for value in values.values() if value is not None]
        episode = environment._episode()
        outcome = decide_value(
            scored,
            episode.steps,
            failure=environment._failure,
            finished=episode.finished,
            truncated=is_truncated,
            reward=reward,
        )
        return Reading(episode, outcome, values=values if len(values) > 1 else {})

    def _choose_arguments(
        self, environments: Sequence[Any], played: Sequence[int], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """TRL's keyword arguments with the columns of the user's rows, cut down to the rollouts that were played."""
        own: dict[str, list[Any]] = {}
        chosen: dict[str, Any] = {
            name: [value[row] for row in played]
            if isinstance(value, list) and len(value) == len(environments)
            else value
            for name, value in arguments.items()
            if name not in _OF_THE_MIX
        }

        for row in played:
            for name, value in environments[row]._row.items():
                if name not in _NO_COLUMNS:
                    own.setdefault(name, []).append(value)

        chosen |= own | {"environments": [self.show(environments[row]) for row in played]}
        log_extra = chosen.get("log_extra")

        if log_extra is not None:
            chosen["log_extra"] = self._spread(log_extra, played, len(environments))

        return chosen

    def _spread(
        self, log_extra: Callable[[str, Sequence[Any]], None], played: Sequence[int], num_rollouts: int
    ) -> Callable[[str, Sequence[Any]], None]:
        """A `log_extra` for functions that are given the played rollouts only."""

        def log_played(column: str, values: Sequence[Any]) -> None:
            if len(values) != len(played):
                raise RewardError(
                    f"source {self._label!r}: log_extra({column!r}, ...) got {len(values)} values for {len(played)} "
                    f"rollouts. Pass one each."
                )

            value_by_row = dict(zip(played, values, strict=True))
            log_extra(column, [value_by_row.get(row) for row in range(num_rollouts)])

        return log_played

    def _remark_twice(self, values: Mapping[str, Mapping[int, float | None]]) -> None:
        """Warn of a function that returns what the environments say of themselves: the trainer is given the sum."""
        own = values[_GET_REWARD]
        twice = [part.name for part in self._functions if values[part.name] == own and any(own.values())]

        if twice and not self._has_reported:
            self._has_reported = True
            logger.warning(
                "source %r: the reward function %r returns what get_reward() of its environments says, and both are "
                "added up, as TRL does it. Leave one of them out.",
                self._label,
                twice[0],
            )


def _get_reward() -> None:
    """Stands for an environment's own reward where a function is named."""


_OWN_REWARD = RewardPart(_get_reward, name=_GET_REWARD)


def _find_played(environments: Sequence[PlayedEnvironment]) -> list[int]:
    """The rollouts in which the environment has not failed."""
    return [row for row, environment in enumerate(environments) if environment._failure is None]


def _find_raising(error: Exception, environments: Sequence[PlayedEnvironment]) -> PlayedEnvironment | None:
    """The environment in whose own code an exception was raised. None: it was raised elsewhere."""
    receivers = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    return next((each for each in environments if any(each._own is receiver for receiver in receivers)), None)


def _run(scoring: Scoring) -> list[Reading]:
    """Score with functions that return at once."""
    try:
        returned = next(scoring)

        while True:
            returned = scoring.send(returned)
    except StopIteration as end:
        read: list[Reading] = end.value
        return read


async def _await_all(scoring: Scoring) -> list[Reading]:
    """Score with functions of which some are awaited, one after another."""
    try:
        called = next(scoring)

        while True:
            try:
                returned = await called if inspect.isawaitable(called) else called
            except Exception as error:  # noqa: BLE001  is raised where the function was called
                called = scoring.throw(error)
            else:
                called = scoring.send(returned)
    except StopIteration as end:
        read: list[Reading] = end.value
        return read
