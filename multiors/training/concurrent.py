"""`ConcurrentGRPOTrainer`: a step waits for the slowest environment call, not for their sum.

TRL resets the environments of a batch one after another, and in every turn calls the tools of one rollout after
another. This trainer opens all sessions before TRL begins, and starts the calls of all rollouts at the first one that
TRL makes in a turn; TRL then finds each session open and each call answered or under way. What is generated, called,
scored and trained on stays TRL's decision: a call is only started when TRL is bound to make it. Batches of which only a
part has images, at which TRL 1.16 stops, are given to processor and model in the form that these take.

Leans on private methods of `GRPOTrainer` (TRL 1.16, `trainer/grpo_trainer.py`; pinned in `tests/test_trl_contract.py`):
where they differ it says so once and trains as TRL does.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from multiors.errors import RoutingError
from multiors.ors.rollouts.opening import Opening, discard
from multiors.ors.tools import BoundTool

__all__ = ["ConcurrentGRPOTrainer", "ConcurrentRollouts", "find_changed_methods"]

logger = logging.getLogger("multiors.training")

_PARAMETERS = {
    "_generate": ("self", "prompts"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_get_tool_suffix_ids": ("self", "tool_messages"),
    "_tool_call_loop": (
        "self", "prompts", "prompt_ids", "completion_ids", "completions", "logprobs", "images", "multimodal_fields",
    ),
}  # fmt: skip
_UNMATCHED = "env/unmatched_calls"
_OF_IMAGES = (
    "pixel_values", "pixel_attention_mask", "image_grid_thw", "image_position_ids", "image_sizes", "spatial_shapes",
    "mm_token_type_ids",
)  # fmt: skip

# A mixin has no base of its own; to a type checker it is a trainer, whose methods it calls.
_Trainer: Any = object


def find_changed_methods(trainer: type) -> list[str]:
    """The methods of a `GRPOTrainer` class that take other arguments than TRL 1.16's, or are gone."""
    return [
        name
        for name, parameters in _PARAMETERS.items()
        if not callable(getattr(trainer, name, None))
        or tuple(inspect.signature(inspect.unwrap(getattr(trainer, name))).parameters) != parameters
    ]


