"""SGLang's engine against a stand-in with its interface: an event loop that answers requests in any order."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from transformers import AutoTokenizer

from lark.errors import LarkError
from lark.generation.engine import Request, Sampling, answers
from lark.generation.sglang import SGLangEngine
from lark.models.students import DEMO
from tests.conftest import composed

TOKENIZER = AutoTokenizer.from_pretrained(DEMO)
END = TOKENIZER.eos_token_id
SAMPLING = Sampling(0.6, 0.95, -1, 1.1, 2, (END,))
REQUESTS = [Request((5, 6, 7), 100, 8), Request((5, 6), 200, 8), Request((9,), 300, 8)]


@dataclass
class StandIn:
    """`sglang.Engine`: answers a request with its seed as the only token, after as many turns of the loop
    as it is slow.
    """

    settings: dict[str, Any]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    slow: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, dict[str, Any]] = field(default_factory=dict)
    refused: frozenset[int] = frozenset()
    running: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    most: int = 0

    async def async_generate(
        self, *, input_ids: list[int], sampling_params: dict[str, Any]
    ) -> dict[str, Any]:
        seed = sampling_params["sampling_seed"]
        if seed in self.refused:
            raise ValueError("The input is too long.\nTraceback")
        self.running.add(seed)
        self.most = max(self.most, len(self.running))
        try:
            for _ in range(self.slow.get(seed, 1)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.aborted.add(seed)
            raise
        finally:
            self.running.remove(seed)
        reason = self.reasons.get(seed, {"type": "stop", "matched": END})
        return {"output_ids": [len(input_ids), seed % 64, END], "meta_info": {"finish_reason": reason}}

    def shutdown(self) -> None:
        self.loop.close()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[SGLangEngine]:
    module = ModuleType("sglang")
    module.Engine = lambda **settings: StandIn(settings)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang", module)
    config = composed("engine=sglang")
    started = SGLangEngine(config.engine, config.student, str(DEMO), TOKENIZER, "cuda:0")
    yield started
    started.close()


def test_all_requests_run_at_once_and_a_slow_one_holds_up_no_other(engine: SGLangEngine) -> None:
    engine.engine.slow = {101: 1000}  # the second sample of the first request
    order = [index for index, _ in engine.generate(REQUESTS, SAMPLING)]
    assert order == [1, 2, 0]
    assert engine.engine.most == 6


def test_samples_belong_to_their_request_in_the_order_of_their_seeds(engine: SGLangEngine) -> None:
    engine.engine.slow = {100: 50, 201: 20, 300: 30}
    found = answers(engine, REQUESTS, SAMPLING)
    for request, samples in zip(REQUESTS, found, strict=True):
        tokens = [[len(request.prompt), (request.seed + i) % 64] for i in range(2)]
        assert [sample.text for sample in samples] == TOKENIZER.batch_decode(tokens, skip_special_tokens=True)
        assert [(sample.n_tokens, sample.finish_reason) for sample in samples] == [(3, "stop")] * 2


def test_a_caller_that_stops_early_aborts_the_rest(engine: SGLangEngine) -> None:
    engine.engine.slow = {100: 10**9, 101: 10**9}
    first = engine.generate(REQUESTS, SAMPLING)
    next(first)
    first.close()
    assert engine.engine.aborted >= {100, 101} and not engine.engine.running
    assert len(answers(engine, REQUESTS[1:], SAMPLING)) == 2


def test_no_requests_are_no_work(engine: SGLangEngine) -> None:
    assert answers(engine, [], SAMPLING) == []


def test_a_refused_request_is_a_sentence_and_aborts_the_rest(engine: SGLangEngine) -> None:
    engine.engine.refused, engine.engine.slow = frozenset({201}), {100: 10**9}
    with pytest.raises(LarkError, match=r"^engine=sglang refused a request \(The input is too long\)\.$"):
        answers(engine, REQUESTS, SAMPLING)
    assert 100 in engine.engine.aborted and not engine.engine.running


def test_an_answer_that_the_engine_gave_up_is_not_kept(engine: SGLangEngine) -> None:
    engine.engine.reasons = {200: {"type": "abort", "message": "out of memory"}}
    with pytest.raises(LarkError, match=r"did not finish a request \(abort: out of memory\)"):
        answers(engine, REQUESTS, SAMPLING)


@pytest.mark.parametrize(("overrides", "share"), [([], None), (["engine.memory=0.7"], 0.7)])
def test_sglang_estimates_its_memory_itself_unless_told(
    overrides: list[str], share: float | None, engine: SGLangEngine
) -> None:
    config = composed("engine=sglang", *overrides)
    started = SGLangEngine(config.engine, config.student, str(DEMO), TOKENIZER, "cuda:0")
    assert started.engine.settings["mem_fraction_static"] == share
    started.close()


def test_an_engine_that_cannot_start_is_a_sentence(
    engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**settings: Any) -> None:
        raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.\nat line 3")

    monkeypatch.setattr(sys.modules["sglang"], "Engine", fail)
    config = composed("engine=sglang")
    with pytest.raises(
        LarkError, match=r"engine=sglang cannot start with .* \(Not enough memory\. Please .*static\)\.$"
    ):
        SGLangEngine(config.engine, config.student, str(DEMO), TOKENIZER, "cuda:0")
    with pytest.raises(LarkError, match="needs a GPU"):
        SGLangEngine(config.engine, config.student, str(DEMO), TOKENIZER, "cpu")
