"""The preflight of a mix: settings, batches, limits, plan, and prompts against what a model takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, SourceReward
from multiors.errors import ConfigError
from multiors.mixing.curricula import Gates, Ladder, LearningProgress, Pools, ShareSchedule, WorstSource
from multiors.ors.tools import render_tools
from tests.checked import BATCHES, facts, find_level, found, levels, look
from tests.others import Guess, guess_rows, reward_of
from tests.servers.launch import ServerHandle, serve

# -- settings and plan


@pytest.fixture(scope="module")
def zoo() -> Iterator[ServerHandle]:
    """Two environments, and one with random prompts."""
    with serve("Sorting", "Thermostat", "RandomPrompt") as server:
        yield server


@pytest.fixture
def mix(zoo: ServerHandle) -> Any:
    """Makes specs of two sources, of 4 and 3 tasks."""

    def make(*, sort: dict[str, Any] | None = None, heat: dict[str, Any] | None = None, **options: Any) -> Any:
        return MultiOpenRewardSpec(
            {
                "sort": ORSSource(zoo.url, env_name="sorting", **(sort or {})),
                "heat": ORSSource(zoo.url, env_name="thermostat", **(heat or {})),
            },
            **options,
        )

    return make


def test_the_plan_of_a_run_is_reported(mix: Any) -> None:
    """What the schedule holds, and per source what repeats."""
    report = look(mix(), training=BATCHES)

    assert [("ok", "20 slots in 10 batches of 2 (seed 0, max_slots)")] == found(report, None, "plan")
    assert [("note", "repeats its 4 tasks: each is drawn 2 or 3 times.")] == found(report, "sort", "plan")
    assert 20 == facts(report, None, "plan")["plan"]["num_slots"]


def test_a_source_that_is_not_drawn_is_a_warning(mix: Any) -> None:
    """A run too short for a share is probably not meant."""
    report = look(mix(weights={"sort": 1000, "heat": 1}, num_slots=4))

    assert [("warning", "is not drawn: the schedule is too short for its share.")] == found(report, "heat", "plan")


def test_curricula_are_begun(mix: Any) -> None:
    """They fit the sources that the servers have, or it is said why not."""
    good = {"reward": SourceReward(range=(0, 10)), "task_curriculum": Pools()}
    report = look(mix(sort=good, curriculum=LearningProgress()), training=BATCHES)
    broken = look(mix(sort={**good, "task_curriculum": Ladder(field="size")}), training=BATCHES)
    unbounded = look(mix(curriculum=WorstSource()), training=BATCHES)

    assert [("ok", "LearningProgress, Pools in source 'sort'.")] == found(report, None, "curriculum")
    assert report.ok
    message = "source 'sort': no task has the field 'size'; fields of its tasks: ['numbers']."
    assert [("error", message)] == found(broken, None, "curriculum")
    assert "error" == find_level(unbounded, None, "curriculum", "source 'sort': WorstSource compares the rewards")


def test_curricula_that_do_not_fit_have_no_plan(mix: Any) -> None:
    """Neither in the preflight nor from the spec, as the preview asks it."""
    spec = mix(curriculum=Gates(after={"sort": {"x": 0.5}}))
    message = "Gates: source 'x' is not in the mix; sources: ['sort', 'heat']."

    report = look(spec, training=BATCHES)

    assert [("error", message)] == found(report, None, "curriculum")
    assert [("note", "not made, because a curriculum does not fit the sources.")] == found(report, None, "plan")
    with pytest.raises(ConfigError, match="Gates: source 'x' is not in the mix"):
        spec.plan()


def test_a_schedule_of_shares_needs_batches_to_be_planned(mix: Any) -> None:
    """Without training arguments that is no mistake, and with them the plan has its shares."""
    schedule = ShareSchedule([(0, {"sort": 1, "heat": 0}), (9, {"sort": 0, "heat": 1})])
    without, planned = look(mix(curriculum=schedule)), look(mix(curriculum=schedule), training=BATCHES)

    assert "note" == find_level(without, None, "plan", "the curriculum counts batches")
    assert without.ok
    assert [0.5, 0.5] == [source["share"] for source in facts(planned, None, "plan")["plan"]["sources"]]


def test_batches_are_counted_in_rollouts_and_sessions(mix: Any) -> None:
    """Prompts, generations, and the rollouts of a process."""
    report = look(mix(), training=BATCHES)
    expected = {"prompts_per_batch": 2, "num_generations": 4, "rollouts_per_process": 8}

    assert expected == facts(report, None, "batches")
    assert report.ok


def test_without_training_arguments_nothing_is_guessed(mix: Any) -> None:
    """What depends on them is said not to be checked."""
    report = look(mix())

    assert ["note"] == [level for level, _ in found(report, None, "training")]
    assert [] == report.of(None, "batches")


def test_every_setting_that_contradicts_the_mix_is_named(mix: Any) -> None:
    """All at once, each with its remedy, and the rest is checked all the same."""
    wrong = {"shuffle_dataset": True, "num_train_epochs": 3, "reward_weights": [2.0, 1.0]}
    report = look(mix(), training={**BATCHES, **wrong})
    errors = {finding.facts["field"]: finding.message for finding in report.of(None, "training")}

    assert set(wrong) == set(errors)
    assert errors["shuffle_dataset"].endswith("Leave it out, or pass False.")
    assert "ok" == levels(report, None)["batches"]
    assert "ok" == levels(report, None)["plan"]


def test_fields_that_the_trainer_refuses_are_an_error(mix: Any) -> None:
    """Its own words are shown, and the plan is made without them."""
    report = look(mix(), training={"steps": 3})

    assert "error" == find_level(report, None, "training", "GRPOConfig refuses these fields: TypeError: ")
    assert "ok" == levels(report, None)["plan"]


def test_reward_weights_that_cancel_are_an_error(mix: Any) -> None:
    """By an aggregation that normalizes them away, or by batches of one prompt."""
    spec = mix(sort={"reward": SourceReward(weight=3.0)})
    summed = look(spec, training={**BATCHES, "multi_objective_aggregation": "sum_then_normalize"})
    single = look(spec, training={**BATCHES, "per_device_train_batch_size": 4})

    assert "error" == find_level(summed, None, "training", "would have no effect: with scale_rewards='group'")
    assert "error" == find_level(single, None, "training", "would have no effect: a generation batch has one prompt")


def test_a_batch_of_one_prompt_is_a_warning(mix: Any) -> None:
    """It has one source, whatever the shares."""
    report = look(mix(), training={**BATCHES, "per_device_train_batch_size": 4})

    assert ["ok", "warning"] == [level for level, _ in found(report, None, "batches")]
    assert report.ok


def test_limits_of_sessions_below_a_batch_are_errors(mix: Any) -> None:
    """The mix's and the source's own, each with the number that would do."""
    report = look(mix(sort={"max_sessions": 3}, max_sessions=6), training=BATCHES)

    assert "error" == find_level(report, None, "batches", "the mix: max_sessions=6, and a batch has up to 8")
    assert "error" == find_level(report, None, "batches", "source 'sort': max_sessions=3, and a batch has up to 4")


def test_settings_without_effect_are_warnings(mix: Any) -> None:
    """What the spec would warn of is a finding, and no warning of Python's."""
    report = look(mix(stopping_strategy="all_exhausted"), training=BATCHES)

    assert "warning" == find_level(report, None, "training", "max_steps=10 decides the length of the run")


