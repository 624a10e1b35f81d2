"""The preflight of sources: what is found about each of them, and that none hides another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from multiors import CheckReport, ConfigError, MultiOpenRewardSpec, ORSSource, SourceReward
from multiors.checks import CheckFinding
from multiors.rewards import GroupScore
from tests.checked import facts, find_level, found, levels, look
from tests.servers.launch import ServerHandle, configured, serve
from tests.servers.platform import Platform, serve_platform
from tests.servers.raw import serve_raw

CANARY = "canary-7f3a9c"


# -- sources: one report on a mix in which everything is different


@pytest.fixture(scope="module")
def zoo() -> Iterator[ServerHandle]:
    """Environments of many shapes, and nothing else that uses them."""
    names = (
        "Sorting Thermostat Splits EmptySplit Large Arguments Essay OnlyTerminal PerTaskTools MixedPrompt RandomPrompt"
    )
    with serve(*names.split()) as server:
        yield server


@pytest.fixture(scope="module")
def report(zoo: ServerHandle, tools_server: ServerHandle) -> CheckReport:
    """Nothing is played."""
    dead = "http://127.0.0.1:9"

    def at_zoo(name: str, **options: Any) -> ORSSource:
        return ORSSource(zoo.url, env_name=name, **options)

    spec = MultiOpenRewardSpec(
        {
            "sort": at_zoo("sorting"),
            "heat": at_zoo("thermostat", num_tasks=64),
            "tested": at_zoo("splits", split="test"),
            "empty": at_zoo("emptysplit"),
            "large": at_zoo("large", num_tasks=3),
            "arguments": at_zoo("arguments"),
            "essay": at_zoo("essay"),
            "terminal": at_zoo("onlyterminal"),
            "per_task": at_zoo("pertasktools"),
            "images": at_zoo("mixedprompt"),
            "dropped": at_zoo("mixedprompt", images="drop"),
            "random": at_zoo("randomprompt"),
            "misnamed": at_zoo("nowhere"),
            "mistyped": at_zoo("sorting", split="tran"),
            "dead": ORSSource(dead),
            "twins": ORSSource([zoo.url, dead], env_name="sorting"),
            "tools": ORSSource(tools_server.url),
        }
    )
    return look(spec)


def test_a_healthy_source_is_ok_in_everything(report: CheckReport) -> None:
    """Nothing but what was found, one finding a subject."""
    subjects = ["server", "split", "tasks", "tools", "prompt"]

    assert [(subject, "ok") for subject in subjects] == [(each.subject, each.level) for each in report.of("sort")]


def test_a_healthy_source_shows_what_it_has(report: CheckReport, zoo: ServerHandle) -> None:
    """Address, environment, split, number of tasks, tools, and the length of the longest prompt."""
    shown = "\n".join(finding.message for finding in report.of("sort"))

    assert f"{zoo.url} answers, environment 'sorting'." in shown
    assert "'train', of type 'train'." in shown
    assert "all 4 of the split." in shown
    assert "compare, submit." in shown
    assert "at most 22 characters (tasks 0 and 3); the same in two sessions of task 0." in shown


def test_the_same_is_there_for_machines(report: CheckReport) -> None:
    """Each finding has its facts; what was not measured is None."""
    expected = {"characters": 22, "tokens": None, "is_random": False, "images": 0}

    assert {"used": 4, "in_split": 4} == facts(report, "sort", "tasks")
    assert {"split": "train", "kind": "train", "splits": {"train": "train"}} == facts(report, "sort", "split")
    assert expected == facts(report, "sort", "prompt")


def test_a_capped_source_says_of_how_many(report: CheckReport) -> None:
    """How many tasks are drawn from, and how many there are; asking for more than there are is noted."""
    assert [("ok", "3 of the split's 1000.")] == found(report, "large", "tasks")
    assert ("note", "num_tasks=64 were asked for, and the split has 3.") == found(report, "heat", "tasks")[1]


def test_training_on_a_test_split_is_a_warning(report: CheckReport) -> None:
    """The server says what a split is for."""
    assert "warning" == find_level(report, "tested", "split", "split 'test' is for testing: ")


def test_a_split_without_tasks_is_an_error(report: CheckReport) -> None:
    """The message says which splits there are, and the rest of the source is looked at all the same."""
    assert "error" == find_level(report, "empty", "tasks", "has no tasks; splits on this server: ['train', 'test']")
    assert [("ok", "look.")] == found(report, "empty", "tools")


def test_a_wrong_split_does_not_hide_the_tools(report: CheckReport) -> None:
    """One mistake is one error; what can still be looked at is."""
    expected = {"server": "ok", "split": "warning", "tasks": "error", "tools": "ok"}

    assert expected == levels(report, "mistyped")
    assert "error" == find_level(report, "mistyped", "tasks", "'tran' does not exist; splits on this server: ['train']")


def test_a_wrong_environment_is_an_error(report: CheckReport) -> None:
    """The server's own list says what it has."""
    assert "error" == find_level(report, "misnamed", "server", "environment 'nowhere' is not on the server at ")
    assert "error" == find_level(report, "misnamed", "server", "'thermostat'")


