"""Environments that are not ORS as sources of a mix: their rows, their objects and their rewards, without a trainer."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import torch
from datasets import Dataset, IterableDataset
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from multiors import (
    ConfigError,
    GroupScore,
    MultiOpenRewardSpec,
    ORSSource,
    RewardError,
    RewardPart,
    RolloutRecord,
    RoutingError,
    SourceError,
    SourceReward,
    TRLSource,
    UnscoredReason,
)
from multiors.mixing.curricula import Ladder
from multiors.training.others.rows import TaskRows
from tests.others import Fails, Guess, Judge, Oven, guess_rows, reward_of
from tests.playing import factories, score

NOWHERE = "http://127.0.0.1:9"


def source_of(*words: str, factory: Any = Guess, functions: Any = reward_of, **settings: Any) -> TRLSource:
    """A source of `Guess`, with one row for each word."""
    rows = guess_rows(*(words or ("oak",)))
    return TRLSource(train_dataset=rows, environment_factory=factory, reward_funcs=functions, **settings)


def mix(records: list[RolloutRecord] | None = None, **sources: Any) -> MultiOpenRewardSpec:
    """A mix of these sources."""
    return MultiOpenRewardSpec(sources, on_rollouts=None if records is None else records.extend)


def play(spec: MultiOpenRewardSpec, source: str, *calls: Any, task_index: int = 0) -> Any:
    """An environment after `reset` and some calls; a policy does not see exceptions either."""
    environment = factories(spec)[source]()
    environment.reset(task_index=task_index, prompt=[], slot=0, task="{}")

    for tool, arguments in calls:
        with suppress(Exception):
            getattr(environment, tool)(**arguments)

    return environment


def rewards_of(spec: MultiOpenRewardSpec, *rollouts: tuple[str, Any], **arguments: Any) -> list[float | None]:
    """What the columns give for these rollouts."""
    scored = score(spec.reward_funcs, rollouts, **arguments)
    return [scored.rewards[name][row] for row, (name, _) in enumerate(rollouts)]


RIGHT = ("guess", {"word": "oak"})
WRONG = ("guess", {"word": "elm"})


# -- rows


@given(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**62), 2**62)), min_size=1, max_size=12))
def test_tasks_are_numbered_by_their_column_or_their_rows(indices: list[int]) -> None:
    """A column `task_index` with a number of its own in each row is kept; otherwise a row's number is its task's."""
    is_index = len(set(indices)) == len(indices)
    rows = TaskRows("a", Dataset.from_dict({"task_index": indices, "word": list(map(str, indices))}))

    assert (indices if is_index else list(range(len(indices)))) == rows.indices
    assert list(map(str, indices)) == [rows.find(index)["word"] for index in rows.indices]


def test_rows_without_an_index_are_numbered() -> None:
    """The row's number is the task's; of an index that is no whole number nothing is made."""
    assert [0, 1] == source_of("oak", "elm").task_indices
    assert [0, 1] == TaskRows("a", Dataset.from_dict({"task_index": ["x", "y"]})).indices


def test_prompts_are_kept_beside_those_of_others() -> None:
    """Text becomes a user's message and messages stay; a source without prompts has an empty one, as ORS sources."""
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which?"}]
    rows = {
        "text": Dataset.from_dict({"prompt": ["Guess.", "Guess again."]}),
        "talk": Dataset.from_dict({"prompt": [talk, talk[1:]]}),
        "none": guess_rows("oak", "elm"),
    }
    sources = {
        name: TRLSource(train_dataset=each, environment_factory=Guess, reward_funcs=reward_of)
        for name, each in rows.items()
    }
    drawn = MultiOpenRewardSpec(sources, stopping_strategy="all_exhausted").train_dataset
    found = {(row["environment"], row["task_index"]): row["prompt"] for row in drawn}

    assert [{"role": "user", "content": "Guess again."}] == found["text", 1]
    assert [talk, talk[1:]] == [found["talk", 0], found["talk", 1]]
    assert [{"role": "user", "content": ""}] == found["none", 0]


def test_what_rows_hold_is_the_tasks_specification() -> None:
    """The columns beside prompt and index are the column `task`, as JSON text; without any there is none."""
    spec = mix(a=source_of("oak"), b=TRLSource(slots_of(Dataset.from_dict({"prompt": ["Guess."]}))))
    found = {row["environment"]: row["task"] for row in spec.train_dataset}

    assert {"a": '{"word": "oak"}', "b": None} == found


