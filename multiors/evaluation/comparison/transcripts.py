"""Episodes as a page shows them: transcripts with what each call was worth, paired by task and episode.

Decides which episodes of many a page holds: those that regressed, have no score or improved, in turn and from every
environment; then of the rest evenly. All texts are inert and of bounded length here. Knows no HTML.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from multiors.evaluation.comparison.visible import fold, reveal
from multiors.evaluation.comparison.wording import say_number
from multiors.records import RolloutRecord, StepRecord

__all__ = ["Brief", "Episodes", "Kind", "choose", "gather", "show_record", "tell_kind"]

Kind = Literal["regressed", "unscored", "improved", "equal", "scored"]
"""What became of an episode: of a pair, from the reference to the candidate; `scored` of one without another."""

KINDS: tuple[Kind, ...] = ("regressed", "unscored", "improved")
"""What is shown first, in this order."""

_MOST_EPISODES = 300
_MOST_CHARACTERS = 12_000_000  # of all episodes together
_MOST_PARTS = 20
_LINE = 70
_THOUGHT = re.compile(r"\A\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)

Key = tuple[Any, ...]
"""What tells an episode from others; its source first."""


class Brief(NamedTuple):
    """Of an episode, what decides whether it is shown."""

    score: float | None
    failed: bool
    """Whether something went wrong in it."""


class Bounds(NamedTuple):
    """How much of a record is shown."""

    longest: int = 4_000
    """Characters of one text."""

    messages: int = 60
    """Messages, and calls that stand in none; of more, those in the middle are left out."""


_LEAST = Bounds(longest=60, messages=6)


class Episodes(NamedTuple):
    """The episodes that a page holds."""

    cards: list[dict[str, Any]]
    """As JSON values."""

    num_all: int
    """Of which they were chosen."""

    num_by_kind: Mapping[Kind, int]
    """Of all."""


def tell_kind(sides: Sequence[Brief | None]) -> Kind:
    """What became of an episode. A side that is None was not played."""
    there = [side for side in sides if side is not None]

    if any(side.score is None for side in there):
        return "unscored"
    if len(there) < 2:
        return "scored"

    before, after = (side.score or 0.0 for side in there)
    return "improved" if after > before else "regressed" if after < before else "equal"


def choose(briefs: Mapping[Key, Sequence[Brief | None]], most: int = _MOST_EPISODES) -> list[Key]:
    """Which episodes are shown, in that order.

    What regressed comes first, then what has no score, then what improved, the largest change first. Where more of
    these are there than fit, each kind of each environment gets its turn, and a third of the places is kept for the
    rest.
    """
    queues: dict[tuple[int, str], list[Key]] = {}

    for key, sides in briefs.items():
        queues.setdefault((_rank(sides)[0], str(key[0])), []).append(key)

    first = [_order(queues[place], briefs) for place in sorted(queues) if place[0] < len(KINDS)]
    rest = [_spread(queues[place]) for place in sorted(queues) if place[0] == len(KINDS)]
    num_rest = min(sum(map(len, rest)), max(most // 3, most - sum(map(len, first))))
    chosen = {*islice(_take_turns(first), most - num_rest), *islice(_take_turns(rest), num_rest)}
    return sorted((key for key in briefs if key in chosen), key=lambda key: _rank(briefs[key]))


def _rank(sides: Sequence[Brief | None]) -> tuple[int, float]:
    kind = tell_kind(sides)
    return (KINDS.index(kind), -_find_change(sides)) if kind in KINDS else (len(KINDS), 0.0)


def _order(keys: list[Key], briefs: Mapping[Key, Sequence[Brief | None]]) -> list[Key]:
    """The largest change first; of those that nothing distinguishes, spread over all."""
    return sorted(_spread(keys), key=lambda key: -_find_change(briefs[key]))


def _find_change(sides: Sequence[Brief | None]) -> float:
    scores = [side.score for side in sides if side is not None and side.score is not None]
    return abs(scores[1] - scores[0]) if len(scores) == 2 else 0.0


def _spread(keys: list[Key]) -> list[Key]:
    """Keys so ordered that any number of the first lie evenly over all."""
    bits = max(1, (len(keys) - 1).bit_length())
    places = sorted(range(len(keys)), key=lambda place: int(format(place, f"0{bits}b")[::-1], 2))
    return [keys[place] for place in places]


def _take_turns(queues: Iterable[Sequence[Key]]) -> Iterator[Key]:
    waiting = deque(deque(queue) for queue in queues)

    while waiting:
        queue = waiting.popleft()
        yield queue.popleft()

        if queue:
            waiting.append(queue)


def gather(
    briefs: Mapping[Key, Sequence[Brief | None]],
    records: Iterable[tuple[Key, int, RolloutRecord]],
    titles: Mapping[Key, str],
    chosen: Sequence[Key],
) -> Episodes:
    """The cards of the episodes that were chosen.

    Args:
        briefs: Of all episodes, by key.
        records: Key, side and record; those that were not chosen are passed over.
        titles: What each chosen episode is called.
        chosen: In the order in which they are shown.
    """
    sides: dict[Key, list[dict[str, Any] | None]] = {key: [None] * len(briefs[key]) for key in chosen}
    most = _MOST_CHARACTERS // max(1, sum(len(each) for each in sides.values()))

    for key, side, record in records:
        if key in sides:
            sides[key][side] = show_record(record, briefs[key][side], most)

    cards = [
        {
            "source": fold(str(key[0])),
            "title": fold(titles[key]),
            "kind": tell_kind(briefs[key]),
            "sides": sides[key],
        }
        for key in chosen
        if any(sides[key])
    ]
    return Episodes(cards, len(briefs), Counter(tell_kind(each) for each in briefs.values()))


# -- one record


def show_record(record: RolloutRecord, brief: Brief | None, most: int) -> dict[str, Any]:
    """A record as JSON values without anything hidden; of a large one so much that it is no larger than wanted.

    Args:
        record: What is shown.
        brief: Its score, if that is not its reward.
        most: Characters on the page.
    """
    bounds = Bounds()
    facts = _show_facts(record, record.reward if brief is None else brief.score)

    while True:
        shown = facts | _show_transcript(record, bounds)

        if bounds == _LEAST or _measure(shown) <= most:
            return shown

        bounds = Bounds(max(_LEAST.longest, bounds.longest // 2), max(_LEAST.messages, bounds.messages // 2))


def _measure(shown: Mapping[str, Any]) -> int:
    """Characters on a page, where what could be mark-up is written as six of them."""
    text = json.dumps(shown, ensure_ascii=False)
    return len(text) + 5 * sum(map(text.count, "<>&"))


def _show_facts(record: RolloutRecord, score: float | None) -> dict[str, Any]:
    parts = list(record.parts.items())[:_MOST_PARTS]
    facts = {
        "reward": say_number(record.reward),
        "outcome": say_number(record.outcome),
        **{f"part {fold(name)}": say_number(value) for name, value in parts},
        "finished": "yes" if record.finished else "no",
        "session": None if record.session is None else fold(record.session),
        "seed": None if record.seed is None else str(record.seed),
        "attempts": None if record.num_attempts is None else str(record.num_attempts),
        "tokens": None if record.num_tokens is None else f"{record.num_tokens:,}",
        "tokens read": None if record.num_prompt_tokens is None else f"{record.num_prompt_tokens:,}",
        "tokens written": None if record.num_sampled_tokens is None else f"{record.num_sampled_tokens:,}",
        "seconds": None if record.duration_s is None else f"{record.duration_s:.2f}",
    }
    return {
        "score": score,
        "said": say_number(score),
        "reason": None if record.reason is None else str(record.reason.value),
        "error": None if record.error is None else fold(record.error, 1_000),
        "facts": [[name, value] for name, value in facts.items() if value is not None],
    }


def _show_transcript(record: RolloutRecord, bounds: Bounds) -> dict[str, Any]:
    messages, rest = _show_messages(record.messages, record.steps, bounds)
    return {
        "prompt": [_show_message(message, bounds) for message in record.prompt[: bounds.messages]],
        "messages": messages,
        "steps": [_show_step(step, bounds) for step in rest[: bounds.messages]],
        "left_out": max(0, len(record.prompt) - bounds.messages) + max(0, len(rest) - bounds.messages),
    }


def _show_messages(
    messages: Sequence[Mapping[str, Any]], steps: Sequence[StepRecord], bounds: Bounds
) -> tuple[list[dict[str, Any]], list[StepRecord]]:
    """The messages, each result with the step that it is of; and the steps that are of none."""
    waiting = deque(steps)
    left: list[StepRecord] = []
    shown = []
    first = bounds.messages // 3  # the end tells more than the beginning

    for place, message in enumerate(messages):
        is_cut = first <= place < len(messages) - (bounds.messages - first)
        step = _take_step(message, waiting, left) if message.get("role") == "tool" else None

        if not is_cut:
            shown.append(_show_message(message, bounds) | ({} if step is None else {"step": _judge_step(step)}))
        elif place == first:
            shown.append({"role": "…", "text": f"{len(messages) - bounds.messages:,} messages are left out here"})

    return shown, [*left, *waiting]


def _take_step(message: Mapping[str, Any], waiting: deque[StepRecord], left: list[StepRecord]) -> StepRecord | None:
    """The step that a result is of: the next that says the same, else the next if it is of the same tool. None: there
    is none. Steps that are passed over are left.
    """
    text = _read_text(message.get("content"))
    place = next((place for place, step in enumerate(waiting) if step.output == text), None)

    if place is None:
        return waiting.popleft() if waiting and waiting[0].tool == message.get("name") else None

    left += [waiting.popleft() for _ in range(place)]
    return waiting.popleft()


def _show_message(message: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    text = _read_text(message.get("content"))
    thought = message.get("reasoning_content")
    thought = thought if isinstance(thought, str) else ""

    if not thought and (match := _THOUGHT.match(text)):
        thought, text = match[1].strip(), text[match.end() :].lstrip()

    calls = message.get("tool_calls")
    calls = calls[: bounds.messages] if isinstance(calls, list | tuple) else []
    shown: dict[str, Any] = {
        "role": fold(str(message.get("role"))),
        "name": fold(str(message["name"])) if message.get("name") else None,
        "thought": reveal(thought, bounds.longest),
        "text": reveal(text, bounds.longest),
        "calls": [_show_call(call, bounds) for call in calls],
    }
    return {name: value for name, value in shown.items() if value or name == "role"}


def _show_call(call: object, bounds: Bounds) -> dict[str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None

    if not isinstance(function, Mapping):
        return {"name": "?", "arguments": _write(call, bounds)}
    return {"name": fold(str(function.get("name"))), "arguments": _write(function.get("arguments"), bounds)}


def _show_step(step: StepRecord, bounds: Bounds) -> dict[str, Any]:
    return {
        "name": fold(step.tool),
        "arguments": _write(step.arguments, bounds),
        "text": reveal(step.output, bounds.longest),
        "step": _judge_step(step),
    }


def _judge_step(step: StepRecord) -> dict[str, Any]:
    return {
        "reward": None if step.reward is None else say_number(step.reward),
        "finished": step.finished,
        "failure": None if step.failure is None else str(step.failure.value),
        "seconds": f"{step.duration_s:.2f}",
    }


def _read_text(content: object) -> str:
    """A message's content as text; what is no text is named."""
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return "\n".join(_read_block(block) for block in content)
    return _to_text(content)


def _read_block(block: object) -> str:
    if not isinstance(block, Mapping):
        return _to_text(block)
    return _to_text(block["text"]) if "text" in block else f"[{block.get('type')}]"


def _write(value: object, bounds: Bounds) -> str:
    return reveal(_to_text(value), bounds.longest)


def _to_text(value: object) -> str:
    """Text as it is, and JSON as it is read best: on one line where it fits there."""
    if isinstance(value, str):
        return value

    line = json.dumps(value, ensure_ascii=False, default=str)
    return line if len(line) <= _LINE else json.dumps(value, indent=2, ensure_ascii=False, default=str)
