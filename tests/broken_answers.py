"""Sound answers of an ORS server, broken in every layer: the JSON, the event stream, the bytes, the HTTP around them.

All comes from one generator of random numbers: the same seed breaks the same answers. Knows no client: what a broken
answer should come to is not said here.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.servers.replay import CALL, SCORE_GROUP, Answer, Ending

__all__ = ["EVENT_ROUTES", "break_answer"]

EVENT_ROUTES = frozenset({CALL, SCORE_GROUP, "/create_session"})
"""Routes that answer with a stream of events."""

_REPLY = {
    "ok": True,
    "output": {
        "blocks": [{"type": "text", "text": "acted \u00e9\U0001f680", "detail": None}],
        "metadata": {"n": 1},
        "reward": 1.0,
        "finished": False,
    },
}
_PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="  # one pixel
_PICTURES = {
    "ok": True,
    "output": {
        "blocks": [{"type": "image", "data": _PICTURE, "mimeType": "image/png"}, {"type": "text", "text": "Seen."}],
        "reward": 0.25,
        "finished": True,
    },
}
_MESSAGES = [
    {"role": "system", "blocks": [{"type": "text", "text": "Be good."}]},
    {"role": "assistant", "blocks": [{"type": "tool_call", "name": "act", "input": {"x": [1]}, "id": "1"}]},
    {"role": "user", "blocks": [{"type": "tool_result", "blocks": [{"type": "text", "text": "Acted."}], "id": "1"}]},
    {
        "role": "user",
        "blocks": [{"type": "text", "text": "Act."}, {"type": "image", "data": _PICTURE, "mimeType": "x"}],
    },
]
_REFUSAL = {"ok": False, "error": "no such tool", "reason": "not_found"}
_TOOLS = {
    "tools": [
        {
            "name": "act",
            "description": "Act.",
            "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        }
    ],
    "terminal_tool": {"name": "submit", "arg": "text"},
    "supports_score_group": False,
    "message_block_types": ["text"],
}
_SOUND: Mapping[str, Sequence[Any]] = {
    "/list_environments": [["{env}"]],
    "/splits": [[{"name": "train", "type": "train"}]],
    "/num_tasks": [{"num_tasks": 3, "env_name": "{env}"}],
    "/task_range": [{"tasks": [{"id": 1}, {"id": [2.5, None]}], "env_name": "{env}"}],
    "/tasks": [{"tasks": [{"id": 1}], "env_name": "{env}"}],
    "/tools": [_TOOLS],
    "/task_tools": [_TOOLS],
    "/create": [{"sid": "s"}],
    "/prompt": [
        [{"type": "text", "text": "Act.", "detail": None}],
        [{"type": "image", "data": _PICTURE, "mimeType": "image/png", "detail": None}],
    ],
    "/ping": [{"status": "ok"}],
    "/delete": [{}],
    "/delete_session": [{}],
    "/messages": [_MESSAGES],
    CALL: [_REPLY, _REPLY, _PICTURES, _REFUSAL],
    SCORE_GROUP: [{"scores": [{"reward": 0.5}, {"reward": 1}]}],
}

# JSON texts that take the place of a value; what is no JSON stands for servers that write it by hand.
_ODD_VALUES = (
    *("null", "true", "false", "0", "-1", "1.5", '""', '"text"', "[]", "{}", "[null]", '[{"a": 1}]', '{"a": 1}'),
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "9" * 30, "-" + "9" * 400, "9" * 5_000),
    *(
        '"\\ud800"',
        '"a\\u0000b"',
        '"\\u001b[31mred"',
        '"0.5"',
        '"NaN"',
        '"x\\ny"',
        '"\u2028"',
        "nan",
        "undefined",
        "'x'",
    ),
    *(
        '"' + "x" * 100_000 + '"',
        "[" * 500 + "]" * 500,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 3_000 + "1" + "}" * 3_000,
    ),
    *("[" * 900 + "]" * 900, "[" * 985 + "]" * 985, "01", "+1", ".5", "1.", "0x1", "1_000", "[1,]", '{"a" 1}', ""),
)
_ENDINGS: Sequence[Ending] = ("close",) * 20 + ("reset",) * 2 + ("stay",)
_ODD_NAMES = ("ok", "output", "tools", "tasks", "sid", "detail", "error", "reason", "", "\x00", "type", "env_name")
_EVENTS = ("task_id", "chunk", "end", "error", "ping", "message", "", "END", "task_id\x00", "\u00e9")
_EVENT_DATA = ("", " ", "unknown task_id", "null", "[]", "{}", "x" * 20_000, "\x00", "\ufeff", "t1", "a: b", "data: x")
_HEADERS = (
    *("Content-Type: text/html", "Content-Type: application/octet-stream", "Content-Type: ;;;", "Content-Type:"),
    *("Content-Type: application/json; charset=utf-16", "Content-Type: text/event-stream; charset=nothing"),
    *("Content-Type: text/event-stream", "Content-Type: application/json", "Content-Encoding: gzip"),
    *("Content-Encoding: deflate", "Content-Encoding: br", "Content-Encoding: nothing", "Transfer-Encoding: chunked"),
    *(
        "Transfer-Encoding: gzip",
        "Content-Length: 0",
        "Content-Length: 5",
        "Content-Length: 99999",
        "Content-Length: -1",
    ),
    *("Content-Length: x", "Content-Length: 1, 2", "Connection: close", "Connection: upgrade\r\nUpgrade: websocket"),
    *("Retry-After: 0", "Retry-After: -1", "Retry-After: \u00b2", "Retry-After: soon", "Retry-After: " + "9" * 400),
    *("X-Backend-State: starting", "Location: /health", "Location: http://127.0.0.1:9/x", "Location: //[", "Location:"),
    *("Location: mailto:a@b.c", "Location: http://user:word@127.0.0.1:1", "Location: ../../..", "Location: \x01"),
    *("Set-Cookie: a=b; Max-Age=x; Domain=\u00e9", "Set-Cookie: =", "X-Long: " + "x" * 9_000, "X-Odd: \xff\x01"),
    *("no colon here", ": no name", " folded", "X Y: z", "X-Null: \x00", "ETag", "\r"),
)
_STATUSES = (100, 101, 102, 103, 199, 200, 201, 202, 204, 205, 206, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404)
_MORE_STATUSES = (405, 409, 410, 413, 418, 422, 429, 451, 499, 500, 501, 502, 503, 504, 520, 599)
_STATUS_LINES = (
    *("HTTP/1.1 200", "HTTP/1.0 200 OK", "HTTP/2 200 OK", "HTTP/1.1 999 X", "HTTP/1.1 20 OK", "HTTP/1.1 2000 OK"),
    *(
        "HTTP/1.1 -1 OK",
        "HTTP/1.1 abc OK",
        "200 OK",
        "",
        "\x00",
        "SSH-2.0-OpenSSH_9.6",
        "HTTP/1.1  200  OK",
        "HTTP/9.9 1 1",
    ),
)


def break_answer(route: str, case: str, rng: random.Random) -> Answer:
    """One answer to a route for a case, which is also the environment's name; most are broken in one or two layers."""
    content_type = "application/json"
    layers = rng.choices(["json", "events", "bytes", "http", "cuts"], weights=[5, 3, 3, 4, 1], k=rng.randint(1, 2))

    if route == "/create_session":
        text = ""
    else:
        sound = json.dumps(rng.choice(_SOUND[route]), ensure_ascii=rng.random() < 0.5).replace("{env}", case)
        text = _break_json(sound, rng) if "json" in layers else sound
    if route in EVENT_ROUTES:
        content_type = "text/event-stream"
        text = _write_events(route, text, rng, is_broken="events" in layers)

    body = text.encode("utf-8", "surrogatepass")
    body = _break_bytes(body, rng) if "bytes" in layers else body
    raw = _wrap(body, content_type, rng, is_broken="http" in layers)
    return Answer(raw, _choose_cuts(raw, rng), rng.choice(_ENDINGS))


