"""Which policy a text on the command line names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from multiors.errors import ConfigError
from multiors.evaluation.policies import (
    EndpointPolicy,
    LocalPolicy,
    NeverCalls,
    RandomCalls,
    Sampling,
    ScriptedPolicy,
    choose_policy,
)
from tests.conversing import asked, converse


def say_hello(start: Any, messages: Any) -> str:
    """A player, for the command line to name."""
    return "hello"


NOT_CALLABLE = 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("random", RandomCalls),
        ("silent", NeverCalls),
        ("tests.test_policies_choosing:say_hello", ScriptedPolicy),
        ("http://127.0.0.1:8000/v1", EndpointPolicy),
        ("https://host.example/v1", EndpointPolicy),
        ("owner/name", LocalPolicy),
    ],
)
def test_a_text_names_one_kind_of_policy(text: str, kind: type) -> None:
    """By what it looks like; nothing is loaded or asked for that."""
    assert type(choose_policy(text)) is kind


def test_a_folder_is_a_local_model(tmp_path: Path) -> None:
    """Named after the folder."""
    (tmp_path / "config.json").touch()
    policy = choose_policy(str(tmp_path))

    assert isinstance(policy, LocalPolicy)
    assert tmp_path.name == policy.name


def test_a_function_is_a_player() -> None:
    """It is found as `python -m` finds modules, and its name is the policy's."""
    policy = choose_policy("tests.test_policies_choosing:say_hello")
    replies = anyio.run(converse, policy, asked("Hi."))

    assert "tests.test_policies_choosing:say_hello" == policy.name
    assert "hello" == replies[0].message["content"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("./checkpoint-10", "is no folder that there is"),
        ("/no/such/folder", "is no folder that there is"),
        ("out/checkpoint/10", "is no folder that there is"),
        ("randm", "is no folder that there is"),
        ("", "is no folder that there is"),
        (__file__, "is a file"),
        ("no_such_module:name", "cannot be imported: ModuleNotFoundError"),
        ("tests.test_policies_choosing:nobody", "cannot be imported: AttributeError"),
        ("tests.test_policies_choosing:NOT_CALLABLE", "is a int, which cannot be called"),
        ("ftp://host/v1", "base_url is no address"),
    ],
)
def test_a_text_that_names_nothing_is_an_error(text: str, said: str) -> None:
    """Which, where the text could have meant several things, lists them."""
    with pytest.raises(ConfigError, match=said) as raised:
        choose_policy(text)

    is_unclear = "folder" in said or "file" in said or "imported" in said
    assert not is_unclear or "'random' (valid calls at random), 'silent'" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("random", {"model": "m"}),
        ("owner/name", {"model": "m"}),
        ("silent", {"thinking": True}),
        ("owner/name", {"extra_body": {}}),
        ("random", {"max_concurrent_replies": 3}),
    ],
)
def test_what_a_kind_does_not_take_is_refused(text: str, options: dict[str, Any]) -> None:
    """Rather than left aside without a word."""
    with pytest.raises(ConfigError, match=f"does not take {next(iter(options))}"):
        choose_policy(text, **options)


def test_options_reach_the_policy() -> None:
    """Sampling is in what it says of itself."""
    sampling = Sampling(temperature=0.0)
    policies = [choose_policy(text, sampling=sampling, max_concurrent_replies=3) for text in ("http://h/v1", "o/n")]

    assert [0.0, 0.0] == [policy.describe()["sampling"]["temperature"] for policy in policies]
    assert [3, 3] == [policy.max_concurrent_replies for policy in policies]


def test_the_key_of_an_endpoint_comes_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in nothing that is shown."""
    monkeypatch.setenv("MULTIORS_POLICY_API_KEY", "secret-key-1")
    policy = choose_policy("http://h/v1", extra_body={"user": "secret-key-1"})

    assert {"user": "[redacted]"} == policy.describe()["extra_body"]
    assert "secret-key-1" not in repr(policy)
