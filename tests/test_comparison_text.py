"""What is said of a comparison, in which order, and that no name or remark acts on a terminal or in Markdown."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from multiors.evaluation.comparison import print_result, to_markdown, to_text
from multiors.evaluation.comparison.visible import fold, reveal
from multiors.evaluation.comparison.wording import say_between, say_fraction, say_number, say_p
from multiors.evaluation.results import Comparison, Difference, Estimate, RunsComparison
from tests.sample_comparison import make_arm, make_comparison, write_evaluation
from tests.schema_strategies import UNREADABLE
from tests.test_hostile_text import TEXTS


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Of two evaluations."""
    folder = tmp_path_factory.mktemp("evaluations")
    return make_comparison(write_evaluation(folder / "uniform", "a"), write_evaluation(folder / "curriculum", "b"))


def shown(result: Comparison) -> str:
    """What a terminal of 140 columns is sent."""
    file = io.StringIO()
    print_result(result, Console(file=file, force_terminal=True, width=140, highlight=False))
    return file.getvalue()


# -- the order


def test_what_regressed_is_said_first(comparison: Comparison) -> None:
    """Then what improved, then what cannot be told, then the numbers, then the answer."""
    text = to_text(comparison)
    parts = ("Worse on 1 of 4", "Better on 1 of 4", "Cannot tell on 2 of 4", "  difference", "Whether curriculum")
    places = [text.index(said) for said in parts]

    assert sorted(places) == places


def test_what_cannot_be_told_says_what_would_have_been_seen(comparison: Comparison) -> None:
    """An undecided difference is not a difference of nothing."""
    line = next(line for line in to_text(comparison).splitlines() if line.startswith("  echo"))

    assert line.endswith("; would have seen ±0.058")
    assert "adjusted p 0.1" in line


def test_means_that_are_over_other_tasks_than_the_difference_say_so(comparison: Comparison) -> None:
    """Or they would seem not to add up."""
    name = next(name for name, each in comparison.sources.items() if each.verdict == "worse")
    counts = {comparison.reference.sources[name].score.num_units, comparison.candidate.sources[name].score.num_units}
    same = replace(comparison.sources[name], num_pairs=counts.pop())
    fewer = replace(same, num_pairs=same.num_pairs - 1)
    told, whole = (to_text(replace(comparison, sources={name: each})) for each in (fewer, same))

    assert set() == counts
    assert f" over {same.num_pairs} and {same.num_pairs} tasks, of which {fewer.num_pairs} are compared\n" in told
    assert "are compared\n" not in whole


def test_pass_at_k_of_a_part_of_the_tasks_says_of_how_many(comparison: Comparison) -> None:
    """Tasks with fewer scored episodes are not in it, so it can be lower than that of a smaller k."""
    arm = comparison.reference
    name, source = next(iter(arm.sources.items()))
    estimate = replace(source.score, value=0.5, low=None, high=None)
    passes = {1: estimate, 2: replace(estimate, num_units=1)}
    text = to_markdown(replace(arm, sources={name: replace(source, success_at=1.0, pass_at=passes)}))

    assert "| 0.500 | 0.500 of 1 task |" in text


def test_no_regression_is_said_too(comparison: Comparison) -> None:
    """A reader who looks for it finds it, and what it rests on."""
    better = replace(comparison, sources={"heat": comparison.sources["heat"]})

    assert "\nWorse on no environment, as far as can be told\n" in to_text(better)


def test_a_gain_overall_does_not_hide_a_loss(comparison: Comparison) -> None:
    """The sentence that answers names what is worse."""
    macro = replace(comparison.sources["heat"], value=0.05, low=0.01, high=0.09, p=0.002, p_adjusted=0.002)
    answer = to_text(replace(comparison, macro=macro, remarks=())).splitlines()[-1]

    assert (
        "curriculum is better than uniform: +0.050 overall (95 % interval +0.010 to +0.090, p 0.002). "
        "It is worse on sort." == answer
    )


