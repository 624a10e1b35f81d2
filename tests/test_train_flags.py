"""Fields of GRPOConfig as options of `multiors train`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.commands.training_flags import expand_flags
from multiors.config import describe_unknown_field, list_fields, parse_override

FIELDS = {"learning_rate": "other", "max_steps": "other", "bf16": "switch", "output_dir": "text", "report_to": "other"}
OWN = ("-h", "--help", "--set", "--resume", "--check", "--json")


def expand(*arguments: str, fields: Mapping[str, str] = FIELDS) -> list[str]:
    """The arguments with their own options only."""
    return expand_flags(arguments, OWN, lambda: fields, lambda name: f"no {name}")


def read(*arguments: str) -> dict[str, Any]:
    """The overrides that arguments come to, by place."""
    expanded = expand(*arguments)
    overrides = [parse_override(text) for option, text in pairwise(expanded) if option == "--set"]
    return {".".join(override.path): override.value for override in overrides}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--learning-rate", "1e-5"), {"learning_rate": 1e-5}),
        (("--learning_rate=1e-5",), {"learning_rate": 1e-5}),
        (("--max-steps", "-1"), {"max_steps": -1}),
        (("--bf16",), {"bf16": True}),
        (("--bf16", "run.yaml"), {"bf16": True}),
        (("--bf16", "False"), {"bf16": False}),
        (("--bf16=no",), {"bf16": False}),
        (("--no-bf16", "run.yaml"), {"bf16": False}),
        (("--no_bf16",), {"bf16": False}),
        (("--output-dir", "7"), {"output_dir": "7"}),
        (("--output-dir", "no: yes # \\ '\""), {"output_dir": "no: yes # \\ '\""}),
        (("--report-to", "[wandb, trackio]"), {"report_to": ["wandb", "trackio"]}),
        (("--max-steps", "1", "--max-steps", "2"), {"max_steps": 2}),
    ],
)
def test_a_field_is_an_override(arguments: tuple[str, ...], expected: dict[str, Any]) -> None:
    """With dashes or underscores, its value behind it or after an equals sign; a switch may stand alone."""
    assert {f"training.{name}": value for name, value in expected.items()} == read(*arguments)


@given(st.lists(st.sampled_from(["run.yaml", "--json", "--set", "a=b", "--resume", "-h", "x"])))
def test_own_arguments_stay_as_they_are(arguments: list[str]) -> None:
    """Where no option is to be looked up, the fields are not asked for."""

    def list_nothing() -> dict[str, str]:
        raise AssertionError("TRL would have been imported")

    assert arguments == expand_flags(arguments, OWN, list_nothing, str)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_arrives_as_it_was_given(text: str) -> None:
    """Whatever YAML would make of it."""
    assert {"training.output_dir": text} == read(f"--output-dir={text}")


@given(st.permutations([("run.yaml",), ("--max-steps", "3"), ("--bf16",), ("--set", "seed=1"), ("--output-dir", "o")]))
def test_the_order_does_not_matter(groups: list[tuple[str, ...]]) -> None:
    """The run file may stand anywhere."""
    expanded = expand(*(argument for group in groups for argument in group))

    assert ["run.yaml"] == [each for each in expanded if each == "run.yaml"]
    assert {
        "training.max_steps": 3,
        "training.bf16": True,
        "seed": 1,
        "training.output_dir": "o",
    } == read(*(argument for group in groups for argument in group))


def test_after_two_dashes_everything_is_taken_as_it_is() -> None:
    """As of other commands."""
    assert ["--", "--max-steps", "3"] == expand("--", "--max-steps", "3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "3"), "--steps is no option of this command: no steps"),
        (("--resum",), "--resum is no option of this command: no resum; or is it --resume?"),
        (("--no-max-steps",), "--no-max-steps is no option of this command: no no_max_steps"),
        (("--max-steps",), "--max-steps has no value"),
        (("--max-steps", "--json"), "--max-steps has no value"),
    ],
)
def test_what_is_no_field_is_said(arguments: tuple[str, ...], message: str) -> None:
    """With what may have been meant."""
    with pytest.raises(ValueError, match="^" + message.replace("?", r"\?")):
        expand(*arguments)


def test_the_fields_are_those_of_the_trainer() -> None:
    """Each kind is found by the type that TRL gives the field."""
    kinds = list_fields()

    assert {"bf16": "switch", "output_dir": "text", "save_strategy": "text", "report_to": "other", "seed": "other"} == {
        name: kinds[name] for name in ("bf16", "output_dir", "save_strategy", "report_to", "seed")
    }
    assert "GRPOConfig has no field of this name; did you mean 'learning_rate'?" == describe_unknown_field(
        "learning_rat"
    )
    assert "pass --resume" in describe_unknown_field("resume_from_checkpoint")
