"""The page of a comparison in a real browser: what it says, what can be clicked, and that nothing in it acts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from multiors.errors import ConfigError
from multiors.evaluation import compare
from multiors.evaluation.comparison import to_html, write_page
from multiors.evaluation.comparison.html import embed
from multiors.evaluation.folder import EvaluationRun
from multiors.records import StepRecord, UnscoredReason
from tests.browser import Browser, open_browser
from tests.sample_comparison import SOURCES, make_comparison, make_episode, make_episodes, write_evaluation
from tests.schema_strategies import UNREADABLE
from tests.test_hostile_text import TEXTS


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests."""
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluationRun, EvaluationRun]:
    """Reference and candidate."""
    folder = tmp_path_factory.mktemp("evaluations")
    return write_evaluation(folder / "uniform", "a"), write_evaluation(folder / "curriculum", "b")


@pytest.fixture(scope="module")
def page(runs: tuple[EvaluationRun, EvaluationRun]) -> Path:
    """The page of their comparison."""
    path = runs[0].folder.parent / "comparison.html"
    write_page(to_html(make_comparison(*runs), [runs[0]], [runs[1]]), path)
    return path


def is_quiet(browser: Browser, page: Path) -> None:
    """The console says nothing, and only the file itself was asked for."""
    assert [] == browser.list_complaints()
    assert [page.absolute().as_uri()] == browser.list_requests()


# -- what it says


def test_the_page_answers_first_and_regressions_follow(browser: Browser, page: Path) -> None:
    """The sentence that answers is the heading; then what regressed, improved, and cannot be told."""
    browser.open(page)

    assert browser.read("h1").startswith("Whether curriculum is better than uniform overall cannot be said")
    assert ["Worse on 1 of 4 environments", "Better on 1 of 4 environments", "Cannot tell on 2 of 4 environments"] == (
        browser.read_all(".group h2")
    )
    assert ["sort"] == browser.read_all(".group.worse dt")
    assert "Source 'maze': no episode has a score in both arms" in browser.read(".remarks")
    is_quiet(browser, page)


def test_the_forest_plot_has_a_row_for_each_environment(browser: Browser, page: Path) -> None:
    """With its interval, left of zero where it is worse, and nothing where there is no difference."""
    browser.open(page)
    zero = float(browser.find(".row .zero").get_attribute("x1").rstrip("%"))  # type: ignore[union-attr]  # it has one
    worse = float(browser.find(".row.worse .whisker").get_attribute("x2").rstrip("%"))  # type: ignore[union-attr]

    assert [*SOURCES, "overall"] == [name for name in browser.read_all(".row .name") if name]
    assert worse < zero
    assert 3 == len(browser.find_all(".row .whisker"))
    assert 10 < browser.find(".row.better .point rect").rect["width"] < 20


def test_each_environment_has_its_distribution_cost_and_reasons(browser: Browser, page: Path) -> None:
    """The means of tasks of both arms, tokens and seconds, pass@k, and why episodes have no score."""
    browser.open(page)

    assert list(SOURCES) == browser.read_all("figcaption")
    assert browser.find_all("figure rect.reference")
    assert browser.find_all("figure rect.candidate")
    assert ["Scores", "Unscored episodes", "At least one success in k episodes", "Cost of an episode"] == (
        browser.read_all("caption")
    )
    assert "unreachable 48" in browser.read_all("td.text")


# -- episodes


def choose(browser: Browser, selector: str, value: str) -> None:
    """Choose an entry of a list, as a hand does."""
    option = next(each for each in browser.find_all(f"{selector} option") if each.text == value)
    option.click()


def test_episodes_are_filtered_by_environment_policy_outcome_and_text(browser: Browser, page: Path) -> None:
    """Filters narrow each other; the number that is left is said."""
    browser.open(page)
    counts = [browser.read("#count")]
    choose(browser, "#by-source", "sort")
    counts.append(browser.read("#count"))
    next(each for each in browser.find_all("#by-kind button") if each.text.startswith("regressed")).click()
    rows = {(each.text.split("\n")[0], each.get_attribute("class")) for each in browser.find_all(".episode")}
    browser.find("#by-text").send_keys("SORT-7-0")
    counts.append(browser.read("#count"))
    left = browser.read_all("#by-kind button:enabled")

    assert ["192 of 192 episodes", "48 of 192 episodes", "1 of 192 episodes"] == counts
    assert ["all 1", "regressed 1"] == left
    assert {("sort", "episode regressed")} == rows
    is_quiet(browser, page)


