"""What is scored, trained on and sent at evaluation is the same prompt, token for token."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from lark.config import Judge
from lark.errors import LarkError
from lark.models.chat import ChatFormat, ChatOptions
from lark.models.dialogue import INSTRUCTION, dialogue_of, user_turn
from lark.models.load import load_chat
from lark.models.prompts import CHOICE, FREE_FORM, NUMERIC
from lark.models.students import DEMO
from lark.scoring.judge_worker import Asker, load_tokenizer
from lark.scoring.local import steps_of
from lark.training.training_set import read_rows
from tests.conftest import composed

TOKENIZERS = ["demo", "smollm2", "qwen2_5", "llama3_1"]


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    if request.param == "demo":
        return AutoTokenizer.from_pretrained(DEMO)
    if request.param == "smollm2":
        return AutoTokenizer.from_pretrained(request.getfixturevalue("smollm2"))
    folder: Path = request.getfixturevalue("shared_data") / "tokenizers" / request.param
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("system", [None, NUMERIC, CHOICE, FREE_FORM])
def test_the_prompt_at_evaluation_is_the_masked_prefix_at_training(
    tokenizer: PreTrainedTokenizerBase, system: str | None
) -> None:
    chat = ChatFormat(tokenizer)
    question, response = "How many is $3 + 4$?", "3 + 4 = 7.\n\\boxed{7}"
    encoded = chat.encode(question, response, 1000, system)
    assert list(encoded.ids[: encoded.prompt_length]) == chat.prompt(question, system)
    assert tokenizer.decode(encoded.ids[encoded.prompt_length : -1]) == response
    assert encoded.ids[-1] == chat.end_of_turn
    assert chat.end_of_turn in chat.stop_ids
    row = {"question": question, "response": response, "system": system}  # how scoring and training encode
    assert chat.encode_many([row], 1000) == [encoded]


@pytest.mark.parametrize("rest", ["{end}", "{end}\n", "{end}{end}"])
def test_a_response_that_brings_its_end_of_turn_gets_no_second_one(
    tokenizer: PreTrainedTokenizerBase, rest: str
) -> None:
    chat = ChatFormat(tokenizer)
    question, response = "How many is $3 + 4$?", "3 + 4 = 7. So:\n\\boxed{7}"
    stored = response + rest.format(end=tokenizer.convert_ids_to_tokens(chat.end_of_turn))
    expected = chat.encode(question, response, 1000)
    assert list(expected.ids).count(chat.end_of_turn) - chat.prompt(question).count(chat.end_of_turn) == 1
    assert chat.encode(question, stored, 1000) == expected
    plain, ended = ({"question": question, "system": None, "response": text} for text in (response, stored))
    assert chat.encode_many([ended], 1000, offsets=True) == chat.encode_many([plain], 1000, offsets=True)
    for e in chat.encode_many([plain, ended], 1000, offsets=True):
        assert e.text == response
        assert len(steps_of(e)) == e.n_response


def test_a_prompt_depends_on_no_date(tokenizer: PreTrainedTokenizerBase) -> None:
    text = ChatFormat(tokenizer).prompt_text("How many?")
    assert str(datetime.date.today().year) not in text


def test_a_template_that_asks_for_the_date_gets_the_same_one_every_day(tmp_path: Path) -> None:
    own = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    path = tmp_path / "template.jinja"
    path.write_text("Today is {{ strftime_now('%d %b %Y') }}. " + own.tokenizer.chat_template)  # type: ignore[operator]
    dated = ChatFormat(AutoTokenizer.from_pretrained(DEMO), str(path))
    assert dated.prompt_text("How many?") == "Today is 26 Jul 2024. " + own.prompt_text("How many?")
    judge = Asker(Judge(style="brief"), dated.tokenizer, dated.stop_ids)
    assert "26 Jul 2024" in str(dated.tokenizer.decode(judge.prompt("q", "r")[0]))


@pytest.mark.parametrize(("configured", "further"), [(7, {7}), ([1, 7, 9], {7, 9}), (None, set())])
def test_whatever_a_model_says_ends_its_answers_ends_them(
    configured: Any, further: set[int], tmp_path: Path
) -> None:
    own = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    own.tokenizer.save_pretrained(tmp_path)
    student = composed().student
    assert load_chat(str(tmp_path), student).stop_ids == own.stop_ids  # no generation config at all
    GenerationConfig(eos_token_id=configured).save_pretrained(tmp_path)
    assert set(load_chat(str(tmp_path), student).stop_ids) == {*own.stop_ids, *further}
    assert set(load_tokenizer(str(tmp_path), Judge())[1]) == {own.tokenizer.eos_token_id, *further}


def test_the_instruction_ends_the_user_turn_once(tokenizer: PreTrainedTokenizerBase) -> None:
    text = ChatFormat(tokenizer).prompt_text("How many?")
    assert text.count(INSTRUCTION) == 1
    assert user_turn(user_turn("How many?")) == user_turn("How many?")


@pytest.mark.parametrize("asked", [f"{INSTRUCTION}.", INSTRUCTION.lower(), INSTRUCTION.replace(" ", "\n")])
def test_a_pool_question_that_already_asks_for_a_box_is_left_alone(asked: str) -> None:
    assert user_turn(f"What is 2+2? {asked}") == f"What is 2+2? {asked}"


SYSTEMS = [INSTRUCTION, f" {INSTRUCTION.upper()}.\n", "Be brief.", f"Be brief. {INSTRUCTION}", None]


@pytest.mark.parametrize("system", SYSTEMS)
def test_scoring_training_and_evaluation_ask_once_and_with_the_same_tokens(
    tokenizer: PreTrainedTokenizerBase, system: str | None, tmp_path: Path
) -> None:
    """The instruction as system message is left out, because it ends the user turn. Other system messages
    stay.
    """
    chat = ChatFormat(tokenizer)
    row = {"question": "How many is $3 + 4$?", "response": "\\boxed{7}", "system": system}
    (scored,) = chat.encode_many([row], 1000)
    line = {"question_id": "q", "candidate_id": "c", "weight": 1.0, "messages": dialogue_of(row).messages}
    (tmp_path / "train.jsonl").write_text(json.dumps(line))
    (trained,) = chat.encode_dialogues(
        [example.dialogue for example in read_rows(tmp_path / "train.jsonl")], 1000
    )
    assert trained == scored
    assert list(scored.ids[: scored.prompt_length]) == chat.prompt(row["question"], system)

    kept = system if system in SYSTEMS[2:] else None
    evaluated = chat.prompt_text(row["question"], NUMERIC)
    prompt = chat.prompt_text(row["question"], system)
    assert prompt == (chat.prompt_text(row["question"]) if kept is None else evaluated.replace(NUMERIC, kept))
    before_user, user = prompt.split(row["question"])
    assert user.lower().count(INSTRUCTION.lower()) == 1
    assert before_user.count(INSTRUCTION) == (kept or "").count(INSTRUCTION)


def test_without_an_instruction_the_pools_system_message_stays(tokenizer: PreTrainedTokenizerBase) -> None:
    """These are the tokens of the authors' code."""
    messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": "How many?"}]
    chat = ChatFormat(tokenizer, options=ChatOptions(instruction=None))
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert chat.prompt_text("How many?", INSTRUCTION) == expected