def slots_of(rows: Any, **slots: Any) -> Any:
    """An object with three slots."""
    return SimpleNamespace(**{"train_dataset": rows, "environment_factory": Guess, "reward_funcs": reward_of, **slots})


def test_reset_is_given_the_row_as_it_is() -> None:
    """Every column of the user's dataset arrives unchanged, whatever its type, and none of the mix's own."""
    row = {
        "word": "oak",
        "prompt": [{"role": "user", "content": "Which word?"}],
        "slot": "theirs",
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "nested": {"a": [1.5, None]},
        "nothing": None,
        "data": b"\x00\xff",
    }
    environment = play(mix(a=TRLSource(slots_of(Dataset.from_list([row])))), "a")

    assert [row] == environment._own.rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, r"is no source: it has no \['train_dataset'\]"),
        ([{"word": "oak"}], r"its train_dataset is a list; a mix counts the rows of a datasets\.Dataset"),
        (IterableDataset.from_generator(lambda: iter([{"word": "oak"}])), "its train_dataset is a IterableDataset"),
        (guess_rows(), "its train_dataset has no rows"),
        (guess_rows("oak", images=[None]), "its rows have the column 'images', and the trainer would look for pict"),
        (Dataset.from_dict({"prompt": [3]}), "the prompt of row 0 is neither text nor messages"),
        (Dataset.from_dict({"prompt": [[]]}), "the prompt of row 0 is neither text nor messages"),
        (
            Dataset.from_dict({"prompt": ["a", "b"], "x": [0, 1]}).map(
                lambda row: {"prompt": [{"role": "user", "content": "a", "name": "Ann" if row["x"] else None}]}
            ),
            "the prompt of row 1 is neither text nor messages of nothing but role and text",
        ),
    ],
)
def test_rows_that_cannot_stand_in_a_mix_are_refused(rows: Any, message: str) -> None:
    """A mix counts rows, and puts their prompts into one table with others'."""
    with pytest.raises(SourceError, match=f"source 'a': .*{message}"):
        mix(a=slots_of(rows)).train_dataset  # noqa: B018  # reading it asks the source


def test_a_row_of_another_spec_is_refused() -> None:
    """A task that the source does not have is not played as another one."""
    with pytest.raises(RoutingError, match=r"source 'a': a row has task_index=7, and the source has no such task"):
        play(mix(a=source_of()), "a", task_index=7)


# -- objects


def test_one_class_in_two_sources_is_two_environments() -> None:
    """Rollouts are of the source whose row they played, whatever class the objects have."""
    spec = mix(a=source_of("oak"), b=source_of("elm", factory=partial(Guess, "Name")))
    one, other = play(spec, "a", RIGHT), play(spec, "b", RIGHT)

    assert type(one) is not type(other)
    assert [1.0, 0.0] == rewards_of(spec, ("a", one), ("b", other)) == spec.reward_funcs(environments=[one, other])
    with pytest.raises(RoutingError, match="rows of source 'b' were played in environments of another spec"):
        rewards_of(spec, ("b", one))


@pytest.mark.parametrize("factory", [Guess, lambda: Guess(), partial(Guess, greeting="Guess")])
def test_a_factory_is_anything_that_is_called(factory: Any) -> None:
    """A class, a closure and a partial make the same; an object is made when a rollout needs it, and kept."""
    spec = mix(a=source_of(factory=factory))
    environment = factories(spec)["a"]()
    shown = [environment.reset(task_index=0), environment.reset(task_index=0)]

    assert ["Guess the word. Say oak."] * 2 == shown
    assert 2 == len(environment._own.rows)


class Shapes:
    """Tools of every shape that TRL takes for one."""

    def reset(self, **row: Any) -> None:
        """Begin."""

    def plain(self, word: str, often: int = 1) -> str:
        """Say a word.

        Args:
            word: Which.
            often: How often.
        """
        return word * often

    async def later(self, word: str) -> str:
        """Say a word later.

        Args:
            word: Which.
        """
        return word

    @staticmethod
    def alone(word: str) -> str:
        """Say a word alone.

        Args:
            word: Which.
        """
        return word

    def _hidden(self) -> None:
        """Not a tool."""

    @property
    def state(self) -> str:
        """Not a tool."""
        return "fine"