def test_a_filter_of_one_policy_asks_of_that_policy_alone(browser: Browser, page: Path) -> None:
    """Unscored in the candidate is not unscored in the reference, and only its transcript is shown."""
    browser.open(page)
    next(each for each in browser.find_all("#by-kind button") if each.text.startswith("unscored")).click()
    choose(browser, "#by-source", "maze")
    choose(browser, "#by-arm", "uniform")
    reference = browser.read("#count")
    browser.find(".episode > button").click()
    sides = browser.read_all(".side h3 span:first-child")
    choose(browser, "#by-arm", "curriculum")

    assert ("2 of 192 episodes", "48 of 192 episodes") == (reference, browser.read("#count"))
    assert ["uniform"] == sides


def test_an_episode_opens_with_both_transcripts(browser: Browser, page: Path) -> None:
    """The prompt once, then side by side: thoughts folded, calls with arguments, results with what they were worth."""
    browser.open(page)
    browser.find("#by-text").send_keys("task 7, episode 0")
    choose(browser, "#by-source", "heat")
    row = browser.find(".episode > button")
    row.click()
    left, right = (side.rect for side in browser.find_all(".side"))

    assert "true" == row.get_attribute("aria-expanded")
    assert ["Solve task 7 of heat."] == browser.read_all(".opened > .message.user pre")
    assert ["uniform", "curriculum"] == browser.read_all(".side h3 span:first-child")
    assert (left["y"], True) == (right["y"], left["x"] < right["x"])
    assert [None, None] == [each.get_attribute("open") for each in browser.find_all(".side details")]
    assert ['{"items": ["pear", "apple"], "order": "ascending"}'] * 2 == browser.read_all(".side .call pre")
    assert all(re.fullmatch(r"reward 0\.\d{3}", worth) for worth in browser.read_all(".message .worth"))
    assert "session heat-7-0" in browser.read_all(".facts span")
    row.click()
    assert [] == browser.find_all(".opened")


def test_a_failure_shows_its_error_and_reason(browser: Browser, page: Path) -> None:
    """What failed, and where it can be found in the server's log."""
    browser.open(page)
    browser.find("#by-text").send_keys("HTTP 500")
    choose(browser, "#by-source", "maze")
    browser.find(".episode > button").click()

    assert "unscored: unreachable" in browser.read_all(".side h3 span:last-child")
    assert "tool 'submit' failed on task" in browser.read(".side .error")
    assert "unreachable " in browser.read_all(".failure")


def test_a_long_list_comes_in_parts(browser: Browser, page: Path) -> None:
    """Fifty at first, and more when asked."""
    browser.open(page)
    first = len(browser.find_all(".episode"))
    browser.find("#more").click()

    assert (50, 100) == (first, len(browser.find_all(".episode")))


@pytest.mark.parametrize("width", [360, 820, 1280])
def test_the_page_fits_every_screen(browser: Browser, page: Path, width: int) -> None:
    """Nothing makes it scroll sideways; wide tables scroll by themselves."""
    browser.open(page, width=width)
    browser.find(".episode > button").click()

    assert width == browser.evaluate("document.documentElement.scrollWidth")


def test_the_page_follows_the_readers_colours(browser: Browser, page: Path) -> None:
    """Dark where the system is."""
    grounds = []

    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert ["rgb(251, 250, 248)", "rgb(23, 22, 21)"] == grounds


def test_one_evaluation_has_a_page_too(browser: Browser, runs: tuple[EvaluationRun, EvaluationRun], page: Path) -> None:
    """With its means and its episodes."""
    path = page.with_name("evaluation.html")
    write_page(to_html(make_comparison(*runs).reference, [runs[0]]), path)
    browser.open(path)
    browser.find(".episode > button").click()

    assert browser.read("h1").startswith("uniform scores 0.504 overall")
    assert ["uniform"] == browser.read_all(".side h3 span:first-child")
    assert [] == browser.find_all("#by-arm")
    is_quiet(browser, path)


def test_training_runs_are_paired_by_their_names(browser: Browser, tmp_path: Path) -> None:
    """An episode of one run has its counterpart in the run of the same name."""
    arms = [
        [write_evaluation(tmp_path / arm / seed, arm, make_episodes(arm, num_tasks=3)) for seed in ("seed-0", "seed-1")]
        for arm in ("a", "b")
    ]
    comparison = compare(tmp_path / "a", tmp_path / "b", success_at=0.5)
    path = tmp_path / "page.html"
    write_page(to_html(comparison, *arms), path)
    browser.open(path)
    browser.find(".episode > button").click()

    assert "48 of 48 episodes" == browser.read("#count")
    assert re.fullmatch(r"task \d, episode \d, run seed-\d", browser.read(".episode .about"))
    assert 2 == len(browser.find_all(".side"))
    assert "training runs" in browser.read("header")
    is_quiet(browser, path)


# -- what a page leaves out


