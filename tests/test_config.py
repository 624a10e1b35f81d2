"""The run file: what it may say, and what each mistake in it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multiors import CircuitBreaker, ORSSource
from multiors.config import RunConfig, build_spec, load_run_file
from multiors.errors import ConfigError

WHOLE = """\
seed: 7
num_slots: 40
stopping_strategy: max_slots
tools: union
sources:
  sort:
    target: http://127.0.0.1:8001
    env_name: sorting
    split: test
    num_tasks: 8
    weight: 2
    include_metadata: false
    open_timeout_s: 5
    reward:
      weight: 3.0
      outcome_weight: 0.5
      reduction: sum
      range: [0, 10]
      scale: 0.1
      clip: [0, 1]
      unscored: 0
      unfinished: -1.0
      parts:
        - {function: "tests.test_config:brevity", weight: 0.1, name: short}
        - {function: "tests.test_config:Judge.judge", scores_alone: yes}
  seta:
    target: Eigent/SETA
    indices: [4, 2]
    variant: hard
    weight: 1e-3
"""


def brevity(completions: list[Any], **_: Any) -> list[float]:
    """A reward function that run files name."""
    return [1.0 / len(completion) for completion in completions]


class Judge:
    """Has a reward function as an attribute."""

    @staticmethod
    def judge(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)


Load = Callable[[str], RunConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Writes a text as a run file and loads it."""

    def load_text(text: str) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return load_run_file(path)

    return load_text


# -- what it says


def test_a_run_file_says_what_the_spec_is_given(load: Load) -> None:
    """Every key arrives at the spec or at its source, with the reward functions imported."""
    spec = build_spec(load(WHOLE))
    sort, seta = spec.sources.values()
    reward: Any = sort.reward

    assert ["sort", "seta"] == list(spec.sources)
    assert (2.0, 0.001) == (sort.weight, seta.weight)
    assert ("sum", (0.0, 10.0), 0.1, 0.0, (0.0, 1.0)) == (
        reward.reduction, reward.range, reward.scale, reward.offset, reward.clip
    )  # fmt: skip
    assert (3.0, 0.5, 0.0, -1.0) == (reward.weight, reward.outcome_weight, reward.unscored, reward.unfinished)
    assert [("short", 0.1, False), ("judge", 1.0, True)] == [(p.name, p.weight, p.scores_alone) for p in reward.parts]
    assert [brevity, Judge.judge] == [part.function for part in reward.parts]
    assert "ORSSource('http://127.0.0.1:8001', env_name='sorting')" == repr(sort)
    assert [3.0, 1.0] == spec.reward_weights


def test_a_smallest_run_file_is_enough(load: Load) -> None:
    """A target is all that a source needs; the rest has the defaults of the spec."""
    config = load("sources: {a: {target: 'http://127.0.0.1:1'}}")

    assert (0, None, None, "separate", None) == (
        config.seed,
        config.num_slots,
        config.stopping_strategy,
        config.tools,
        config.weights,
    )


def test_a_source_may_have_equal_servers_and_limits(load: Load) -> None:
    """A list of targets and the limits of sources and mix reach the spec."""
    text = "sources: {a: {target: ['http://a:1', 'http://b:1'], max_sessions: 4, max_concurrent_calls: 2}}"
    spec = build_spec(load(f"{{{text}, max_sessions: 9, max_concurrent_calls: 8}}"))
    (source,) = spec.sources.values()

    assert isinstance(source, ORSSource)
    assert "ORSSource(['http://a:1', 'http://b:1'])" == repr(source)
    assert [4, 9] == [source.max_sessions, spec._cap.max_sessions]
    assert [2, 8] == [source._max_concurrent_calls, spec._cap.max_concurrent_calls]


