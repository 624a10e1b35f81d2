"""`multiors serve`: real servers in processes of their own."""

from __future__ import annotations

import argparse
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, SourceReward
from multiors.cli import main
from multiors.commands.serving import add_serve
from multiors.errors import ConfigError
from multiors.evaluation import evaluate
from multiors.evaluation.policies import Message, Reply, Start
from multiors.mixing import LearningCurve
from multiors.mixing.curricula import Ladder
from multiors.serving.generators import open_generator
from multiors.serving.own import find_environment
from tests.commands import Run
from tests.evaluated import Script, ScriptedPolicy, calls, says
from tests.served import Serving, ask_tasks, command, open_session, serve_command
from tests.test_docs import read_blocks, read_names
from tests.warm import run_warm

DEADLINE_S = 100.0

OWN = """
from pathlib import Path

from openreward.environments import Environment, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class Guess(BaseModel):
    number: int


class Double(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"number": number} for number in range(5)]

    def get_prompt(self):
        return [TextBlock(text=f"Double {self.task_spec['number']}.")]

    def teardown(self):
        Path("torn-down").touch()

    @tool
    def guess(self, guess: Guess) -> ToolOutput:
        '''Say a number.'''
        print("a word of the environment's own")
        is_right = guess.number == 2 * self.task_spec["number"]
        return ToolOutput(blocks=[TextBlock(text="ok")], reward=float(is_right), finished=True)


class More(Double):
    @classmethod
    def list_tasks(cls, split):
        return [{"number": number} for number in range(9)]


class WrongInit(Double):
    def __init__(self, task):
        pass


class SilentTool(Double):
    @tool
    def other(self, guess: Guess):
        return None


class NoTasks(Double):
    @classmethod
    def list_tasks(cls, split):
        raise KeyError("tasks.json")


class NoTools(Double):
    guess = None


class Unfinished(Environment):
    pass


class double(Double):
    pass


class Slashed(Double):
    @classmethod
    def name(cls):
        return "lab/double"


number = 3
"""

PAGE = Path(__file__).parents[1] / "docs/serving.md"


@pytest.fixture(scope="module")
def puzzles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Generators of reasoning-gym."""
    datasets = [option for name in ("chain_sum", "products", "ransom_note") for option in ("--dataset", name)]
    options = (*datasets, "--num-tasks", 40, "--seed", 5, "--levels", 4)
    with serve_command("reasoning-gym", *options, folder=tmp_path_factory.mktemp("puzzles")) as server:
        yield server


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with environments of a user's."""
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


# -- reasoning-gym


def test_what_is_served_is_said_in_one_line(puzzles: Serving) -> None:
    """Names, tasks, tools and levels, for machines."""
    assert {
        "name": "chain_sum",
        "tasks": {"train": 40, "test": 40},
        "tools": ["answer"],
        "terminal_tool": None,
        "levels": [0, 1, 2, 3],
        "reward_range": [0.0, 1.0],
    } == puzzles.environments["chain_sum"]
    assert ["chain_sum", "products", "ransom_note"] == list(puzzles.environments)


def test_tasks_are_had_by_range(puzzles: Serving) -> None:
    """The list of the server is that of the generator."""
    generator = open_generator("chain_sum", num_tasks=40, seed=5, num_levels=4)

    assert generator.list_specs("test")[3:9] == ask_tasks(puzzles.url, "chain_sum", "test", 3, 9)


def test_the_right_answer_earns_one_and_ends_the_episode(puzzles: Serving) -> None:
    """The oracle is reasoning-gym's own answer to the question of the prompt."""
    generator = open_generator("chain_sum", num_tasks=40, seed=5, num_levels=4)
    entry = generator.make_entry(generator.make_spec("train", 6))
    with open_session(puzzles.url, "chain_sum", split="train", index=6) as session:
        prompt = session.prompt()
        right = session.call("answer", text=entry["answer"])
        again = session.call("answer", text=entry["answer"])

    assert f"{entry['question']}\n\nCall the tool `answer` with your final answer alone. You have one try." == prompt
    assert (1.0, True, "Score: 1.") == (
        right["output"]["reward"],
        right["output"]["finished"],
        right["output"]["blocks"][0]["text"],
    )
    assert (False, "episode_finished") == (again["ok"], again["reason"])