def test_random_prompts_are_an_error_where_groups_are_sampled_together(zoo: ServerHandle) -> None:
    """In vLLM's server mode rollouts would be trained on completions to other prompts."""
    spec = MultiOpenRewardSpec({"random": ORSSource(zoo.url, env_name="randomprompt")})
    together = look(spec, training={**BATCHES, "use_vllm": True, "vllm_mode": "server"})
    apart = look(spec, training=BATCHES)

    assert "error" == find_level(together, None, "prompt", "the sources ['random'] give each session of a task a")
    assert [] == found(apart, None, "prompt")


def test_a_check_leaves_the_spec_as_it_was(mix: Any) -> None:
    """It can be laid out for other batches than those that were checked."""
    spec = mix()
    look(spec, training=BATCHES)
    spec.training_arguments(num_generations=2, per_device_train_batch_size=6, max_steps=5, use_cpu=True, bf16=False)

    assert 3 == spec.plan().prompts_per_batch


def test_a_spec_that_was_told_its_batches_is_checked_for_them(mix: Any) -> None:
    """Without other training arguments those count that it has."""
    spec = mix()
    spec.training_arguments(**BATCHES, use_cpu=True, bf16=False)

    assert [("ok", "20 slots in 10 batches of 2 (seed 0, max_slots)")] == found(look(spec), None, "plan")


# -- prompts in tokens