def test_a_page_says_what_it_leaves_out(browser: Browser, tmp_path: Path) -> None:
    """Of many episodes the page holds those that changed or have no score, and names the folders of the rest."""
    arms = []

    for arm, reward in (("a", 0.5), ("b", 0.75)):
        records = [
            make_episode("sort", task, 0, reward=0.0 if arm == "b" and task == 399 else reward, reason=None)
            for task in range(400)
        ]
        arms.append(write_evaluation(tmp_path / arm, arm, records))

    path = tmp_path / "page.html"
    write_page(to_html(make_comparison(*arms), [arms[0]], [arms[1]]), path)
    browser.open(path)

    assert browser.read("#episodes .quiet").strip().startswith("300 of 400 are on this page")
    assert "task 399, episode 0" == browser.read(".episode .about")
    assert [str(arm.folder) for arm in arms] == browser.read_all(".folders dt")


def test_a_page_of_huge_episodes_stays_small(tmp_path: Path) -> None:
    """Texts are clipped and long conversations lose their middle, so that every episode has its place."""
    prompt = ({"role": "user", "content": "x" * 100_000},)
    turns = tuple({"role": "assistant", "content": f"turn {turn} {'<' * 5_000}"} for turn in range(100))
    records = [
        make_episode("sort", task, 0, reward=1.0, reason=None, messages=turns, prompt=prompt) for task in range(50)
    ]
    run, other = (write_evaluation(tmp_path / name, "a", records) for name in "ab")
    page = to_html(make_comparison(run, other), [run], [other])

    assert 100 == page.count(" messages are left out here")
    assert 100 == page.count("turn 99 ")
    assert 100 == page.count("of 100,000 characters]")
    assert len(page) < 14_000_000


def test_a_page_that_cannot_be_written_is_a_known_error(tmp_path: Path) -> None:
    """With the reason of the disk."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"page\.html' cannot be written: (Not a directory|File exists)"):
        write_page("", tmp_path / "file" / "page.html")


# -- hostile text


def test_hostile_texts_are_inert_and_visible(browser: Browser, tmp_path: Path) -> None:
    """What a server or policy says stands on the page as text: it makes no element, runs nothing, asks for nothing."""
    texts = {**TEXTS, "end": "</script><script>document.title = 'taken'</script>", "comment": "<!--<script>"}
    records = []

    for index, text in enumerate(each[:100_000] for each in texts.values()):
        call = {"function": {"name": text, "arguments": {text: [text]}}}
        records.append(
            make_episode(
                "sort",
                index,
                0,
                reward=None,
                reason=UnscoredReason.TOOL_ERROR,
                error=text,
                session=text,
                parts={text: 1.0},
                steps=(StepRecord(text, {text: text}, text, 0.5),),
                prompt=({"role": text, "content": text},),
                messages=(
                    {"role": "assistant", "reasoning_content": text, "content": text, "tool_calls": [call, text, None]},
                    {"role": "tool", "name": text, "content": [{"type": "text", "text": text}, {"type": text}]},
                ),
            )
        )

    run, other = (write_evaluation(tmp_path / name, "a", records) for name in "ab")
    comparison = make_comparison(run, other)
    arm = replace(comparison.reference, name=texts["html"], policy={texts["end"]: texts["terminal"]})
    comparison = replace(comparison, reference=arm, remarks=tuple(texts.values()))
    path = tmp_path / "page.html"
    write_page(to_html(comparison, [run], [other]), path)
    browser.open(path)

    for row in browser.find_all(".episode > button"):
        row.click()

    seen = browser.evaluate("document.body.innerText")

    assert len(texts) == len(browser.find_all(".episode .sides"))
    assert 2 == browser.evaluate("document.scripts.length")
    assert 0 == browser.evaluate("document.images.length")
    assert "<img src=x onerror=alert(1)> beside" not in browser.driver.title
    assert "taken" != browser.driver.title
    assert "</script><script>document.title = 'taken'</script>" in seen
    assert "␛[31mred␛[0m" in seen
    assert "⟨U+202E⟩gnp.exe" in seen
    assert not UNREADABLE.search(seen.replace("\n", "").replace("\t", ""))
    is_quiet(browser, path)


def test_json_in_a_page_cannot_end_its_element() -> None:
    """No character of it is read as mark-up, and it means the same."""
    embedded = embed({"<": "</script>&\u2028\u2029"})

    assert '{"\\u003c":"\\u003c/script\\u003e\\u0026\\u2028\\u2029"}' == embedded


def test_the_page_forbids_all_but_its_own_script(page: Path, browser: Browser) -> None:
    """A script that got in would not run."""
    browser.open(page)
    browser.driver.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.taken = 1';"
        "document.body.append(script); new Image().src = 'http://127.0.0.1:9/x.png'"
    )

    assert browser.evaluate("window.taken") is None
    assert 2 <= len([said for said in browser.list_complaints() if "Content Security Policy" in said])