def test_the_policy_is_shown_what_trl_alone_would_show() -> None:
    """Names, types and descriptions of the tools are those of the user's class, and so is what a tool returns."""
    spec = mix(a=source_of(factory=Shapes))
    environment, own = play(spec, "a"), Shapes()
    tools = ["alone", "later", "plain"]

    assert sorted(tools) == sorted(environment._tool_names)
    assert [get_json_schema(getattr(own, name)) for name in tools] == [
        get_json_schema(getattr(environment, name)) for name in tools
    ]
    assert ["aa", "b"] == [environment.plain("a", often=2), environment.alone(word="b")]
    assert "c" == anyio.run(environment.later, "c")
    assert "fine" == environment.state


def test_tools_are_listed() -> None:
    """The table of tools has their parameters."""
    table = mix(a=source_of(factory=Shapes)).describe_tools()["a"]

    assert [
        "tool   parameters",
        "alone  word: 'str'",
        "later  word: 'str'",
        "plain  word: 'str', often: 'int' = 1",
    ] == table.splitlines()


class Bare:
    """Has no reset."""


class Late(Shapes):
    """Has a reset that nobody would await."""

    async def reset(self, **row: Any) -> None:  # type: ignore[override]  # that is the mistake
        """Begin."""


class Closed(Shapes):
    """Has a method that TRL takes for a tool."""

    def close(self, how) -> None:  # type: ignore[no-untyped-def] # that is the mistake
        """Close."""


class Narrow(Shapes):
    """Takes no columns."""

    def reset(self) -> None:  # type: ignore[override]  # that is the mistake
        """Begin."""


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Bare, r"an environment of class 'Bare' has no method reset\(\)\. Write def reset\(self, \*\*row\)"),
        (Late, r"an environment of class 'Late' has an async reset\(\), which no trainer awaits"),
        (Closed, "transformers cannot show 'close'.*a name that begins with an underscore"),
        (Narrow, r"reset\(\).* does not take the columns of its rows, \['word'\]"),
        ({"a": Guess}, "its environment_factory is a dict, which makes no environment.*are a source each"),
    ],
)
def test_classes_that_no_trainer_could_play_are_refused(factory: Any, message: str) -> None:
    """What would fail in the first batch, or in every one, is an error that names the source and the remedy."""
    with pytest.raises(SourceError, match=f"source 'a': .*{message}"):
        play(mix(a=source_of(factory=factory)), "a")


def test_a_factory_of_several_classes_is_refused() -> None:
    """The policy is shown the tools of the first object's class."""
    made = iter([Guess(), Shapes()])
    make = factories(mix(a=source_of(factory=lambda: next(made))))["a"]
    make().reset(task_index=0)

    with pytest.raises(SourceError, match=r"source 'a': its factory made a Shapes, and a Guess before.*a source of"):
        make().reset(task_index=0)


def test_what_a_slot_raises_is_told_with_its_source() -> None:
    """The exception stays what it is, with a note."""

    def fail() -> Any:
        raise OSError("no such machine")

    with pytest.raises(OSError, match="no such machine") as caught:
        play(mix(a=source_of(factory=fail)), "a")

    assert ["in the environment_factory of source 'a'"] == caught.value.__notes__


def test_a_reset_that_returns_something_else_is_refused() -> None:
    """TRL adds text or blocks to the prompt."""

    class Number(Shapes):
        def reset(self, **row: Any) -> Any:
            return 3

    with pytest.raises(SourceError, match=r"source 'a': reset\(\) returned a int, and TRL takes text, a list"):
        play(mix(a=source_of(factory=Number)), "a")


# -- rewards


def test_functions_are_called_as_trl_calls_them() -> None:
    """With the user's objects, their rows' columns and TRL's own arguments: of this source, row for row."""
    seen: dict[str, Any] = {}

    def watch(**arguments: Any) -> list[float]:
        seen.update(arguments)
        arguments["log_extra"]("guessed", [each.reward for each in arguments["environments"]])
        arguments["log_metric"]("mean", 0.5)
        return [0.5] * len(arguments["environments"])

    spec = mix(a=source_of("oak", "elm", functions=[watch]), b=source_of("oak"))
    played = [("a", play(spec, "a", RIGHT)), ("b", play(spec, "b")), ("a", play(spec, "a", RIGHT, task_index=1))]
    scored = score(spec.reward_funcs, played, completions=["x", "y", "z"], slot=[0, 1, 2], task_index=[0, 0, 1])

    assert {"completions", "environments", "log_extra", "log_metric", "word"} == set(seen)
    assert ["x", "z"] == seen["completions"]
    assert ["oak", "elm"] == seen["word"]
    assert [played[0][1]._own, played[2][1]._own] == seen["environments"]
    assert [0.5, None, 0.5] == scored.rewards["a"]
    assert [1.0, None, 0.0] == scored.extra["guessed"]
    assert [0.5] == scored.metrics["mean"]


