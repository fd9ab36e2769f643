"""The judge's process: asks a model for a verdict on every trajectory of a pool that it has not judged
before.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lark.config import Judge
from lark.errors import LarkError
from lark.generation import engine as engines
from lark.generation.engine import Engine, Request, Sampling
from lark.generation.journal import Journal
from lark.models import load
from lark.models.chat_template import control_tokens, render
from lark.models.dialogue import response_text
from lark.models.literal import Literal
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring import judge
from lark.scoring.shards import named, read_rows
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, batched, in_shards

log = logging.getLogger(__name__)

DEMO_JUDGE = (
    "The judge is the demo's student with a short prompt: its scores show only that the method runs; they"
    " mean nothing."
)
RETRY_TEMPERATURE = 0.6
"""Lowest temperature of a retry: greedy decoding would repeat the invalid answer."""
SLICE = 64
"""Rows of the pool in a shard."""
TOGETHER = 32
"""Shards whose requests are sent to the engine at once, which bounds the text in memory."""


class Asker:
    """Asks one judge, with its prompt as tokens, its schema and its stop tokens."""

    def __init__(self, settings: Judge, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.stop_ids = tuple(stop_ids)
        self.schema = judge.schema(settings.style)
        self.literal = Literal(tokenizer, control_tokens(tokenizer))

    def prompt(self, question: str, response: str) -> tuple[tuple[int, ...], bool]:
        """Token ids, and whether the response had to be cut (from the right) to leave room for the answer."""
        room = self.settings.max_length - self.settings.max_new_tokens
        tokens = self._tokens(question, response)
        if len(tokens) <= room:
            return tuple(tokens), False
        beginning = self.literal.tokenise_field(response)
        # Text that is cut and tokenised again may have more tokens than were left.
        while len(tokens) > room and beginning:
            beginning = beginning[: max(0, len(beginning) - (len(tokens) - room))]
            tokens = self._tokens(question, str(self.tokenizer.decode(beginning)))
        self._check_room(len(tokens), room)
        return tuple(tokens), True

    def _check_room(self, n_tokens: int, room: int) -> None:
        if n_tokens > room:
            raise LarkError(
                f"method.judge.max_length={self.settings.max_length}: the judge's prompt and question alone"
                f" take {n_tokens} tokens, and max_new_tokens={self.settings.max_new_tokens}. Set"
                " method.judge.style=brief or raise max_length."
            )

    def _tokens(self, question: str, response: str) -> list[int]:
        """The prompt as tokens, in non-thinking mode (App. C.2) if the template has one."""
        message = {"role": "user", "content": judge.user_turn(self.settings.style, question, response)}
        text = render(
            self.tokenizer, [self.literal.shield(message)], add_generation_prompt=True, enable_thinking=False
        )
        return self.literal.tokenise(text)

    def sampling(self, attempt: int) -> Sampling:
        temperature = self.settings.temperature
        if attempt:
            temperature = max(temperature, RETRY_TEMPERATURE)
        return Sampling(temperature, 1.0, -1, 1.0, 1, self.stop_ids, self.schema)

    def ask(
        self, engine: Engine, rows: Mapping[str, Mapping[str, Any]], verdicts: Journal, progress: Progress
    ) -> None:
        """Write a verdict for each row of the pool (by `judge.key`) as it arrives; ask again if it is not
        valid.
        """
        prompts = {name: self.prompt(row["question"], response_text(row)) for name, row in rows.items()}
        pending = list(rows)
        for attempt in range(self.settings.retries + 1):
            requests = [self._request(name, prompts[name][0], attempt) for name in pending]
            invalid = []
            for index, (answer,) in engines.generate(engine, requests, self.sampling(attempt)):
                name = pending[index]
                score = judge.overall_score(answer.text)
                # The last attempt is stored even if it is not valid, so that no later run asks again.
                if score is None and attempt < self.settings.retries:
                    invalid.append(name)
                    continue
                verdicts.append({"key": name, "score": score, "cut": prompts[name][1], "answer": answer.text})
                progress.update(1)
            # Answers arrive in any order; sorted, the next requests do not depend on it.
            pending = sorted(invalid)
            if not pending:
                return

    def _request(self, name: str, prompt: tuple[int, ...], attempt: int) -> Request:
        """The seed follows from the verdict's key, so that it does not depend on the batch."""
        seed = (int(name[:8], 16) >> 1) + attempt
        return Request(prompt, seed, self.settings.max_new_tokens)


