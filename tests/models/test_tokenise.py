"""Batches of texts are tokenised as one by one by transformers, for any tokenizer, batch size and number of
threads.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lark.models import tokenise as tokenising
from lark.models.students import DEMO
from lark.models.tokenise import tokenise, uses_backend
from lark.work.launch import environment
from lark.work.machine import Machine
from tests.conftest import ROOT

TEXTS = [
    "",
    "3 + 4 = 7.\n\\boxed{7}",
    "  two  spaces ",
    "naïve café 数学 🙂",
    "<|im_end|> <s> </s> <|eot_id|>",
    "x" * 5000,
]
DEMO_TOKENIZER = AutoTokenizer.from_pretrained(DEMO)


@pytest.mark.parametrize("name", ["demo", "qwen2_5", "llama3_1", "deepseek_v3"])
def test_ids_and_offsets_are_those_of_transformers(name: str, request: pytest.FixtureRequest) -> None:
    folder = DEMO if name == "demo" else request.getfixturevalue("shared_data") / "tokenizers" / name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = [tokenizer(text, add_special_tokens=False, return_offsets_mapping=True) for text in TEXTS]
    assert uses_backend(tokenizer)
    assert [list(tokens.ids) for tokens in tokenise(tokenizer, TEXTS)] == [
        one["input_ids"] for one in expected
    ]
    spans = [tokens.offsets for tokens in tokenise(tokenizer, TEXTS, offsets=True)]
    assert spans == [[tuple(span) for span in one["offset_mapping"]] for one in expected]


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(max_size=30), max_size=12), limit=st.integers(1, 60))
def test_the_size_of_batches_changes_nothing(texts: list[str], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenising, "CHARACTERS_AT_ONCE", limit)
        batches = list(tokenising._batches(texts))
        in_batches = list(tokenise(DEMO_TOKENIZER, texts))
    assert [text for batch in batches for text in batch] == texts
    assert all(len(batch) == 1 or sum(map(len, batch)) <= limit for batch in batches)
    assert in_batches == list(tokenise(DEMO_TOKENIZER, texts))


def test_truncation_and_padding_of_a_tokenizer_file_do_not_apply(tmp_path: Path) -> None:
    DEMO_TOKENIZER.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(file))
    cut = AutoTokenizer.from_pretrained(tmp_path)
    assert [list(t.ids) for t in tokenise(cut, TEXTS)] == [
        list(t.ids) for t in tokenise(DEMO_TOKENIZER, TEXTS)
    ]


def test_a_class_that_changes_the_text_first_keeps_doing_so() -> None:
    class Lower(PreTrainedTokenizerFast):
        def _encode_plus(self, text: Any, *args: Any, **options: Any) -> Any:
            return super()._encode_plus([one.lower() for one in text], *args, **options)

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Lower(tokenizer_object=backend, unk_token="?")
    assert not uses_backend(tokenizer)
    found = list(tokenise(tokenizer, ["A b", "C"], offsets=True))
    assert [list(tokens.ids) for tokens in found] == [[0, 1], [2]]
    assert [tokens.offsets for tokens in found] == [[(0, 1), (2, 3)], [(0, 1)]]


SCRIPT = """
import json
from transformers import AutoTokenizer
from lark.models.students import DEMO
from lark.models.tokenise import tokenise
texts = [f"{i} + {i} = {2 * i}. " * 50 for i in range(64)]
print(json.dumps([list(tokens.ids) for tokens in tokenise(AutoTokenizer.from_pretrained(DEMO), texts)]))
"""


def test_the_number_of_threads_changes_nothing() -> None:
    """With the variables that workers get: one process of an 8-process machine has the threads of all."""
    found = []
    for machine, processes, threads in ((Machine("cpu", 1, 1, 1), 1, "1"), (Machine("cpu", 2, 1, 2), 1, "4")):
        env = environment(machine, processes)
        assert (env["TOKENIZERS_PARALLELISM"], env["RAYON_NUM_THREADS"]) == ("true", threads)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]


def test_processes_share_the_threads_of_the_machine() -> None:
    machine = Machine("cpu", 8, 1, 16)
    assert [environment(machine, n)["RAYON_NUM_THREADS"] for n in (None, 8, 4, 1)] == [
        "16",
        "16",
        "32",
        "128",
    ]
