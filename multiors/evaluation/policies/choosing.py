"""The policy that a person names on the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiors.errors import ConfigError
from multiors.evaluation.policies.endpoint import EndpointPolicy
from multiors.evaluation.policies.local import LocalPolicy
from multiors.evaluation.policies.policy import Policy, Sampling
from multiors.evaluation.policies.scripted import NeverCalls, RandomCalls, ScriptedPolicy
from multiors.importing import import_callable

__all__ = ["ACCEPTED_POLICIES", "KEY_VARIABLE", "choose_policy", "holds_model", "is_checkpoint", "names_model"]

KEY_VARIABLE = "MULTIORS_POLICY_API_KEY"
"""Holds the key of the endpoint that is named beside it."""

ACCEPTED_POLICIES = (
    "'random' (valid calls at random), 'silent' (never calls a tool), 'module:function' (a program), "
    "'http://host:port/v1' (an OpenAI-compatible endpoint), a folder that holds a model, or a model's name on the hub "
    "('owner/name')"
)

_MODELS = ("config.json", "adapter_config.json")  # one of them is where a model or an adapter was saved
_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def choose_policy(
    text: str,
    *,
    model: str | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008  # it is frozen
    thinking: bool | None = None,
    tokenizer: str | None = None,
    max_concurrent_replies: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Policy:
    """The policy that a text names.

    An endpoint gets the key in the variable MULTIORS_POLICY_API_KEY; without it OpenAI's own gets OPENAI_API_KEY.

    Args:
        text: What `ACCEPTED_POLICIES` lists.
        model: The model's name at an endpoint. None: the only one.
        sampling: How replies of a model are sampled.
        thinking: Whether a model is asked for thoughts. None: its default.
        tokenizer: Of a local model, or of an endpoint that does not parse tool calls.
        max_concurrent_replies: Of an endpoint its requests at the same time, of a local model its batch. None: the
            kind's default.
        extra_body: Further fields of every request to an endpoint.

    Raises:
        ConfigError: It names none, or something is given that its kind does not take.
    """
    is_url = "://" in text
    if not is_url:
        _refuse(text, "only an endpoint takes it", model=model, extra_body=extra_body)

    if not names_model(text):
        given = {"thinking": thinking, "tokenizer": tokenizer, "max_concurrent_replies": max_concurrent_replies}
        _refuse(text, "only a model takes it", **given)
        named: dict[str, Any] = {"random": RandomCalls, "silent": NeverCalls}
        policy: Policy = named[text]() if text in named else ScriptedPolicy(_import(text), name=text)
        return policy

    if is_url:
        key = os.environ.get(KEY_VARIABLE) or None
        sizes: dict[str, Any] = (
            {} if max_concurrent_replies is None else {"max_concurrent_replies": max_concurrent_replies}
        )
        return EndpointPolicy(
            text,
            model=model,
            sampling=sampling,
            api_key=key,
            extra_body=extra_body,
            thinking=thinking,
            tokenizer=tokenizer,
            **sizes,
        )

    size: dict[str, Any] = {} if max_concurrent_replies is None else {"max_batch_size": max_concurrent_replies}
    return LocalPolicy(_find_model(text), tokenizer=tokenizer, sampling=sampling, thinking=thinking, **size)


def names_model(text: str) -> bool:
    """Whether a text that names a policy names a model, here or at an endpoint."""
    return text not in ("random", "silent") and not _is_function(text)


def holds_model(folder: Path) -> bool:
    """Whether a model or an adapter was saved in a folder."""
    return any((folder / name).is_file() for name in _MODELS)


def is_checkpoint(text: str) -> bool:
    """Whether a text names the checkpoint of a training, which is no model on the hub, also where it is not there."""
    return Path(text).name.startswith("checkpoint-")


def _refuse(text: str, why: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"the policy {text!r} does not take {name}: {why}. Leave it out.")


def _is_function(text: str) -> bool:
    return _FUNCTION.fullmatch(text) is not None and not Path(text).exists()


def _find_model(text: str) -> str:
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        if not holds_model(folder):
            raise ConfigError(
                f"the policy {text!r} is a folder without a model: it has no {' and no '.join(_MODELS)}. It is "
                f"{ACCEPTED_POLICIES}."
            )
        return str(folder)

    if folder.is_file() or _HUB_NAME.fullmatch(text) is None or is_checkpoint(text):
        is_there = "is a file" if folder.is_file() else "is no folder that there is"
        raise ConfigError(
            f"the policy {text!r} {is_there}, and nothing else that names one. It is {ACCEPTED_POLICIES}."
        )
    return text


def _import(name: str) -> Any:
    return import_callable(name, who=f"the policy {name!r}", remedy=f"It is {ACCEPTED_POLICIES}.")
