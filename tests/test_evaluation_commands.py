"""`multiors evaluate` and `multiors compare`: what they print where, their files, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multiors.evaluation import read_evaluation
from tests.commands import Run
from tests.servers.launch import ServerHandle

ORACLE = """
def solve(start, messages):
    if messages[-1]["role"] == "tool":
        return "Done."
    return [("echo", {"text": start.task["target"]})]

NUMBER = 3
"""


@pytest.fixture
def run_file(echo_server: ServerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file of one source, beside a program that plays it well, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "well.py").write_text(ORACLE)
    path = tmp_path / "run.yaml"
    path.write_text(
        f"sources:\n  echo: {{target: '{echo_server.url}', env_name: echo, reward: {{range: [0, 1], unscored: 0}}}}\n"
    )
    return path


def test_an_evaluation_is_played_shown_and_kept(run: Run, run_file: Path) -> None:
    """Results go to stdout, talk to stderr, episodes to the folder."""
    told = run("evaluate", run_file, "--policy", "well:solve", "--output", "best", "--episodes", 2)

    assert 0 == told.exit_code, told.err
    assert "best scores 1.000 overall" in told.out
    assert "16 episodes of 1 sources go to best" in told.err
    assert 16 == len(list(read_evaluation("best").episodes()))


def test_the_same_command_again_plays_nothing(run: Run, run_file: Path) -> None:
    """What was played is kept, and shown again."""
    arguments = ("evaluate", run_file, "--policy", "random", "--output", "chance", "--num-tasks", 3, "--episodes", 1)
    first, second = run(*arguments), run(*arguments)

    assert first.out == second.out
    assert "0 episodes of 1 sources go to chance; 3 were played before" in second.err


def test_a_policy_writes_as_the_run_file_trains_it(run: Run, run_file: Path, tiny_policy: Path) -> None:
    """What `training:` says of sampling and limits holds, unless the command line says otherwise; the rest does not."""
    text = run_file.read_text()
    run_file.write_text(
        text + "training: {max_completion_length: 40, max_tool_calling_iterations: 3, temperature: 0.5, top_k: 0, "
        "chat_template_kwargs: {enable_thinking: false}}\n"
    )
    play = ("evaluate", run_file, "--policy", tiny_policy, "--num-tasks", 1, "--episodes", 1, "--output")
    manifests = []

    for output, options in (("as-trained", ()), ("otherwise", ("--temperature", 0, "--max-turns", 0, "--top-k", 9))):
        told = run(*play, output, *options)
        assert 0 == told.exit_code, told.err
        manifests.append(read_evaluation(output).manifest)

    told = run("evaluate", run_file, "--policy", "silent", "--num-tasks", 1, "--output", "a-program-has-none-of-it")
    assert 0 == told.exit_code, told.err
    run_file.write_text(text)
    run(*play, "nothing-said")
    manifests.append(read_evaluation("nothing-said").manifest)

    assert [(40, 3), (40, 0), (None, 50)] == [
        (each.limits["max_completion_tokens"], each.limits["max_turns"]) for each in manifests
    ]
    assert [(0.5, 1.0, None, 40), (0, 1.0, 9, 40), (1.0, 1.0, None, 1024)] == [
        tuple(each.policy["sampling"][name] for name in ("temperature", "top_p", "top_k", "max_tokens"))
        for each in manifests
    ]


def test_two_evaluations_are_compared_into_every_form(run: Run, run_file: Path, tmp_path: Path) -> None:
    """A table, JSON, Markdown, a page and a picture say one thing."""
    for policy, output in (("silent", "before"), ("well:solve", "after")):
        run("evaluate", run_file, "--policy", policy, "--output", output, "--episodes", 1)

    files = {"--html": "r.html", "--markdown": "r.md", "--picture": "r.png"}
    told = run("compare", "before", "after", *[each for pair in files.items() for each in pair])
    found = json.loads(run("compare", "before", "after", "--json").out)

    assert (0, "wrote r.html\nwrote r.md\nwrote r.png\n") == (told.exit_code, told.err)
    assert "after is better than before: +1.000" in told.out
    assert ("better", 1.0, 8) == (found["macro"]["verdict"], found["macro"]["value"], found["macro"]["num_pairs"])
    assert "after is better than before" in Path("r.md").read_text(encoding="utf-8")
    assert "after is better than before" in Path("r.html").read_text(encoding="utf-8")
    assert Path("r.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_all_there_is_on_stdout(run: Run, run_file: Path) -> None:
    """So that it can be piped."""
    told = run("evaluate", run_file, "--policy", "silent", "--output", "silent", "--episodes", 1, "--json")

    assert {"echo"} == set(json.loads(told.out)["sources"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--source", "ecco"), "--source 'ecco' is not in the run file; its sources are ['echo']."),
        (("--policy", "randon"), "the policy 'randon' is no folder that there is"),
        (("--policy", "output/checkpoint-9"), "the policy 'output/checkpoint-9' is no folder that there is"),
        (("--policy", "."), "the policy '.' is a folder without a model: it has no config.json and no adapter_config"),
        (("--policy", "well:nothing"), "the policy 'well:nothing' cannot be imported"),
        (("--policy", "well:NUMBER"), "the policy 'well:NUMBER' is a int, which cannot be called."),
        (("--policy", "http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1"),
        (("--split", "tset"), "split 'tset'"),
        (("--model", "x"), "the policy 'random' does not take model"),
        (("--output", "."), "holds something that is no evaluation"),
    ],
)
def test_a_known_error_is_one_message(run: Run, run_file: Path, arguments: tuple[str, str], said: str) -> None:
    """It names what was given and what holds instead, and the exit code is 1."""
    given = {"--policy": "random", "--output": "out", arguments[0]: arguments[1]}
    told = run("evaluate", run_file, *[each for pair in given.items() for each in pair])

    assert (1, "") == (told.exit_code, told.out)
    assert said in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "run.yaml"), "the following arguments are required: --policy, --output"),
        (("evaluate", "run.yaml", "--policy", "random", "--output", "a", "--episodes", "0"), "'0' is no whole number"),
        (("evaluate", "run.yaml", "--policy", "random", "--output", "a", "--timeout", "-1"), "'-1' is not a positive"),
        (("evaluate", "run.yaml", "--policy", "random", "--output", "a", "--temperature", "nan"), "'nan' is no finite"),
        (("compare", "a"), "the following arguments are required: candidate"),
        (("compare", "a", "b", "--score", "loss"), "invalid choice: 'loss'"),
    ],
)
def test_wrong_usage_is_two(run: Run, arguments: tuple[str, ...], said: str) -> None:
    """What cannot be understood exits with 2 and says how it is meant, on stderr."""
    told = run(*arguments)

    assert (2, "") == (told.exit_code, told.out)
    assert said in told.err


def test_another_evaluation_in_the_folder_is_refused(run: Run, run_file: Path) -> None:
    """With what differs, and nothing is overwritten."""
    run("evaluate", run_file, "--policy", "silent", "--output", "out", "--episodes", 1)
    told = run("evaluate", run_file, "--policy", "silent", "--output", "out", "--episodes", 1, "--seed", 7)

    assert 1 == told.exit_code
    assert "holds an evaluation with other settings: seed was 0, and is 7" in told.err


def test_nothing_to_compare_is_one_message(run: Run, run_file: Path, tmp_path: Path) -> None:
    """A folder that is none of an evaluation's says what it should be."""
    told = run("compare", tmp_path, tmp_path)

    assert 1 == told.exit_code
    assert "Pass the folder that `multiors evaluate --output` wrote." in told.err
