"""Nothing that other people wrote is executed, no credential is stored, and what is printed cannot act on
what shows it.
"""

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lark.errors import LarkError
from lark.output.style import panels, plain_label
from lark.output.tables import Cell, csv_text, latex_table, markdown_table
from lark.printing import Formatter, text_table, visible
from lark.secrets import Redactor, find, redact
from tests.conftest import ROOT, composed
from tests.hostile import command, small

SECRET = "s3cr3t-value-12345"
LOADERS = ("from_pretrained", "from_config")


# Code of models


def test_no_call_lets_a_model_bring_code() -> None:
    """Every call of transformers that could import a model's own Python code says that it must not."""
    missing = []
    for path in sorted((ROOT / "lark").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for call in [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ]:
            assert isinstance(call.func, ast.Attribute)
            owner = ast.unparse(call.func.value)
            if call.func.attr in LOADERS and owner.startswith("Auto"):
                said = {word.arg: ast.unparse(word.value) for word in call.keywords}
                spread = [ast.unparse(word.value) for word in call.keywords if word.arg is None]
                if said.get("trust_remote_code") != "False" and not {"STRICT", "source"} & set(spread):
                    missing.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert missing == []
    assert "trust_remote_code=True" not in "".join(path.read_text() for path in (ROOT / "lark").rglob("*.py"))


def test_code_in_a_models_folder_does_not_run(tmp_path: Path) -> None:
    from lark.models.load import load_chat, load_model
    from lark.models.shapes import DEMO

    student = tmp_path / "student"
    student.mkdir()
    for file in DEMO.iterdir():
        (student / file.name).write_bytes(file.read_bytes())
    code = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nclass Evil: pass\n"
    (student / "evil.py").write_text(code)
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((student / name).read_text())
        values["auto_map"] = {
            "AutoConfig": "evil.Evil",
            "AutoModelForCausalLM": "evil.Evil",
            "AutoTokenizer": ["evil.Evil", "evil.Evil"],
        }
        (student / name).write_text(json.dumps(values))
    settings = composed(f"student.path={student}").student
    for load in (
        lambda: load_chat(str(student), settings),
        lambda: load_model(str(student), settings, "cpu"),
    ):
        try:
            load()
        except LarkError as error:
            assert "cannot be loaded" in str(error)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "body",
    [
        "{{ 9**(9**9) }}",
        (
            "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{"
            " ns.x }}"
        ),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{%"
            " endfor %}{% endfor %}"
        ),
        (
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor"
            " %}{{ ns.x }}"
        ),
        (
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor"
            " %}{{ ns.x }}"
        ),
        "{{ 'x' * 99999999999 }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ (range(99999)|list * 99999)|join }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('touch /tmp/x').read() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no') }}",
    ],
)
def test_a_template_that_loops_explodes_or_reaches_out_is_a_sentence(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    from lark.models import sandbox
    from lark.models.chat_template import render
    from lark.models.shapes import DEMO

    monkeypatch.setattr(sandbox, "SECONDS", 1.0)
    monkeypatch.setattr(sandbox, "BYTES", 512 << 20)
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO))
    tokenizer.chat_template = body
    try:
        assert "passwd" not in render(tokenizer, [{"role": "user", "content": "x"}])
    except LarkError as error:
        assert "chat template" in str(error)


