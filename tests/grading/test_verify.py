"""The verify grader, in real processes: what it equates, and that it always ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark.grading.answers import AnswerFormat, extract_boxed_list
from lark.grading.choices import choice_letter
from lark.grading.verify import Pair, Verifier

NUMERIC, CHOICE, FREE_FORM = AnswerFormat.NUMERIC, AnswerFormat.CHOICE, AnswerFormat.FREE_FORM
ROOT = Path(__file__).parents[2]
HANGING = "9^{9^{9^{9}}}"
"""An integer with 10^369693099 digits, which sympy tries to compute."""


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(processes=2) as verifier:
        yield verifier


CASES = [
    # prediction, gold, the grade; numbers exactly, before rounding
    ("0.5", r"\frac{1}{2}", True),
    ("137.5", r"137 \frac{1}{2}", True),
    ("10080", r"10,\!080", True),
    ("58500", "58,500", True),
    ("0.333333", r"\frac{1}{3}", True),
    ("0.333", r"\frac{1}{3}", False),
    ("0.166667", r"\frac{1}{6}", True),
    ("0.000003", r"\frac{1}{300001}", False),
    ("33.3", r"\frac{100}{3}", False),
    ("0.0833333333333333", r"\frac{1}{12}", True),
    ("3.14159265", r"\pi", True),
    ("3.14", r"\pi", False),
    ("0.0000673", ".0000672", False),
    (r"6.72 \times 10^{-5}", ".0000672", True),
    ("0.999999999", "1", False),
    ("1 - 10^{-30}", "1", False),
    ("10^{10} + 1", "10^{10}", False),
    (r"\frac{1}{2006!}", r"\frac{1}{2004!}", False),
    (r"\sqrt{8}", r"2\sqrt{2}", True),
    (r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{e}", False),
    ("1:00", "12:00", False),
    (r"12\,000", "12000", True),
    (r"3.12\,000", "3.12", False),
    (r"0.\overline{3}", r"\frac{1}{3}", True),
    (r"2.1\overline{6}", r"\frac{13}{6}", True),
    (r"0.\overline{3}", "0.3", False),
    (r"\cos 60^\circ", r"\frac{1}{2}", True),
    (r"\frac{\cos 60^\circ}{2}", r"\frac{1}{4}", True),
    (r"\tan\left(45^{\circ}\right)", "1", True),
    (r"\cos 60", r"\frac{1}{2}", False),
    (r"e^{i\pi}", "-1", True),
    (r"\frac{3i}{6}", "0.5i", True),
    ("2-3i, 2+3i", "2+3i, 2-3i", True),
    ("2+3i", "2-3i", False),
    # mixed numbers
    (r"1\frac{2}{3}", r"\frac{5}{3}", True),
    (r"-1\frac23", r"-\frac{5}{3}", True),
    (r"1 2/3", r"\frac{5}{3}", True),
    (r"1 2/3", "1", False),
    ("5 6", "11", False),
    (r"\frac 1 2", "0.50", True),
    ("1 234 567", "1234567.0", True),
    (r"1\frac{2}{3}", "4", False),
    (r"1\frac{2}{2}", "6", False),
    (r"\frac{1}{2}5", r"\frac{1}{25}", False),
    # infinite values equal only themselves
    (r"\infty", "204", False),
    (r"\infty", r"-\infty", False),
    (r"+\infty", r"\infty", True),
    (r"\log 0", "5", False),
    (r"\tan(\pi/2)", "3", False),
    (r"\sum_{n=1}^{\infty} n", "7", False),
    (r"\sum_{n=1}^{\infty} \frac{1}{n}", "7", False),
    (r"\sum_{n=1}^{\infty} \frac{1}{2^n}", "1", True),
    (r"(2, \infty)", "(2, 5)", False),
    (r"\frac{1}{0}", "7", False),
    # percents, units, names
    (r"10\%", "10", True),
    (r"28 \text{ percent}", r"28\%", True),
    ("864", r"864 \mbox{ inches}^2", True),
    ("5", "x=5", True),
    ("3k", "3", False),
    # bases
    ("4210_5", "4210_{5}", True),
    ("4210", "4210_{5}", True),
    ("4210_6", "4210_{5}", False),
    # expressions
    (r"\frac{x}{7}+\frac{2}{7}", r"\frac{x+2}{7}", True),
    ("(b+2)(a+5)", "(a+5)(b+2)", True),
    ("(a+5)(b+3)", "(a+5)(b+2)", False),
    (r"\frac{2z}{2}", "z", True),
    (r"\frac{2z}{3}", "z", False),
    ("3+2x", "y = 2x + 3", True),
    # lists, tuples, matrices
    ("1, -2", "-2,1", True),
    ("1", "-2,1", False),
    ("(3,1)", "(1,3)", False),
    (r"\{3,5\}", "(3,5)", False),
    (r"\left\{5,3\right\}", r"\{3,5\}", True),
    (r"\{3,5\}", "3, 5", True),
    ("(1,4.5)", r"(1,\frac{9}{2})", True),
    (r"(1, 0.0000673)", "(1, 0.0000672)", False),
    (r"\begin{bmatrix} 1 \\ 0.5 \end{bmatrix}", r"\begin{pmatrix} 1 \\ 1/2 \end{pmatrix}", True),
    (r"\begin{pmatrix} 1 \\ 1/3 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 1/2 \end{pmatrix}", False),
    # sets and inequalities
    (r"-2 \le x \le 7", r"x \in [-2,7]", True),
    ("[-2,7]", r"x \in [-2,7]", True),
    ("-793 < a < 10", "(-793, 10)", True),
    (r"x < 2 \text{ or } x > 3", r"(-\infty, 2) \cup (3, \infty)", True),
    (r"x < 2 \text{ or } x > 4", r"(-\infty, 2) \cup (3, \infty)", False),
    (r"(2, \infty)", r"(2,\infty)", True),
    ("[0,9)", "(0,9)", False),
    # words
    ("Evelyn", r"\text{Evelyn}", True),
    ("East", r"\text{east}", True),
    (r"\text{west}", r"\text{east}", False),
    ("C", r"\text{(C)}", True),
    # not mathematics
    (None, "5", False),
    ("", "5", False),
    ("{" * 50, "5", False),
    ("\\", "5", False),
    ("\x00\udc80", "5", False),
    ("5" * 5000, "5", False),
]


@pytest.fixture(scope="module")
def grades(verifier: Verifier) -> list[bool]:
    return verifier.grade_many([(prediction, gold, FREE_FORM) for prediction, gold, _ in CASES])


@pytest.fixture(scope="module")
def swapped(verifier: Verifier) -> list[bool]:
    return verifier.grade_many([(gold, prediction or "", FREE_FORM) for prediction, gold, _ in CASES])


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{p} ~ {g}"[:60] for p, g, _ in CASES])
def test_the_verify_grader(grades: list[bool], index: int) -> None:
    assert grades[index] is CASES[index][2]


ONE_WAY = {"4210": False, "0.333": True}
"""Grades with the prediction as the gold answer. A prediction must not add a base; a gold answer may be
rounded to fewer digits.
"""


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{g} ~ {p}"[:60] for p, g, _ in CASES])
def test_only_rounding_and_bases_depend_on_which_answer_is_the_gold(swapped: list[bool], index: int) -> None:
    prediction, _, grade = CASES[index]
    assert swapped[index] is (ONE_WAY.get(prediction, grade) if prediction else grade)


CHOICES = [
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("B.", "B"),
    ("B)", "B"),
    (r"\text{B}", "B"),
    (r"\textbf{(B)}", "B"),
    ("$B$", "B"),
    ("E: A polygenic risk score", "E"),
    ("A polygenic risk score", None),
    ("B or C", None),
    ("B, C", None),
    ("B) or C)", None),
    ("(B) (C)", None),
    ("B) / C)", None),
    ("(B) and (C) are both right", None),
    ("B) or C", None),
    ("B. C.", None),
    ("B) K", "B"),
    ("B) (R)-2-bromobutane", "B"),
    ("B) vitamin C", "B"),
    ("B. C is larger", "B"),
    ("Boron", None),
    ("", None),
]


@pytest.mark.parametrize(("answer", "letter"), CHOICES)
def test_a_choice_is_its_letter(verifier: Verifier, answer: str, letter: str | None) -> None:
    assert choice_letter(answer) == letter
    assert verifier.grade_many([(answer, letter or "B", CHOICE)]) == [letter is not None]
    assert verifier.grade_many([(answer, "D", CHOICE)]) == [False]


def test_every_pair_of_the_collected_graders_tests_is_graded_as_labelled(
    verifier: Verifier, shared_data: Path
) -> None:
    rows = [json.loads(line) for line in (shared_data / "grader_pairs.jsonl").open(encoding="utf-8")]
    pairs: list[Pair] = []
    for row in rows:
        text = row["pred"] if "box" in row["pred"] else rf"\boxed{{{row['pred']}}}"
        is_choice = row["gold"] in tuple("ABCDE")
        pairs.append((extract_boxed_list(text), row["gold"], CHOICE if is_choice else FREE_FORM))
    grades = verifier.grade_many(pairs)
    assert len(rows) == 105
    assert [row for row, grade in zip(rows, grades, strict=True) if grade is not row["match"]] == []


def test_every_reference_solution_of_math500_is_graded_correct(verifier: Verifier, shared_data: Path) -> None:
    problems = [
        json.loads(line) for line in (shared_data / "benchmarks" / "math500.jsonl").open(encoding="utf-8")
    ]
    grades = verifier.grade_many(
        [(extract_boxed_list(p["solution"]), p["answer"], FREE_FORM) for p in problems]
    )
    assert len(grades) == 500
    assert [p["answer"] for p, grade in zip(problems, grades, strict=True) if not grade] == []


def test_brackets_around_an_answer_of_math500_do_not_matter(verifier: Verifier, shared_data: Path) -> None:
    """The brackets keep the answers from being equal as text, so that each is read and compared."""
    problems = [
        json.loads(line) for line in (shared_data / "benchmarks" / "math500.jsonl").open(encoding="utf-8")
    ]
    answers = {p["answer"] for p in problems}
    golds = sorted(
        gold for gold in answers if not set(gold) & set(",:=_") and "text" not in gold and "mbox" not in gold
    )
    golds = golds[::6]
    grades = verifier.grade_many([(f"({gold})", gold, FREE_FORM) for gold in golds])
    assert len(golds) > 40
    assert [gold for gold, grade in zip(golds, grades, strict=True) if not grade] == []


@pytest.mark.parametrize("benchmark", ["aime24", "amc83"])
def test_numeric_golds_grade_themselves_and_not_their_neighbours(
    verifier: Verifier, shared_data: Path, benchmark: str
) -> None:
    path = shared_data / "benchmarks" / f"{benchmark}.jsonl"
    golds = [str(json.loads(line)["answer"]) for line in path.open(encoding="utf-8")]
    assert all(verifier.grade_many([(str(int(float(gold))), gold, NUMERIC) for gold in golds]))
    assert not any(verifier.grade_many([(str(int(float(gold)) + 1), gold, NUMERIC) for gold in golds]))


def test_a_hanging_comparison_is_cut_off_and_the_others_are_graded() -> None:
    easy: list[Pair] = [(rf"\frac{{{n}}}{{{2 * n}}}", "1/2", FREE_FORM) for n in range(2, 12)]
    with Verifier(processes=2, timeout=1) as verifier:
        start = time.monotonic()
        assert (
            verifier.grade_many([*easy[:5], (HANGING, "5", FREE_FORM), *easy[5:]])
            == [True] * 5 + [False] + [True] * 5
        )
        assert verifier.cut_off == 1
        assert time.monotonic() - start < 60
        assert verifier.grade_many(easy) == [True] * 10


def test_a_worker_that_is_killed_from_outside_costs_no_grade() -> None:
    pairs: list[Pair] = [(rf"\frac{{{n}}}{{{3 * n}}}", "1/3", FREE_FORM) for n in range(2, 6)]
    with Verifier(processes=1) as verifier:
        assert verifier.grade_many(pairs) == [True] * 4
        os.kill(verifier._workers[0].process.pid, signal.SIGKILL)
        assert verifier.grade_many(pairs) == [True] * 4
        assert verifier.cut_off == 0


def test_no_process_is_left_behind_even_after_an_error_in_the_middle() -> None:
    def interrupt(_: int) -> None:
        if pool._workers:
            started.extend(worker.process.pid for worker in pool._workers)
            raise KeyboardInterrupt

    before, started = worker_processes(os.getpid()), list[int]()
    pool = Verifier(processes=2, timeout=30)
    with pytest.raises(KeyboardInterrupt), pool:
        pool.grade_many([("2x/2", "x", FREE_FORM), (HANGING, "5", FREE_FORM)], progress=interrupt)
    assert len(started) == 2
    assert worker_processes(os.getpid()) == before


def worker_processes(parent: int) -> list[int]:
    """The current worker processes of a parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            owner = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        if owner == parent and b"verify_process" in command:
            found.append(int(folder.name))
    return sorted(found)


