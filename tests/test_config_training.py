"""What a run file says of training and evaluation, of keys, and how it is written again and described to editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from multiors.config import RunConfig, build_spec, dump_run_file, load_run_file, make_schema
from multiors.config.reading import parse_yaml
from multiors.errors import ConfigError
from tests.test_config import WHOLE
from tests.test_docs import PAGES, read_blocks

SOURCE = "sources:\n  a:\n    target: 'http://127.0.0.1:1'\n"


def load(folder: Path, text: str) -> RunConfig:
    """A text as a run file."""
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_file(path)


# -- training and evaluation


def test_training_and_evaluation_have_keys(tmp_path: Path) -> None:
    """A model's name may stand alone; fields of the trainer are kept as they were written."""
    config = load(
        tmp_path,
        f"{SOURCE}model: some/model\ntrainer: grpo\n"
        "training: {learning_rate: 1e-5, save_steps: 3, save_strategy: no, lr_scheduler_kwargs: {min_lr: 1e-6}}\n"
        "evaluation: {every_steps: 2, split: test, num_tasks: 3, episodes: 4, seed: 5}\n",
    )
    fields = {"learning_rate": 1e-5, "save_steps": 3, "save_strategy": "no", "lr_scheduler_kwargs": {"min_lr": 1e-6}}

    assert config.model is not None
    assert ("some/model", {}, "grpo", fields) == (
        config.model.name,
        config.model.init_kwargs,
        config.trainer,
        config.training,
    )
    assert [2, "test", 3, 4, 5] == list(config.evaluation.model_dump().values())


def test_a_run_file_without_them_only_describes_a_mix(tmp_path: Path) -> None:
    """The defaults: no model, no fields, the concurrent trainer, and no evaluation while training."""
    config = load(tmp_path, f"{SOURCE}training:\n")

    assert (None, {}, "concurrent", None) == (
        config.model,
        config.training,
        config.trainer,
        config.evaluation.every_steps,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", "line 5: training.learning_rat: GRPOConfig has no field of this name; did you mean 'learn"),
        ("xyzzy: 1", "line 5: training.xyzzy: GRPOConfig has no field of this name"),
        ("max_steps: 1.5", "line 5: training.max_steps: Input should be a valid integer (got 1.5)"),
        ("max_steps: many", "line 5: training.max_steps: Input should be a valid integer (got 'many')"),
        ("bf16: no", "line 5: training.bf16: Input should be a valid boolean (got 'no')"),
        ("optim: 3", "line 5: training.optim: Input should be a valid string (got 3)"),
        ("deepspeed: 3", "line 5: training.deepspeed: Input should be a valid dictionary or a valid string (got 3)"),
        ("reward_weights: [1, x]", "line 5: training.reward_weights: Input should be a valid number (got 'x')"),
        ("hub_token: hunter2", "training.hub_token: this does not stand here: no key belongs into a run file"),
        ("model_init_kwargs: {}", "this does not stand here: write it under model: {name: ..., init_kwargs: {...}}"),
        (
            "resume_from_checkpoint: x",
            "this does not stand here: a run file says nothing of checkpoints; pass --resume",
        ),
    ],
)
def test_a_wrong_field_of_the_trainer_is_named(tmp_path: Path, text: str, message: str) -> None:
    """With its line, its type, and what may have been meant; a key is not shown."""
    with pytest.raises(ConfigError, match="has 1 mistake") as caught:
        load(tmp_path, f"{SOURCE}training:\n  {text}\n")

    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: [a]", r"line 4: training: Input should be a valid dictionary \(got \['a'\]\)"),
        ("model: ''", "line 4: model.name: String should have at least 1 character"),
        ("model: {init_kwargs: {}}", "line 4: model.name: Field required"),
        (
            "model: {name: x, dtype: y}",
            "line 4: model.dtype: there is no such key here; the keys are name, init_kwargs",
        ),
        (
            "model: {name: x, init_kwargs: {token: hunter2}}",
            "line 4: model.init_kwargs: no key belongs into a run file",
        ),
        ("trainer: sft", r"line 4: trainer: Input should be 'concurrent' or 'grpo' \(got 'sft'\)"),
        ("evaluation: {every_steps: 0}", "line 4: evaluation.every_steps: Input should be greater than or equal to 1"),
        (
            "evaluation: {tasks: 3}",
            "line 4: evaluation.tasks: there is no such key here; did you mean 'num_tasks'",
        ),
    ],
)
def test_a_mistake_in_the_new_keys_is_named(tmp_path: Path, text: str, message: str) -> None:
    """As everywhere in a run file."""
    with pytest.raises(ConfigError, match=f"has 1 mistake:\n- {message}") as caught:
        load(tmp_path, f"{SOURCE}{text}\n")

    assert "hunter2" not in str(caught.value)