@pytest.mark.parametrize(
    ("written", "expected"),
    [("logs", (64 * 1024**2, 64)), ("{folder: logs, max_files: 3, max_file_bytes: 70000}", (70_000, 3))],
)
def test_a_rollout_log_is_a_folder_or_its_settings(load: Load, written: str, expected: tuple[int, int]) -> None:
    """The log reaches the spec, by its folder alone or with its limits; nothing is made by that."""
    log = build_spec(load(f"{{sources: {{a: {{target: x}}}}, rollout_log: {written}}}"))._recording._log

    assert log is not None
    assert Path("logs").absolute() == log.folder
    assert expected == (log._max_file_bytes, log._max_files)
    assert not log.folder.exists()


def test_a_mistake_in_a_rollout_log_is_named(load: Load) -> None:
    """Unknown and wrong keys of the log have their lines and what holds instead."""
    with pytest.raises(ConfigError, match="has 2 mistakes") as caught:
        load("sources: {a: {target: x}}\nrollout_log:\n  folder: ''\n  max_size: 3\n")

    assert [
        "- line 3: rollout_log.folder: String should have at least 1 character (got '')",
        "- line 4: rollout_log.max_size: there is no such key here; did you mean 'max_files'?",
    ] == str(caught.value).splitlines()[1:]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("true", CircuitBreaker()),
        ("false", None),
        ("{window_rollouts: 4, max_failure_rate: 0.25}", CircuitBreaker(max_failure_rate=0.25, window_rollouts=4)),
    ],
)
def test_a_circuit_breaker_is_switched_on_or_set(load: Load, written: str, expected: CircuitBreaker | None) -> None:
    """`true` means the defaults."""
    spec = build_spec(load(f"{{sources: {{a: {{target: x}}}}, circuit_breaker: {written}}}"))

    assert expected == spec._rules.breaker


def test_a_mistake_in_a_circuit_breaker_is_named(load: Load) -> None:
    """Unknown and wrong keys have their lines and what holds instead."""
    with pytest.raises(ConfigError, match="has 2 mistakes") as caught:
        load("sources: {a: {target: x}}\ncircuit_breaker:\n  window: 3\n  max_failure_rate: 1\n")

    assert [
        "- line 3: circuit_breaker.window: there is no such key here; the keys are max_failure_rate, window_rollouts, "
        "probe_after_batches, max_probe_interval_batches",
        "- line 4: circuit_breaker.max_failure_rate: Input should be less than 1 (got 1)",
    ] == str(caught.value).splitlines()[1:]


def test_limits_on_failures_reach_the_source(load: Load) -> None:
    """A run file says when failures end the training."""
    spec = build_spec(load("sources: {a: {target: x, on_failure: stop}, b: {target: y, max_failing_rollouts: 0}}"))

    assert [("stop", None), ("unscored", 0)] == [
        (source.on_failure, source.max_failing_rollouts)
        for source in spec.sources.values()
        if isinstance(source, ORSSource)
    ]


def test_options_of_the_caller_reach_the_spec(load: Load) -> None:
    """What a file cannot hold is given in Python."""
    records: list[Any] = []
    spec = build_spec(load("sources: {a: {target: 'http://127.0.0.1:1'}}"), on_rollouts=records.extend)

    assert (records.extend,) == spec._recording._listeners


def test_a_configuration_cannot_be_changed(load: Load) -> None:
    """What was checked stays as it was checked."""
    config = load("sources: {a: {target: 'http://127.0.0.1:1'}}")

    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3


def test_anchors_and_merges_are_yaml(load: Load) -> None:
    """A file may name a part once and use it twice; an alias is no repeated key."""
    config = load(
        "sources:\n"
        "  a: &server {target: 'http://127.0.0.1:1', reward: &same {unscored: 0.0}}\n"
        "  b: {<<: *server, env_name: b}\n"
        "  c: {target: x, reward: *same}\n"
    )

    merged: Any = config.sources["b"]

    assert [("http://127.0.0.1:1",), "b"] == [merged.target, merged.env_name]
    assert 0.0 == config.sources["c"].reward.unscored