class ConcurrentRollouts(_Trainer):
    """Concurrent environments for any subclass of `GRPOTrainer`, to be named before it among the bases.

    Environments that are not this library's are reset and called as TRL does it.

    Args:
        end_when_finished: Whether a rollout ends with the call that finished its episode. TRL lets the policy write
            once more after it, about a result that changes nothing; without that turn, the tool's last answer is in no
            message and the rollout is trained on exactly the tokens it sampled until then.

    Example:
        >>> from trl.experimental.gmpo import GMPOTrainer
        >>> class ConcurrentGMPOTrainer(ConcurrentRollouts, GMPOTrainer):
        ...     pass
    """

    _is_concurrent = True

    def __init__(self, *args: Any, end_when_finished: bool = False, **kwargs: Any) -> None:
        changed = find_changed_methods(super(ConcurrentRollouts, type(self)))  # type: ignore[arg-type]  # a view of the bases

        if changed:
            self._stop_being_concurrent(f"{changed} of TRL's trainer are not what they were in TRL 1.16")

        self._reported_prompts: set[str | None] = set()
        self._num_unmatched = 0
        self._end_when_finished = end_when_finished
        self._turns: _Turns | None = None
        super().__init__(*args, **kwargs)

        if self._is_vlm:
            self.model.register_forward_pre_hook(_leave_out_no_images, with_kwargs=True)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self._is_concurrent:
            result: dict[str, Any] = super()._generate_and_score_completions(inputs)
            return result

        mode = "train" if self.model.training else "eval"
        openings: list[Opening | None] = []
        self._num_unmatched = 0

        try:
            openings.extend(map(self._open_ahead, inputs))
            self._share_prompts(inputs, openings, mode=mode)
            result = super()._generate_and_score_completions(inputs)
        finally:
            discard(opening for opening in openings if opening is not None)

        self._metrics[mode][_UNMATCHED].append(self._count_unmatched())
        return result

    def _generate(self, prompts: list[Any]) -> Any:
        if not self._is_concurrent:
            return super()._generate(prompts)

        # A prompt without images has None beside the lists of others, which processors refuse; an empty list will do.
        *rest, images, tool_images = super()._generate(prompts)
        return *rest, images and [each or [] for each in images], tool_images

    def _tool_call_loop(
        self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._is_concurrent or not self.environments:
            return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *args, **kwargs)

        self._turns = _Turns(self.environments, self._sync_tool_dicts, completions)

        with self._turns.watched():
            result = super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *args, **kwargs)

        self._num_unmatched = self._turns.num_unmatched
        self._turns = None
        return result

    def _get_tool_suffix_ids(self, tool_messages: Sequence[Mapping[str, Any]]) -> list[int]:
        if self._end_when_finished and self._turns is not None and self._turns.is_finished(tool_messages[-1]):
            # Longer than a completion may be: TRL takes the answer back and goes on without this rollout.
            return [self._tokenizer.pad_token_id] * (self.max_completion_length + 1)

        suffix_ids: list[int] = super()._get_tool_suffix_ids(tool_messages)
        return suffix_ids

    def _open_ahead(self, row: Mapping[str, Any]) -> Opening | None:
        """Start opening a row's session. None: its environment is not this library's."""
        factories = self.environment_factories or {}
        factory: Any = factories.get(row.get("environment") if self._multi_environment else None)
        opening: Opening | None = factory.open_ahead(**row) if hasattr(factory, "open_ahead") else None
        return opening

    def _share_prompts(
        self, inputs: Sequence[Mapping[str, Any]], openings: Sequence[Opening | None], *, mode: str
    ) -> None:
        """Give a rollout whose session did not open the prompt of its group: it is sampled, but never scored.

        vLLM's server mode samples a whole group from the prompt of its first rollout (TRL 1.16, vllm_generation.py).

        Raises:
            RoutingError: The prompts of a group differ, and vLLM's server would sample from one of them.
        """
        size = self.num_generations if mode == "train" else self.num_generations_eval
        prompts = [None if opening is None else opening.wait_for_prompt() for opening in openings]
        is_split = self.accelerator.num_processes > 1 and bool(len(prompts) % size)
        everywhere = gather_object(prompts) if is_split else prompts
        offset = self.accelerator.process_index * len(prompts) if is_split else 0

        for row, opening in enumerate(openings):
            first = (offset + row) // size * size
            known = list(dict.fromkeys(each for each in everywhere[first : first + size] if each is not None))

            if len(known) > 1:
                self._report_random_prompt(inputs[row].get("environment"))
            if opening is not None and known:
                opening.stand_in_prompt = known[0]

    def _report_random_prompt(self, source: str | None) -> None:
        if self.use_vllm and self.vllm_mode == "server":
            raise RoutingError(
                f"source {source!r}: the rollouts of one group were given different prompts, and vLLM's server mode "
                f"samples a whole group from the first of them. Use vllm_mode='colocate', or give each task one prompt."
            )

        if source not in self._reported_prompts:
            self._reported_prompts.add(source)
            logger.warning(
                "source %r: the rollouts of one group were given different prompts, so their rewards are compared "
                "over different tasks. That is allowed, and refused in vLLM's server mode.",
                source,
            )

    def _count_unmatched(self) -> int:
        """Calls of this batch, over all processes, that were started and that TRL then did not make."""
        here = torch.tensor(self._num_unmatched, device=self.accelerator.device)
        num_unmatched = int(self.accelerator.gather(here).sum())

        if num_unmatched:
            self._stop_being_concurrent(f"{num_unmatched} tool calls were started that TRL did not make")

        return num_unmatched

    def _stop_being_concurrent(self, reason: str) -> None:
        self._is_concurrent = False
        warnings.warn(
            f"{type(self).__name__}: {reason}. Environments are reset and called one after another from here on, as "
            f"GRPOTrainer does it. Use the TRL version of this library's constraints, or report it.",
            stacklevel=3,
        )


