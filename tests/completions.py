"""A completion server that says what a script tells it, in the form in which TRL's async rollout worker asks vLLM.

Real HTTP, so that the worker needs no change: only what would need an accelerator is replaced.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["serve_completions"]

Script = Callable[[str, int], str]


@contextmanager
def serve_completions(tokenizer: Any, script: Script) -> Iterator[str]:
    """The URL of a server that answers with `script(conversation so far, how often it was asked that before)`."""
    asked: Counter[str] = Counter()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Answer `/v1/completions`."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                conversation = tokenizer.decode(body["prompt"])
                reply = script(conversation, asked[conversation])
                asked[conversation] += 1
                ids = tokenizer(f"{reply}<|im_end|>")["input_ids"]
            answer = {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-1.0] * len(ids)}}]}
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
