"""A server that misbehaves on purpose, and counts what it is asked."""

import contextlib
import http.server
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MODEL = "teacher-7b"


def completion(text: str = "It is \\boxed{7}.", n: int = 1, **message: Any) -> dict[str, Any]:
    """An answer as it should be."""
    parts = {"role": "assistant", "content": text, **message}
    choices = [{"index": index, "message": parts, "finish_reason": "stop"} for index in range(n)]
    usage = {"prompt_tokens": 10, "completion_tokens": 8 * n, "total_tokens": 10 + 8 * n}
    return {"id": "1", "object": "chat.completion", "model": MODEL, "choices": choices, "usage": usage}


@dataclass
class Answer:
    """What the server does about one request."""

    status: int = 200
    body: Any = None
    """JSON, or bytes as they are."""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    """Close the connection after this many bytes of the body."""
    seconds: float = 0.0
    """Wait this long before the answer."""


@dataclass
class Server:
    """A running server. Answers are taken from `script` first, then made by `usual`."""

    script: deque[Answer] = field(default_factory=deque)
    usual: Callable[[dict[str, Any]], Answer] = lambda request: Answer(body=completion(n=request.get("n", 1)))
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    models: Answer = field(default_factory=lambda: Answer(body={"data": [{"id": MODEL}]}))
    at_once: int = 0
    most_at_once: int = 0
    address: str = ""

    def questions(self) -> Counter[str]:
        """How often each question was asked."""
        return Counter(request["messages"][-1]["content"] for request in self.requests)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: Server
    lock: threading.Lock

    def do_GET(self) -> None:
        self._send(self.server_of.models)

    def do_POST(self) -> None:
        server = self.server_of
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            server.requests.append(request)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            server.times.append(time.monotonic())
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            answer = server.script.popleft() if server.script else server.usual(request)
        time.sleep(answer.seconds)
        with self.lock:
            server.at_once -= 1
        with contextlib.suppress(OSError):  # the client has given up
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        if answer.cut == 0:
            self.close_connection = True
            return
        self.send_response(answer.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data)), **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: answer.cut])
        if answer.cut is not None:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def misbehaving() -> Iterator[Server]:
    state = Server()
    handler = type("OurHandler", (Handler,), {"server_of": state, "lock": threading.Lock()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.address = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