def test_functions_are_found_beside_the_place_of_use(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run file names modules of the folder in which it is used, as `python -m` finds them."""
    (tmp_path / "my_rewards.py").write_text("def zero(completions, **_):\n    return [0.0] * len(completions)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])

    spec = build_spec(load("sources: {a: {target: x/y, reward: {parts: [{function: 'my_rewards:zero'}]}}}"))

    reward: Any = spec.sources["a"].reward
    assert ["zero"] == [part.name for part in reward.parts]


# -- mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"holds no mapping\. It begins with 'sources:'"),
        ("- sources", "holds no mapping"),
        ("a: b: c", r"is no YAML: mapping values are not allowed here.*line 1, column 5"),
        ("seed: 1\n---\nseed: 2", r"is no YAML: expected a single document"),
        ("seed: *other", r"is no YAML: found undefined alias 'other'"),
        (
            "a:\n  b: 1\n c: 2",
            r"is no YAML: while parsing a block mapping, expected.* \(line 3, column 2\)\.$",
        ),
        ("seed: !!python/name:os.system", r"is no YAML: could not determine a constructor"),
        ("seed: 2024-13-45", r"is no YAML: month must be in 1\.\.12"),
        ("{[a]: 1}", r"is no YAML: .*found unhashable key"),
        ("seed: " + "[" * 2000, r"is no YAML: maximum recursion depth"),
    ],
)
def test_what_is_no_run_file_is_said(load: Load, text: str, message: str) -> None:
    """A text that is no YAML, or no mapping, is one error that says why."""
    with pytest.raises(ConfigError, match=rf"run file '.*run\.yaml' {message}"):
        load(text)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A missing file and a folder are errors with the system's reason, and a file of bytes is no YAML."""
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match=r"run file '.*none\.yaml' cannot be read: No such file or directory\."):
        load_run_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory\."):
        load_run_file(tmp_path)
    with pytest.raises(ConfigError, match=r"is no YAML: .*can't decode byte 0xff"):
        load_run_file(tmp_path / "bytes.yaml")


