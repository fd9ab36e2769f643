"""The connection to an OpenAI-compatible server, through the `openai` package: one request, one answer.

Retries, and the meaning of answers, are in endpoint.py. The package is imported when a connection is made,
because it comes with vLLM.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lark import config
from lark.config.teacher import is_loopback

CONNECT_SECONDS = 30.0
"""Limit on the time until a connection is there."""
OWN_HOST = "api.openai.com"
"""The host for which the variables OPENAI_… are meant."""


@dataclass(frozen=True)
class HttpAnswer:
    """What a server answered, before anyone has read it."""

    status: int
    data: bytes
    retry_after: str | None = None


class NoAnswerError(Exception):
    """The connection was refused, was closed, or took too long. Its message is a phrase."""

    def __init__(self, reason: str, phrase: str) -> None:
        super().__init__(phrase)
        self.reason = reason


class TooMuchError(Exception):
    """The answer has more bytes than are read."""


class Client:
    """Sends requests of one teacher."""

    def __init__(self, teacher: config.Teacher, key: str | None) -> None:
        import httpx2  # noqa: PLC0415  # comes with openai
        import openai  # noqa: PLC0415

        for name in ("openai", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)  # a line per request would fill the log
        self.openai = openai
        self.closed = httpx2.TransportError
        timeout = openai.Timeout(teacher.timeout, connect=min(CONNECT_SECONDS, teacher.timeout))
        host = httpx2.URL(teacher.endpoint or "").host
        limits = httpx2.Limits(max_connections=teacher.concurrency, max_keepalive_connections=None)
        # A proxy of the environment must not get requests that are meant for this machine, and an address
        # that the server redirects to must not get the key.
        transport = httpx2.AsyncClient(
            trust_env=not is_loopback(host), follow_redirects=False, timeout=timeout, limits=limits
        )
        with _without_variables(host):
            self.client = openai.AsyncOpenAI(
                api_key=key or "none", base_url=teacher.endpoint, max_retries=0, http_client=transport
            )

    async def ask(self, request: Mapping[str, Any], largest: int) -> HttpAnswer:
        """Send a chat request. At most `largest` bytes of its answer are read."""
        rest = dict(request)
        create = self.client.chat.completions.with_streaming_response.create
        response = create(model=rest.pop("model"), messages=rest.pop("messages"), extra_body=rest)
        return await self._answer(response, largest)

    async def models(self, largest: int) -> HttpAnswer:
        """Ask which models the server has."""
        return await self._answer(self.client.models.with_streaming_response.list(), largest)

    async def _answer(self, opened: Any, largest: int) -> HttpAnswer:
        data = bytearray()
        try:
            async with opened as response:
                async for piece in response.iter_bytes():
                    data += piece
                    if len(data) > largest:
                        raise TooMuchError
                return HttpAnswer(response.status_code, bytes(data))
        except self.openai.APIStatusError as error:
            response = error.response
            return HttpAnswer(response.status_code, response.content, response.headers.get("retry-after"))
        except self.openai.APITimeoutError as error:
            raise NoAnswerError("timeout", "no answer in time") from error
        except self.openai.APIConnectionError as error:
            raise NoAnswerError("closed", _phrase(error.__cause__ or error)) from error
        except self.closed as error:
            raise NoAnswerError("closed", f"the connection was closed: {_phrase(error)}") from error

    async def close(self) -> None:
        await self.client.close()


def _phrase(error: BaseException) -> str:
    return str(error).rstrip(".") or type(error).__name__


@contextlib.contextmanager
def _without_variables(host: str) -> Iterator[None]:
    """Hide the variables OPENAI_… from the package: it would send an organisation, a project, and further
    headers to any host.
    """
    hidden = {}
    if host != OWN_HOST:
        hidden = {name: value for name, value in os.environ.items() if name.startswith("OPENAI_")}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
