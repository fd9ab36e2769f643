"""A command of the user's measures trained students and decides a comparison: real small programs, whose
numbers are read, limited and refused as documented.
"""

import json
import sys
import time
from pathlib import Path

import pytest

from experiments import compare
from experiments.harness import verdict
from experiments.harness.command import command_line, command_scores, last_line, measure, read_scores
from experiments.harness.contest import contest_of
from experiments.harness.game import Game, decide_schedule, replay
from experiments.harness.sweep import Sweep, Trial, compose_sweep
from lark.errors import LarkError
from tests.experiments.planted import build

PRINTS = """
import json, sys
from pathlib import Path
checkpoint = Path(sys.argv[1])
method = checkpoint.name.split("-")[1]
score = {"rsr": 0.8, "grape": 0.5}.get(method, 0.3)
print("loading", checkpoint)
"""
ONE_NUMBER = PRINTS + "print(score)"
PER_PROBLEM = (
    PRINTS
    + """
import zlib
seed = zlib.crc32(checkpoint.name.encode())
hardness = [zlib.crc32(f"{p}".encode()) % 97 / 97 + seed * (p + 1) % 11 / 110 for p in range(60)]
scores = [float(hard < score) for hard in hardness]
Path(sys.argv[2], "scores.json").write_text(json.dumps(scores))
"""
)


def program(folder: Path, code: str) -> str:
    """A command that runs this code."""
    folder.mkdir(exist_ok=True)
    file = folder / "measure it.py"
    file.write_text(code)
    return f"{sys.executable} '{file}' {{checkpoint}} {{output}}"


def sweep_of(outputs: Path, command: str, *arguments: str) -> Sweep:
    return compose_sweep("compare", [
        "method=rsr,grape,random,shortest", "compare.questions=20", "compare.seeds=[2,4]", "tracking=none",
        f"outputs={outputs}", "compare.criterion=command", f'compare.command="{command}"', *arguments,
    ])  # fmt: skip


def played(sweep: Sweep) -> Game:
    """The comparison with planted students, whose scores the real command measures."""
    contest = contest_of(sweep)
    decided = decide_schedule(contest)
    contest = contest_of(sweep, decided.questions, decided.entrants)
    contest.prepare()

    def perform(entrant: object, seed: int, trial: Trial) -> str | None:
        build(sweep, trial, lambda _: 0.0)
        try:
            measure(sweep, trial)
        except LarkError as error:
            return str(error)
        return None

    return Game(contest, decided).play(perform)


def test_scores_of_single_problems_decide_a_comparison(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "outputs", program(tmp_path / "bin", PER_PROBLEM))
    game = played(sweep)
    assert game.tables["RSR min"].shape == (2, 60), "the first heat decides"
    assert game.heats[-1].leader == "RSR min" and not game.failed
    assert verdict.sentence(game).startswith("RSR min (0.") and "is the best by the command's score" in (
        verdict.sentence(game)
    )
    assert "%" not in verdict.sentence(game).split("95% interval")[0]
    for trial in game.runs:  # nothing is generated: the command answers its own problems
        assert {step.stage for step in trial.steps} <= {"pool", "score", "select", "train"}


def test_a_single_number_ranks_but_is_never_called_significant(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "outputs", program(tmp_path / "bin", ONE_NUMBER))
    game = played(sweep)
    assert game.heats[-1].leader == "RSR min"
    assert not game.heats[-1].significant.any()
    assert "RSR min (0.8000) leads by the command's score. No difference can be called significant" in (
        verdict.sentence(game)
    )
    assert [len(heat.running) for heat in game.heats] == [4, 2], "the better half continues"


def test_the_report_and_a_resumed_comparison_read_what_was_stored(tmp_path: Path) -> None:
    command = program(tmp_path / "bin", ONE_NUMBER)
    sweep = sweep_of(tmp_path / "outputs", command)
    game = played(sweep)
    (tmp_path / "bin" / "measure it.py").unlink()  # not needed again
    again = replay(sweep)
    assert again is not None and again.tables.keys() == game.tables.keys()
    assert all((again.tables[name] == game.tables[name]).all() for name in game.tables)
    text = "".join(compare.render(sweep).notes)
    assert "RSR min (0.8000) leads" in text
    assert game.seconds >= sum(sweep.store.manifest(a).seconds for a in _measured(sweep, game))


def _measured(sweep: Sweep, game: Game) -> list:  # type: ignore[type-arg]
    from experiments.harness.command import scores_artifact

    return [scores_artifact(trial) for trial in game.runs]


WRITE = "import sys; open(sys.argv[2] + '/scores.json', 'w')"


