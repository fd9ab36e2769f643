"""The benchmarks beyond the paper's load from files in the shape of their public datasets: solutions whose
end is the answer, options up to J, levels in words, and answers that are compared as text.
"""

import json
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lark.config import Config, Task
from lark.errors import LarkError
from lark.evaluation.benchmarks import load, system_prompt
from lark.evaluation.grade import GoldAnswers, grades
from lark.grading.answers import AnswerFormat, grade_paper
from lark.grading.choices import choice_letter
from lark.grading.final_answers import exact_answer
from lark.grading.verify import Verifier
from lark.models import prompts
from lark.pipeline.fingerprints import questions_part
from tests.conftest import composed

AIME = {"problem_type": ["Algebra"]}
ROWS: dict[str, Any] = {
    "aime25": lambda i: {"problem_idx": i + 1, "problem": f"AIME {i}?", "answer": i, **AIME},
    "aime26": lambda i: {"problem_idx": i + 1, "problem": f"AIME {i}?", "answer": i},
    "hmmt25": lambda i: {
        "problem_idx": i + 1,
        "problem": f"HMMT {i}?",
        "answer": rf"\frac{{{i}}}{{7}}",
        **AIME,
    },
    "gsm8k": lambda i: {"question": f"Ducks {i}?", "answer": f"1 + 1 = <<1+1=2>>2\n#### {i * 1000:,}"},
    "math": lambda i: {
        "problem": f"MATH {i}?",
        "level": f"Level {i % 5 + 1}" if i else "Level ?",
        "type": "Algebra",
        "solution": rf"First \boxed{{0}}, then ${i}$: $\boxed{{\frac{{{i}}}{{7}}}}.$",
    },
    "mmlu_pro": lambda i: {
        "question_id": 70 + i,
        "question": f"MMLU {i}?",
        "options": [f"option {n}" for n in range(3 + i % 8)],
        "answer": string.ascii_uppercase[2 + i % 8],
        "answer_index": 2 + i % 8,
        "cot_content": "",
        "category": "law",
        "src": "x",
    },
}
GOLD = {
    **{"aime25": "3", "aime26": "3", "hmmt25": r"\frac{3}{7}"},
    **{"gsm8k": "3000", "math": r"\frac{3}{7}", "mmlu_pro": "F"},
}


def configured(name: str, folder: Path, suffix: str = ".parquet") -> tuple[Config, Task]:
    """The settings of a benchmark whose file has the columns and the size of its dataset."""
    count = composed(f"benchmark={name}").benchmark.tasks[name].count
    assert count is not None
    table = pd.DataFrame([ROWS[name](i) for i in range(count)])
    path = folder / f"{name}{suffix}"
    if suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_json(path, orient="records", lines=True)
    config = composed(f"benchmark={name}", f"benchmark.tasks.{name}.path={path}")
    return config, config.benchmark.tasks[name]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("name", ROWS)
def test_each_benchmark_is_read_in_the_shape_of_its_dataset(name: str, suffix: str, tmp_path: Path) -> None:
    _, task = configured(name, tmp_path, suffix)
    problems = load(name, task)
    assert len(problems) == task.count == len({problem.id for problem in problems})
    assert problems[3].answer == GOLD[name]
    form = AnswerFormat(task.answer_format)
    assert all(grade_paper(problem.answer, problem.answer, form) for problem in problems)
    assert task.public is not None and len(task.public.revision or "") == 40
    if name == "math":
        assert [problem.level for problem in problems[:6]] == [None, 2, 3, 4, 5, 1]


def test_the_prompt_of_a_choice_names_the_letters_that_the_problem_has(tmp_path: Path) -> None:
    _, task = configured("mmlu_pro", tmp_path)
    problems = load("mmlu_pro", task)
    three, ten = problems[0], problems[7]
    assert three.question == "MMLU 0?\n\nA) option 0\nB) option 1\nC) option 2"
    assert system_prompt(three, task).endswith("exactly one of A, B, C.")
    assert ten.question.endswith("I) option 8\nJ) option 9")
    assert system_prompt(ten, task).endswith("exactly one of A, B, C, D, E, F, G, H, I, J.")
    assert system_prompt(problems[1], task) == prompts.CHOICE
    assert system_prompt(replace(ten, options=()), task) == prompts.CHOICE
    for letter in "EFGHIJ":
        assert choice_letter(letter) == choice_letter(f"{letter}) 5 cm") == letter


def test_older_benchmarks_keep_their_fingerprints(tmp_path: Path) -> None:
    """The new settings count only where they are used."""
    absent = Task(label="Mine", path="someone/dataset", answer_format="choice")
    assert not {"answer_from", "options_field"} & questions_part("mine", absent).keys()
    assert questions_part("mine", replace(absent, answer_from="box"))["answer_from"] == "box"
    _, gpqa = configured("mmlu_pro", tmp_path)
    assert questions_part("mmlu_pro", gpqa)["options"] == "all letters"
    demo = composed("benchmark=demo_choice").benchmark.tasks["demo_choice"]
    assert set(questions_part("demo_choice", demo)) == {"questions", "answer_format"}