@pytest.mark.parametrize("text", ["x", "", "\x1b[31m", "__import__('os')._exit(1)", "9" * 100_000])
def test_any_other_answer_earns_nothing(puzzles: Serving, text: str) -> None:
    """And the server goes on."""
    with open_session(puzzles.url, "chain_sum", split="train", index=0) as session:
        answered = session.call("answer", text=text)

    assert (0.0, True) == (answered["output"]["reward"], answered["output"]["finished"])


def test_a_call_without_a_text_leaves_the_episode_open(puzzles: Serving) -> None:
    """The policy is told, and may try again."""
    with open_session(puzzles.url, "chain_sum", split="train", index=0) as session:
        wrong = session.call("answer", text=["4"])
        answered = session.call("answer", text="x")

    assert (False, "input_validation") == (wrong["ok"], wrong["reason"])
    assert answered["ok"]


def test_tasks_that_are_not_listed_are_refused(puzzles: Serving) -> None:
    """A client's own specification opens a task only if it is one of the list."""
    spec = ask_tasks(puzzles.url, "chain_sum", "train", 2, 3)[0]
    with (
        open_session(puzzles.url, "chain_sum", task_spec=spec) as listed,
        open_session(puzzles.url, "chain_sum", task_spec={**spec, "level": 9}) as other,
    ):
        said = (listed.created.status_code, other.created.status_code, other.created.json()["detail"])

    assert (200, 500, "ValueError: chain_sum has no such task; was the server started with other options?") == said


def read_prompts(server: Serving) -> list[str]:
    """Of the first tasks."""
    prompts = []
    for index in range(6):
        with open_session(server.url, "ransom_note", split="train", index=index) as session:
            prompts.append(session.prompt())
    return prompts


def test_tasks_are_the_same_after_a_restart(puzzles: Serving, tmp_path: Path) -> None:
    """Also those of a generator that depends on Python's hashes, whatever the variable says."""
    options = ("--dataset", "ransom_note", "--num-tasks", 40, "--seed", 5, "--levels", 4)
    with serve_command("reasoning-gym", *options, folder=tmp_path, PYTHONHASHSEED="77") as server:
        after = read_prompts(server)

    assert read_prompts(puzzles) == after


def test_an_answer_may_be_the_last_message(tmp_path: Path) -> None:
    """With --answer message no tool is seen, and what stands between the tags is scored."""
    generator = open_generator("gcd", num_tasks=3, seed=0, num_levels=1)
    answer = generator.make_entry(generator.make_spec("train", 1))["answer"]
    options = ("--dataset", "gcd", "--num-tasks", 3, "--levels", 1, "--answer", "message")
    with serve_command("reasoning-gym", *options, folder=tmp_path) as server:
        with open_session(server.url, "gcd", split="train", index=1) as session:
            prompt = session.prompt()
            answered = session.call("submit", text=f"So it is <answer>{answer}</answer>")
        source = ORSSource(server.url, env_name="gcd", indices=[1])
        run = evaluate(
            {"gcd": source},
            ScriptedPolicy(lambda start, messages: says(f"<answer>{answer}</answer>")),
            tmp_path / "run",
            episodes_per_task=1,
        )

    assert prompt.endswith("Write your final answer alone between <answer> and </answer>.")
    assert ([], "submit") == (server.environments["gcd"]["tools"], server.environments["gcd"]["terminal_tool"])
    assert 1.0 == answered["output"]["reward"]
    assert [1.0] == [record.reward for record in run.episodes()]


def mix(server: Serving) -> MultiOpenRewardSpec:
    """Both generators, one of them with a ladder."""
    reward = SourceReward(range=(0, 1))
    ladder = Ladder(field="level", min_groups=2, patience_groups=None)
    return MultiOpenRewardSpec(
        {
            "sums": ORSSource(server.url, env_name="chain_sum", reward=reward, task_curriculum=ladder),
            "products": ORSSource(server.url, env_name="products", reward=reward),
        }
    )


def test_a_ladder_climbs_the_levels(puzzles: Serving) -> None:
    """In a mix, a source that is solved reaches the hardest level of the generator."""
    with mix(puzzles) as spec:
        spec.training_arguments(
            num_generations=4, per_device_train_batch_size=32, max_steps=20, use_cpu=True, bf16=False
        )
        simulation = spec.simulate(LearningCurve(1, 1))

    assert 0.0 == simulation.measures_B[0]["sums"]["level"]
    assert 3.0 == simulation.measures_B[-1]["sums"]["level"]


