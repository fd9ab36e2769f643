"""A teacher behind an OpenAI-compatible endpoint.

Requests are sent by an event loop in a thread of its own, so that the server stays busy while the caller
writes answers. What happens to an answer that is not one is decided in refusals.py: the request is sent
again, the question counts as failed, or the run ends with a sentence.
"""

import asyncio
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from lark import config
from lark.errors import LarkError
from lark.generation import checks, refusals
from lark.generation.chat_requests import LARGEST, InvalidAnswerError, body, replies, too_large
from lark.generation.client import Client, HttpAnswer, NoAnswerError, TooMuchError
from lark.generation.conversation import Ask, AskSampling, Failure, Reply
from lark.generation.refusals import Again, Changed
from lark.reading.untrusted import parse_object

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
"""Seconds before a request is sent again for the first time; then twice as long each time."""
LONGEST_WAIT = 60.0
LONGEST_RETRY_AFTER = 600.0
"""A server that asks for a longer wait has no quota left."""
PROBE_SECONDS = 30.0
LOGPROB_BYTES = 1000
"""Bytes that a token and its log-probability can take in an answer."""
Outcome = list[Reply] | Failure


class EndpointTeacher:
    """Asks one model of one server. See `RunningTeacher` in conversation.py."""

    def __init__(self, name: str, teacher: config.Teacher) -> None:
        self.name = name
        self.teacher = teacher
        self.client = Client(teacher, checks.key_of(name, teacher))
        self.slots = asyncio.Semaphore(teacher.concurrency)
        self.answered = 0
        """Requests that the server understood and answered."""
        self.refused = 0
        """Requests that the server did not understand."""
        self.paused_until = 0.0
        """Time before which the server does not want another request."""
        self.without: set[str] = set()
        """Parameters that the server does not know."""
        self.context: int | None = None
        """Most tokens of the server's model, if the server reports it."""
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name=f"teacher {name}", daemon=True)
        self.thread.start()
        log.info("Teacher %s: the questions are sent to %s (model %s).", name, teacher.host, teacher.model)
        try:
            self._run(self._probe())
        except BaseException:
            self.close()
            raise

    def ask(self, asks: Sequence[Ask], sampling: AskSampling) -> Iterator[tuple[int, Outcome]]:
        done: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()
        asking = asyncio.run_coroutine_threadsafe(self._ask_all(asks, sampling, done.put), self.loop)
        asking.add_done_callback(lambda _: done.put(None))
        try:
            while (outcome := done.get()) is not None:
                yield outcome
            asking.result()  # raises what ended it
        finally:
            asking.cancel()

    def close(self) -> None:
        if self.thread.is_alive():
            self._run(self.client.close())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the loop, and wait for it."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _probe(self) -> None:
        """Ask for the list of models. Not every server has one, but all of them know their keys."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answer = await self.client.models(LARGEST)
        except NoAnswerError as error:
            raise checks.no_connection(self.name, self.teacher, str(error)) from None
        except (TimeoutError, TooMuchError):
            return
        if answer.status in refusals.NOT_ALLOWED:
            detail = refusals.detail(answer)
            raise checks.not_allowed(self.name, self.teacher, detail)
        self.context = refusals.context_of(answer, self.teacher.model)

    async def _ask_all(
        self, asks: Sequence[Ask], sampling: AskSampling, put: Callable[[tuple[int, Outcome]], None]
    ) -> None:
        waiting = iter(enumerate(asks))

        async def work() -> None:
            for index, ask in waiting:
                put((index, await self._outcome(ask, sampling)))

        workers = [asyncio.create_task(work()) for _ in range(min(self.teacher.concurrency, len(asks)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _outcome(self, ask: Ask, sampling: AskSampling) -> Outcome:
        """The samples of a question: of one request if the server can, or of one request each."""
        if sampling.temperature == 0:  # greedy samples are identical, and vLLM refuses more than one
            outcome = await self._request(replace(ask, samples=1), sampling)
            return outcome if isinstance(outcome, Failure) else outcome * ask.samples
        outcome = []
        if "n" not in self.without or ask.samples == 1:
            outcome = await self._request(ask, sampling)
        if isinstance(outcome, Failure) or len(outcome) >= ask.samples:
            return outcome if isinstance(outcome, Failure) else outcome[: ask.samples]
        return await self._one_by_one(ask, sampling, outcome)

    async def _one_by_one(self, ask: Ask, sampling: AskSampling, outcome: list[Reply]) -> Outcome:
        """The samples that the first request did not bring."""
        self.without.add("n")
        numbers = range(len(outcome), ask.samples)
        singles = [replace(ask, samples=1, seed=ask.seed + number) for number in numbers]
        samples = list(outcome)
        for single in await asyncio.gather(*[self._request(one, sampling) for one in singles]):
            if isinstance(single, Failure):
                return single
            samples += single
        read = sum(sample.n_prompt_tokens for sample in samples)
        return [replace(sample, n_prompt_tokens=read) for sample in samples]

    async def _request(self, ask: Ask, sampling: AskSampling) -> Outcome:
        """Send a request until it is answered. An empty list: the server does not know `n`."""
        request = body(self.teacher, ask, sampling)
        if self.context is not None:
            request["max_tokens"] = min(request["max_tokens"], self.context)
        answered = self.answered
        attempt = 0
        while True:
            request = refusals.without(request, self.without)
            async with self.slots:
                await self._pause()
                outcome = await self._send(request, ask, sampling)
            if isinstance(outcome, Changed):
                if outcome.parameter == "n":
                    return []
                request = outcome.request
                continue
            if not isinstance(outcome, Again):
                is_refused = isinstance(outcome, Failure) and outcome.reason == refusals.REFUSED
                self.answered += not is_refused
                return outcome
            attempt += 1
            if attempt > self.teacher.retries:
                # If nothing else was answered either, it is the server, not the question.
                if self.answered == answered:
                    raise checks.gave_up(self.name, self.teacher, attempt, outcome.detail)
                if not outcome.is_limit:
                    return Failure(outcome.reason, outcome.detail)
                answered = self.answered
                attempt = 1
            await self._wait(attempt, outcome)

    async def _send(
        self, request: dict[str, Any], ask: Ask, sampling: AskSampling
    ) -> Outcome | Again | Changed:
        """Send a request once."""
        largest = ask.samples * (LARGEST + sampling.logprobs * sampling.max_new_tokens * LOGPROB_BYTES)
        try:
            async with asyncio.timeout(self.teacher.timeout):
                answer = await self.client.ask(request, largest)
        except TimeoutError:
            return Again("timeout", f"no answer within {self.teacher.timeout:g} seconds")
        except NoAnswerError as error:
            return Again(error.reason, checks.shown(str(error)))
        except TooMuchError:
            return too_large()
        if answer.status == 200:
            return self._read(answer, request)
        return self._refused(answer, request)

    def _read(self, answer: HttpAnswer, request: dict[str, Any]) -> Outcome | Again | Changed:
        try:
            response = parse_object(answer.data, "the answer")
        except LarkError as error:
            return Again("invalid_answer", checks.shown(str(error)))
        refusal = response.get("error")
        if isinstance(refusal, dict) and not response.get("choices"):  # some routers report errors so
            code = refusal.get("code")
            status = code if isinstance(code, int) and code >= 400 else 502
            return self._refused(HttpAnswer(status, answer.data), request)
        try:
            return replies(response, self.name, self.teacher)
        except InvalidAnswerError as problem:
            return Again("invalid_answer", f"the answer is not a chat completion: {problem}")

    def _refused(self, answer: HttpAnswer, request: dict[str, Any]) -> Outcome | Again | Changed:
        outcome = refusals.outcome(answer, request, self.name, self.teacher)
        if isinstance(outcome, Changed):
            self._leave_out(outcome.parameter)
        if isinstance(outcome, Failure) and outcome.reason == refusals.REFUSED:
            self.refused += 1
            # A single question may be the reason; of the first ones together, the settings are.
            if self.answered == 0 and self.refused >= refusals.FIRST:
                raise checks.not_understood(self.name, self.teacher, answer.status, outcome.detail)
        return outcome

    def _leave_out(self, parameter: str) -> None:
        """Send no further request with a parameter that the server does not know."""
        if parameter not in self.without and parameter in (*refusals.OPTIONAL, *refusals.RENAMED):
            self.without.add(parameter)
            log.warning("Teacher %s: %s does not know `%s`.", self.name, self.teacher.host, parameter)

    async def _pause(self) -> None:
        """Wait until the server wants requests again."""
        while (rest := self.paused_until - time.monotonic()) > 0:
            await asyncio.sleep(rest)

    async def _wait(self, attempt: int, outcome: Again) -> None:
        """Wait before a request is sent again: as long as the server asks for, or longer each time."""
        if outcome.wait is None:
            seconds = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1))
            # Requests that failed together must not come back together.
            await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
            return
        if outcome.wait > LONGEST_RETRY_AFTER:
            raise checks.not_paid(self.name, self.teacher, f"it asks to wait for {outcome.wait:,.0f} seconds")
        self.paused_until = max(self.paused_until, time.monotonic() + outcome.wait)
        await self._pause()