def test_the_worst_comes_first(comparison: Comparison) -> None:
    """Regressions are ordered by their size, and so are gains."""
    small = replace(comparison.sources["sort"], value=-0.01)
    arms: dict[str, Any] = {
        arm: replace(result, sources={"small": result.sources["sort"], **result.sources})
        for arm, result in (("reference", comparison.reference), ("candidate", comparison.candidate))
    }
    lines = to_text(replace(comparison, **arms, sources={"small": small, **comparison.sources})).splitlines()
    start = lines.index("Worse on 2 of 5 environments")

    assert ["sort", "small"] == [line.split()[0] for line in lines[start + 1 : start + 3]]


# -- None


def test_none_is_a_dash_and_never_a_number(comparison: Comparison) -> None:
    """What has no score on one side has no difference, and says so."""
    text = to_text(comparison)
    row = next(line for line in text.splitlines() if line.startswith("maze "))

    assert ["maze", "0.380", "–", "–", "–", "–", "95.8", "%", "0", "%", "0"] == row.split()
    assert "  maze  nothing to compare: no task has a score on both sides" in text
    assert "nan" not in text.lower()


def test_nothing_at_all_can_be_shown(comparison: Comparison) -> None:
    """A comparison without environments is shown as one."""
    nothing = Difference(None, None, None, None, None, None, None, 0, "undecided")
    arm = replace(comparison.reference, sources={}, macro=Estimate(None, None, None, None, 0))
    empty = replace(comparison, reference=arm, candidate=arm, macro=nothing, sources={})

    assert "Worse on no environment" in to_text(empty)
    assert "| overall | – | – |" in to_markdown(empty)


def test_a_difference_of_one_pair_says_that_no_test_is_possible(comparison: Comparison) -> None:
    """It has a value, and no interval."""
    one = Difference(0.5, None, None, None, None, None, None, 1, "undecided")

    assert "  sort  +0.500 (no test is possible)\n" in to_text(replace(comparison, sources={"sort": one}))


# -- unscored, remarks, runs


def test_unscored_episodes_are_counted_with_their_reasons(comparison: Comparison) -> None:
    """And what the mean would be if they had the lowest and the highest score."""
    rows = [line.split() for line in to_text(comparison).splitlines() if "unreachable" in line]

    assert [["maze", "candidate", "48", "of", "48", "unreachable", "48", "0.000", "1.000"]] == rows


def test_remarks_are_said(comparison: Comparison) -> None:
    """What must be known before the numbers are believed ends the text."""
    last = to_text(comparison).splitlines()[-1]

    assert "Source 'maze': no episode has a score in both arms, so there is no macro difference." == last


def test_training_runs_are_called_runs(comparison: Comparison) -> None:
    """With their interquartile means, and how often a run beats one of the other arm."""
    half = Estimate(0.5, 0.4, 0.6, 0.05, 5, "bootstrap")
    runs = RunsComparison(half, replace(half, value=0.7), replace(half, value=0.83))
    text = to_text(replace(comparison, unit="run", is_paired=False, runs=runs))

    assert "not paired: training runs of two independent samples" in text.splitlines()[0]
    assert "beats a run of uniform on an environment with probability 0.830 (0.400 to 0.600)." in text


def test_two_arms_of_one_name_are_told_apart(comparison: Comparison) -> None:
    """Folders of two runs are often called the same."""
    same = replace(comparison, candidate=replace(comparison.candidate, name="uniform"))

    assert to_text(same).startswith("candidate uniform (candidate), reference uniform (reference)")


# -- one evaluation, and the other forms


def test_one_evaluation_has_its_means(comparison: Comparison) -> None:
    """With intervals, scored fractions and counts."""
    text = to_text(comparison.reference)

    row = next(line for line in text.splitlines() if line.startswith("sort "))

    assert ["sort", "0.745", "0.651", "to", "0.820", "93.8", "%", "24", "48"] == row.split()
    assert re.fullmatch(
        r"uniform scores 0\.504 overall \(95 % interval 0\.46\d to 0\.54\d\), over 4 environments\.",
        text.splitlines()[-1],
    )