class ConcurrentGRPOTrainer(ConcurrentRollouts, GRPOTrainer):
    """`GRPOTrainer` whose environments open and answer at once.

    Takes the same arguments and gives the same completions, rewards and advantages. All sessions of a generation batch
    are opened together; in each turn the tool calls of all rollouts run together, those of one rollout in order.

    Example:
        >>> trainer = ConcurrentGRPOTrainer(
        ...     model=model,
        ...     args=args,
        ...     train_dataset=spec.train_dataset,
        ...     environment_factory=spec.environment_factory,
        ...     reward_funcs=spec.reward_funcs,
        ...     callbacks=spec.callbacks,
        ... )
    """


def _leave_out_no_images(_model: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Give a model no empty tensor of pixels: TRL does, for a part of a batch that has images in other parts only."""
    pixels = inputs.get("pixel_values")

    if pixels is None or pixels.numel():
        return None

    return args, {name: value for name, value in inputs.items() if name not in _OF_IMAGES}


class _Turns:
    """The turns of one batch: knows which calls TRL is about to make, and starts them together.

    TRL appends each parsed message to its rollout's `completions`, then makes the calls of all last messages, rollout
    after rollout, before it generates again. So when the first of them is made, all others are certain.
    """

    def __init__(
        self,
        environments: Sequence[Any],
        tools_by_rollout: Sequence[Mapping[str, Callable[..., Any]]],
        completions: Sequence[Sequence[Mapping[str, Any]]],
    ) -> None:
        self._environments = environments
        self._tools_by_rollout = tools_by_rollout
        self._completions = completions
        # How many messages a rollout had when its calls were started. TRL takes the last answers of a rollout that
        # became too long away again, and leaves it: then it has as many as before.
        self._num_begun = [0] * len(environments)
        self.num_unmatched = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Start the calls of each turn at its first, inside the block."""
        rows = [row for row, environment in enumerate(self._environments) if hasattr(environment, "_start_ahead")]

        for row in rows:
            self._environments[row]._on_call = partial(self._begin, row)

        try:
            yield
        finally:
            for row in rows:
                self._environments[row]._on_call = None
                self.num_unmatched += self._environments[row]._end_ahead()

    def is_finished(self, answer: Mapping[str, Any]) -> bool:
        """Whether the episode of the rollout that was just given this message is over."""
        row = next(row for row, messages in enumerate(self._completions) if messages[-1] is answer)
        return getattr(self._environments[row], "finished", False) is True

    def _begin(self, caller: int) -> None:
        if self._num_begun[caller] == len(self._completions[caller]):
            return

        for row, messages in enumerate(self._completions):
            environment = self._environments[row]

            if self._num_begun[row] < len(messages) and hasattr(environment, "_start_ahead"):
                self._num_begun[row] = len(messages)
                environment._start_ahead(self._find_calls(row, messages[-1]))

    def _find_calls(self, row: int, message: Mapping[str, Any]) -> list[tuple[BoundTool, Mapping[str, Any]]]:
        """The calls of a message that can be started: in order, up to the first of a tool that is the user's own."""
        environment: Any = self._environments[row]
        calls: list[tuple[BoundTool, Mapping[str, Any]]] = []

        for call in message.get("tool_calls") or ():
            function = call.get("function") if call.get("type") == "function" else None
            name = function.get("name") if isinstance(function, Mapping) else None
            method = self._tools_by_rollout[row].get(name) if isinstance(name, str) else None

            if function is None or name is None or method is None:
                continue  # TRL answers what is no call, or a call of a tool that is not there
            is_own = getattr(method, "__self__", None) is environment
            if not is_own:
                break

            tool: BoundTool | None = environment._find_tool(name)
            arguments = function.get("arguments")

            if tool is not None and isinstance(arguments, Mapping):
                calls.append((tool, arguments))

        return calls