def test_mistakes_of_mix_and_trainer_are_named_at_once(tmp_path: Path) -> None:
    """In the order in which they stand in the file."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"training:\n  max_step: 1\n{SOURCE}    weight: -1\ntrainer: x\n")

    starts = [line.split(": ")[1] for line in str(caught.value).splitlines()[1:]]
    assert ["training.max_step", "sources.a.weight", "trainer"] == starts


# -- keys and secrets

SECRETS = (
    "    api_key: ${CANARY_KEY}\n"
    "    secrets: {PLAIN: , RENAMED: '${CANARY_SECRET}', HOSTED: ['${CANARY_SECRET}', [a.org, b.org]]}\n"
)


def test_variables_become_keys_when_the_spec_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nowhere else: neither the configuration nor what is written of it has their values."""
    monkeypatch.setenv("CANARY_KEY", "hunter2")
    monkeypatch.setenv("CANARY_SECRET", "hunter3")
    config = load(tmp_path, SOURCE + SECRETS)
    source: Any = build_spec(config).sources["a"]

    assert "hunter2" == source._api_key
    assert {"PLAIN": None, "RENAMED": "hunter3", "HOSTED": ("hunter3", ["a.org", "b.org"])} == source._secrets
    assert "hunter" not in repr(config) + dump_run_file(config) + repr(source)
    assert "${CANARY_KEY}" in dump_run_file(config)