SOURCE = "sources:\n  a:\n    target: 'http://127.0.0.1:1'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\n", "line 1: sources: Field required"),
        ("sources: {}\n", "line 1: sources: Dictionary should have at least 1 item"),
        ("seed: 0\nsources: [a]\n", r"line 2: sources: Input should be a valid dictionary \(got \['a'\]\)"),
        ("sources:\n  a:\n  b: {target: x}\n", r"line 2: sources\.a: Input should be a valid dictionary"),
        ("sources:\n  a: {weight: 1}\n", r"line 2: sources\.a\.target: Field required"),
        ("sources:\n  1: {target: x}\n", r"line 2: sources\.1\.\[key\]: Input should be a valid string \(got 1\)"),
        ("sources:\n  a: {target: ''}\n", r"line 2: sources\.a\.target: String should have at least 1 character"),
        ("sources:\n  a: {target: []}\n", r"line 2: sources\.a\.target: Value should have at least 1 item"),
        ("sources:\n  a: {target: [x, 7]}\n", r"line 2: sources\.a\.target\.1: Input should be a valid string"),
        (f"{SOURCE}    max_sessions: 0\n", r"line 4: sources\.a\.max_sessions: .* greater than or equal to 1"),
        (f"{SOURCE}    weihgt: 2\n", r"line 4: sources\.a\.weihgt: there is no such key here; did you mean 'weight'\?"),
        (f"{SOURCE}    heft: 2\n", r"line 4: sources\.a\.heft: there is no such key here; the keys are target, "),
        ("sources: {gates: {target: x, a: 1}}\n", r"line 1: sources\.gates\.a: .*the keys are target, env_name"),
        (f"{SOURCE}steps: 2\n", "line 4: steps: there is no such key here; the keys are sources, weights"),
        ("sources: {parts: {target: x, a: 1}}\n", r"line 1: sources\.parts\.a: .*the keys are target, env_name"),
        (
            f"{SOURCE}    reward: {{part: []}}\n",
            r"line 4: sources\.a\.reward\.part: .*did you mean 'parts'\?",
        ),
        (
            f"{SOURCE}    reward: {{parts: [{{f: m:f, function: m:f}}]}}\n",
            r"parts\.0\.f: .*the keys are function, weight",
        ),
        (
            f"{SOURCE}    weight: heavy\n",
            r"line 4: sources\.a\.weight: Input should be a valid number.*\(got 'heavy'\)",
        ),
        (f"{SOURCE}    weight: yes\n", r"line 4: sources\.a\.weight: Input should be a valid number.*\(got 'yes'\)"),
        (f"{SOURCE}training: {{learning_rate: '1e-3'}}\n", r"rate: .* number \(got '1e-3': write it without quotes\)"),
        (f"{SOURCE}    num_tasks: '2'\n", r"a\.num_tasks: .*integer \(got '2': write it without quotes\)"),
        (f"{SOURCE}    num_tasks: '2.5'\n", r"a\.num_tasks: .*integer \(got '2.5'\)"),
        (f"{SOURCE}    weight: true\n", r"line 4: sources\.a\.weight: Input should be a number, not a truth value"),
        (f"{SOURCE}    weight: 0\n", r"line 4: sources\.a\.weight: Input should be greater than 0 \(got 0\)"),
        (f"{SOURCE}    weight: .inf\n", r"line 4: sources\.a\.weight: Input should be a finite number"),
        (f"{SOURCE}    split: 3\n", r"line 4: sources\.a\.split: Input should be a valid string \(got 3\)"),
        (f"{SOURCE}    num_tasks: 0\n", r"line 4: sources\.a\.num_tasks: Input should be greater than or equal to 1"),
        (f"{SOURCE}    num_tasks: 2.5\n", r"line 4: sources\.a\.num_tasks: Input should be a valid integer"),
        (f"{SOURCE}    indices: []\n", r"line 4: sources\.a\.indices: Tuple should have at least 1 item"),
        (f"{SOURCE}    indices:\n    - 1\n    - -2\n", r"line 6: sources\.a\.indices\.1: .* \(got -2\)"),
        (f"{SOURCE}    num_tasks: 2\n    indices: [1]\n", r"line 2: sources\.a: num_tasks and indices are both given"),
        (f"{SOURCE}    call_timeout_s: 0\n", r"line 4: sources\.a\.call_timeout_s: Input should be greater than 0"),
        (f"{SOURCE}    include_metadata: 7\n", r"line 4: sources\.a\.include_metadata: .*valid boolean"),
        (f"{SOURCE}    reward: 1\n", r"line 4: sources\.a\.reward: Input should be a valid dictionary"),
        (f"{SOURCE}    reward:\n      unscored: .nan\n", r"line 5: sources\.a\.reward\.unscored: .*finite number"),
        (f"{SOURCE}    reward: {{weight: -1}}\n", r"line 4: sources\.a\.reward\.weight: .*greater than 0 \(got -1\)"),
        (
            f"{SOURCE}    reward:\n      parts:\n      - function: m:f\n      - function: mf\n",
            r"line 7: sources\.a\.reward\.parts\.1\.function: String should match pattern",
        ),
        (
            f"{SOURCE}    reward: {{parts: [{{function: '.m:f'}}]}}\n",
            r"parts\.0\.function: String should match pattern",
        ),
        (f"{SOURCE}seed: -1\n", "line 4: seed: Input should be greater than or equal to 0"),
        (f"{SOURCE}seed: true\n", "line 4: seed: Input should be a valid integer"),
        (f"{SOURCE}num_slots: many\n", r"line 4: num_slots: Input should be a valid integer \(got 'many'\)"),
        (f"{SOURCE}stopping_strategy: last\n", r"line 4: stopping_strategy: Input should be 'first_exhausted', 'all_"),
        (f"{SOURCE}weights: equal\n", r"line 4: weights: Input should be 'tasks' \(got 'equal'\)"),
        (f"{SOURCE}tools: both\n", r"line 4: tools: Input should be 'separate' or 'union' \(got 'both'\)"),
        (f"{SOURCE}seed: 1\nseed: 2\n", "line 5: seed: stands here twice"),
        (f"{SOURCE}  a: {{target: x}}\n", r"line 4: sources\.a: stands here twice"),
        (f"{SOURCE}    weight: 1\n    weight: 2\n", r"line 5: sources\.a\.weight: stands here twice"),
        (
            f"{SOURCE}    reward: {{parts: [{{function: m:f, name: a, name: b}}]}}\n",
            r"line 4: sources\.a\.reward\.parts\.0\.name: stands here twice",
        ),
        ("seed: &a [*a]\nsources: {a: {target: x}}\n", "line 1: seed: Input should be a valid integer"),
    ],
)
def test_a_mistake_is_named_by_key_path_and_line(load: Load, text: str, message: str) -> None:
    """Whoever wrote the file finds the place and learns what belongs there."""
    with pytest.raises(ConfigError, match=rf"run file '.*run\.yaml' has 1 mistake:\n- .*{message}"):
        load(text)