@pytest.mark.parametrize(("code", "sentence"), [
    ("print('no number')", r"last line that the command printed, 'no number' .* is not a number\. The"),
    ("print('nan')", "is not a number"),
    ("", "is not a number"),
    ("import sys; print('no room'); sys.exit(3)", "failed with exit status 3: no room What it printed"),
    (WRITE + ".write('{}')", r"scores\.json is not a number"),
    (WRITE + ".write('[1,')", r"scores\.json is not a number"),
    (WRITE + ".write('[]')", r"scores\.json is not a number"),
])  # fmt: skip
def test_a_command_that_measures_nothing_fails_its_entrant_with_a_sentence(
    code: str, sentence: str, tmp_path: Path
) -> None:
    game = played(sweep_of(tmp_path / "outputs", program(tmp_path / "bin", code), "compare.seeds=[1]"))
    assert set(game.failed) == {"RSR min", "GRAPE max", "Random", "Shortest"}
    with pytest.raises(LarkError, match=sentence):
        raise LarkError(game.failed["RSR min"])
    stored = replay(sweep_of(tmp_path / "outputs", program(tmp_path / "bin", code), "compare.seeds=[1]"))
    assert stored is not None and stored.failed == game.failed


def test_different_numbers_of_problems_are_refused(tmp_path: Path) -> None:
    code = (
        PRINTS + "Path(sys.argv[2], 'scores.json').write_text(json.dumps([1, 0] * (2 + (method == 'rsr'))))"
    )
    with pytest.raises(
        LarkError, match=r"different numbers of problems \(.*RSR min \[6\].* the same problems"
    ):
        played(sweep_of(tmp_path / "outputs", program(tmp_path / "bin", code), "compare.seeds=[1]"))


def test_a_command_that_takes_too_long_is_stopped_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = PRINTS + (
        "import subprocess, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )
    wait = __import__("subprocess").Popen.wait
    monkeypatch.setattr(
        "subprocess.Popen.wait", lambda self, timeout=None: wait(self, timeout and timeout / 20)
    )
    started = time.monotonic()
    game = played(
        sweep_of(
            tmp_path / "outputs", program(tmp_path / "bin", code), "compare.seeds=[1]",
            "compare.command_minutes=1",
        )
    )  # fmt: skip
    assert "took more than 1 minutes and was stopped" in game.failed["RSR min"]
    assert time.monotonic() - started < 60
    child = Path("/proc") / (tmp_path / "pid").read_text()
    deadline = time.monotonic() + 5
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(child)


def _runs(process: Path) -> bool:
    try:
        return "State:\tZ" not in (process / "status").read_text()
    except OSError:
        return False


def test_a_program_that_is_not_installed_is_a_sentence(tmp_path: Path) -> None:
    game = played(sweep_of(tmp_path / "outputs", "no-such-program {checkpoint}", "compare.seeds=[1]"))
    assert "no-such-program cannot be started (No such file or directory)" in game.failed["RSR min"]


def test_paths_are_single_words_and_no_shell_reads_them(tmp_path: Path) -> None:
    odd = tmp_path / "a b; echo $HOME"
    words = command_line("run --model=pretrained={checkpoint},x=1 '{output}/r.json' $HOME", odd, odd)
    assert words == ["run", f"--model=pretrained={odd},x=1", f"{odd}/r.json", "$HOME"]


def test_samples_of_lm_eval_are_scores_of_single_problems(tmp_path: Path) -> None:
    folder = tmp_path / "me__mine"
    folder.mkdir()
    rows = [
        {
            "doc_id": doc,
            "filter": name,
            "metrics": ["exact_match"],
            "exact_match": float(doc == 1 or name == "b"),
        }
        for doc in (2, 0, 1)
        for name in ("a", "b")
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text(lines)
    (tmp_path / "log").write_text("0.9\n")
    assert read_scores(tmp_path, tmp_path / "log") == [0.0, 1.0, 0.0]
    (tmp_path / "scores.json").write_text("0.25")
    assert read_scores(tmp_path, tmp_path / "log") == [0.25]
    (folder / "samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text('{"doc": 1}\n')
    (tmp_path / "scores.json").unlink()
    with pytest.raises(LarkError, match="this is not a sample of lm-eval with a score"):
        read_scores(tmp_path, tmp_path / "log")


def test_the_last_line_of_a_long_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x\xff" * 200_000 + b"\n 0.5 \n\n \n")
    assert last_line(log) == "0.5"
    log.write_bytes(b"")
    assert last_line(log) == ""


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["compare.criterion=command"], r"needs a command that contains \{checkpoint\}"),
    (["compare.criterion=command", "compare.command=x"], r"needs a command that contains \{checkpoint\}"),
    (["compare.command='x {checkpoint}'"], r"compare\.command=.*needs compare\.criterion=command"),
    (["compare.criterion=command", 'compare.command="x \'{checkpoint}"'], "a quote is not closed"),
])  # fmt: skip
def test_settings_without_a_meaning_are_refused(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=sentence):
        compose_sweep("compare", [f"outputs={tmp_path}", *arguments])


def test_comparisons_by_other_criteria_keep_their_schedules(tmp_path: Path) -> None:
    from experiments.harness.game import schedule_artifact

    sweep = compose_sweep("compare", ["method=rsr,lark", "tracking=none", f"outputs={tmp_path}"])
    part = schedule_artifact(contest_of(sweep)).depends
    assert "command" not in part["compare"] and "command_minutes" not in part["compare"]
    assert command_scores is not None
