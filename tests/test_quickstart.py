"""The quickstart: its environments on real servers, its policy, its numbers, and the whole command, small."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, SessionError, SourceError, UnscoredReason
from multiors.evaluation import compare
from multiors.quickstart.report import (
    EnvironmentResult,
    Measurement,
    RolloutJournal,
    draw_curves,
    format_table,
    measure,
)
from multiors.quickstart.servers import run_servers
from tests.warm import Warm

ROOT = Path(__file__).parent.parent
GROUPS = (("recycling", "teahouse"), ("observatory", "museum"))
DEADLINE_S = 240.0  # for a whole small run, on a busy machine
POLL_S = 0.05

_SMALL_RUN = """
import argparse, sys
from multiors.quickstart.options import Effort, add_arguments
from multiors.quickstart.run import run_quickstart

parser = argparse.ArgumentParser()
add_arguments(parser)
effort = Effort(scripted_episodes=8, warm_start_steps=4, episodes_per_task=1)
sys.exit(run_quickstart(parser.parse_args(), effort=effort))
"""

_ONLY_SERVERS = """
import sys
from pathlib import Path
from multiors.quickstart.servers import run_servers
from tests.warm import Warm

with run_servers([["recycling"], ["observatory"]], Path(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.read()
"""


def start(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A script in a process of its own, from which a Ctrl-C does not reach this one."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return Warm(command, cwd=ROOT, text=True, start_new_session=True, **options)


def wait_until(is_so: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> bool:
    """Whether something came true in time."""
    end = time.monotonic() + deadline_s
    while not is_so() and time.monotonic() < end:
        time.sleep(POLL_S)
    return is_so()


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; one that only waits to be noticed has."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


# -- environments


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The quickstart's servers, as it starts them."""
    with run_servers(GROUPS, tmp_path_factory.mktemp("servers")) as url_by_environment:
        yield url_by_environment


@pytest.fixture
def open_environment(urls: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """Opens an environment at the first task that has the given specification."""
    opened = []

    def open_at(name: str, **task: object) -> Any:
        source = ORSSource(urls[name], env_name=name)
        environment = source.environment_factory()
        opened.append(environment)
        environment.reset(task_index=list(source.train_dataset.select_columns(list(task))).index(task))
        return environment

    yield open_at
    for environment in opened:
        environment._close()


def test_two_environments_share_each_of_two_servers(urls: dict[str, str]) -> None:
    """Each group of environments has a server process, and a port, of its own."""
    assert list(urls) == ["recycling", "teahouse", "observatory", "museum"]
    assert urls["recycling"] == urls["teahouse"]
    assert urls["observatory"] == urls["museum"]
    assert urls["recycling"] != urls["observatory"]


@pytest.mark.parametrize(("name", "expected"), [("recycling", 8), ("teahouse", 16), ("observatory", 20), ("museum", 9)])
def test_each_environment_has_a_few_tasks(urls: dict[str, str], name: str, expected: int) -> None:
    """There are enough tasks to learn from and few enough to learn in minutes."""
    assert expected == len(ORSSource(urls[name], env_name=name).train_dataset)


@pytest.mark.parametrize(
    ("item", "bin", "expected"), [("jar", "glass", 1.0), ("jar", "metal", 0.0), ("can", "metal", 0.0)]
)
def test_recycling_pays_for_the_right_bin(
    open_environment: Callable[..., Any], item: str, bin: str, expected: float
) -> None:
    """One call ends the episode, and pays 1 for the item that was asked for in the bin that takes it."""
    environment = open_environment("recycling", item="jar")
    environment.drop(item=item, bin=bin)

    assert [expected] == environment.rewards
    assert environment.finished


@pytest.mark.parametrize(
    ("guest", "celsius", "expected"), [("Ada", 90, [0.2, 1.0]), ("Ada", 60, [0.2, 0.2]), ("Grace", 90, [0.0, 0.0])]
)
def test_teahouse_pays_in_parts(
    open_environment: Callable[..., Any], guest: str, celsius: int, expected: list[float]
) -> None:
    """Asking the right guest is worth a part, the right temperature all, and tea that nobody ordered nothing."""
    environment = open_environment("teahouse", guest="Ada", tea="oolong")
    environment.take_order(guest=guest)
    environment.brew(tea="oolong", celsius=celsius)

    assert expected == environment.rewards
    assert environment.finished


def test_teahouse_tells_the_order(open_environment: Callable[..., Any]) -> None:
    """The prompt does not say what the lookup does."""
    environment = open_environment("teahouse", guest="Emmy", tea="white")

    assert "Please bring white tea." == environment.take_order(guest="Emmy")
    assert not environment.finished


@pytest.mark.parametrize(
    ("direction", "minutes", "expected"), [("east", 1, 10.0), ("east", 2, 6.0), ("west", 1, 4.0), ("west", 2, 0.0)]
)
def test_observatory_pays_up_to_ten(
    open_environment: Callable[..., Any], direction: str, minutes: int, expected: float
) -> None:
    """Six points are for the direction and four for the exposure."""
    environment = open_environment("observatory", night=1, target="Mars")
    environment.expose(target="Mars", direction=direction, minutes=minutes)

    assert expected == environment.reward


def test_observatory_scores_nothing_under_clouds(open_environment: Callable[..., Any]) -> None:
    """On an overcast night the right call ends the episode without a reward, and that is not 0."""
    environment = open_environment("observatory", night=5, target="Mars")
    environment.expose(target="Mars", direction="east", minutes=1)

    assert environment.reward is None
    assert environment.finished


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("verda means green, domo means house", 1.0),
        ("verda means green, domo means cat", 0.5),
        ("verda means big, domo means house\n", 0.5),
        ("domo means house, verda means green", 0.0),
        ("verda means green", 0.0),
        ("verda means green, domo means house, domo means cat", 0.0),
        ("", 0.0),
    ],
)
def test_museum_pays_for_what_is_said_last(
    open_environment: Callable[..., Any], urls: dict[str, str], said: str, expected: float
) -> None:
    """Half is for each of the two words in its place; a list of meanings to choose from is worth nothing."""
    environment = open_environment("museum", label="verda domo")
    label = environment.read_label()
    source = ORSSource(urls["museum"], env_name="museum")
    message = {"role": "assistant", "content": said}

    assert "verda domo" == label
    assert [expected] == source.reward_funcs(environments=[environment], completions=[[message]])
    assert environment.finished


def test_the_policy_sees_every_tool_but_the_one_that_grades(
    urls: dict[str, str], scripted: tuple[list[Any], dict[str, list[Any]]]
) -> None:
    """What is said to judge the last message does, with a tool that is not offered; the others have no such tool."""
    from multiors import check
    from multiors.quickstart.train import JUDGES_LAST_MESSAGE

    report = check(MultiOpenRewardSpec({name: ORSSource(url, env_name=name) for name, url in urls.items()}))
    found = {finding.source for finding in report.findings if finding.facts.get("terminal") == "grade"}

    assert found == JUDGES_LAST_MESSAGE
    assert ["read_label"] == [tool.__name__ for tool in scripted[1]["museum"]]


def test_a_value_outside_the_enumeration_is_refused(open_environment: Callable[..., Any]) -> None:
    """A call that the schema forbids is not scored, and the episode goes on."""
    environment = open_environment("observatory", night=1, target="Mars")

    with pytest.raises(SessionError, match="direction"):
        environment.expose(target="Mars", direction="up", minutes=1)

    assert environment.reward is None
    assert not environment.finished


# -- policy and warm start


@pytest.fixture(scope="module")
def scripted(urls: dict[str, str]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Some scripted episodes, and the tools of their environments."""
    import random

    from multiors.quickstart.warmstart import play, tools_of

    sources = {name: ORSSource(url, env_name=name) for name, url in urls.items()}
    environments = {name: source.environment_factory() for name, source in sources.items()}
    rng = random.Random(0)
    episodes = [
        play(name, environments[name], task_index=i % 8, rng=rng, score=source.reward_funcs)
        for name, source in sources.items()
        for i in range(12)
    ]
    for environment in environments.values():
        environment._close()
    return episodes, {name: tools_of(environment) for name, environment in environments.items()}


@pytest.fixture(scope="module")
def tokenizer(scripted: tuple[list[Any], dict[str, list[Any]]]) -> Any:
    """The policy's tokenizer, trained on these episodes."""
    from multiors.quickstart.policy import build_tokenizer

    episodes, tools = scripted
    return build_tokenizer([episode.messages for episode in episodes], list(tools.values()))


def test_scripts_finish_and_are_right_now_and_then(scripted: tuple[list[Any], dict[str, list[Any]]]) -> None:
    """Every script plays its environment to the end, so that some episodes earn something and some do not."""
    episodes, _ = scripted
    rewards = {name: {each.reward for each in episodes if each.environment == name} for name in ("recycling", "museum")}
    last = {(each.environment == "museum", each.messages[-1]["content"] == "Done.") for each in episodes}

    assert {(True, False), (False, True)} == last
    assert {0.0, 1.0} == rewards["recycling"]
    assert {0.0, 0.5, 1.0} == rewards["museum"]


def test_the_chat_template_is_the_one_that_trl_knows(tokenizer: Any) -> None:
    """TRL finds its parser and training template for the tokenizer, which it does by exact text."""
    from trl import get_training_chat_template

    assert "{% generation %}" in re.sub(r"\{%-", "{%", get_training_chat_template(tokenizer))
    assert tokenizer.response_template


def test_a_system_prompt_is_one_token(tokenizer: Any, scripted: tuple[list[Any], dict[str, list[Any]]]) -> None:
    """The tools of an environment cost the policy one token, and the text is what TRL renders."""
    _, tools = scripted
    messages = [{"role": "user", "content": "Hello."}]
    for each in tools.values():
        text = tokenizer.apply_chat_template(messages, tools=each, tokenize=False)
        ids = tokenizer.apply_chat_template(messages, tools=each, return_dict=False)

        assert text == tokenizer.decode(ids)
        assert ids.index(tokenizer.eos_token_id) == 2


@pytest.mark.parametrize("text", ["Zürich, naïve", "日本 🫖", "\x00\x7f", '{"a": "b"}}', "  two  blanks\n\n"])
def test_the_tokenizer_writes_any_text(tokenizer: Any, text: str) -> None:
    """Bytes that no transcript holds have tokens too."""
    assert text == tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_the_policy_is_tiny_and_seeded(tokenizer: Any) -> None:
    """The same seed gives the same weights, another seed others, and there are few of them."""
    import torch

    from multiors.quickstart.policy import build_model

    first, again, other = (build_model(tokenizer, seed=seed).get_input_embeddings().weight for seed in (1, 1, 2))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert sum(parameter.numel() for parameter in build_model(tokenizer, seed=1).parameters()) < 200_000


def test_the_warm_start_learns_from_the_assistant_only(
    tokenizer: Any, scripted: tuple[list[Any], dict[str, list[Any]]]
) -> None:
    """Labels are what the policy writes: its calls and its last word, each with the end of the turn."""
    from trl import get_training_chat_template

    from multiors.quickstart.warmstart import encode_episode

    episodes, tools = scripted
    episode = next(each for each in episodes if each.environment == "teahouse")
    ids, labels = encode_episode(tokenizer, episode, tools["teahouse"], template=get_training_chat_template(tokenizer))
    written = tokenizer.decode(labels[labels != -100])
    calls = re.findall(r'"name": "(\w+)"', written)

    assert ids.shape == labels.shape
    assert ["take_order", "brew"] == calls
    assert written.endswith("Done.<|im_end|>\n")
    assert "Please bring" not in written


# -- numbers

rewards = st.lists(st.none() | st.floats(-10, 10))


@given(rewards)
def test_unscored_counts_and_enters_no_mean(values: list[float | None]) -> None:
    """A summary counts all, averages what was scored, and has no mean where nothing was."""
    scored = [value for value in values if value is not None]
    measurement = measure(values)

    assert (len(values), len(scored)) == (measurement.num_episodes, measurement.num_scored)
    assert (measurement.reward is None) == (not scored)
    assert (measurement.scored_fraction is None) == (not values)
    assert not scored or min(scored) - 1e-9 <= (measurement.reward or 0.0) <= max(scored) + 1e-9


def make_result(
    reward: float | None = None, realised_share: float | None = None, *, judges_last_message: bool = False
) -> EnvironmentResult:
    """A result with the same measurement everywhere."""
    each = measure([reward])
    return EnvironmentResult(10.0, 20, judges_last_message, each, each, each, each, each, 0.25, realised_share)


def test_the_table_shows_none_as_a_dash() -> None:
    """What is undefined is shown as such, and what is not has its digits."""
    lines = format_table({"known": make_result(2.0, 0.5), "unknown": make_result()}).splitlines()

    assert "environment  best  before  after  first third  last third  scored  planned  realised" == lines[0]
    assert ["known", "10", "2.00", "2.00", "2.00", "2.00", "100%", "25.0%", "50.0%"] == lines[2].split()
    assert ["unknown", "10", "–", "–", "–", "–", "0%", "25.0%", "–"] == lines[3].split()


def test_the_table_names_who_judges_the_last_message() -> None:
    """Under the table stands which environments judge words rather than calls, and nothing where none does."""
    others = {"calls": make_result(1.0)}
    remark = "words judges the policy's last message, with a tool that the policy never sees."

    assert ["", remark] == format_table({**others, "words": make_result(judges_last_message=True)}).splitlines()[4:]
    assert 3 == len(format_table(others).splitlines())


def make_record(source: str, reward: float | None, *, step: int = 0) -> RolloutRecord:
    """A rollout without tool calls."""
    reason = UnscoredReason.NO_SCORE if reward is None else None
    return RolloutRecord(source, 0, 0, step, reward, reward, {}, reason, None, finished=True, steps=())


def test_the_journal_keeps_none_and_only_what_it_is_told_to(tmp_path: Path) -> None:
    """Rollouts of a measurement are not written; an unscored one of training is null in the file."""
    journal = RolloutJournal(tmp_path / "rollouts.jsonl")
    journal.add([make_record("a", 1.0)])
    with journal.recording():
        journal.add([make_record("a", None), make_record("b", 2.0, step=3)])
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]

    assert [("a", None, "no_score"), ("b", 2.0, None)] == [
        (line["source"], line["reward"], line["reason"]) for line in lines
    ]
    assert Measurement(1, 0, None) == journal.measure("a")
    assert Measurement(0, 0, None) == journal.measure("b", end_step=3)
    assert Measurement(1, 1, 2.0) == journal.measure("b", first_step=3)
    assert 0.5 == journal.share("a")


def test_curves_can_be_drawn_of_an_environment_that_was_never_scored(tmp_path: Path) -> None:
    """A line that has no points is no error."""
    journal = RolloutJournal(tmp_path / "rollouts.jsonl")
    with journal.recording():
        journal.add([make_record("a", None), make_record("b", 2.0, step=3)])
    draw_curves(tmp_path / "curves.png", journal, {"a": make_result(), "b": make_result(2.0)})

    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


# -- the command


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    """A directory that holds something is refused before anything is started, and keeps what it has."""
    (tmp_path / "mine").write_text("mine")
    command = [sys.executable, "-m", "multiors.quickstart", "--output-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (1, "") == (done.returncode, done.stdout)
    assert "is not empty, and nothing is overwritten. Pass another --output-dir." in done.stderr
    assert ["mine"] == [path.name for path in tmp_path.iterdir()]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A whole run, smaller than any user's: its directory, and what it wrote to stdout and stderr."""
    output_dir = tmp_path_factory.mktemp("quickstart")
    process = start(
        _SMALL_RUN, "--steps", 2, "--seed", 5, "--json", "--output-dir", output_dir,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    return output_dir, out, err


@pytest.mark.timeout(300)
def test_json_is_all_there_is_on_stdout(finished_run: tuple[Path, str, str]) -> None:
    """With --json stdout is the summary that is also in the directory, and talk goes to stderr."""
    output_dir, out, err = finished_run
    summary = json.loads(out)

    assert json.loads((output_dir / "summary.json").read_text()) == summary
    assert (5, 2, str(output_dir)) == (summary["seed"], summary["steps"], summary["output_dir"])
    assert "right about two times in five" in err
    assert "Traceback" not in err


@pytest.mark.timeout(300)
def test_the_summary_has_everything_for_each_environment(finished_run: tuple[Path, str, str]) -> None:
    """Before, after, thirds, scored fraction and shares are there, and the shares are those of the plan."""
    summary = json.loads(finished_run[1])
    result = summary["environments"]["observatory"]

    assert ["recycling", "teahouse", "observatory", "museum"] == list(summary["environments"])
    assert [each.name for each in fields(EnvironmentResult)] == list(result)
    assert {"num_episodes", "num_scored", "reward", "scored_fraction"} == set(result["before"])
    assert 20 == result["before"]["num_episodes"] == result["after"]["num_episodes"]
    assert all(abs(each["planned_share"] - each["realised_share"]) < 1 / 8 for each in summary["environments"].values())
    assert {"imports", "servers", "scripts", "warm_start", "before", "grpo", "after", "total"} < set(summary["seconds"])


@pytest.mark.timeout(300)
def test_each_rollout_of_training_is_a_line(finished_run: tuple[Path, str, str]) -> None:
    """One batch of eight groups of eight rollouts is 64 records, each on the servers' own account."""
    lines = (finished_run[0] / "rollouts.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]

    assert 64 == len(records)
    assert all([each.name for each in fields(RolloutRecord)] == list(record) for record in records)
    assert {"recycling", "teahouse", "observatory", "museum"} == {record["source"] for record in records}
    assert {1} == {record["step"] for record in records}


@pytest.mark.timeout(300)
def test_what_was_said_last_is_graded_in_training(finished_run: tuple[Path, str, str]) -> None:
    """At the museum the grade is the last call of each rollout that ended in words, and nowhere else is there one."""
    lines = (finished_run[0] / "rollouts.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    museum = [record for record in records if record["source"] == "museum"]
    ended = {not record["messages"][-1].get("tool_calls") for record in museum}

    assert True in ended
    assert all(
        (not record["messages"][-1].get("tool_calls")) == ([step["tool"] for step in record["steps"]][-1:] == ["grade"])
        for record in museum
    )
    assert not any(step["tool"] == "grade" for each in records if each["source"] != "museum" for step in each["steps"])


@pytest.mark.timeout(300)
def test_curves_and_logs_are_there(finished_run: tuple[Path, str, str]) -> None:
    """The directory holds what the summary and the documentation name, and nothing else."""
    names = {path.name for path in finished_run[0].iterdir()}

    folders = {"before", "after", "policy-before", "policy-after"}
    assert {"curves.png", "rollouts.jsonl", "summary.json", "server-0.log", "server-1.log", *folders} == names
    assert (finished_run[0] / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(300)
def test_the_policies_before_and_after_can_be_compared(finished_run: tuple[Path, str, str]) -> None:
    """Both evaluations are whole, and pair every episode; the compared means are those of the summary."""
    folder = finished_run[0]
    found = compare(folder / "before", folder / "after")
    summary = json.loads((folder / "summary.json").read_text())["environments"]

    assert ("before", "after") == (found.reference.name, found.candidate.name)
    assert {name: result.num_episodes for name, result in found.candidate.sources.items()} == {
        name: each["num_tasks"] for name, each in summary.items()
    }
    assert {name: each["after"]["reward"] for name, each in summary.items()} == {
        name: result.score.value for name, result in found.candidate.sources.items()
    }
    assert [] == [remark for remark in found.remarks if "not finished" in remark]


@pytest.mark.timeout(300)
def test_a_saved_policy_loads_as_a_checkpoint(finished_run: tuple[Path, str, str]) -> None:
    """What is saved is what transformers reads, tools and tool calls included."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished_run[0] / "policy-after"
    tokenizer = AutoTokenizer.from_pretrained(folder)

    assert len(tokenizer) == AutoModelForCausalLM.from_pretrained(folder).config.vocab_size
    assert "<tool_call>" in tokenizer.chat_template


# -- nothing is left behind


@pytest.mark.timeout(300)
def test_ctrl_c_in_the_middle_of_training_leaves_no_server(tmp_path: Path) -> None:
    """An interrupt ends both servers, exits with 130 and shows no traceback."""
    output_dir = tmp_path / "run"
    process = start(_SMALL_RUN, "--steps", 100_000, "--output-dir", output_dir, stderr=subprocess.PIPE)
    began = wait_until(lambda: (output_dir / "rollouts.jsonl").exists() or process.poll() is not None)
    servers = psutil.Process(process.pid).children() if process.poll() is None else []
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)

    assert began
    assert 2 == len(servers)
    assert [] == [server for server in servers if not is_gone(server)]
    assert 130 == process.returncode, err
    assert "Interrupted; the servers have stopped." in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    """A parent that could not stop its servers takes them along all the same."""
    process = start(_ONLY_SERVERS, tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said = process.stdout.readline() if process.stdout else ""
    servers = psutil.Process(process.pid).children()
    process.send_signal(number)
    process.communicate()

    assert "up\n" == said
    assert 2 == len(servers)
    assert wait_until(lambda: all(map(is_gone, servers)), deadline_s=20.0)


def test_a_server_that_does_not_start_names_its_log(tmp_path: Path) -> None:
    """An error of a child is an error here at once, with where to look."""
    with (
        pytest.raises(SourceError, match=r"the server of nowhere exited with code 1 .*\. Its log is .*server-0\.log"),
        run_servers([["nowhere"]], tmp_path),
    ):
        pass

    assert "KeyError: 'nowhere'" in (tmp_path / "server-0.log").read_text()


def test_settings_of_the_caller_survive(tmp_path: Path) -> None:
    """Starting and stopping servers leaves this process's environment variables as they were."""
    before = dict(os.environ)
    with run_servers([["recycling"]], tmp_path):
        during = dict(os.environ)

    assert before == during == dict(os.environ)
