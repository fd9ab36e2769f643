"""The web server: the page, its files, and the data. Read-only."""

import asyncio
import contextlib
import errno
import json
import logging
import math
import socket
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from lark.errors import LarkError
from lark.explorer.api import respond
from lark.explorer.context import Context
from lark.explorer.security import Access, Guard
from lark.explorer.views import views_of
from lark.pool.trajectories import POOL_TABLE

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
PORT = 8717
LAST_PORT = 65_535
THREADS = 4
"""Requests that are computed at the same time."""
CONNECTIONS = 100
"""Open connections. One more replaces the one that has waited longest for a request."""
REQUEST_SECONDS = 10
"""Time that a client has to send a request."""
DEEPEST = 50
"""Levels of a value that is not JSON."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def static_files() -> dict[str, Path]:
    """The files of the front end, by the address under /static/. Nothing else can be asked for."""
    files = (path for path in sorted(STATIC.rglob("*")) if path.suffix in TYPES)
    return {path.relative_to(STATIC).as_posix(): path for path in files}


def application(context: Context, access: Access) -> ASGIApp:
    """The ASGI application, with its guard."""
    files = static_files()
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="explorer")

    async def index(_: Request) -> Response:
        return _file(STATIC / "index.html")

    async def static(request: Request) -> Response:
        path = files.get(request.path_params["path"])
        if path is None:
            return Response("There is no such file.\n", HTTPStatus.NOT_FOUND, media_type="text/plain")
        return _file(path)

    async def data(request: Request) -> Response:
        path = request.path_params["path"]
        query = dict(request.query_params)
        loop = asyncio.get_running_loop()
        status, body = await loop.run_in_executor(threads, _encoded, context, path, query)
        return Response(body, status, {"cache-control": "no-store"}, "application/json")

    routes = [Route("/", index), Route("/static/{path:path}", static), Route("/api/{path:path}", data)]
    return Guard(Starlette(routes=routes), access)


def _encoded(context: Context, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    status, values = respond(context, path, query)
    return status, encode(values)


def encode(values: Any) -> bytes:
    """JSON in few bytes. Values that JSON does not have (NaN, dates, keys that are not texts) are replaced:
    manifests may hold anything.
    """
    try:
        text = _json(values)
    except (ValueError, TypeError, RecursionError):
        text = _json(_plain(values))
    return text.encode("utf-8", "surrogatepass")


def _json(values: Any) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if depth > DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return str(value)


def _file(path: Path) -> Response:
    kind = f"{TYPES[path.suffix]}; charset=utf-8"
    return Response(path.read_bytes(), headers={"cache-control": "no-cache"}, media_type=kind)


def warm(context: Context) -> None:
    """Read the newest pool and rank its candidates under every method before someone asks: half a second
    for 165,000 of them.
    """
    with contextlib.suppress(LarkError, StopIteration):  # a store without a pool
        listing = context.listing()
        entry = next(entry for entry in listing.of(POOL_TABLE.name) if entry.finished)
        view = views_of(listing, entry)[0].id
        for path in (f"pool/{entry.fingerprint}/{view}", f"agreement/{entry.fingerprint}/{view}/3"):
            respond(context, path, {})


def listen(host: str, port: int | None) -> socket.socket:
    """A socket on this host: on `port`, or, if none is asked for, on PORT or the next free one."""
    _check_port(port)
    _check_host(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [*range(PORT, PORT + 20), 0] if port is None else [port]:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(64)
            return listening
        except (OSError, UnicodeError) as error:
            listening.close()
            refusal = _refusal(host, candidate, error)
            if _is_about_host(error):
                break  # the other ports have the same error
    raise refusal


def _check_port(port: int | None) -> None:
    if port is not None and not 0 <= port <= LAST_PORT:
        raise LarkError(f"--port {port}: a port is a number from 0 (any free one) to {LAST_PORT}.")


def _check_host(host: str) -> None:
    if not host.strip():  # the socket would listen on all addresses of this machine
        raise LarkError("--host has no value. Leave it out to be reachable from this machine only.")


def _is_about_host(error: OSError | UnicodeError) -> bool:
    """Whether the machine has no such address. Any other error is about the port."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return True
    return error.errno == errno.EADDRNOTAVAIL


def _refusal(host: str, port: int, error: OSError | UnicodeError) -> LarkError:
    reason = getattr(error, "strerror", None) or str(error)
    if _is_about_host(error):
        return LarkError(
            f"--host {host}: this machine has no such address ({reason}). Leave --host out to be reachable"
            " from this machine only, or use --host 0.0.0.0 for all of its addresses."
        )
    return LarkError(
        f"--port {port}: it cannot be used ({reason}). Choose another one;"
        " without --port, a free one is found."
    )


class Connection(H11Protocol):
    """A connection that cannot keep other users out: a client that only waits, or that never completes its
    request, is dropped after REQUEST_SECONDS, or sooner if another client needs its place.
    """

    deadline: asyncio.TimerHandle | None = None
    """Set while there is no complete request to work on."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_clock()

    def _watch(self) -> None:
        """Start the clock when the wait for a request begins, and stop it when the request is complete."""
        is_waiting = self.cycle is None or self.cycle.response_complete
        if not is_waiting:
            self._stop_clock()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _stop_clock(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _make_room(self) -> None:
        others = [c for c in self.connections if c is not self and not c.transport.is_closing()]
        deadlines = {c: c.deadline.when() for c in others if isinstance(c, Connection) and c.deadline}
        if len(others) >= CONNECTIONS and deadlines:
            oldest = min(deadlines, key=deadlines.__getitem__)
            oldest.transport.close()


def serve(context: Context, access: Access) -> uvicorn.Server:
    """A server that is ready to run."""
    config = uvicorn.Config(
        application(context, access),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        http=Connection,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=2 * CONNECTIONS,
    )
    return uvicorn.Server(config)