def test_all_mistakes_are_named_at_once(load: Load) -> None:
    """One reading of the file finds every mistake."""
    with pytest.raises(
        ConfigError, match=r"(?s)has 3 mistakes:\n- line 4: .*weight.*\n- line 5: .*split.*\n- line 6: seed"
    ):
        load(f"{SOURCE}    weight: -1\n    split: 1\nseed: x\n")


def test_a_secret_in_the_file_is_not_shown(load: Load) -> None:
    """Keys do not belong into a run file, and the error about them does not repeat them."""
    with pytest.raises(
        ConfigError, match=r"sources\.a\.api_key: a key or secret does not stand in a run file"
    ) as caught:
        load(f"{SOURCE}    api_key: hunter2\n    secrets: {{TOKEN: hunter2}}\n    password: hunter2\n")

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "no_such_module:f",
            r"'no_such_module:f' cannot be imported: ModuleNotFoundError: No module named .*\. Write 'module:",
        ),
        ("tests.test_config:no_such", r"'tests\.test_config:no_such' cannot be imported: .*has no attribute 'no_such'"),
        ("tests.test_config:Judge.jury", r"'.*:Judge\.jury' cannot be imported: .*'Judge' has no attribute 'jury'"),
        ("tests.test_config:WHOLE", r"'tests\.test_config:WHOLE' is a str, which cannot be called\."),
    ],
)
def test_an_unknown_function_is_named_by_its_key(load: Load, function: str, message: str) -> None:
    """A reward function that cannot be had is an error before a server is asked."""
    config = load(f"{SOURCE}    reward: {{parts: [{{function: '{function}'}}]}}\n")

    with pytest.raises(ConfigError, match=rf"^sources\.a\.reward\.parts\.0\.function: {message}"):
        build_spec(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: {prompt: {target: x}}", r"source name 'prompt' cannot be used"),
        ("sources: {a b: {target: x}}", r"source name 'a b' cannot be used"),
        ("sources: {a: {target: x, weight: 1}, b: {target: y}}", r"source 'b': it has no weight, but \['a'\] have"),
        (f"{SOURCE}    weight: 1\nweights: tasks", r"source 'a': weight=1\.0 is given together with weights='tasks'"),
        (f"{SOURCE}stopping_strategy: max_slots", r"stopping_strategy='max_slots' needs a number of slots"),
        (f"{SOURCE}stopping_strategy: all_exhausted\nnum_slots: 3", r"num_slots=3 contradicts stopping_strategy="),
    ],
)
def test_a_mix_that_contradicts_itself_is_refused(load: Load, text: str, message: str) -> None:
    """What each key allows alone, the mix may not; it says so before a server is asked."""
    config = load(text)

    with pytest.raises(ConfigError, match=message):
        build_spec(config)


def test_what_contradicts_itself_is_said_for_all_sources_at_once(tmp_path: Path) -> None:
    """What only building a source shows is collected, and named by the key under which it stands."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "sources:\n"
        "  a: {target: nohost}\n"
        "  b: {target: 'http://h:1', on_failure: stop, max_failing_rollouts: 3}\n"
        "  c: {target: 'http://h:1', reward: {range: [1, 0]}}\n"
    )

    with pytest.raises(ConfigError, match=r"(?s)^sources\.b: .*max_failing_rollouts=3 .*\nsources\.c: .*is not below"):
        build_spec(load_run_file(path))
