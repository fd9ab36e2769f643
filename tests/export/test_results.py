"""Results are exported in shapes that Inspect and Every Eval Ever accept, and our own reader of pools reads
both back with every verdict.

Inspect (0.3.285) and the JSON schemas of Every Eval Ever (0.3.0) accepted these files when this was written.
Neither is installed here, so the tests compare with what their types require and allow.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lark.config import Pool
from lark.errors import LarkError
from lark.export.__main__ import main
from lark.pool.read import read
from lark.pool.trajectory import Trajectory
from tests.explorer.synthetic import artifact, write_answers

ANSWERS, TRAINED = "1" * 11 + "7", "1" * 11 + "8"
EVAL = {
    "eval_set_id", "eval_id", "run_id", "created", "task", "task_id", "task_version", "dataset", "model",
    "model_generate_config", "config", "packages", "metadata", "scorers", "revision", "tags", "solver",
}  # fmt: skip
SAMPLE = {
    "id", "epoch", "input", "choices", "target", "messages", "output", "scores", "metadata", "store",
    "events", "model_usage", "uuid", "error", "limit",
}  # fmt: skip
STOP_REASONS = {"stop", "max_tokens", "model_length", "tool_calls", "content_filter", "unknown"}


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A base model and a trained student on a benchmark of four problems, two seeds and two samples each."""
    root = tmp_path / "outputs"
    artifact(root, "checkpoint", "demo-lark-B3", "e" * 12, {}, {})
    write_answers(root, "demo-base", 4, ANSWERS)
    write_answers(root, "demo-lark-B3", 4, TRAINED, checkpoint=f"demo-lark-B3-{'e' * 12}")
    return root


def metrics(outputs: Path, print_: str) -> Path:
    (folder,) = (outputs / "metrics").glob(f"*-{print_}")
    return folder


def exported(outputs: Path, print_: str, target: str, to: Path, *options: str) -> Path:
    main([str(metrics(outputs, print_)), "--for", target, "--to", str(to), *options])
    return to


def graded(outputs: Path, print_: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (metrics(outputs, print_) / "grades.jsonl").open()]


def read_back(path: Path) -> list[Trajectory]:
    return list(read(Pool(name="files", format="rows", path=str(path))))


def test_inspect_reads_the_log(outputs: Path, tmp_path: Path) -> None:
    log = json.loads(exported(outputs, TRAINED, "inspect", tmp_path / "log.json").read_text())
    assert set(log) <= {"version", "status", "eval", "plan", "results", "stats", "error", "samples"}
    assert (log["version"], log["status"]) == (2, "success")
    assert set(log["eval"]) <= EVAL
    assert {"created", "task", "dataset", "model", "config"} <= set(log["eval"])  # those without a default
    assert (log["eval"]["model"], log["eval"]["task"]) == (f"demo-lark-B3-{'e' * 12}", "sums")
    assert log["eval"]["created"].endswith("+00:00") and log["eval"]["config"]["epochs"] == 4
    assert log["eval"]["dataset"] == {"name": "sums", "samples": 4}
    grades = graded(outputs, TRAINED)
    assert log["results"]["total_samples"] == len(log["samples"]) == len(grades) == 16
    for grader, score in zip(("paper", "verify"), log["results"]["scores"], strict=True):
        share = sum(grade[grader] for grade in grades) / 16
        assert score["name"] == score["scorer"] == grader
        assert score["metrics"]["accuracy"]["value"] == pytest.approx(share)
        assert set(score["metrics"]) == {"accuracy", "pass@2", "maj@2"}


def test_each_sample_of_a_log_has_its_text_its_epoch_and_both_grades(outputs: Path, tmp_path: Path) -> None:
    log = json.loads(exported(outputs, TRAINED, "inspect", tmp_path / "log.json").read_text())
    keys = {(sample["id"], sample["epoch"]) for sample in log["samples"]}
    assert keys == {(f"p{i}", epoch) for i in range(4) for epoch in (1, 2, 3, 4)}
    for sample, grade in zip(log["samples"], graded(outputs, TRAINED), strict=True):
        assert set(sample) <= SAMPLE
        (choice,) = sample["output"]["choices"]
        assert choice["stop_reason"] in STOP_REASONS
        assert choice["message"]["content"] == sample["output"]["completion"] == r"so \boxed{1}"
        assert sample["target"] == grade["gold"] and sample["id"] == grade["problem"]
        for grader, key in (("paper", "answer"), ("verify", "answer_verify")):
            assert sample["scores"][grader]["value"] == ("C" if grade[grader] else "I")
            assert sample["scores"][grader]["answer"] == grade[key]


def test_our_pools_read_the_log_back_with_every_verdict(outputs: Path, tmp_path: Path) -> None:
    trajectories = read_back(exported(outputs, TRAINED, "inspect", tmp_path / "log.json"))
    verdicts = [grade["paper"] for grade in graded(outputs, TRAINED)]
    assert sorted(t.correct is True for t in trajectories) == sorted(verdicts)
    assert len({t.question_id for t in trajectories}) == 4