def test_several_functions_are_added_up_where_they_score() -> None:
    """As TRL adds them up: None does not count, and where all are None the rollout is unscored; each is recorded."""
    records: list[RolloutRecord] = []
    functions = [lambda environments, **_: [1.0, None, None], lambda environments, **_: [0.25, 0.5, None]]
    spec = mix(records, a=source_of(functions=functions))
    rewards = rewards_of(spec, *(("a", play(spec, "a", RIGHT)) for _ in range(3)))

    assert [1.25, 0.5, None] == rewards
    assert [{"<lambda>": 1.0, "<lambda>#2": 0.25}, UnscoredReason.NO_SCORE] == [records[0].parts, records[2].reason]


def test_functions_and_rewards_may_be_async() -> None:
    """They are awaited in the column, which is then async itself."""

    async def later(environments: Any, **_: Any) -> list[float]:
        return [0.5] * len(environments)

    spec = mix(a=source_of(factory=Oven, functions=[later, reward_of]))
    environment = play(spec, "a", RIGHT)
    (column,) = spec.reward_funcs
    call: Any = partial(column, environments=[environment], environment=["a"])
    values: Any = anyio.run(call)

    assert [2.5] == values


def test_the_sources_reward_is_composed_as_any_other() -> None:
    """Scale, offset and clip act on what the functions say; parts are given the user's objects."""
    part = RewardPart(lambda environments, **_: [float(type(each) is Guess) for each in environments], weight=0.5)
    reward = SourceReward(scale=10.0, clip=(-1.0, 4.0), outcome_weight=2.0, parts=(part,))
    spec = mix(a=source_of(reward=reward))

    assert [8.5, 0.5] == rewards_of(spec, ("a", play(spec, "a", RIGHT)), ("a", play(spec, "a", WRONG)))


def test_giving_up_can_be_a_score_here_too() -> None:
    """`unscored` and `unfinished` replace what the policy is answerable for."""
    silent = mix(a=source_of(reward=SourceReward(unscored=-1.0)))
    unfinished = mix(a=source_of(reward=SourceReward(unfinished=-2.0)))

    assert [-1.0] == rewards_of(silent, ("a", play(silent, "a")))
    assert [-2.0, 0.0] == rewards_of(unfinished, ("a", play(unfinished, "a")), ("a", play(unfinished, "a", WRONG)))


def test_an_environment_that_never_says_its_end_has_no_unfinished() -> None:
    """Otherwise every rollout would be unfinished."""
    spec = mix(a=source_of(factory=Shapes, functions=ones, reward=SourceReward(unfinished=0.0)))

    with pytest.raises(ConfigError, match=r"source 'a': SourceReward\(unfinished=\.\.\.\) needs to know which"):
        rewards_of(spec, ("a", play(spec, "a")))


def ones(environments: Any, **_: Any) -> list[float]:
    """One for each."""
    return [1.0] * len(environments)


def test_get_reward_is_asked_here_and_hidden_from_trl() -> None:
    """TRL would add a column of its own for a class with that method, and count every reward twice."""
    spec = mix(a=source_of(factory=Judge, functions=None))
    environment = play(spec, "a", RIGHT)

    assert not hasattr(type(environment), "get_reward")
    assert "get_reward" not in environment._tool_names
    assert [1.0, None] == rewards_of(spec, ("a", environment), ("a", play(spec, "a")))