def test_a_list_of_secrets_has_the_values_of_their_variables(tmp_path: Path) -> None:
    """Names alone leave the values to the environment."""
    source: Any = build_spec(load(tmp_path, f"{SOURCE}    secrets: [A, B]\n")).sources["a"]

    assert {"A": None, "B": None} == source._secrets


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """With the key under which it stands; an empty one is no key."""
    monkeypatch.delenv("CANARY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("CANARY_KEY", value)

    state = "not set" if value is None else "empty"
    with pytest.raises(ConfigError, match=rf"^sources\.a\.api_key: the environment variable 'CANARY_KEY' is {state}\."):
        build_spec(load(tmp_path, f"{SOURCE}    api_key: ${{CANARY_KEY}}\n"))


@pytest.mark.parametrize(
    "text",
    [
        "api_key: hunter2",
        "api_key: $hunter2",
        "api_key: 'Bearer ${hunter2}'",
        "api_key: '${hunter2}\n'",
        "api_key: ${2hunter}",
        "secrets: {A: hunter2}",
        "secrets: {A: [hunter2, [a.org]]}",
        "secrets: {A: ['${B}', hunter2]}",
        "secrets: [{A: hunter2}]",
        "secrets: hunter2",
    ],
)
def test_a_key_that_stands_in_the_file_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    """A variable's name, whole, is the only form."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"{SOURCE}    {text}\n")

    assert "has 1 mistake" in str(caught.value)
    assert "hunter" not in str(caught.value)


def test_a_variable_stands_for_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the text is what it is."""
    monkeypatch.setenv("CANARY_KEY", "hunter2")
    source: Any = load(tmp_path, f"{SOURCE}    split: ${{CANARY_KEY}}\n").sources["a"]

    assert "${CANARY_KEY}" == source.split


# -- written again


EVERYTHING = f"""\
{WHOLE}
curriculum:
  - {{name: share_stages, stages: [[0, {{sort: 1, seta: 0}}], [20, {{sort: 1, seta: 1}}]], warm_up: 10}}
  - learning_progress
  - {{name: "my.module:Class", anything: [1, {{deep: 1e-7}}]}}
circuit_breaker: true
rollout_log: rollouts
model: {{name: m, init_kwargs: {{dtype: bfloat16}}}}
training: {{learning_rate: 1e-6, save_strategy: no, report_to: [a, b], max_grad_norm: .inf}}
evaluation: {{every_steps: 3}}
"""


@pytest.mark.parametrize("text", [WHOLE, EVERYTHING, SOURCE + SECRETS, f"{SOURCE}circuit_breaker: false\n"])
def test_what_is_written_is_the_same_run_file(tmp_path: Path, text: str) -> None:
    """However often; only what was written is, so that defaults stay defaults."""
    config = load(tmp_path, text)
    written = dump_run_file(config)
    again = load(tmp_path, written)

    assert config == again
    assert written == dump_run_file(again)
    assert "open_timeout_s: 600" not in written


# -- for editors


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    """A validator by the schema that editors use."""
    made = make_schema()
    Draft202012Validator.check_schema(made)
    return Draft202012Validator(json.loads(json.dumps(made)))


def documents() -> list[Any]:
    """The run files that the pages show, and those of this file."""
    blocks = [block for page in PAGES for block in read_blocks(page) if block.language == "yaml" and block.file]
    texts = [block.text for block in blocks if not block.is_refused]
    others = [WHOLE, EVERYTHING, SOURCE + SECRETS]
    return [parse_yaml(text.replace("scores_alone: yes", "scores_alone: true")).values for text in [*texts, *others]]


def test_the_schema_accepts_what_is_accepted(schema: Draft202012Validator) -> None:
    """Every run file of the pages among it, in short forms and long ones."""
    found = documents()
    mistakes = [error.message for document in found for error in schema.iter_errors(document)]

    assert len(found) > 6
    assert [] == mistakes


@pytest.mark.parametrize(
    "text",
    [
        "seed: 1",
        "sources: {}",
        "sources: {a: {weight: 1}}",
        "sources: {a: {target: []}}",
        "sources: {a: {target: x, heft: 1}}",
        "sources: {a: {target: x, weight: 0}}",
        "sources: {a: {target: x, weight: true}}",
        "sources: {a: {target: x, num_tasks: 0}}",
        "sources: {a: {target: x, api_key: hunter2}}",
        "sources: {a: {target: x, secrets: {A: hunter2}}}",
        "sources: {a: {target: x, reward: {reduction: best}}}",
        "sources: {a: {target: x, reward: {parts: [{function: nothing}]}}}",
        "sources: {a: {target: x, task_curriculum: stairs}}",
        "{sources: {a: {target: x}}, steps: 3}",
        "{sources: {a: {target: x}}, tools: both}",
        "{sources: {a: {target: x}}, curriculum: sec}",
        "{sources: {a: {target: x}}, curriculum: {name: gates, before: 3}}",
        "{sources: {a: {target: x}}, model: ''}",
        "{sources: {a: {target: x}}, trainer: sft}",
        "{sources: {a: {target: x}}, training: {learning_rat: 1}}",
        "{sources: {a: {target: x}}, training: {learning_rate: fast}}",
        "{sources: {a: {target: x}}, training: {hub_token: hunter2}}",
        "{sources: {a: {target: x}}, evaluation: {episodes: 0}}",
    ],
)
def test_the_schema_refuses_what_is_refused(schema: Draft202012Validator, tmp_path: Path, text: str) -> None:
    """An editor shows the mistakes that loading finds."""
    with pytest.raises(ConfigError):
        load(tmp_path, text)

    assert [] != list(schema.iter_errors(parse_yaml(text).values))


def test_the_schema_says_what_keys_mean(schema: Draft202012Validator) -> None:
    """Those of the run file in our words, and those of the trainer in TRL's."""
    properties = schema.schema["properties"]
    fields = schema.schema["$defs"]["TrainingConfig"]["properties"]

    assert [] == [name for name, about in properties.items() if "description" not in about]
    assert "learning rate" in fields["learning_rate"]["description"]