def test_a_dead_server_is_an_error_and_hides_nothing(report: CheckReport) -> None:
    """It is named, and what is found about other sources is there all the same."""
    assert {"server": "error"} == levels(report, "dead")
    assert "error" == find_level(report, "dead", "server", "the server at http://127.0.0.1:9 cannot be used: ")
    assert {"ok"} == set(levels(report, "sort").values())


def test_a_dead_server_beside_an_equal_one_is_a_warning(report: CheckReport) -> None:
    """The source works, and says which of its servers does not answer."""
    assert "warning" == find_level(report, "twins", "server", "http://127.0.0.1:9 does not answer")
    assert "ok" == levels(report, "twins")["prompt"]


def test_what_the_policy_reads_in_words_is_noted(report: CheckReport) -> None:
    """Nothing is lost, but the parameter is named."""
    assert "note" == find_level(report, "arguments", "schema", "tool 'send': origin: in words only: object with x (")


def test_what_the_policy_does_not_see_of_a_schema_is_a_warning(report: CheckReport) -> None:
    """The tool and the parameter are named."""
    assert "warning" == find_level(report, "tools", "schema", "tool 'grow': branch: Branch contains itself")
    assert "warning" == find_level(report, "tools", "schema", "tool 'haunted': ghost: required by the server, but not")
    assert None is find_level(report, "tools", "schema", "tool 'look'")


def test_renamed_tools_and_parameters_are_noted(report: CheckReport) -> None:
    """Both names are there, for people and for machines."""
    renames = report.of("tools", "tools")[1]

    assert "note" == renames.level
    assert "'open-door' as 'open_door'" in renames.message
    assert "import_(class_)" == renames.facts["renames"]["import(class)"]


@pytest.mark.parametrize(
    ("source", "tool", "shown"), [("essay", "submit", "topic."), ("terminal", "grade", "none that")]
)
def test_an_environment_that_grades_the_last_message_is_noted(
    report: CheckReport, source: str, tool: str, shown: str
) -> None:
    """The grading tool is named, and is none of the policy's."""
    assert "note" == find_level(report, source, "scoring", f"the policy's last message is graded, by the tool '{tool}'")
    assert "ok" == find_level(report, source, "tools", shown)


@pytest.mark.parametrize(
    ("environment", "parts", "level", "words"),
    [
        ("judged", (), "note", "can also compare the rollouts of a group, which is not done"),
        ("judged", (GroupScore(),), "ok", "also compares the rollouts of a group"),
        ("echo", (GroupScore(),), "error", "its environment does not compare the rollouts of a group"),
    ],
)
def test_comparing_groups_is_for_environments_that_can(environment: str, parts: Any, level: str, words: str) -> None:
    """One that could and is not asked to is noted, one that is asked and cannot is an error."""
    with serve("Echo", "Judged") as server:
        source = ORSSource(server.url, env_name=environment, reward=SourceReward(parts=parts))
        report = look(MultiOpenRewardSpec({"a": source}))

    assert level == find_level(report, "a", "scoring", words)