def test_markdown_holds_what_the_text_does(comparison: Comparison) -> None:
    """And what the episodes cost."""
    page = to_markdown(comparison)

    assert "### Worse on 1 of 4 environments\n\n- **sort**: −0.273" in page
    assert "| heat | 0.375 | 0.714 | +0.328 | +0.294 to +0.362 | \\<0.001 | 100 % | 89.6 % | 24 |" in page
    assert "### Cost of an episode" in page


def test_a_terminal_shows_verdicts_in_colour(comparison: Comparison) -> None:
    """What is worse is red."""
    assert "\x1b[1;31mWorse on 1 of 4 environments\x1b[0m" in shown(comparison)


def test_json_keeps_none(comparison: Comparison) -> None:
    """A comparison survives JSON."""
    values = json.loads(json.dumps(comparison.to_json()))

    assert values["sources"]["maze"]["value"] is None
    assert 48 == values["candidate"]["sources"]["maze"]["unscored_by_reason"]["unreachable"]


# -- hostile text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_names_and_remarks_are_inert(comparison: Comparison, text: str) -> None:
    """Nothing of them is a terminal sequence, a further line, or a cell of a table."""
    arm = replace(comparison.reference, name=text, sources={text: comparison.reference.sources["sort"]})
    hostile = replace(
        comparison, reference=arm, candidate=arm, sources={text: comparison.sources["sort"]}, remarks=(text,)
    )
    plain = to_text(hostile)
    rows = [line for line in to_markdown(hostile).splitlines() if line.startswith("|")]

    assert len(to_text(replace(comparison, sources={"sort": comparison.sources["sort"]})).splitlines()) >= len(
        plain.splitlines()
    )
    assert not UNREADABLE.search(plain.replace("\n", ""))
    assert {10, 6, 7} >= {line.replace("\\|", "").count("|") for line in rows}
    assert not [row for row in rows if re.search(r"(?<!\\)<", row)]
    assert "\x1b[31mred" not in shown(hostile)


def test_invisible_characters_are_made_visible() -> None:
    """A reader sees what a policy saw, and a terminal has nothing to act on."""
    assert "␛[31mred␛[0m ␀ ⟨U+202E⟩gpj ␡ ⟨U+009B⟩ ⟨U+D800⟩" == fold("\x1b[31mred\x1b[0m\n\0 \u202egpj \x7f \x9b \ud800")
    assert "a\nb\tc ␍ ⟨U+2028⟩" == reveal("a\r\nb\tc \r \u2028", 100)
    assert "xxx… [clipped: 3 of 1,000,000 characters]" == reveal("x" * 1_000_000, 3)


# -- numbers


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((None, "–"), (0.0, "0.000"), (-0.0001, "0.000"), (-1.5, "−1.500")),
        *((12.346, "12.35"), (1234.5, "1,234.5"), (2e9, "2e+09")),
    ],
)
def test_numbers_have_few_decimals(value: float | None, said: str) -> None:
    """There is no negative zero, and None is a dash."""
    assert said == say_number(value)


def test_words_for_the_rest() -> None:
    """All, nothing and very little are told apart."""
    assert ["–", "0 %", "<0.1 %", "50 %", "99.5 %", ">99.9 %", "100 %"] == [
        say_fraction(value) for value in (None, 0.0, 0.0001, 0.5, 0.995, 0.99999, 1.0)
    ]
    assert ["–", "<0.001", "0.001", "1.000"] == [say_p(p) for p in (None, 0.0005, 0.001, 1.0)]
    assert "–" == say_between(None, 0.5)


def test_an_arm_needs_no_scores(comparison: Comparison, tmp_path: Path) -> None:
    """Where nothing is scored on a source, there is no overall score, and the source is named."""
    arm = make_arm(write_evaluation(tmp_path / "b", "b"))

    text = to_text(arm)
    tasks = {line.split()[0]: line.rpartition("%")[2].split()[:-1] for line in text.splitlines() if " % " in line}
    scored = [int(tasks[name][0]) for name in arm.sources]

    assert "b has no overall score: nothing is scored on maze." in text
    assert [str(sum(scored)), "of", str(sum(each.num_tasks for each in arm.sources.values()))] == tasks["overall"]
