"""Pictures of comparisons: their files, their texts, and the colours of the page."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image

from multiors.errors import ConfigError
from multiors.evaluation.comparison import draw_distributions, draw_result
from multiors.evaluation.comparison.pictures import COLORS
from multiors.evaluation.folder import EvaluationRun
from tests.commands import run_python
from tests.sample_comparison import SOURCES, make_comparison, make_episode, write_evaluation


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluationRun, EvaluationRun]:
    """Reference and candidate."""
    folder = tmp_path_factory.mktemp("evaluations")
    return write_evaluation(folder / "uniform", "a"), write_evaluation(folder / "curriculum", "b")


def read_texts(path: Path) -> list[str]:
    """What is written in an SVG."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


def test_the_forest_plot_names_every_environment(runs: tuple[EvaluationRun, EvaluationRun], tmp_path: Path) -> None:
    """And what is subtracted from what."""
    draw_result(make_comparison(*runs), tmp_path / "forest.svg")
    texts = read_texts(tmp_path / "forest.svg")

    assert {*SOURCES, "overall", "curriculum less uniform"} <= set(texts)


def test_one_evaluation_is_drawn_too(runs: tuple[EvaluationRun, EvaluationRun], tmp_path: Path) -> None:
    """Its means."""
    draw_result(make_comparison(*runs).reference, tmp_path / "means.svg")

    assert {*SOURCES, "overall", "mean score of uniform"} <= set(read_texts(tmp_path / "means.svg"))


def test_means_of_different_ranges_are_drawn_on_one_scale(
    runs: tuple[EvaluationRun, EvaluationRun], tmp_path: Path
) -> None:
    """The axis says so."""
    arm = make_comparison(*runs).reference
    draw_result(replace(arm, ranges=dict.fromkeys(arm.sources, (0.0, 10.0))), tmp_path / "means.svg")

    assert "mean score of uniform, as fractions of the ranges" in read_texts(tmp_path / "means.svg")


def test_distributions_have_one_chart_for_each_environment(
    runs: tuple[EvaluationRun, EvaluationRun], tmp_path: Path
) -> None:
    """Of both policies, or of one."""
    comparison = make_comparison(*runs)
    draw_distributions(comparison, tmp_path / "both.svg", [runs[0]], [runs[1]])
    draw_distributions(comparison.reference, tmp_path / "one.svg", [runs[0]])

    assert {*SOURCES, "uniform", "curriculum"} <= set(read_texts(tmp_path / "both.svg"))
    assert "curriculum" not in read_texts(tmp_path / "one.svg")


def test_a_png_is_sharp_enough_for_print(runs: tuple[EvaluationRun, EvaluationRun], tmp_path: Path) -> None:
    """200 dots per inch, and small as a file."""
    draw_result(make_comparison(*runs), tmp_path / "forest.png")

    with Image.open(tmp_path / "forest.png") as picture:
        assert (1280, 600) == picture.size
    assert (tmp_path / "forest.png").stat().st_size < 50_000


def test_names_are_no_formulas(tmp_path: Path) -> None:
    """What a user calls a source or a policy is drawn as it is."""
    records = [make_episode("_$x^2$", task, 0, reward=0.5, reason=None) for task in range(3)]
    run, other = (write_evaluation(tmp_path / side / "_$a$", "a", records) for side in ("before", "after"))
    draw_result(make_comparison(run, other), tmp_path / "forest.svg")
    draw_distributions(make_comparison(run, other), tmp_path / "distributions.svg", [run], [other])

    assert "_$x^2$" in read_texts(tmp_path / "forest.svg")
    assert {"_$x^2$", "_$a$ (reference)"} <= set(read_texts(tmp_path / "distributions.svg"))


def test_pictures_have_the_colours_of_the_page() -> None:
    """Those of its light scheme."""
    style = files("multiors.evaluation.comparison").joinpath("templates", "style.css").read_text()

    assert [] == [color for color in COLORS.values() if color not in style.split("@media")[0]]


def test_a_wrong_name_is_refused(runs: tuple[EvaluationRun, EvaluationRun], tmp_path: Path) -> None:
    """By its ending."""
    with pytest.raises(ConfigError, match=r"its name must end with one of \['.png', '.svg'\]"):
        draw_result(make_comparison(*runs), tmp_path / "forest.pdf")


def test_without_matplotlib_text_and_pages_work(runs: tuple[EvaluationRun, EvaluationRun]) -> None:
    """Pictures alone need it."""
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from multiors.evaluation import read_evaluation, summarize\n"
        "from multiors.evaluation.comparison import draw_result, to_html, to_text\n"
        "run = read_evaluation(sys.argv[1]); result = summarize(run)\n"
        "print(len(to_html(result, [run])) > 1000, to_text(result)[:10]); draw_result(result, 'a.png')"
    )
    told = run_python(code, str(runs[0].folder))

    assert "True evaluation\n" == told.stdout
    assert "Install it: pip install 'multiors[plots]'." in told.stderr