# Credentials


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefghijklmnopqrstuvwxyz", "https://user:passw0rd@host/x", "s3://AKIAABCDEFGHIJKLMNOP/x",
        "ghp_abcdefghijklmnopqrstuvwx",
        "https://host/x?token=abcdefgh", f"prefix {SECRET} suffix", "https://abcdefghijklmnop0123@host/x.git",
    ],
)  # fmt: skip
def test_credentials_are_recognised(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    assert find(text) is not None
    assert find(redact(text)) is None


def test_a_key_that_starts_like_a_path_is_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (
        "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE",
        "~nobody-here/K7MDENG",
        "/" + "x" * 5000,
        ".K7MDENGbPxRfiCY",
    ):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
        assert find(f"x={key}") is not None


def test_a_credential_in_pieces_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe may end anywhere in what a worker prints."""
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    first = f"loading {SECRET} from https://user:passw0rd@host/x"
    text = f"{first}\rstep 1\rstep 2\nhf_abcdefghijklmnopqrstuvwxyz\n".encode()
    for size in (1, 2, 3, 7, 11, 500):
        redactor = Redactor()
        pieces = [redactor.feed(text[at : at + size]) for at in range(0, len(text), size)]
        shown = b"".join([*pieces, redactor.feed(b"")])
        assert (
            shown == redact(text.decode()).encode()
            and SECRET.encode() not in shown
            and b"passw0rd" not in shown
        )
    redactor = Redactor()
    assert redactor.feed(b"\rstep 1 \rstep 2\n") == b"\rstep 1 \rstep 2\n", "a complete line is not held back"
    assert len(redactor.feed(b"x" * 200_000)) == 200_000, "what is held back is bounded"


@pytest.mark.parametrize(
    "text",
    [
        str(ROOT),
        "Qwen/Qwen2.5-7B",
        "0123456789abcdef0123456789abcdef01234567",
        "data/pool.jsonl",
        "https://host/a@b",
        "hf_",
    ],
)
def test_ordinary_settings_are_no_credentials(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN_PATH", "/home/someone/token")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true-or-not")
    monkeypatch.setenv("MY_SECRET", str(ROOT))
    assert find(text) is None and redact(text) == text


def holding(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("HF_TOKEN", f"tracking.group={SECRET}"),
        ("AWS_SECRET_ACCESS_KEY", f"+note={SECRET}"),
        ("MY_PASSWORD", f"student.path=x/{SECRET}"),
    ],
)
def test_a_credential_in_a_setting_is_refused_before_it_is_stored(
    name: str, setting: str, tmp_path: Path
) -> None:
    ended = command(*small(tmp_path, setting), prepare=lambda: os.environ.update({name: SECRET}))
    assert name in ended.sentence and SECRET not in ended.output
    assert holding(tmp_path, SECRET) == []


def test_a_credential_in_a_config_file_is_removed_from_what_hydra_saves(tmp_path: Path) -> None:
    (tmp_path / "conf" / "tracking").mkdir(parents=True)
    (tmp_path / "conf" / "tracking" / "mine.yaml").write_text(f"mode: none\ngroup: {SECRET}\n")
    arguments = [
        f"outputs={tmp_path / 'o'}",
        "stages=[pool]",
        "pool.questions=2",
        "tracking=mine",
        "--config-dir",
        str(tmp_path / "conf"),
    ]
    ended = command(*arguments, prepare=lambda: os.environ.update({"HF_TOKEN": SECRET}))
    assert "tracking.group" in ended.sentence and holding(tmp_path / "o", SECRET) == []


def test_a_run_stores_no_credentials_and_no_file_that_everyone_may_write(tmp_path: Path) -> None:
    def prepare() -> None:
        os.environ.update({"HF_TOKEN": SECRET, "WANDB_API_KEY": "0" * 40})
        os.umask(0)

    arguments = [argument for argument in small(tmp_path) if not argument.startswith("tracking")]
    assert command(*arguments, "tracking=offline", prepare=prepare).succeeded
    assert (
        (tmp_path / "runs").exists() and holding(tmp_path, SECRET) == [] and holding(tmp_path, "0" * 40) == []
    )
    assert [
        path for path in tmp_path.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o002
    ] == []


# What is printed


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\u202eb", "\x9b2J", "a\rb", "\u200bx", "\x07", "\u2066x"])
def test_control_characters_are_shown_not_obeyed(text: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "teacher %s", (text,), None)
    for shown in (visible(text), Formatter("%(message)s").format(record), text_table(["name"], [[text]])):
        assert text not in shown and "\\" in shown


def test_a_message_keeps_its_lines_and_letters() -> None:
    assert visible("Größe: ∅\n\t数 🙂") == "Größe: ∅\n\t数 🙂"


def test_names_in_tables_have_no_meaning_in_any_format() -> None:
    name = "a|b <script>x</script> [l](http://e) ![i](u) `c` **d** \\ & % _ # $x$ {y} ^ ~\nnew"
    markdown = markdown_table(["name"], [[name], [Cell(name, best=True)]])
    assert len(markdown.splitlines()) == 4
    for sign in ("|b", "<script", "[l]", "`c", "**d"):
        assert all(
            sign not in line.replace(f"\\{sign[0]}", "").replace("\\*", "")
            for line in markdown.splitlines()[2:3]
        )
    latex = latex_table(["name"], [[Cell(name)]], "A caption", "x")
    (row,) = [line for line in latex.splitlines() if "script" in line]
    assert (
        r"\textbackslash{}" in row and r"\&" in row and r"\$x\$" in row and r"\{y\}" in row and r"\%" in row
    )
    assert len(text_table(["name"], [[name]]).splitlines()) == 3


@pytest.mark.parametrize(
    "text", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "\t=1", '=HYPERLINK("http://e")']
)
def test_a_cell_of_a_csv_file_is_no_formula(text: str) -> None:
    assert str(csv_text(text)).startswith(("'", "\\t"))
    assert (
        pd.DataFrame({"a": [text]}).map(csv_text).to_csv(index=False).splitlines()[1].lstrip('"')[0] in "'\\"
    )


@pytest.mark.parametrize("value", ["-1.5", "+3", "-1e-5", "LARK", "", 5, -2.5, None, "q-1"])
def test_numbers_and_names_in_csv_files_are_unchanged(value: object) -> None:
    assert csv_text(value) == value


@pytest.mark.parametrize("name", ["$\\frac{", "a$b$c", "x" * 500, "\x1b[31m", "\\", "$"])
def test_a_teachers_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    figure, (axes,) = panels()
    axes.annotate(plain_label(name), (0.5, 0.5))
    axes.set_xticks([0.5], [plain_label(name)])
    figure.savefig(tmp_path / "figure.png")


# The Makefile


@pytest.mark.parametrize(
    "value",
    ["it's a pool", "a; touch pwned", "$(shell touch pwned)", "$HOME/x", "`touch pwned`", 'a"b', "a\\b"],
)
def test_a_variable_of_make_is_one_word(value: str, tmp_path: Path) -> None:
    made = subprocess.run(
        ["make", "-n", "run", f"POOL={value}", "ENGINE=cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in made.stdout.splitlines() if " run.py " in line]
    show = f"{sys.executable} -c 'import sys; print(sys.argv[-1], end=\"\")' {line.split(' run.py ')[1]}"
    assert (
        subprocess.run(show, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        == f"pool.path={value}"
    )
    assert list(tmp_path.iterdir()) == [] and not (ROOT / "pwned").exists()