def mine(folder: Path, row: dict[str, Any], **settings: Any) -> Task:
    path = folder / "mine.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return Task(label="Mine", path=str(path), **{"answer_format": "free_form", **settings})


BOX, HASHES, OPTIONS = {"answer_from": "box"}, {"answer_from": "hashes"}, {"options_field": "all"}
NO_LIST = "`all` must be a list of at least two options"


@pytest.mark.parametrize(("row", "settings", "sentence"), [
    ({"answer": "It is 5."}, HASHES, r"no answer in this solution, which ends in 'It is 5\.'"),
    ({"answer": "5"}, BOX, r"answer_from=box reads it from the last \\boxed\{\}"),
    ({"answer": "D", "all": ["1", "2", "3"]}, OPTIONS, "not the letter of one of its 3 options"),
    ({"answer": "A", "all": ["1"]}, OPTIONS, NO_LIST),
    ({"answer": "A", "all": "1, 2"}, OPTIONS, NO_LIST),
    ({"answer": "A", "all": list("abcdefghijk")}, OPTIONS, "11 options, but letters go from A to J"),
])  # fmt: skip
def test_a_gold_answer_that_is_not_there_is_a_sentence(
    row: dict[str, Any], settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    form = "choice" if "options_field" in settings else "free_form"
    with pytest.raises(LarkError, match=sentence):
        load("mine", mine(tmp_path, {"problem": "?", **row}, answer_format=form, **settings))


def test_a_solution_may_end_in_a_box_without_braces(tmp_path: Path) -> None:
    for solution in (r"So $\boxed 5$.", r"So \fbox{5}."):
        (problem,) = load("mine", mine(tmp_path, {"problem": "?", "answer": solution}, answer_from="box"))
        assert problem.answer == "5"


@pytest.mark.parametrize(("setting", "sentence"), [
    ("answer_from=last_number", "choose one of box"),
    ("options_field=options", "use answer_format=choice, without distractor_fields"),
])  # fmt: skip
def test_settings_that_mean_nothing_are_refused(setting: str, sentence: str) -> None:
    with pytest.raises(LarkError, match=sentence):
        composed("benchmark=gsm8k", f"benchmark.tasks.gsm8k.{setting}")


@pytest.mark.parametrize(("text", "answer"), [
    ("It is <answer>Father</answer>.", "Father"),
    (r"It is \boxed{Father}.", "Father"),
    (r"<answer>x = \boxed{5}</answer>", "5"),
    (r"\boxed{6}, no: <answer>5</answer>", "5"),
    (r"<answer>6</answer>, no: \boxed{5}", "5"),
    (r"<answer>5</answer> \boxed{", "5"),
    ("It is Father.", None),
    ("<answer> </answer>", None),
])  # fmt: skip
def test_an_exact_answer_is_in_tags_or_in_a_box(text: str, answer: str | None) -> None:
    assert exact_answer(text) == answer


EXACT = [
    ("Father", "father", True),
    (r"\text{Father}", "father", True),
    ("**Father**.", "Father", True),
    ("[1, 2,3]", "[1,2, 3]", True),
    ("a  b\n c", "a b c", True),
    ("a b c", "a bc", False),
    ("father or mother", "father", False),
    ("007", "7", False),
    ("-5", "5", False),
    ("1/2", "0.5", False),
    ("*", "**", False),
    ("*", "*", True),
    ("", ".", False),
]


@pytest.mark.parametrize(("prediction", "gold", "is_right"), EXACT)
def test_exact_answers_are_equal_apart_from_case_and_layout(
    prediction: str, gold: str, is_right: bool
) -> None:
    assert grade_paper(prediction, gold, AnswerFormat.EXACT_TEXT) is is_right


def test_both_graders_read_exact_answers_alike() -> None:
    problems = {str(n): {"answer": gold} for n, (_, gold, _) in enumerate(EXACT)}
    samples = []
    for n, (prediction, _, _) in enumerate(EXACT):
        text = f"So <answer>{prediction}</answer>"
        samples.append({"problem": str(n), "seed": 0, "sample": 0, "text": text})
    with Verifier(processes=1) as verifier:
        graded = grades(samples, GoldAnswers(problems, AnswerFormat.EXACT_TEXT), verifier)
    assert [grade["paper"] for grade in graded] == [is_right for _, _, is_right in EXACT]
    assert [grade["verify"] for grade in graded] == [is_right for _, _, is_right in EXACT]
