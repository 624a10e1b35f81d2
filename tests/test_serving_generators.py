"""Generators of reasoning-gym as tasks, and answers that are text of strangers."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.serving import MAX_NUM_TASKS, MAX_SEED
from multiors.serving.answers import AnswerIsCodeError, is_plain, scoring
from multiors.serving.generators import SPLITS, Generator, _time_limit, open_generator
from multiors.serving.gym import find_answer

SOME = ("basic_arithmetic", "chain_sum", "countdown", "gcd", "maze", "n_queens", "number_sorting", "word_ladder")


def open_some(name: str, **settings: Any) -> Generator:
    """A generator with few levels."""
    return open_generator(name, **{"num_tasks": 8, "seed": 3, "num_levels": 2, **settings})


# -- tasks


def test_tasks_take_turns_on_levels() -> None:
    """Any beginning of the list has easy and hard tasks."""
    generator = open_some("chain_sum", num_levels=3)

    assert [0, 1, 2, 0, 1, 2, 0, 1] == [spec["level"] for spec in generator.list_specs("train")]


def test_levels_are_those_of_the_generators_curriculum() -> None:
    """A level has what the levels before it have, and more: that is how reasoning-gym counts them."""
    generator = open_generator("chain_sum", num_tasks=110, seed=0, num_levels=None)
    entries = [generator.make_entry(spec)["metadata"] for spec in generator.list_specs("train")]
    ranges = {(entry["level"], entry["difficulty"]["num_terms"]) for entry in entries}

    assert tuple(range(11)) == generator.levels
    assert {(level, (2, 2 + level)) for level in range(11)} == ranges


def test_a_specification_tells_no_answer() -> None:
    """A client learns where a task stands, and neither question nor answer."""
    spec = open_some("gcd").make_spec("test", 5)

    assert {"dataset": "gcd", "split": "test", "index": 5, "level": 1, "seed": 3} == spec


@given(st.integers(0, MAX_SEED), st.integers(0, MAX_SEED), st.integers(1, MAX_NUM_TASKS))
def test_no_two_lists_of_tasks_share_a_seed(one: int, other: int, num_tasks: int) -> None:
    """Seeds of splits lie apart, for every seed of the command and every number of tasks, and have 32 bits."""
    firsts = sorted({(2 * seed + split) * MAX_NUM_TASKS for seed in (one, other) for split in range(len(SPLITS))})

    assert all(first + num_tasks <= after for first, after in zip(firsts, [*firsts[1:], 2**32], strict=True))


@pytest.mark.parametrize("name", SOME)
def test_tasks_are_the_same_in_any_order(name: str) -> None:
    """A task does not depend on which tasks were made before it."""
    one, other = open_some(name), open_some(name)
    specs = one.list_specs("train") + one.list_specs("test")
    forwards = [one.make_entry(spec) for spec in specs]
    backwards = [other.make_entry(spec) for spec in reversed(specs)]

    assert forwards == backwards[::-1]


def test_seeds_and_splits_give_other_tasks() -> None:
    """What is trained on is not what is tested on."""
    questions = {
        open_some("chain_sum", seed=seed).make_entry({**open_some("chain_sum", seed=seed).make_spec(split, 7)})[
            "question"
        ]
        for seed in (0, 1)
        for split in SPLITS
    }

    assert 4 == len(questions)


@pytest.mark.parametrize(
    "change",
    [
        {"index": 8},
        {"index": -1},
        {"index": True},
        {"index": 1.0},
        {"index": "1"},
        {"split": "validation"},
        {"split": ["train"]},
        {"level": 0},
        {"seed": 4},
        {"dataset": "gcd"},
        {"more": 1},
    ],
)
def test_only_tasks_of_the_list_are_made(change: dict[str, Any]) -> None:
    """A client may send any specification, and gets no task by it that is not listed."""
    generator = open_some("chain_sum")

    with pytest.raises(ValueError, match="chain_sum has no such task"):
        generator.make_entry({**generator.make_spec("train", 1), **change})


@pytest.mark.parametrize("spec", [None, 3, "train", [], {}])
def test_a_specification_of_any_kind_is_refused(spec: Any) -> None:
    """What is no mapping is no task."""
    with pytest.raises(ValueError, match="chain_sum has no such task"):
        open_some("chain_sum").make_entry(spec)


# -- which generators


def test_a_level_that_cannot_be_made_is_left_out_and_said() -> None:
    """reasoning-gym has levels that its own settings refuse."""
    with pytest.warns(UserWarning, match=r"caesar_cipher: level [23] is left out, .*rotation must be in range") as seen:
        generator = open_generator("caesar_cipher", num_tasks=8, seed=0, num_levels=None)

    assert (0, 1) == generator.levels
    assert 2 == len(seen)


def test_a_generator_without_a_curriculum_has_one_level() -> None:
    """Its tasks are all alike."""
    assert (0,) == open_generator("gsm_symbolic", num_tasks=8, seed=0, num_levels=None).levels


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chain_sun", r"--dataset 'chain_sun': reasoning-gym has no such dataset\. Near it are \['chain_sum'"),
        ("???", r"--dataset '\?\?\?': reasoning-gym has no such dataset\. There are \['ab', 'acre'"),
        ("composite", r"--dataset 'composite' cannot be served: reasoning-gym makes no task of it \(AssertionError"),
        ("polynomial_multiplication", r"cannot be served: reasoning-gym runs its answers as Python code"),
        ("simple_integration", r"cannot be served: reasoning-gym runs its answers as Python code"),
    ],
)
def test_what_cannot_be_served_is_an_error(name: str, message: str) -> None:
    """Before anything is served, with the reason."""
    with pytest.raises(ConfigError, match=message):
        open_some(name)


@pytest.mark.parametrize(("level", "remedy"), [(2, r"--levels 2"), (0, r"another dataset")])
def test_a_level_that_takes_too_long_is_an_error(level: int, remedy: str) -> None:
    """It is not left out: which tasks there are must not depend on how fast a machine is."""

    def make_forever() -> None:
        with _time_limit("jugs", level, timeout_s=0.01):
            while True:
                pass

    with pytest.raises(ConfigError, match=rf"--dataset 'jugs': .* no task of level {level} in 0\.01 s\. .*{remedy}"):
        make_forever()


# -- scores


@pytest.mark.parametrize("name", [*SOME, "bitwise_arithmetic", "puzzle24", "spiral_matrix", "string_insertion"])
def test_the_right_answer_earns_one(name: str) -> None:
    """Also where the scorer runs the answer as code, as long as that is arithmetic or a list."""
    generator = open_some(name)
    entries = [generator.make_entry(spec) for spec in generator.list_specs("test")]

    assert [1.0] * 8 == [generator.score(entry, entry["answer"]) for entry in entries]


@pytest.mark.parametrize("name", [*SOME, "prime_factorization"])
@pytest.mark.parametrize("answer", ["", "zzz", None, "\ud800", "9" * 60_000, "(" * 3000, "9**9**9**9"])
def test_any_other_text_is_wrong(name: str, answer: str | None) -> None:
    """Text that the scorer cannot read, or that is too long to be read, is a wrong answer and no failure."""
    generator = open_some(name)
    score = generator.score(generator.make_entry(generator.make_spec("train", 0)), answer)

    assert score is not None
    assert 0 <= score <= 0.1


def test_nobody_can_say_is_none() -> None:
    """Where the scorer fails and no right answer is known to test it by, the answer has no score."""
    generator = open_some("boxnet")
    entry = generator.make_entry(generator.make_spec("train", 0))

    assert None is entry["answer"]
    assert None is generator.score(entry, "0")


# -- code


@pytest.mark.parametrize(
    "name", ["binary_matrix", "countdown", "n_queens", "puzzle24", "spiral_matrix", "string_insertion"]
)
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    """These scorers hand the answer to eval, and nothing of it happens."""
    generator = open_some(name)
    entry = generator.make_entry(generator.make_spec("train", 0))
    marker = tmp_path / "run"
    for code in (
        f"open({str(marker)!r}, 'w')",
        f"[open({str(marker)!r}, 'w')]",
        f"__import__('os').mkdir({str(marker)!r})",
    ):
        generator.score(entry, code)

    assert not marker.exists()


@given(st.text("0123456789+-*/(). \n[],'\"abX_=:{}", max_size=40))
def test_plain_text_can_do_nothing(text: str) -> None:
    """What may be run as Python has no names, attributes, calls of something, powers or repeated lists."""
    if not is_plain(text):
        return
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError):
        return
    nodes = list(ast.walk(tree))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    multiplied = [
        side
        for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for side in (node.left, node.right)
    ]

    assert not any(isinstance(node, ast.Name | ast.Attribute | ast.Pow | ast.LShift | ast.JoinedStr) for node in nodes)
    assert not any(isinstance(function, ast.Name | ast.Attribute) for function in called)
    assert not any(isinstance(each, ast.List | ast.Tuple) and each.elts for each in multiplied)
    assert not any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in multiplied)


@pytest.mark.parametrize("text", ["1+2*(3-4)/5", "0x1f", "-0xff", "[[0, 1], [1, 0]]", "['A', 'B_']", '["-1.5"]', ""])
def test_arithmetic_and_lists_are_plain(text: str) -> None:
    """What right answers look like."""
    assert is_plain(text)


@pytest.mark.parametrize("text", ["x", "2**9", "[1]*9", "f'{x}'", "'\\x41'", "a.b", "print()", "1 if 1 else 2", "1;2"])
def test_other_text_is_not_plain(text: str) -> None:
    """Names, powers, escapes, repetition."""
    assert not is_plain(text)


def test_code_is_refused_in_the_block_only() -> None:
    """The interpreter runs nothing made of text while an answer is scored, and everything after it."""
    run = builtins.eval
    with pytest.raises(AnswerIsCodeError, match="the answer would be run as code"), scoring("x"):
        run("1 + 1")
    with scoring("1 + 1"):
        while_plain = run("1 + 1")

    assert 2 == while_plain
    assert 2 == run("1 + 1")


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("It is <answer> 4 </answer>.", "4"),
        ("<answer>3</answer> no, <answer>4</answer>", "4"),
        ("<answer>a\nb</answer>", "a\nb"),
        ("<answer></answer>", ""),
        ("4", None),
        ("<answer>4", None),
        ("4</answer>", None),
        ("</answer>4<answer>", None),
    ],
)
def test_the_answer_of_a_message_stands_in_its_last_tags(message: str, answer: str | None) -> None:
    """Without a pair of tags there is no answer."""
    assert answer == find_answer(message)