@settings(max_examples=50, deadline=None)
@given(question=st.text(min_size=1), response=st.text(), length=st.integers(2, 60))
def test_truncation_keeps_the_first_tokens(question: str, response: str, length: int) -> None:
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    whole, cut = chat.encode(question, response, 10**6), chat.encode(question, response, length)
    assert cut.ids == whole.ids[:length]
    assert cut.truncated == (len(whole.ids) > length)
    assert cut.prompt_length == min(whole.prompt_length, length)


def test_many_at_once_equal_one_by_one() -> None:
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    rows = [
        {"question": f"What is {i % 3} + 1?", "response": f"{i}", "system": NUMERIC if i % 2 else None}
        for i in range(9)
    ]
    one_by_one = [chat.encode(row["question"], row["response"], 64, row["system"]) for row in rows]  # type: ignore[arg-type]
    assert chat.encode_many(rows, 64) == one_by_one


@pytest.mark.parametrize("template", ["llama3", "chatml"])
def test_our_own_templates_work_with_tokenizers_that_have_their_tokens(
    template: str, shared_data: Path
) -> None:
    name = {"llama3": "llama3_1", "chatml": "qwen2_5"}[template]
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    tokenizer.chat_template = None
    chat = ChatFormat(tokenizer, template)
    assert chat.prompt_text("How many?", "Be brief.").count("Be brief.") == 1
    assert "Date" not in chat.prompt_text("How many?")
    if template == "llama3":
        assert chat.prompt("How many?")[0] == tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "no special token"),
        (
            "{{ messages | length }}{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}",
            "changes the prompt",
        ),
        (
            "{% for m in messages %}{{ m['content'] if m['role'] == 'assistant' }}<|end|>{% endfor %}",
            "text of a user message",
        ),
        ("{% for m in messages %}{{ m['content'] | upper }}<|end|>{% endfor %}", "text of a user message"),
    ],
)
def test_a_template_that_breaks_the_prompt_is_refused(template: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(template)
    with pytest.raises(LarkError, match=said):
        ChatFormat(AutoTokenizer.from_pretrained(DEMO), str(path))


@pytest.mark.parametrize(
    ("expression", "is_written"),
    [("m['content']", True), ("m['content'] | trim", True), ("m['content'][:40]", False)],
)
def test_a_template_that_leaves_out_a_part_of_a_question_is_refused(
    expression: str, is_written: bool, tmp_path: Path
) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(f"{{% for m in messages %}}{{{{ {expression} }}}}<|end|>{{% endfor %}}")
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO), str(path))
    question = "How many are there? " * 5
    if is_written:
        assert question.strip() in chat.prompt_text(question)
        return
    for use in (lambda: chat.prompt(question), lambda: chat.encode(question, "Two.", 100)):
        with pytest.raises(LarkError, match="does not write the text of a user message as it is"):
            use()


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("1 / 0", "fails .division by zero"),
        ("'a'.encode('nope')", "fails .unknown encoding"),
        ("cycler()", "fails .at least one item"),
        ("'{}'.format()", "fails .tuple index out of range"),
        ("'%c' % 55296", "fails .*surrogates not allowed"),
        ("[1, 1] | random", "fails .No filter named 'random'"),
        ("lipsum()", "fails .'lipsum' is undefined"),
        ("raise_exception", "writes an address in memory"),
        ("'%s' % strftime_now", "writes an address in memory"),
    ],
)
def test_a_template_that_fails_or_differs_between_processes_is_refused(
    expression: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(
        f"{{{{ {expression} }}}}{{% for m in messages %}}{{{{ m['content'] }}}}<|end|>{{% endfor %}}"
    )
    with pytest.raises(LarkError, match=f"The chat template of .* {said}"):
        ChatFormat(AutoTokenizer.from_pretrained(DEMO), str(path))


def test_a_system_prompt_that_is_left_out_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}<|end|>{% endfor %}")
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO), str(path))
    for question in ("How many?", "How much?"):
        chat.prompt(question, "Be brief.")
    assert caplog.text.count("leaves out the system prompt") == 1


def test_a_tokenizer_without_a_template_reports_what_to_do() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    tokenizer.chat_template = None
    with pytest.raises(LarkError, match=r"student\.chat_template"):
        ChatFormat(tokenizer)
    with pytest.raises(LarkError, match="no such file"):
        ChatFormat(tokenizer, "vicuna")