CALLER = textwrap.dedent("""
    import sys, time
    from lark.grading.answers import AnswerFormat
    from lark.grading.verify import Verifier

    with Verifier(processes=1, timeout=2) as verifier:
        verifier.grade_many([("2x/2", "x", AnswerFormat.FREE_FORM)])
        print(verifier._workers[0].process.pid, flush=True)
        verifier.grade_many([(sys.argv[1], "5", AnswerFormat.FREE_FORM)])
        time.sleep(60)
""")


@pytest.mark.parametrize("answer", [HANGING, "5"], ids=["at work", "idle"])
def test_a_killed_parent_leaves_no_orphan(answer: str) -> None:
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, answer], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    with caller:
        worker = int(caller.stdout.readline())
        time.sleep(0.3)
        caller.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def test_grades_come_in_order_whatever_the_number_of_processes() -> None:
    pairs: list[Pair] = [(f"{n}x/{n}", "x" if n % 3 else "y", FREE_FORM) for n in range(2, 20)]
    expected = [n % 3 != 0 for n in range(2, 20)]
    for processes in (1, 2):
        done: list[int] = []
        with Verifier(processes=processes) as verifier:
            assert verifier.grade_many(pairs * 2, progress=done.append) == expected * 2
        assert sum(done) == 36


def test_equal_answers_are_compared_once(verifier: Verifier) -> None:
    pairs: list[Pair] = [(r"\frac{2z}{2}", "z", FREE_FORM)] * 10_000
    start = time.process_time()
    assert all(verifier.grade_many(pairs))
    assert time.process_time() - start < 5


def test_grading_loads_no_torch() -> None:
    modules = "lark.grading.strict.verify_process, lark.work.worker, lark.evaluation.grade"
    check = f"import sys, {modules}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_caller_is_not_imported_again_by_its_workers(tmp_path: Path) -> None:
    """A script without an `if __name__` guard, started like torchrun does, from another folder."""
    script = tmp_path / "caller.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nprint('imported')\n"
        + CALLER.replace("time.sleep(60)", "")
    )
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, str(script), "5"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("imported") == 1