def _break_json(text: str, rng: random.Random) -> str:
    """The JSON text with one or two places replaced, removed, doubled, or written as no parser expects."""
    value = json.loads(text)
    odd_by_mark: dict[str, str] = {}

    for _ in range(rng.randint(1, 2)):
        odd, mark = rng.choice(_ODD_VALUES), f"<{len(odd_by_mark)}>"
        places = _list_places(value)
        if not places or rng.random() < 0.1:
            return odd
        _damage(*rng.choice(places), mark, rng)
        odd_by_mark[mark] = odd

    text = json.dumps(value, ensure_ascii=False)
    for mark, odd in odd_by_mark.items():
        text = re.sub(f'"{mark}([^"]*)": null', lambda found, odd=odd: f'"{found[1]}": {odd}', text)  # type: ignore[misc]
        text = text.replace(f'"{mark}"', odd)
    return text


def _damage(holder: Any, key: Any, mark: str, rng: random.Random) -> None:
    """Change one place of a container; a mark stands where something odd is to be written."""
    what = rng.choice(["replace", "replace", "replace", "delete", "rename", "double"])
    if what == "delete":
        del holder[key]
    elif what == "rename" and isinstance(holder, dict):
        holder[rng.choice(_ODD_NAMES)] = holder.pop(key)
    elif what == "double" and isinstance(holder, dict):
        holder[f"{mark}{key}"] = None
    else:
        holder[key] = mark