def test_what_a_source_would_warn_of_is_a_finding() -> None:
    """Nothing is warned of while a check runs; values as short as a switch are not taken for secrets."""
    with serve("Echo") as server:
        source = ORSSource(server.url, env_overrides={"DEBUG": "1", "TOKEN": CANARY})
        report = look(MultiOpenRewardSpec({"a": source}))

    assert "warning" == find_level(
        report, "a", "secrets", f"env_overrides are sent to {server.url}, which is no platform"
    )
    assert CANARY not in str(report)


def test_tools_of_some_tasks_only_are_warnings(report: CheckReport) -> None:
    """The last task is compared with what the policy is shown in all of them."""
    other = "task 1 has other parameters for the tools ['act'] than the policy is shown"

    assert "warning" == find_level(
        report, "per_task", "tools", "task 1 has the tools ['extra'], which the policy is not"
    )
    assert "warning" == find_level(report, "per_task", "tools", other)


def test_a_random_prompt_is_a_warning(report: CheckReport) -> None:
    """Two sessions of one task are compared."""
    assert "warning" == find_level(report, "random", "prompt", "two sessions of task 0 have different prompts")
    assert facts(report, "random", "prompt")["is_random"] is True


def test_images_in_prompts_are_said(report: CheckReport) -> None:
    """Whether they stop a run depends on the model; where they are dropped, that is noted."""
    assert ["ok", "warning"] == [level for level, _ in found(report, "images", "prompt")]
    assert ["ok", "note"] == [level for level, _ in found(report, "dropped", "prompt")]
    assert 1 == facts(report, "images", "prompt")["images"]


def test_no_plan_is_made_of_sources_without_tasks(report: CheckReport) -> None:
    """The sources that are in the way are named."""
    named = "['empty', 'misnamed', 'mistyped', 'dead']"

    assert [("note", f"not made, because the tasks of {named} could not be counted.")] == found(report, None, "plan")


def test_the_report_is_in_the_order_of_the_mix(report: CheckReport) -> None:
    """Sources as they were given, then the mix."""
    order = list(dict.fromkeys(finding.source for finding in report.findings))

    assert [*report.sources, None] == order


def test_the_report_prints_as_a_table(report: CheckReport) -> None:
    """One line a finding, a source's name in the first of them, and a sentence at the end."""
    lines = str(report).splitlines()
    rows = [line for line in lines if line.startswith("sort ")]

    assert ["source", "found", "about", "what"] == lines[0].split()
    assert 1 == len(rows)
    assert len(report.findings) + 4 == len(lines)
    assert f"17 sources: {report.count('error')} errors, " == lines[-1].partition(str(report.count("warning")))[0]


def test_the_report_survives_json(report: CheckReport) -> None:
    """Nothing is lost on the way, and None stays None."""
    read = json.loads(json.dumps(report.to_json(), allow_nan=False))
    findings = tuple(CheckFinding(**finding) for finding in read["findings"])

    assert json.loads(json.dumps([finding.facts for finding in report.findings])) == [each.facts for each in findings]
    assert [str(each) for each in report.rows()] == [
        str(each) for each in CheckReport(findings, tuple(read["sources"])).rows()
    ]
    assert (False, None) == (read["ok"], read["findings"][-1]["source"])


def test_a_check_calls_no_tool_and_leaves_no_session(report: CheckReport, zoo: ServerHandle) -> None:
    """Looking is not playing."""
    counts = zoo.counts()

    assert report.findings
    assert ({}, {}) == (counts.tool_calls, counts.active)


# -- keys, secrets and hostile servers


