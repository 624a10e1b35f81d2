"""`multiors report --html`: the page of a training in a real browser, and of an evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, open_browser
from tests.commands import Run
from tests.sample_comparison import write_evaluation, write_training


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests."""
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rollout log in which `sort` forgets, `heat` learns, and `echo` breaks down."""
    folder = tmp_path_factory.mktemp("training") / "rollouts"
    write_training(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer's state that knows what was planned."""
    rows = [
        {"step": step, "env/heat/planned_share": 0.5, "env/heat/share": 0.4, "env/heat/reward": step / 30}
        for step in range(1, 31)
    ]
    folder = tmp_path_factory.mktemp("checkpoint-30")
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    return folder


def test_what_fell_is_said_first(run: Run, browser: Browser, rollouts: Path, tmp_path: Path) -> None:
    """A lower reward, and rollouts that lost their scores."""
    assert 0 == run("report", rollouts, "--html", tmp_path / "page.html").exit_code
    browser.open(tmp_path / "page.html")
    groups = browser.read_all(".group h2")

    head = "From the first to the last third of the run rewards fell, or became fewer, on 2 and rose on 1 of 3"

    assert f"{head} environments." == browser.read("h1")
    assert ["Rewards fell, or became fewer, on 2 of 3 environments", "Rewards rose on 1 of 3 environments"] == groups
    assert ["sort", "echo"] == browser.read_all(".group.worse dt")
    assert re.search(r"; unscored 0 %, then .* % \(mostly session_lost\)$", browser.read_all(".group.worse dd")[1])
    assert [] == browser.list_complaints()
    assert 1 == len(browser.list_requests())


def test_each_environment_has_its_curves(run: Run, browser: Browser, rollouts: Path, tmp_path: Path) -> None:
    """Rewards, shares, and what has no score, over the run; and why, in three parts of it."""
    run("report", rollouts, "--html", tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    reasons = browser.read_all("table:last-of-type td.text")

    assert ["echo", "heat", "sort"] == browser.read_all("figcaption")
    assert 6 == len(browser.find_all("path.thick"))
    assert browser.find_all("figure.worse rect.unscored")
    assert [] == browser.find_all("figure.better rect.unscored")
    assert "session_lost" in reasons


def test_rollouts_can_be_read(run: Run, browser: Browser, rollouts: Path, tmp_path: Path) -> None:
    """Those without a score first, with their place in the run."""
    run("report", rollouts, "--html", tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    browser.find(".episode > button").click()

    assert browser.read("#episodes .quiet").strip().startswith("300 of 480 are on this page")
    assert browser.read(".episode .about").startswith("step ")
    assert "session_lost" == browser.read(".episode .badge")
    assert "unscored: session_lost" == browser.read(".side h3 span:last-child")


def test_planned_shares_come_from_a_checkpoint(
    run: Run, browser: Browser, rollouts: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Named together with the rollout log, the page has both."""
    run("report", checkpoint, "--rollouts", rollouts, "--html", tmp_path / "page.html")
    browser.open(tmp_path / "page.html")

    assert 1 == len(browser.find_all("path.planned"))
    assert ["heat", "50 %", "40 %"] == [browser.read_all("tbody:first-of-type tr > *")[place] for place in (0, 4, 5)]
    assert browser.find_all(".episode")


def test_a_checkpoint_alone_has_curves(run: Run, browser: Browser, checkpoint: Path, tmp_path: Path) -> None:
    """And says where transcripts would come from."""
    run("report", checkpoint, "--html", tmp_path / "page.html")
    browser.open(tmp_path / "page.html")

    assert ["Rewards rose on 1 of 1 environment"] == browser.read_all(".group.better h2")
    assert "name it with --rollouts" in browser.read("main")
    assert [] == browser.list_complaints()


def test_a_report_prints_what_it_always_did(run: Run, rollouts: Path, tmp_path: Path) -> None:
    """A page is written beside the table, and where it is is said."""
    alone, beside = run("report", rollouts), run("report", rollouts, "--html", tmp_path / "page.html")

    assert alone._replace(err=f"wrote {tmp_path / 'page.html'}\n") == beside


# -- evaluations


def test_the_report_of_an_evaluation_has_its_scores(run: Run, browser: Browser, tmp_path: Path) -> None:
    """As a table, a page and a picture."""
    folder = write_evaluation(tmp_path / "uniform", "a").folder
    told = run("report", folder, "--html", tmp_path / "page.html", "--picture", tmp_path / "means.svg")
    browser.open(tmp_path / "page.html")

    assert (0, ["wrote", "wrote"]) == (told.exit_code, [line.split()[0] for line in told.err.splitlines()])
    assert told.out.startswith("evaluation uniform\n\nenvironment ")
    assert browser.read("h1").startswith("uniform scores 0.504 overall")
    assert (tmp_path / "means.svg").is_file()


def test_the_report_of_an_evaluation_is_json_for_machines(run: Run, tmp_path: Path) -> None:
    """None stays None."""
    values = json.loads(run("report", write_evaluation(tmp_path / "b", "b").folder, "--json").out)

    assert ("b", None) == (values["name"], values["macro"]["value"])


def test_an_evaluation_needs_no_rollout_log(run: Run, tmp_path: Path) -> None:
    """Its episodes are in its folder."""
    told = run("report", write_evaluation(tmp_path / "b", "b").folder, "--rollouts", tmp_path)

    assert 1 == told.exit_code
    assert "--rollouts is for trainings" in told.err