def test_a_mix_is_evaluated(puzzles: Serving, tmp_path: Path) -> None:
    """A policy that knows the answers earns one everywhere; one that does not earns less."""
    by_question: dict[str, str] = {}
    for name in ("chain_sum", "products"):
        generator = open_generator(name, num_tasks=40, seed=5, num_levels=4)
        entries = [generator.make_entry(generator.make_spec("train", index)) for index in range(40)]
        by_question |= {entry["question"].strip(): entry["answer"] for entry in entries}

    def solve(start: Start, messages: list[Message]) -> Reply:
        if messages[-1]["role"] == "tool":
            return says("done")
        question = str(messages[0]["content"]).partition("\n\nCall the tool")[0]
        return calls(("answer", {"text": by_question.get(question, "?")}))

    def guess(start: Start, messages: list[Message]) -> Reply:
        return says("done") if messages[-1]["role"] == "tool" else calls(("answer", {"text": "?"}))

    def play(script: Script, folder: str) -> list[float | None]:
        with mix(puzzles) as spec:
            run = evaluate(spec.sources, ScriptedPolicy(script), tmp_path / folder, num_tasks=4, episodes_per_task=1)
        return [record.reward for record in run.episodes()]

    assert [1.0] * 8 == play(solve, "best")
    assert [0.0] * 8 == play(guess, "worst")


# -- the run file that is printed


def test_the_run_file_that_is_printed_passes_the_check(own: Path, run: Run) -> None:
    """It can be pasted: all sources of all kinds, and a check with an episode of each finds no error."""
    arguments = ("own:Double", "quickstart", "reasoning-gym", "--dataset", "chain_sum", "--num-tasks", 30)
    with subprocess.Popen(
        command(*arguments, "--port", 0), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=own
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or "Ctrl-C" not in lines[-1]:
                lines.append(process.stdout.readline())
                assert lines[-1]
            text = "".join(lines)
            (own / "run.yaml").write_text(text.partition("# a run file for it\n")[2].rpartition("\nCtrl-C")[0])
            told = run("check", own / "run.yaml", "--probe", "--timeout", 60)
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)

    assert re.match(r"serving 6 environments at http://127\.0\.0\.1:\d+\n", text)
    assert ["chain_sum", "train", "30", "11", "answer"] in [line.split() for line in lines]
    assert ["museum", "train", "9", "-", "read_label,", "grade", "(the", "last", "message)"] in [
        line.split() for line in lines
    ]
    assert "task_curriculum: {name: ladder, field: level}" in text
    assert (0, "") == (told.exit_code, told.err)


# -- environments of one's own


def test_environments_of_ones_own_are_served_from_the_current_folder(own: Path) -> None:
    """Also one that derives from another: each has the tasks that it lists."""
    with serve_command("own:Double", "own:More", folder=own) as server:
        with open_session(server.url, "double", split="train", index=4) as session:
            right = session.call("guess", number=8)
        counts = {name: each["tasks"] for name, each in server.environments.items()}
        tasks = ask_tasks(server.url, "more", "train", 0, 100)

    assert 1.0 == right["output"]["reward"]
    assert {"double": {"train": 5}, "more": {"train": 9}} == counts
    assert 9 == len(tasks)


def test_ctrl_c_tears_sessions_down(own: Path) -> None:
    """The server ends with 130, sessions that are open are torn down, and stdout had the one line."""
    with (
        serve_command("own:Double", folder=own) as server,
        open_session(server.url, "double", split="train", index=0) as session,
    ):
        session.call("guess", number=0)
        server.process.send_signal(signal.SIGINT)
        exit_code = server.process.wait(DEADLINE_S)
        assert server.process.stdout is not None
        rest = server.process.stdout.read()
        log = server.log.read_text()

    assert (130, "") == (exit_code, rest)
    assert (own / "torn-down").exists()
    assert "a word of the environment's own" in log
    assert ["interrupted"] == log.splitlines()[-1:]
    assert "Traceback" not in log


# -- the page


def test_the_environment_of_the_page_is_served(tmp_path: Path) -> None:
    """What serving.md shows as the smallest environment works as it stands."""
    files = {block.file: block.text for block in read_blocks(PAGE) if block.file is not None}
    (tmp_path / "my_environments.py").write_text(files["my_environments.py"])
    with serve_command("my_environments:Backwards", folder=tmp_path) as server:
        with open_session(server.url, "backwards", split="train", index=1) as session:
            prompt, right = session.prompt(), session.call("spell", word="elpam")
        with open_session(server.url, "backwards", split="test", index=0) as session:
            wrong = session.call("spell", word="elm")

    assert "Spell maple backwards." == prompt
    assert [(1.0, True), (0.0, True)] == [
        (each["output"]["reward"], each["output"]["finished"]) for each in (right, wrong)
    ]
    assert {"train": 3, "test": 1} == server.environments["backwards"]["tasks"]