@pytest.fixture(scope="module")
def platform(tools_server: ServerHandle) -> Iterator[Platform]:
    """Serves one environment that requires a secret and one that does not."""
    with serve("Echo") as server:
        servers = {"lab/open": server.url, "lab/secret": server.url}
        with serve_platform(servers, secrets={"lab/secret": ["JUDGE_KEY"]}) as stand_in:
            yield stand_in


def on_platform(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the stand-in the platform."""
    monkeypatch.setenv("OPENREWARD_SESSION_URL", platform.session_url)
    monkeypatch.setenv("OPENREWARD_API_URL", platform.api_url)


def test_a_catalogue_name_without_a_key_is_an_error(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is named, and nothing is asked."""
    on_platform(platform, monkeypatch)
    report = look(MultiOpenRewardSpec({"a": ORSSource("lab/open")}))

    assert "error" == find_level(report, "a", "server", "Pass api_key=... or set OPENREWARD_API_KEY.")


def test_a_refused_key_is_an_error_that_does_not_show_it(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the address and the remedy are shown."""
    on_platform(platform, monkeypatch)
    report = look(MultiOpenRewardSpec({"a": ORSSource("lab/open", api_key=CANARY)}))

    assert "error" == find_level(report, "a", "server", "refused the key")
    assert CANARY not in json.dumps(report.to_json())


def test_a_required_secret_without_a_value_is_an_error(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the platform requires is known before a session is opened; another source of it is not affected."""
    on_platform(platform, monkeypatch)
    monkeypatch.setenv("OPENREWARD_API_KEY", platform.api_key)
    report = look(MultiOpenRewardSpec({"a": ORSSource("lab/secret"), "b": ORSSource("lab/open")}))

    assert "error" == find_level(report, "a", "secrets", "requires the secrets ['JUDGE_KEY']")
    assert "ok" == levels(report, "b")["prompt"]


def test_secrets_are_named_and_not_shown(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is enough to know what is sent."""
    on_platform(platform, monkeypatch)
    monkeypatch.setenv("OPENREWARD_API_KEY", platform.api_key)
    source = ORSSource("lab/secret", secrets={"JUDGE_KEY": (CANARY, ["judge.test"])})
    report = look(MultiOpenRewardSpec({"a": source}), probe=True)
    text = json.dumps(report.to_json()) + str(report)

    assert [("ok", "sent with each session: JUDGE_KEY.")] == found(report, "a", "secrets")
    assert report.ok
    assert [] == [secret for secret in (CANARY, platform.api_key) if secret in text]


def test_what_a_server_writes_does_not_reach_the_terminal_as_it_is() -> None:
    """Names and messages of servers are shown without control characters, on one line."""
    tool = {"name": "a\x1b[31m\nct", "description": "", "input_schema": {"type": "object", "properties": {"x": 3}}}
    with serve_raw(splits=("train", "\x1b]0;x\x07bad\nsplit"), tools=(tool,), statuses={"/call": [500]}) as server:
        report = look(MultiOpenRewardSpec({"a": ORSSource(server.url)}), probe=True)
    text = str(report) + json.dumps(report.to_json(), ensure_ascii=False)

    assert "bad split" in text
    assert [] == [character for character in text.replace("\n", "") if ord(character) < 32]


def test_a_server_that_is_no_ors_server_is_an_error() -> None:
    """Whatever it answers ends in a finding."""
    with serve_raw(answers={"/tools": {"tools": "none"}, "/splits": [3], "/task_range": []}) as server:
        report = look(MultiOpenRewardSpec({"a": ORSSource(server.url)}))

    assert ["error"] * 3 == [levels(report, "a")[subject] for subject in ("split", "tasks", "tools")]
    assert "error" == find_level(report, "a", "tools", "does not speak ORS")


@pytest.mark.parametrize(
    ("answers", "subject"),
    [
        ({"/list_environments": [1, 2]}, "server"),
        ({"/splits": {"train": 1}}, "split"),
        ({"/num_tasks": {"num_tasks": "many"}}, "tasks"),
        ({"/task_range": {"tasks": 3}}, "tasks"),
        ({"/tools": {"tools": [], "terminal_tool": {"name": 3}}}, "tools"),
        ({"/tools": {"tools": []}, "/task_tools": {"tools": []}}, "tools"),
        ({"/task_tools": {"tools": [{"description": "nameless"}]}}, "tools"),
        ({"/prompt": 3}, "prompt"),
    ],
)
def test_each_answer_that_makes_no_sense_is_an_error_of_its_own(answers: dict[str, Any], subject: str) -> None:
    """Whatever was asked before is found, and nothing is raised."""
    with serve_raw(answers=answers) as server:
        report = look(MultiOpenRewardSpec({"a": ORSSource(server.url)}), probe=True)

    assert {subject} == {finding.subject for finding in report.findings if finding.level == "error"}


def test_an_empty_prompt_is_a_warning() -> None:
    """The policy would not know what to do."""
    with serve_raw(answers={"/prompt": []}) as server:
        report = look(MultiOpenRewardSpec({"a": ORSSource(server.url)}))

    assert "warning" == find_level(report, "a", "prompt", "a prompt is empty")


def test_another_environment_behind_the_name_is_an_error() -> None:
    """Answers say which environment gave them."""
    with serve_raw(answers_as="other") as server:
        report = look(MultiOpenRewardSpec({"a": ORSSource(server.url, env_name="raw")}))

    assert "error" == find_level(report, "a", "tasks", "for environment 'raw', but 'other' answered")


def test_a_server_that_hangs_costs_its_deadline_and_no_other_source(echo_server: ServerHandle) -> None:
    """The others are looked at meanwhile."""
    with serve_raw(hangs_on=("/list_environments",)) as server:
        hangs = ORSSource(server.url, open_timeout_s=1.0)
        report = look(MultiOpenRewardSpec({"hangs": hangs, "good": ORSSource(echo_server.url)}))

    assert "error" == find_level(report, "hangs", "server", "did not answer within 1 s")
    assert {"ok"} == set(levels(report, "good").values())


def test_the_deadline_of_a_check_is_its_own() -> None:
    """However long a source would wait in training."""
    with serve_raw(hangs_on=("/list_environments",)) as server:
        report = look(MultiOpenRewardSpec({"hangs": ORSSource(server.url)}), timeout_s=1.0)

    assert "error" == find_level(report, "hangs", "server", "did not answer within 1 s")


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("inf"), True, "10"])
def test_a_deadline_is_a_positive_number(timeout_s: Any) -> None:
    """A wrong argument is an error of whoever wrote it, not a finding."""
    spec = MultiOpenRewardSpec({"a": ORSSource("http://127.0.0.1:9")})

    with pytest.raises(ConfigError, match=r"timeout_s=.* is not a positive number of seconds"):
        look(spec, timeout_s=timeout_s)


def test_twenty_sources_are_asked_at_once() -> None:
    """Each is looked at, and they do not wait for each other."""
    with serve("Echo", latency_s=0.05) as server:
        spec = MultiOpenRewardSpec({f"source-{i}": ORSSource(server.url) for i in range(20)})
        report = look(spec)
        counts = server.wait_until(lambda counts: not counts.active)

    assert (True, 20) == (report.ok, len(report.sources))
    assert counts.max_in_flight["GET /list_environments"] > 1


def test_a_slow_environment_needs_a_longer_deadline() -> None:
    """The same source fails within a short deadline and passes within a long one."""
    with serve(configured("Slow", SETUP_S=2.0, NUM_TASKS=1)) as server:
        spec = MultiOpenRewardSpec({"a": ORSSource(server.url, discover_task_tools=False)})
        hurried, patient = look(spec, timeout_s=1.0), look(spec)

    assert (False, True) == (hurried.ok, patient.ok)
