"""Teachers as a group of settings: several per run, each in a file of its own."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from lark import config, secrets
from lark.config import Config
from lark.config.cli import as_hydra_reads
from lark.config.hydra_errors import sentence
from lark.config.schema import others
from lark.config.teacher import SELF, Teacher, check_teachers
from lark.errors import LarkError
from tests.conftest import ROOT, composed, run_program

PAPER = {
    "deepseek_r1", "gpt_oss_120b", "gpt_oss_20b", "magistral_small", "nemotron_super", "phi4_reasoning_plus",
    "qwen3_235b", "qwen3_30b", "qwen3_4b", "qwen3_8b", "qwq_32b",
}  # fmt: skip
LOCAL: dict[str, Any] = {"path": "a/b"}
FAR: dict[str, Any] = {"endpoint": "https://host/v1", "model": "name"}


def typed(*arguments: str) -> Config:
    """The configuration of a command line."""
    return composed(*as_hydra_reads(list(arguments)))


def test_a_run_without_teachers_has_none() -> None:
    assert composed().teacher == {}


@pytest.mark.parametrize("choice", ["teacher=[qwq_32b,qwen3_8b]", "teacher=qwq_32b,qwen3_8b"])
def test_a_run_has_several_teachers(choice: str) -> None:
    teachers = typed(choice, "teacher.qwq_32b.temperature=0.9").teacher
    assert list(teachers) == ["qwq_32b", "qwen3_8b"]
    assert (teachers["qwq_32b"].temperature, teachers["qwen3_8b"].temperature) == (0.9, 0.6)


def test_every_teacher_of_the_paper_has_a_file() -> None:
    stems = {path.stem for path in (ROOT / "conf" / "teacher").glob("*.yaml")}
    assert stems >= PAPER | {SELF, "endpoint"}
    for name in PAPER:
        (only,) = composed(f"teacher=[{name}]").teacher
        assert only == name


def test_the_student_is_a_teacher_as_it_is() -> None:
    run = composed("teacher=[self]", "student=qwen7b", "student.template_options={}")
    teacher = run.teacher[SELF]
    student = run.student
    assert (teacher.path, teacher.context, teacher.dtype) == (student.path, student.max_length, student.dtype)
    assert (teacher.instruction, teacher.engine) == (student.instruction, run.engine.name)


def test_a_teacher_survives_the_way_to_a_worker() -> None:
    from dataclasses import asdict

    run = typed("teacher=[qwq_32b]", "teacher.qwq_32b.template_options.enable_thinking=true")
    assert config.from_dict(asdict(run)).teacher == run.teacher
    assert run.teacher["qwq_32b"].template_options == {"enable_thinking": True}


def test_a_file_of_ones_own_adds_a_teacher(tmp_path: Path) -> None:
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "mine.yaml").write_text("# @package teacher.mine\npath: my/model\n")
    code, output = run_program(
        "--config-dir",
        str(tmp_path),
        "teacher=[mine]",
        "teacher.mine.engine=hf",
        "pool=taught",
        "questions.path=demo",
        "stages=[pool]",
        "dry_run=true",
        outputs=tmp_path,
    )
    assert code == 0, output
    assert "my/model" in (next(tmp_path.rglob(".hydra/config.yaml"))).read_text()


def test_trials_with_different_teachers_have_different_folders() -> None:
    names = {others([f"teacher={value}"]) for value in ("[a]", "[b]", "[a,b]", "a", f"[{'x' * 90},a]")}
    assert len(names) == 4  # a and [a] are the same


def test_the_questions_own_system_prompt_is_kept_unless_there_is_another() -> None:
    assert Teacher(path="a/b").system_prompt("Be brief.") == "Be brief."
    assert Teacher(path="a/b", system="Think.").system_prompt("Be brief.") == "Think."


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "teacher.x has no model: set teacher.x.path"),
        ({**LOCAL, **FAR}, "teacher.x.endpoint is set too"),
        ({"endpoint": "https://host/v1"}, "needs the name of its model"),
        ({**LOCAL, "model": "name"}, "only applies to an endpoint"),
        ({**LOCAL, "engine": "llama"}, "teacher.x.engine=llama: choose one of vllm, sglang, hf"),
        ({**LOCAL, "thinking": "reasoning_content"}, "only an endpoint returns reasoning apart"),
        ({**LOCAL, "tags": ["<think>"]}, "give two"),
        ({**LOCAL, "template_options": {"tools": []}}, "is not a variable of chat templates"),
        ({**FAR, "endpoint": "host/v1"}, "must be the address of a server"),
        ({**FAR, "endpoint": "https://host:port/v1"}, "must be the address of a server"),
        ({**FAR, "endpoint": "https://host/v1?key=1"}, "must be the address of a server"),
        ({**FAR, "endpoint": "https://host/v1/chat/completions"}, "leave out /chat/completions"),
        ({**FAR, "endpoint": "http://host/v1"}, "http is not encrypted"),
        ({**FAR, "endpoint": "http://127.0.0.1.host/v1"}, "http is not encrypted"),
        ({**FAR, "extra": {"n": 3}}, "has a setting of its own"),
        ({**FAR, "temperature": -1.0}, "teacher.x.temperature"),
        ({**FAR, "top_p": 0.0}, "teacher.x.top_p"),
        ({**FAR, "failures": 2.0}, "must be a share from 0 to 1"),
        ({**FAR, "concurrency": 0}, "must be at least 1"),
        ({**FAR, "price": config.teacher.Price(-1.0)}, "teacher.x.price.input"),
    ],
)
def test_a_wrong_setting_is_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(LarkError) as error:
        check_teachers({"x": Teacher(**settings)})
    assert said in str(error.value)


@pytest.mark.parametrize(
    "endpoint", ["http://localhost:8000/v1", "http://127.0.0.1:8000", "http://[::1]:8000/v1", "https://h/v1"]
)
def test_http_is_for_this_machine(endpoint: str) -> None:
    check_teachers({"x": Teacher(endpoint=endpoint, model="name", key="MY_KEY")})


def test_http_in_a_cluster_has_to_be_allowed_and_carries_no_key() -> None:
    inside = {"endpoint": "http://node7:8000/v1", "model": "name", "plain_http": True}
    check_teachers({"x": Teacher(**inside)})
    with pytest.raises(LarkError, match="a key is not sent without encryption"):
        check_teachers({"x": Teacher(**inside, key="MY_KEY")})


@pytest.mark.parametrize("key", ["sk-0123456789abcdefghijklmn", "5f2a9c01deadbeef", "my key", "AIzaSy-x", ""])
def test_a_key_in_place_of_its_variable_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(LarkError, match="must be the name of an environment variable") as error:
        check_teachers({"x": Teacher(**FAR, key=key)})
    assert not key or key not in str(error.value)


def test_the_value_of_a_keys_variable_is_redacted_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_ACCESS", "a-value-that-nobody-may-see")
    composed("teacher=[endpoint]", "teacher.endpoint.endpoint=https://h/v1", "teacher.endpoint.model=m",
             "teacher.endpoint.key=MY_ACCESS")  # fmt: skip
    assert secrets.redact("x a-value-that-nobody-may-see x") == "x <MY_ACCESS> x"


TYPED = "a-key-that-was-typed-0123"


@pytest.mark.parametrize("place", ["command line", "file"])
def test_a_key_that_was_typed_reaches_no_file_and_no_output(tmp_path: Path, place: str) -> None:
    (tmp_path / "conf" / "teacher").mkdir(parents=True)
    text = "# @package teacher.mine\nendpoint: https://host/v1\nmodel: name\nkey: "
    (tmp_path / "conf" / "teacher" / "mine.yaml").write_text(text + (TYPED if place == "file" else "null"))
    arguments = ["--config-dir", str(tmp_path / "conf"), "teacher=[mine]", "stages=[pool]", "dry_run=true"]
    if place == "command line":
        arguments.append(f"teacher.mine.key={TYPED}")
    code, output = run_program(*arguments, outputs=tmp_path / "out")
    assert code != 0
    assert "teacher.mine.key must be the name of an environment variable" in output
    assert TYPED not in output
    for file in (tmp_path / "out").rglob("*"):
        assert file.is_dir() or TYPED not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["teacher=[nobody]"], "teacher=nobody: there is no such option; choose one of deepseek_r1"),
        (["teacher=[qwq_32b]", "teacher.qwen3_8b.temperature=1"], "add it, as in teacher=[qwen3_8b]"),
        (["teacher=[qwq_32b]", "teacher.qwq_32b.temprature=1"], "there is no such key"),
    ],
)
def test_a_wrong_choice_is_a_sentence(arguments: list[str], said: str) -> None:
    with pytest.raises(HydraException) as error:
        typed(*arguments)
    assert said in sentence(error.value)


@pytest.mark.parametrize("first", ["", "# @package teacher\n", "# @package _group_\n"])
def test_a_file_without_a_name_is_a_sentence(tmp_path: Path, first: str) -> None:
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "mine.yaml").write_text(f"{first}path: my/model\n")
    config.register()
    with (
        initialize_config_dir(str(ROOT / "conf"), version_base="1.3"),
        pytest.raises(HydraException) as error,
    ):
        compose("config", overrides=[f"hydra.searchpath=[file://{tmp_path}]", "teacher=[mine]"])
    assert "# @package teacher.mine" in sentence(error.value)