@pytest.fixture(scope="module")
def tokenizer(tiny_policy: Path) -> Any:
    """The tiny policy's."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_policy)


def count(tokenizer: Any, prompts: Sequence[str], tools: Any) -> int:
    """Tokens of the longest prompt, as transformers renders it."""
    return max(
        len(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                tools=render_tools(tools),
                add_generation_prompt=True,
                return_dict=True,
            )["input_ids"]
        )
        for prompt in prompts
    )


def test_prompts_are_measured_with_their_tools(mix: Any, tokenizer: Any) -> None:
    """The tokens are those that the trainer will make of the longest prompt."""
    spec = mix()
    report = look(spec, tokenizer=tokenizer)
    expected = count(tokenizer, ["Sort 3 hidden numbers.", "Sort 2 hidden numbers."], spec.sources["sort"].tools)

    assert expected == facts(report, "sort", "prompt")["tokens"]


def test_a_tokenizer_without_a_template_counts_the_text(mix: Any, tokenizer: Any, tiny_policy: Path) -> None:
    """There is nothing that could show the tools."""
    from transformers import AutoTokenizer

    bare = AutoTokenizer.from_pretrained(tiny_policy)
    bare.chat_template = None
    expected = len(tokenizer("Sort 3 hidden numbers.")["input_ids"])

    assert expected == facts(look(mix(), tokenizer=bare), "sort", "prompt")["tokens"]


def test_a_template_that_cannot_render_is_a_warning(mix: Any, tiny_policy: Path) -> None:
    """The prompt is then measured in characters."""
    from transformers import AutoTokenizer

    broken = AutoTokenizer.from_pretrained(tiny_policy)
    broken.chat_template = "{{ raise_exception('no tools') }}"
    report = look(mix(), tokenizer=broken)

    assert ["warning", "ok"] == [level for level, _ in found(report, "sort", "prompt")]
    assert "warning" == find_level(report, "sort", "prompt", "the chat template cannot render it")
    assert report.of("sort", "prompt")[1].facts["tokens"] is None


@pytest.mark.parametrize(("context", "level"), [(10, "error"), (1000, "warning"), (100_000, "ok")])
def test_prompts_must_leave_room_for_a_completion(mix: Any, tokenizer: Any, context: int, level: str) -> None:
    """No room is an error, less room than a completion may have is a warning."""
    fields = {"use_vllm": True, "vllm_max_model_length": context, "max_completion_length": 2000}
    report = look(mix(), training={**BATCHES, **fields}, tokenizer=tokenizer)

    assert level == levels(report, "sort")["prompt"]


def test_in_the_union_mode_every_prompt_has_all_tools(mix: Any, tokenizer: Any) -> None:
    """The tools are named as the policy will see them, and counted in every prompt."""
    union, separate = look(mix(tools="union"), tokenizer=tokenizer), look(mix(), tokenizer=tokenizer)
    expected = ["compare", "sort__submit", "read", "heat__submit"]

    assert expected == facts(union, None, "tools")["tools"]
    assert facts(union, "sort", "prompt")["tokens"] > facts(separate, "sort", "prompt")["tokens"]


# -- environments that are not ORS


class Others:
    """A spec with TRL's three slots."""

    environment_factory: Any = Guess
    reward_funcs = staticmethod(reward_of)

    def __init__(self, rows: Any = ("oak", "elm", "fir"), error: Exception | None = None, **slots: Any) -> None:
        self._rows = guess_rows(*rows)
        self._error = error
        self.__dict__ |= slots

    @property
    def train_dataset(self) -> Any:
        """A row for each word."""
        if self._error is not None:
            raise self._error

        return self._rows


def test_environments_that_are_not_ors_are_looked_at(mix: Any) -> None:
    """Their rows, tools and rewards; that nothing of them is played is said."""
    spec = MultiOpenRewardSpec({"other": Others(), **mix().sources})
    report = look(spec, probe=True)

    assert [("ok", "3.")] == found(report, "other", "tasks")
    assert [("ok", "guess.")] == found(report, "other", "tools")
    assert [("ok", "rollouts are scored by reward_of.")] == found(report, "other", "scoring")
    assert "note" == find_level(report, "other", "server", "and nothing is played")
    assert "ok" == levels(report, None)["plan"]


@pytest.mark.parametrize(
    ("other", "subject", "message"),
    [
        (Others(()), "tasks", "its train_dataset has no rows"),
        (Others(error=OSError("gone")), "tasks", "OSError: gone"),
        (Others(environment_factory=dict), "tools", "has no method reset()"),
        (Others(environment_factory=Path("nowhere").open), "tools", "FileNotFoundError"),
        (Others(reward_funcs=None), "scoring", "nothing says what a rollout is worth"),
    ],
)
def test_other_environments_that_fail_are_errors(
    echo_server: ServerHandle, other: Others, subject: str, message: str
) -> None:
    """Whatever they raise is a finding, and hides no other source."""
    report = look(MultiOpenRewardSpec({"other": other, "echo": ORSSource(echo_server.url)}))

    assert "error" == find_level(report, "other", subject, message)
    assert "error" not in levels(report, "echo").values()
