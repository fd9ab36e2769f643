"""A teacher that is run here, by one of the engines, with its own chat template."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lark import config
from lark.generation import engine as engines
from lark.generation.conversation import Ask, AskSampling, Failure, Reply
from lark.generation.engine import Generation, Request, Sampling
from lark.generation.thinking import separated
from lark.models.literal import unshield
from lark.models.load import load_chat
from lark.models.students import location


class LocalTeacher:
    """Asks a model on this machine. See `RunningTeacher` in conversation.py."""

    def __init__(
        self,
        name: str,
        teacher: config.Teacher,
        engine: config.EngineSettings,
        device: str,
        weights: str | None = None,
    ) -> None:
        model = teacher.local_model(name)
        path = location(model) if weights is None else weights
        self.teacher = teacher
        self.model = model
        self.chat = load_chat(path, model)
        gpus = engines.shared_gpus(teacher.engine, teacher.tensor_parallel, device)
        settings = replace(engine, name=teacher.engine, tensor_parallel=gpus)
        self.engine = engines.start(settings, model, path, self.chat.tokenizer, device)

    def ask(self, asks: Sequence[Ask], sampling: AskSampling) -> Iterator[tuple[int, list[Reply] | Failure]]:
        # Every sample is a request with its own seed, so it is the same whatever else is asked with it.
        requests: list[Request] = []
        owners: list[tuple[int, int]] = []
        """Index of the question, and number of the sample, of each request."""
        is_open: list[bool] = []
        """Whether the prompt of each question ends within the thinking."""
        for index, ask in enumerate(asks):
            text = self._prompt(ask.messages)
            prompt = tuple(self.chat.literal.tokenise(text))
            is_open.append(unshield(text).rstrip().endswith(self.teacher.tags[0]))
            if len(prompt) >= self.model.max_length:
                yield index, self._too_long(len(prompt))
                continue
            for number in range(_distinct(ask, sampling)):
                requests.append(self._request(prompt, ask.seed + number, sampling))
                owners.append((index, number))
        replies: dict[int, dict[int, Reply]] = {}
        settings = self._sampling(sampling)
        for place, (generation,) in engines.generate(self.engine, requests, settings):
            index, number = owners[place]
            reply = self._reply(generation, len(requests[place].prompt), is_open[index])
            samples = replies.setdefault(index, {})
            samples[number] = reply
            if len(samples) == _distinct(asks[index], sampling):
                ordered = [samples[number] for number in sorted(replies.pop(index))]
                yield index, ordered * (asks[index].samples // len(ordered))

    def close(self) -> None:
        self.engine.close()

    def _prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The rendered messages. Control tokens in them are text."""
        shielded = [self.chat.literal.shield(message) for message in messages]
        return self.chat.renderer.template.prompt(shielded)

    def _request(self, prompt: tuple[int, ...], seed: int, sampling: AskSampling) -> Request:
        room = self.model.max_length - len(prompt)
        return Request(prompt, seed, min(sampling.max_new_tokens, room))

    def _sampling(self, sampling: AskSampling) -> Sampling:
        stops = tuple(self.chat.stop_ids)
        return Sampling(
            sampling.temperature, sampling.top_p, sampling.top_k, 1.0, 1, stops, logprobs=sampling.logprobs
        )

    def _reply(self, generation: Generation, n_prompt_tokens: int, is_open: bool) -> Reply:
        reasoning, answer = separated(generation.text, self.teacher, is_open)
        name = (self.teacher.path or "").rstrip("/").rpartition("/")[2]
        return Reply(
            answer, reasoning, generation.finish_reason, generation.n_tokens, n_prompt_tokens, name,
            generation.logprobs,
        )  # fmt: skip

    def _too_long(self, n_tokens: int) -> Failure:
        return Failure(
            "too_long",
            f"The prompt has {n_tokens:,} tokens, and {self.model.setting}.context={self.model.max_length}.",
        )


def _distinct(ask: Ask, sampling: AskSampling) -> int:
    """Samples of a question that can differ. Greedy ones are identical."""
    return 1 if sampling.temperature == 0 else ask.samples