def _list_places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys or positions."""
    if isinstance(value, dict):
        return [(value, key) for key in value] + [place for each in value.values() for place in _list_places(each)]
    if isinstance(value, list):
        return [(value, i) for i in range(len(value))] + [place for each in value for place in _list_places(each)]
    return []


def _write_events(route: str, text: str, rng: random.Random, *, is_broken: bool) -> str:
    size = rng.choice([1, 3, 4096])
    chunks = [text[i : i + size] for i in range(0, len(text), size)] if len(text) < 2_000 else [text]
    events = [("task_id", "t1"), *(("chunk", chunk) for chunk in chunks[:-1]), ("end", chunks[-1] if chunks else "")]
    newline = "\n"

    if is_broken:
        for _ in range(rng.randint(1, 3)):
            events = rng.choice(_EVENT_DAMAGES)(events, rng)
        newline = rng.choice(["\n", "\n", "\r\n", "\r", "\n\r", "\n\n", "\u2028", "\x85", ""])

    form = rng.choice(_EVENT_FORMS) if is_broken else _EVENT_FORMS[0]
    return "".join(form.format(event=event, data=data, n=newline) for event, data in events)


_EVENT_FORMS = (
    "event: {event}{n}data: {data}{n}{n}",
    "event:{event}{n}data:{data}{n}{n}",
    "data: {data}{n}event: {event}{n}{n}",
    ": ping{n}{n}event: {event}{n}id: \x00{n}retry: x{n}data: {data}{n}{n}",
    "event: {event}{n}data: {data}{n}data{n}data:{n}{n}",
    "event: {event}{n}data: {data}{n}",
    "\ufeffevent: {event}{n}data: {data}{n}{n}",
    "EVENT: {event}{n}DATA: {data}{n}{n}",
    "event: {event}{n}event: end{n}data: {data}{n}{n}",
    "{data}{n}",
    "event: {event}{n}no colon{n}data: {data}{n}{n}",
)
_Events = list[tuple[str, str]]
_EVENT_DAMAGES: Sequence[Callable[[_Events, random.Random], _Events]] = (
    lambda events, rng: rng.sample(events, len(events)),
    lambda events, rng: events[:-1],
    lambda events, rng: events[1:],
    lambda events, rng: events * 2,
    lambda events, rng: [each for each in events if rng.random() < 0.7],
    lambda events, rng: [*events, (rng.choice(_EVENTS), rng.choice(_EVENT_DATA))],
    lambda events, rng: [(rng.choice(_EVENTS), rng.choice(_EVENT_DATA)), *events],
    lambda events, rng: [(event, rng.choice(_EVENT_DATA) if rng.random() < 0.3 else data) for event, data in events],
    lambda events, rng: [(rng.choice(_EVENTS) if rng.random() < 0.3 else event, data) for event, data in events],
    lambda events, rng: [],
)


def _break_bytes(body: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(body))
    return rng.choice(_BYTE_DAMAGES)(body, at, rng)


_BYTE_DAMAGES: Sequence[Callable[[bytes, int, random.Random], bytes]] = (
    lambda body, at, rng: body[:at],
    lambda body, at, rng: body[at:],
    lambda body, at, rng: body[:at] + rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f", b"\x00"]) + body[at:],
    lambda body, at, rng: body[:at] + rng.randbytes(rng.randint(1, 50)) + body[at:],
    lambda body, at, rng: b"\xef\xbb\xbf" + body,
    lambda body, at, rng: body.decode("utf-8", "replace").encode("utf-16"),
    lambda body, at, rng: body.decode("utf-8", "replace").encode("utf-32"),
    lambda body, at, rng: gzip.compress(body, mtime=0),
    lambda body, at, rng: gzip.compress(body, mtime=0)[:-at] if at else b"",
    lambda body, at, rng: zlib.compress(body),
    lambda body, at, rng: b"",
    lambda body, at, rng: body * 3,
    lambda body, at, rng: rng.randbytes(200),
    lambda body, at, rng: bytes(each ^ (rng.random() < 0.02) << rng.randrange(8) for each in body[:3_000]),
    lambda body, at, rng: b"<html><script>alert(1)</script></html>",
)


def _wrap(body: bytes, content_type: str, rng: random.Random, *, is_broken: bool) -> bytes:
    status_line = "HTTP/1.1 200 OK"
    headers = [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]

    if is_broken:
        kind = rng.random()
        if kind < 0.6:
            status_line = f"HTTP/1.1 {rng.choice(_STATUSES + _MORE_STATUSES)} {rng.choice(['OK', '', 'x' * 50])}"
        elif kind < 0.75:
            status_line = rng.choice(_STATUS_LINES)
        if rng.random() < 0.3:
            body = rng.choice(_ERROR_BODIES).encode()
            headers[1] = f"Content-Length: {len(body)}"
        for _ in range(rng.randint(0, 2)):
            headers.insert(rng.randint(0, len(headers)), rng.choice(_HEADERS))
        if rng.random() < 0.2:
            headers.pop(rng.randrange(len(headers)))
        if "Transfer-Encoding: chunked" in headers and rng.random() < 0.8:
            headers = [header for header in headers if not header.startswith("Content-Length")]
            body = _write_chunks(body, rng)

    return "\r\n".join([status_line, *headers, "", ""]).encode("utf-8", "surrogatepass") + body


_ERROR_BODIES = (
    *('{"detail": "Invalid split"}', '{"detail": [{"loc": ["body", "split"], "msg": "Invalid", "type": "x"}]}'),
    *(
        '{"detail": null}',
        '{"detail": 5}',
        '{"detail": {"a": 1}}',
        '{"detail": "\\ud800\\u001b[31m"}',
        "[]",
        "null",
        "",
    ),
    *('{"detail": "' + "x" * 50_000 + '"}', '{"detail": ' + "[" * 100_000, "Internal Server Error", '{"error": "x"}'),
)


def _write_chunks(body: bytes, rng: random.Random) -> bytes:
    size = rng.choice([b"%x", b"%X", b"%x;a=b", b"0%x", b"-%x", b" %x", b"%d", b"g%x", b"fffffffff%x"])
    parts = [body[i : i + 7] for i in range(0, min(len(body), 3_000), 7)]
    text = b"".join(size % len(part) + b"\r\n" + part + b"\r\n" for part in parts)
    return text + rng.choice(
        [b"0\r\n\r\n", b"0\r\nX-Trailer: y\r\n\r\n", b"0\r\n", b"", b"00000\r\n\r\n", b"0\r\nbroken"]
    )


def _choose_cuts(raw: bytes, rng: random.Random) -> Sequence[int]:
    if rng.random() < 0.7:
        return ()
    if len(raw) < 600 and rng.random() < 0.3:
        return range(1, len(raw))
    return sorted(rng.randrange(len(raw) or 1) for _ in range(rng.randint(1, 12)))