@pytest.mark.parametrize("grader", ["paper", "verify"])
def test_a_record_of_every_eval_ever_has_the_metrics_and_the_instances_of_one_grader(
    grader: str, outputs: Path, tmp_path: Path
) -> None:
    folder = exported(
        outputs, ANSWERS, "every_eval", tmp_path / "eee", "--grader", grader, "--model", "me/mine"
    )
    (aggregate_file,) = folder.rglob("*.json")
    (samples_file,) = folder.rglob("*_samples.jsonl")
    aggregate = json.loads(aggregate_file.read_text())
    instances = [json.loads(line) for line in samples_file.open()]
    required = {
        "schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "model_info",
        "eval_library", "evaluation_results",
    }  # fmt: skip
    assert required <= set(aggregate) <= {*required, "evaluation_timestamp", "detailed_evaluation_results"}
    details = aggregate["detailed_evaluation_results"]
    assert folder / details["file_path"] == samples_file and details["total_rows"] == len(instances) == 16
    assert aggregate_file.parent == folder / "data" / "lark" / "me" / "mine"
    assert float(aggregate["retrieved_timestamp"]) > 0
    first, *_ = results = aggregate["evaluation_results"]
    assert [result["metric_config"]["metric_name"] for result in results] == ["pass@1", "pass@2", "maj@2"]
    grades = graded(outputs, ANSWERS)
    share = sum(grade[grader] for grade in grades) / 16
    assert first["score_details"]["score"] == pytest.approx(share)
    interval = first["score_details"]["uncertainty"]["confidence_interval"]
    assert interval["lower"] <= share <= interval["upper"]
    assert first["source_data"] == {"dataset_name": "sums", "source_type": "other"}
    for instance, grade in zip(instances, grades, strict=True):
        assert instance["evaluation_id"] == aggregate["evaluation_id"]
        assert instance["evaluation_result_id"] == first["evaluation_result_id"]
        assert instance["model_id"] == "me/mine" and instance["interaction_type"] == "single_turn"
        assert instance["evaluation"] == {"score": float(grade[grader]), "is_correct": grade[grader]}
        assert instance["input"]["reference"] == [grade["gold"]]
    assert sorted(t.correct is True for t in read_back(samples_file)) == sorted(
        grade[grader] for grade in grades
    )


def test_a_second_export_has_the_same_name(outputs: Path, tmp_path: Path) -> None:
    names = []
    for place in ("one", "two"):
        folder = exported(outputs, ANSWERS, "every_eval", tmp_path / place)
        names.append(sorted(path.relative_to(folder) for path in folder.rglob("*.json*")))
    assert names[0] == names[1]


def test_the_public_dataset_is_named_if_the_manifest_names_it(outputs: Path, tmp_path: Path) -> None:
    folder = metrics(outputs, ANSWERS)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["counts"]["dataset"] = {"id": "openai/gsm8k", "revision": "7" * 40, "task_id": "gsm8k"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    log = json.loads(exported(outputs, ANSWERS, "inspect", tmp_path / "log.json").read_text())
    assert log["eval"]["dataset"]["name"] == "openai/gsm8k"
    record = exported(outputs, ANSWERS, "every_eval", tmp_path / "eee")
    (aggregate,) = record.rglob("*.json")
    (source, *_) = [r["source_data"] for r in json.loads(aggregate.read_text())["evaluation_results"]]
    assert (source["source_type"], source["hf_repo"]) == ("hf_dataset", "openai/gsm8k")
    assert source["additional_details"] == {"revision": "7" * 40}


def test_what_is_no_evaluation_and_what_is_in_the_way_are_sentences(
    outputs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = next((outputs / "checkpoint").iterdir())
    with pytest.raises(
        LarkError, match=r"not a finished evaluation\. Give the folder of one, outputs/metrics"
    ):
        main([str(checkpoint), "--for", "inspect", "--to", str(tmp_path / "x.json")])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(LarkError, match="this folder is not empty"):
        exported(outputs, ANSWERS, "every_eval", tmp_path / "full")
    with pytest.raises(LarkError, match="this file exists"):
        exported(outputs, ANSWERS, "inspect", tmp_path / "full" / "file")
    with caplog.at_level(logging.INFO):
        exported(outputs, ANSWERS, "inspect", tmp_path / "log.json")
    assert "16 samples with the scores of both graders" in caplog.text
    generations = next((outputs / "generations").glob("demo-base*"))
    generations.rename(outputs / "elsewhere")
    with pytest.raises(LarkError, match="the answers that it grades are not in this store"):
        exported(outputs, ANSWERS, "inspect", tmp_path / "again.json")