def test_a_reward_that_is_counted_twice_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Functions and `get_reward` are added up as TRL does it; if they say the same, one warning says so."""
    spec = mix(a=source_of(factory=Judge))
    columns = spec.reward_funcs

    for _ in range(2):
        score(columns, [("a", play(spec, "a", RIGHT))])

    assert ["source 'a': the reward function 'reward_of' returns what get_reward() of its environments says, and both "
            "are added up, as TRL does it. Leave one of them out."] == [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"functions": None}, SourceError, r"nothing says what a rollout is worth: it has no reward_funcs"),
        ({"functions": "gpt2"}, SourceError, "the reward 'gpt2' is no function, and reward models are not used here"),
        ({"functions": torch.nn.Linear(1, 1)}, SourceError, "is no function, and reward models are not used here"),
        ({"reward": SourceReward(reduction="sum")}, ConfigError, r"SourceReward\(reduction='sum'\) says how the rewar"),
        ({"on_failure": "never"}, ConfigError, "on_failure='never' is not known"),
        ({"reward": SourceReward(parts=(GroupScore(),))}, ConfigError, "its environment does not score groups"),
    ],
)
def test_settings_that_make_no_sense_here_are_refused(settings: Any, error: Any, message: str) -> None:
    """Each says what holds instead."""
    with pytest.raises(error, match=message):
        read_slots(settings)


def read_slots(settings: Any) -> Any:
    """The slots that ask a source of these settings."""
    spec = mix(a=source_of(**settings))
    return spec.reward_funcs, spec.train_dataset


def test_slots_are_given_in_one_way() -> None:
    """An object with slots, or the slots by name; a name of a slot that is missing is told."""
    with pytest.raises(ConfigError, match=r"got an object with slots, and \['reward_funcs'\] beside it"):
        TRLSource(slots_of(guess_rows("oak")), reward_funcs=reward_of)
    with pytest.raises(SourceError, match=r"source 'a': a object is no source: it has no \['train_dataset', 'envir"):
        mix(a=object())


def test_what_a_function_raises_stops_and_names_it() -> None:
    """A reward function that is wrong is wrong for every rollout; its exception stays what it is."""

    def fail(**_: Any) -> Any:
        raise KeyError("oak")

    spec = mix(a=source_of(functions=fail))

    with pytest.raises(KeyError, match="oak") as caught:
        rewards_of(spec, ("a", play(spec, "a")))
    assert ["in the reward function 'fail' of source 'a'"] == caught.value.__notes__

    spec = mix(a=source_of(functions=lambda **_: [float("nan")]))
    with pytest.raises(RewardError, match="reward function '<lambda>', rollout 0: nan is not a finite number"):
        rewards_of(spec, ("a", play(spec, "a")))


# -- failures


class Verifies(Guess):
    """Finds out what it is worth when it is asked, which may fail, as with a verifier in a container."""

    @property
    def verdict(self) -> float:
        """The reward."""
        if self.word == "elm":
            raise TimeoutError("the verifier did not end")

        return 1.0


def test_an_environment_that_fails_when_it_is_asked_fails_alone() -> None:
    """Its rollout is unscored, and the function is called anew with the others; what it raises itself stops."""
    records: list[RolloutRecord] = []
    sizes: list[int] = []

    def verify(environments: Any, **_: Any) -> list[float]:
        sizes.append(len(environments))
        return [each.verdict for each in environments]

    spec = mix(records, a=source_of("oak", "elm", "fir", factory=Verifies, functions=[ones, verify]))
    rewards = rewards_of(spec, *(("a", play(spec, "a", task_index=index)) for index in range(3)))

    assert [2.0, None, 2.0] == rewards
    assert [3, 2] == sizes
    assert (UnscoredReason.TOOL_ERROR, "verify() asked it, and it raised TimeoutError: the verifier did not end") == (
        records[1].reason, records[1].error
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "call", "reward", "reason", "error"),
    [
        ("reset", None, None, UnscoredReason.UNREACHABLE, "reset() raised ConnectionError: nobody answers"),
        ("make", None, None, UnscoredReason.UNREACHABLE, "reset() raised OSError: no room"),
        ("tool", "press", None, UnscoredReason.TOOL_ERROR, "press() raised ConnectionError: the line broke"),
        ("text", "press", None, UnscoredReason.TOOL_ERROR, "press() raised JSONDecodeError: Expecting value"),
        ("reward", "press", None, UnscoredReason.TOOL_ERROR, "get_reward() raised RuntimeError: no verdict"),
        ("nan", "press", None, UnscoredReason.BAD_REWARD, "get_reward() returned nan, which is no finite number"),
        ("refuse", "press", 7.0, None, None),
        ("", "press", 7.0, None, None),
    ],
)
def test_a_failure_of_the_environment_is_never_a_number(
    fails: str, call: str | None, reward: float | None, reason: UnscoredReason | None, error: str | None
) -> None:
    """What its own functions say of a rollout in which it failed does not count; a refused call is no failure."""
    records: list[RolloutRecord] = []
    makes = iter(range(9))

    def make() -> Fails:
        if fails == "make" and next(makes):
            raise OSError("no room")
        return Fails()

    rows = Dataset.from_dict({"fails": [fails, ""]})
    spec = mix(records, a=TRLSource(train_dataset=rows, environment_factory=make, reward_funcs=sevens))
    make_one = factories(spec)["a"]
    make_one().reset(task_index=1)
    bad, good = (play(spec, "a", *([(call, {})] if call else []), task_index=index) for index in (0, 1))
    made = [good] if fails != "make" else []
    rewards = rewards_of(spec, ("a", bad), *(("a", each) for each in made))

    assert [reward, *[7.0 for _ in made]] == rewards
    assert (reason, error) == (records[0].reason, records[0].error and records[0].error[: len(error or "")])
    assert [] == [step for step in records[0].steps if call is None]


def sevens(environments: Any, **_: Any) -> list[float]:
    """A number for every rollout, whatever happened in it."""
    return [7.0 if each.count >= 0 else 0.0 for each in environments]


@pytest.mark.parametrize(
    ("arguments", "failure", "output"),
    [
        ({"word": "oak"}, None, "guessed oak"),
        ({"letter": "oak"}, UnscoredReason.BAD_CALL, "Guess.guess() got an unexpected keyword argument 'letter'"),
    ],
)
def test_calls_are_recorded_as_trl_tells_them(
    arguments: dict[str, Any], failure: UnscoredReason | None, output: str
) -> None:
    """With arguments, result and end; a call that the tool cannot take, or refuses, is a bad call."""
    environment = play(mix(a=source_of()), "a", ("guess", arguments), RIGHT)
    first, second = environment._episode().steps

    assert ("guess", arguments, output, failure, failure is None) == (
        first.tool, first.arguments, first.output, first.failure, first.finished
    )  # fmt: skip
    assert (UnscoredReason.BAD_CALL if failure is None else None) == second.failure


def test_what_a_tool_raises_reaches_trl_unchanged() -> None:
    """TRL shows the policy the text of the exception."""
    environment = play(mix(a=source_of()), "a", RIGHT)

    with pytest.raises(ValueError, match=r"^The game is over\.$"):
        environment.guess(word="oak")


def test_an_object_whose_reset_failed_is_not_used_again() -> None:
    """The next rollout has a new one, and its failures are its own."""
    rows = Dataset.from_dict({"fails": ["reset", ""]})
    spec = mix(a=TRLSource(train_dataset=rows, environment_factory=Fails, reward_funcs=sevens))
    environment = factories(spec)["a"]()
    shown = [environment.reset(task_index=0)]
    broken = environment._own
    shown.append(environment.reset(task_index=1))

    assert ["The environment could not be opened. There is nothing to do here.", "Count."] == shown
    assert broken is not environment._own
    assert [7.0] == rewards_of(spec, ("a", environment))


def test_failed_rollouts_are_not_shown_to_the_functions() -> None:
    """A stale or half-made object says nothing true; what is logged of the others stands in their rows."""
    seen: list[Any] = []

    def watch(environments: Any, log_extra: Any, fails: Any, **_: Any) -> list[float]:
        seen.append(fails)
        log_extra("fails", fails)
        return [1.0] * len(environments)

    rows = Dataset.from_dict({"fails": ["reset", "", "refuse"]})
    spec = mix(a=TRLSource(train_dataset=rows, environment_factory=Fails, reward_funcs=watch))
    scored = score(spec.reward_funcs, [("a", play(spec, "a", task_index=index)) for index in range(3)])

    assert [["", "refuse"]] == seen
    assert [None, "", "refuse"] == scored.extra["fails"]
    assert [None, 1.0, 1.0] == scored.rewards["a"]


# -- in a mix


def test_rows_have_levels_for_a_ladder() -> None:
    """A task curriculum reads the columns of the user's rows."""
    rows = guess_rows("oak", "elm", "fir", "ash", level=[2, 1, 1, 2])
    source = TRLSource(slots_of(rows), task_curriculum=Ladder(field="level"), reward=SourceReward(range=(0.0, 1.0)))
    spec = MultiOpenRewardSpec({"a": source}, num_slots=4)
    fields = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 4, "num_generations": 2}
    spec.training_arguments(output_dir="unused", **fields)
    drawn = [json.loads(task)["level"] for task in spec.train_dataset[:2]["task"]]

    assert [1, 1] == drawn


def test_the_union_mode_is_for_ors_sources() -> None:
    """Its class has the tools of all sources; the error names those that have none to give."""
    with pytest.raises(ConfigError, match=r"tools='union' needs .*, and \['a'\] are no ORS environments"):
        MultiOpenRewardSpec({"a": source_of(), "b": ORSSource(NOWHERE)}, tools="union")
