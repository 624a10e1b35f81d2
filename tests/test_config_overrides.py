"""Overrides of a run file: a place and a value on the command line, and what stands there afterwards."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.config import Override, load_run_file, parse_override
from multiors.config.overrides import apply_overrides
from multiors.config.reading import dump_yaml, parse_yaml
from multiors.errors import ConfigError

STEPS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
PATHS = st.lists(STEPS, min_size=1, max_size=4).map(tuple)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STEPS, inner, max_size=3), max_leaves=8
)
TREES = st.recursive(
    st.none(), lambda inner: st.dictionaries(STEPS, inner, max_size=3), max_leaves=8
)  # what every path leads into


def look_up(values: Any, path: tuple[str, ...]) -> Any:
    """What stands at a place."""
    for step in path:
        values = values[step]
    return values


# -- YAML


@given(VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    """Values keep their types: text that looks like a number, a word or a date stays text."""
    assert json.dumps(value) == json.dumps(parse_yaml(dump_yaml(value)).values)


@given(st.sampled_from(["1e-5", "no", "yes", "on", "off", "2024-01-01", "null", "~", "1_000", "0x1f", "12:30", "<<"]))
def test_text_that_yaml_would_take_for_something_else_gets_quotes(text: str) -> None:
    """Whoever reads it, by whichever version of YAML."""
    assert {"a": text} == parse_yaml(dump_yaml({"a": text})).values


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1e-5", 1e-5), ("-2E6", -2e6), ("1.5e3", 1500.0), ("no", "no"), ("true", True), ("False", False), ("3", 3)],
)
def test_numbers_and_words_are_those_of_yaml_1_2(text: str, expected: object) -> None:
    """As editors read them: a learning rate is a number, and `save_strategy: no` a word."""
    assert (type(expected), expected) == (type(parse_yaml(text).values), parse_yaml(text).values)


# -- overrides


@given(PATHS, VALUES)
def test_an_override_is_read_as_it_was_written(path: tuple[str, ...], value: Any) -> None:
    """Its place has dots, its value is YAML."""
    assert Override(path, value) == parse_override(f"{'.'.join(path)}={dump_yaml(value)}")


@given(st.text())
def test_any_text_is_an_override_or_a_known_error(text: str) -> None:
    """Whatever stands on a command line."""
    try:
        place = ".".join(parse_override(text).path)
    except ConfigError:
        place = text.partition("=")[0]

    assert text.startswith(place)


@given(TREES, PATHS, VALUES)
def test_a_value_stands_where_it_was_put(values: Any, path: tuple[str, ...], value: Any) -> None:
    """Keys that are missing are made, and what was given is left as it is."""
    before = copy.deepcopy(values)
    changed = apply_overrides(values, [Override(path, value)])

    assert value == look_up(changed, path)
    assert before == values


@given(TREES, st.lists(st.tuples(PATHS, SCALARS), max_size=3), PATHS, SCALARS)
def test_the_last_override_wins(values: Any, others: list[Any], path: tuple[str, ...], value: Any) -> None:
    """Also over one for what it is in, and as if it were the only one."""
    around = [Override(path[:1], {}), *(Override((f"other-{p[0]}",), v) for p, v in others)]

    assert value == look_up(apply_overrides(values, [*around, Override(path, value)]), path)


@given(TREES, PATHS, SCALARS)
def test_an_override_twice_is_an_override_once(values: Any, path: tuple[str, ...], value: Any) -> None:
    """The order of the keys included."""
    once = apply_overrides(values, [Override(path, value)])

    assert json.dumps(once) == json.dumps(apply_overrides(once, [Override(path, value)]))


def test_positions_lead_into_lists() -> None:
    """And change nothing beside them, nor the other uses of an alias."""
    parts = [{"function": "a:b"}, {"function": "c:d"}]
    changed = apply_overrides({"x": parts, "y": parts}, [Override(("x", "1", "weight"), 2)])

    assert {"x": [{"function": "a:b"}, {"function": "c:d", "weight": 2}], "y": parts} == changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", "'seed' has no value. Write KEY.PATH=VALUE, as in seed=3"),
        ("=3", "'' is no place of a run file"),
        ("a..b=3", "'a..b' is no place of a run file"),
        ("a. b=3", "'a. b' is no place of a run file"),
        ("a=[hunter2", "the value of 'a' is no YAML"),
        ("a=hunter2: b: c", "the value of 'a' is no YAML"),
    ],
)
def test_what_is_no_override_is_said(text: str, message: str) -> None:
    """With its place, and without its value, which may be a secret."""
    with pytest.raises(ConfigError) as caught:
        parse_override(text)

    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("seed.x", "--set seed.x: 'seed' is one value and has no 'x' in it. Set 'seed' as a whole."),
        ("list.2", "--set list.2: 'list' is a list of 2, and '2' is no position in it."),
        ("list.x", "'x' is no position in it. Positions count from 0"),
        ("list.-1", "'-1' is no position in it"),
    ],
)
def test_a_place_that_is_not_there_is_said(path: str, message: str) -> None:
    """Where the way to it ends."""
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"seed": 3, "list": [1, 2]}, [Override(tuple(path.split(".")), 1)])

    assert message in str(caught.value)


# -- overrides of a run file


def test_mistakes_of_overrides_are_told_from_those_of_the_file(tmp_path: Path) -> None:
    """The file's by line, in its order; then the overrides', with the place that was set."""
    path = tmp_path / "run.yaml"
    path.write_text("sources:\n  a: {target: x, weight: -1}\n  b: {target: y}\nseed: x\n")
    texts = ["sources.b.weight=heavy", "sources.c.weight=2", "sources.a.split=5", "steps=3", "seed=1"]

    with pytest.raises(ConfigError) as caught:
        load_run_file(path, [parse_override(text) for text in texts])

    starts = [": ".join(line.split(": ")[:2]) for line in str(caught.value).splitlines()[1:]]
    assert [
        "- line 2: sources.a.weight",
        "- command line: sources.a.split",
        "- command line: sources.b.weight",
        "- command line: sources.c.target",
        "- command line: steps",
    ] == starts


def test_a_source_that_an_override_names_wrong_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """What lacks is said, and which source may have been meant."""
    path = tmp_path / "run.yaml"
    path.write_text("sources: {recycling: {target: x}}\n")

    with pytest.raises(ConfigError, match=r"has no source 'recycing'; did you mean 'recycling'\?"):
        load_run_file(path, [parse_override("sources.recycing.weight=2")])


def test_a_source_is_added_and_changed_by_overrides(tmp_path: Path) -> None:
    """What was loaded is what the file would be with the values in it."""
    path, other = tmp_path / "run.yaml", tmp_path / "other.yaml"
    path.write_text("sources: {a: {target: x, weight: 1}}\n")
    other.write_text("seed: 3\nsources: {a: {target: x, weight: 2}, b: {target: [y, z], weight: 1e-3}}\n")
    texts = ["seed=3", "sources.b={target: [y, z]}", "sources.b.weight=1e-3", "sources.a.weight=2"]

    assert load_run_file(other) == load_run_file(path, [parse_override(text) for text in texts])