def test_the_options_are_listed() -> None:
    """serving.md lists the command's options."""
    commands = argparse.ArgumentParser().add_subparsers()
    add_serve(commands)
    expected = [each.option_strings[0] for each in commands.choices["serve"]._actions if each.option_strings]

    assert expected[1:] == read_names("docs/serving.md", "Options")


# -- mistakes


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere:Double", "environment 'nowhere:Double' cannot be imported: ModuleNotFoundError: No module named"),
        ("own:Missing", "environment 'own:Missing' cannot be imported: AttributeError: module 'own' has no"),
        ("own:number", "environment 'own:number' cannot be served: it is not a class that derives from openreward"),
        ("own:Guess", "environment 'own:Guess' cannot be served: it is not a class that derives from openreward"),
        ("own:Unfinished", "environment 'own:Unfinished' cannot be served: it lacks list_splits(), list_tasks()."),
        ("own:WrongInit", "cannot be served: __init__(task) does not take task_spec=... and secrets=..., with"),
        ("own:SilentTool", "cannot be served: its tool 'other' would be left out; a tool has at most one parameter"),
        ("own:Slashed", "cannot be served: its name 'lab/double' is part of addresses; use letters, digits, '_'"),
    ],
)
def test_an_environment_that_cannot_work_is_not_served(
    own: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    """The SDK's server would take most of them, and fail with the first session."""
    monkeypatch.syspath_prepend(str(own))
    monkeypatch.delitem(sys.modules, "own", raising=False)

    with pytest.raises(ConfigError, match=re.escape(message)):
        find_environment(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("own:Missing",), "environment 'own:Missing' cannot be imported: AttributeError: module 'own' has no"),
        (("own:NoTasks",), "environment 'notasks' cannot list its tasks: KeyError: 'tasks.json'. Mend list_splits()"),
        (("own:NoTools",), "the environments cannot be served: Environment 'notools' has no tools defined."),
        (("own:Double", "own:double"), "several environments are called 'double' in small letters"),
        (("quickstart", "--host", "203.0.113.1"), "--host '203.0.113.1' is not an address of this machine."),
        (("reasoning-gym", "--dataset", "chain_sun"), "has no such dataset. Near it are ['chain_sum'"),
    ],
)
def test_a_mistake_is_one_message(own: Path, arguments: tuple[str, ...], message: str) -> None:
    """Exit code 1, nothing on stdout, no traceback."""
    told = run_warm(command("--port", 0, *arguments), timeout=DEADLINE_S, cwd=own)

    assert (1, "") == (told.returncode, told.stdout)
    assert told.stderr.startswith("multiors serve: ")
    assert message in told.stderr
    assert "Traceback" not in told.stderr


def test_a_port_in_use_is_one_message(own: Path) -> None:
    """Whoever has it keeps it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = run_warm(command("own:Double", "--port", port), timeout=DEADLINE_S, cwd=own)

    assert (1, "") == (told.returncode, told.stdout)
    assert f"multiors serve: port {port} of 127.0.0.1 is in use. Stop what uses it, or pass another" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the following arguments are required: ENVIRONMENT"),
        (("sorting",), "'sorting' is neither 'quickstart' nor 'reasoning-gym' nor 'module:Class'"),
        (("reasoning-gym",), "reasoning-gym has many generators: name one or more, as in --dataset chain_sum"),
        (("quickstart", "--seed", "0"), "--seed: only for 'reasoning-gym', which is not among what is served"),
        (("quickstart", "--port", "65536"), "'65536' is no whole number from 0 to 65535"),
        (("reasoning-gym", "--num-tasks", "0"), "'0' is no whole number from 1 to 1048576"),
        (("reasoning-gym", "--levels", "x"), "'x' is no whole number from 1 upwards"),
    ],
)
def test_wrong_usage_is_two(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    """Nothing is started."""
    with pytest.raises(SystemExit, match="2"):
        main(["serve", *arguments])

    assert said in capsys.readouterr().err
