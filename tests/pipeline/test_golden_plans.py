"""Users' artifacts stay valid: the folders of all artifacts of every run in `RUNS` are compared with
recorded ones.

A change here invalidates finished work. If it is intended, explain it in docs/versions.md and write the file
again: python -m tests.pipeline.test_golden_plans
"""

import json
import tempfile
from pathlib import Path

import pytest

from lark.config.cli import as_hydra_reads
from lark.pipeline.plan import make_plan
from lark.store.store import Checksums
from tests.conftest import composed

GOLDEN = Path(__file__).with_name("golden_plans.json")
ROW = {
    "question_id": "q1",
    "candidate_id": "a",
    "teacher": "t",
    "question": "1+1?",
    "response": "\\boxed{2}",
    "answer": "2",
}
LINE = {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}],
        "weight": 1.0,
        "question_id": "q1", "candidate_id": "a"}  # fmt: skip

RUNS = [
    "",
    "method=rsr budget=1",
    "budget.size=7 weighting=kl",
    "method=local_naturalness weighting=softmax scoring.local_context=2",
    "method=rule_quality",
    "method=llm_judge",
    "method=llm_judge engine=vllm",
    "method=random method.seed=7 method.teacher=2",
    "method=external method.path={scores} method.higher_is_better=false",
    "method=base",
    "scoring.tokens=true method=token_length",
    "scoring.tokens=1 method=token_length",
    "method=entropy",
    "method=lark method.reverse=true share_weights=true",
    "method=correct_then_likely",
    "method=ifd",
    "method=lark_gram sketch.gram=16",
    "method=less",
    "analysis.name=surrogate",
    "analysis.name=grace",
    "analysis.name=gradients analysis.quick=true",
    "analysis.name=gradients analysis.questions=5",
    "analysis.name=theory analysis.dtype=bfloat16",
    "analysis.name=kappa training.snapshots=3",
    "analysis.name=contamination",
    "analysis.name=cost",
    "method=base analysis.name=theory",
    "training=lora training.held_out.path=selection",
    "training.held_out.path={lines} training.packing=false",
    "pool=files pool.path={rows} pool.correct_only=true pool.questions=1",
    "student=smollm2 student.dtype=float32 pool=files pool.path={rows}",
    "student=qwen7b pool.path={rsr} budget=3",
    "student=llama3b pool.path={rsr} method=llm_judge budget=1 training=verify",
    "student=qwen1.5b pool.path={rsr} method=grape benchmark=math500",
    "method=lark_top50",
    "method=local_naturalness scoring.local_steps=paragraphs",
    "whole_weights=margins",
    "pool=taught questions.path={asked} teacher=[self] teach.samples=2",
    "pool=taught questions.path={asked} teacher=[self,endpoint] questions.pass_rate=[0.1,0.9]"
    " teacher.endpoint.endpoint=http://127.0.0.1:8000/v1 teacher.endpoint.model=m teach.limit_tokens=100",
    "student=own student.path=some/model student.max_length=8192 pool=files pool.path={rows}",
]


def files(folder: Path) -> dict[str, str]:
    """Inputs with contents that never change."""
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "asked.csv").write_text("question,answer\n1+1?,2\n")
    (folder / "lines.jsonl").write_text(json.dumps(LINE) + "\n")
    (folder / "scores.csv").write_text("question_id,candidate_id,score\nq1,a,0.5\n")
    (folder / "rsr").mkdir(exist_ok=True)
    for name in ("phi_rollout1", "phi_rollout2"):
        (folder / "rsr" / f"{name}.json").write_text(json.dumps([{"messages": LINE["messages"]}]))
    return {
        "rows": "rows.jsonl",
        "lines": "lines.jsonl",
        "asked": "asked.csv",
        "scores": "scores.csv",
        "rsr": "rsr",
    }


def planned(run: str, folder: Path) -> list[list[str]]:
    """(operation, artifact's folder) of every artifact of a run."""
    places = {name: str(folder / file) for name, file in files(folder).items()}
    config = composed(*as_hydra_reads([part.format(**places) for part in run.split()]))
    steps = make_plan(config, Checksums(folder))
    return [
        [step.operation.name, artifact.folder.as_posix()] for step in steps for artifact in step.artifacts
    ]


@pytest.mark.parametrize("run", ["method=lark scoring.tokens=true", "method=ifd", "analysis.name=cost"])
def test_scores_are_the_same_artifact_with_and_without_ligers_kernels(run: str, tmp_path: Path) -> None:
    """They change the rounding only, as a batch size does (decision 15)."""
    assert planned(f"{run} scoring.liger=false", tmp_path) == planned(run, tmp_path)


@pytest.mark.parametrize("run", RUNS)
def test_finished_artifacts_stay_valid(run: str, tmp_path: Path) -> None:
    assert planned(run, tmp_path) == json.loads(GOLDEN.read_text())[run]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps({run: planned(run, Path(folder)) for run in RUNS}, indent=1) + "\n")