@in_shards
def judge_pool(job: Job) -> Work:
    """Ask for the missing verdicts; `lark.scoring.judge.collect` merges them. A shard is a few rows of the
    pool.
    """
    settings = job.config.method.judge
    path = job.inputs["pool"] / pools.FILE
    if settings.model.is_bundled and job.is_main:
        log.warning(DEMO_JUDGE)
    folder = judge.verdicts_folder(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    slices = {}
    for group in pools.group_rows(path):
        for rows in _slices(group):
            slices[f"{rows.start}-{rows.stop}"] = rows

    def rows_of(shard: Shard) -> list[dict[str, Any]]:
        return read_rows(path, slices[shard.name], pools.TEXT_COLUMNS)

    def missing(wanted: Sequence[Shard]) -> list[Shard]:
        """The shards with rows that have no verdict yet; their sizes are the numbers of these rows."""
        judged = set(judge.known_verdicts(folder, report=job.is_main))
        unfinished = []
        for shard in wanted:
            new = _without_verdict(rows_of(shard), judged)
            # A text that several shards have is asked for in the first of them.
            judged |= set(new)
            if new:
                unfinished.append(replace(shard, size=len(new)))
        return unfinished

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        torch.set_num_threads(job.machine.threads)
        judged = set(judge.known_verdicts(folder))
        asker = Asker(settings, *load_tokenizer(job.weights, settings))
        gpus = engines.shared_gpus(job.config.engine.name, settings.tensor_parallel, job.machine.device)
        engine = replace(job.config.engine, tensor_parallel=gpus)
        started = engines.start(engine, settings.model, job.weights, asker.tokenizer, job.device)

        def do(wanted: Sequence[Shard], progress: Progress) -> None:
            for together in batched(wanted, TOGETHER):
                rows = [row for shard in together for row in rows_of(shard)]
                new = _without_verdict(rows, judged)
                if new:
                    asker.ask(started, new, verdicts, progress)
                    judged.update(new)

        journal = Journal(folder / f"{socket.gethostname()}-{os.getpid()}.jsonl", folder.name)
        with engines.running(started), journal as verdicts:
            yield do

    return Work(
        [Shard(name, len(rows), len(rows)) for name, rows in slices.items()],
        missing,
        load,
        lambda done: {"asked": int(done.size)},
        lambda shard: named(read_rows(path, slices[shard.name], KEY)),
        "judging",
        "traj",
        many=True,
    )


def _slices(rows: range) -> list[range]:
    return [rows[start : start + SLICE] for start in range(0, len(rows), SLICE)]


def _without_verdict(rows: Sequence[dict[str, Any]], judged: Collection[str]) -> dict[str, dict[str, Any]]:
    """The rows without a verdict, each distinct question and response once."""
    keyed = {judge.key(row["question"], response_text(row)): row for row in rows}
    return {name: row for name, row in keyed.items() if name not in judged}


def load_tokenizer(path: str, settings: Judge) -> tuple[PreTrainedTokenizerBase, list[int]]:
    """The judge's tokenizer, and every token that ends its answer: its end-of-text token and those of its
    generation config.
    """
    setting = f"method.judge.path={settings.path}"
    tokenizer = load.load_tokenizer(path, settings.revision, setting)
    if not tokenizer.chat_template:
        raise LarkError(f"{setting} has no chat template: a judge must be a chat model.")
    stops = load.generation_stops(path, settings.revision, setting, len(tokenizer))
    return tokenizer, sorted(stops | ({tokenizer.eos_token_id} - {None}))
