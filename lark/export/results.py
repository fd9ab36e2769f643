"""Results of an evaluation in the formats of other tools: logs of Inspect, and records of Every Eval Ever."""

import hashlib
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lark.config import GRADERS
from lark.evaluation.resampled import Resampled
from lark.export.checks import check_file, check_new_folder
from lark.output.evaluations import FinishedEvaluation, GradedAnswer
from lark.store.store import write_text

Values = dict[str, Any]
STOP_REASONS = {"stop": "stop", "length": "max_tokens"}
"""Inspect's names of the reasons for which an answer ends."""
SCHEMA = "0.3.0"
"""Version of Every Eval Ever's schemas."""
CONFIDENCE = 0.95


def inspect_log(evaluation: FinishedEvaluation, model: str) -> Values:
    """A log of Inspect (its EvalLog, version 2). An epoch is one sample of every problem."""
    manifest = evaluation.generations.manifest
    decoding = evaluation.decoding
    readings = {grader: evaluation.resampled(grader) for grader in GRADERS}
    epochs = readings["paper"].samples
    samples = [_inspect_sample(answer, model) for answer in evaluation.answers()]
    scores = []
    for grader, reading in readings.items():
        scores.append(_inspect_score(grader, reading, len(samples)))
    config = {
        "temperature": decoding.get("temperature"),
        "top_p": decoding.get("top_p"),
        "max_tokens": decoding.get("max_new_tokens"),
    }
    name = evaluation.dataset.get("id", evaluation.task)
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": evaluation.metrics.fingerprint,
            "run_id": evaluation.generations.fingerprint,
            "created": _utc(manifest.started),
            "task": evaluation.task,
            "task_id": evaluation.task,
            "task_version": 0,
            "dataset": {"name": name, "samples": len(samples) // epochs},
            "model": model,
            "model_generate_config": config,
            "config": {"epochs": epochs, "epochs_reducer": ["mean"]},
            "packages": {key: str(value) for key, value in manifest.versions.items()},
            "metadata": {"decoding": dict(decoding), "engine": evaluation.engine},
        },
        "plan": {"name": "plan", "steps": [{"solver": "generate", "params": {}}]},
        "results": {"total_samples": len(samples), "completed_samples": len(samples), "scores": scores},
        "stats": {
            "started_at": _utc(manifest.started),
            "completed_at": _utc(evaluation.metrics.manifest.started),
        },
        "samples": samples,
    }


def _utc(moment: str) -> str:
    """A moment of a manifest, which is local time, in UTC."""
    return datetime.fromisoformat(moment).astimezone(UTC).isoformat() if moment else ""


def _inspect_score(grader: str, reading: Resampled, samples: int) -> Values:
    metrics = {
        "accuracy": reading.pass_at_1,
        f"pass@{reading.k}": reading.pass_at_k,
        f"maj@{reading.k}": reading.majority_at_k,
    }
    return {
        "name": grader,
        "scorer": grader,
        "reducer": "mean",
        "scored_samples": samples,
        "unscored_samples": 0,
        "metrics": {name: {"name": name, "value": value / 100} for name, value in metrics.items()},
    }


def _inspect_sample(answer: GradedAnswer, model: str) -> Values:
    sample = answer.sample
    message = {"role": "assistant", "content": sample["text"], "source": "generate", "model": model}
    scores = {}
    for grader in GRADERS:
        value = "C" if answer.grade[grader] else "I"
        scores[grader] = {"value": value, "answer": answer.read_by(grader), "explanation": sample["text"]}
    values = {
        "id": answer.problem["id"],
        "epoch": answer.number,
        "input": answer.problem["question"],
        "target": answer.grade["gold"],
        "messages": [{"role": "user", "content": answer.problem["question"], "source": "input"}, message],
        "output": {
            "model": model,
            "choices": [{"message": message, "stop_reason": _stop_reason(sample)}],
            "completion": sample["text"],
        },
        "scores": scores,
        "metadata": {"seed": sample["seed"], "sample": sample["sample"], "level": answer.problem["level"]},
    }
    options = answer.problem["options"]
    return {**values, "choices": list(options)} if options else values


def _stop_reason(sample: Mapping[str, Any]) -> str:
    return STOP_REASONS.get(str(sample.get("finish_reason")), "unknown")


def every_eval(evaluation: FinishedEvaluation, model: str, grader: str) -> tuple[Values, list[Values]]:
    """The aggregate record and the instances of Every Eval Ever, for one grader. The first metric, pass@1, is
    that of the instances.
    """
    started = evaluation.metrics.manifest.started
    identity = f"{evaluation.task}/{model}/{evaluation.metrics.fingerprint}"
    reading = evaluation.resampled(grader)
    low, high = reading.interval
    interval = {
        "confidence_interval": {
            **{"lower": low / 100, "upper": high / 100, "confidence_level": CONFIDENCE},
            "method": "percentile bootstrap over problems",
        }
    }
    metrics = [
        ("pass@1", 1, reading.pass_at_1, interval),
        (f"pass@{reading.k}", reading.k, reading.pass_at_k, {}),
        (f"maj@{reading.k}", reading.k, reading.majority_at_k, {}),
    ]
    results = []
    for metric, k, value, uncertainty in metrics:
        score = {"score": value / 100, "details": {"grader": grader, "samples": str(reading.samples)}}
        if uncertainty:
            score["uncertainty"] = uncertainty
        results.append(
            {
                "evaluation_result_id": f"{identity}/{metric}",
                "evaluation_name": evaluation.task,
                "source_data": _source_data(evaluation),
                "metric_config": _metric_config(metric, k),
                "score_details": score,
                "generation_config": {"generation_args": _generation_args(evaluation.decoding)},
            }
        )
    aggregate = {
        "schema_version": SCHEMA,
        "evaluation_id": identity,
        "evaluation_timestamp": _utc(started),
        "retrieved_timestamp": _epoch(started),
        "source_metadata": {
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "first_party",
        },
        "eval_library": {"name": "lark", "version": evaluation.metrics.manifest.git or "unknown"},
        "model_info": {
            "name": model.rpartition("/")[2],
            "id": model,
            "inference_engine": {"name": evaluation.engine},
            "additional_details": {"deployment_type": "self_deployed", "model_availability": "unknown"},
        },
        "evaluation_results": results,
    }
    result_id = f"{identity}/pass@1"
    instances = []
    for answer in evaluation.answers():
        instance = _instance(answer, grader, model)
        instances.append({**instance, "evaluation_id": identity, "evaluation_result_id": result_id})
    return aggregate, [{**instance, "evaluation_name": evaluation.task} for instance in instances]


def _epoch(moment: str) -> str:
    """A moment in seconds since 1970, as the schema asks for."""
    return str(datetime.fromisoformat(moment).timestamp()) if moment else "0"


def _metric_config(metric: str, k: int) -> Values:
    return {
        "metric_id": "pass_at_k" if metric.startswith("pass") else "maj_at_k",
        "metric_name": metric,
        "metric_kind": "pass_rate" if metric.startswith("pass") else "accuracy",
        "metric_unit": "proportion",
        "metric_parameters": {"k": k},
        "lower_is_better": False,
        "score_type": "continuous",
        "min_score": 0.0,
        "max_score": 1.0,
    }


def _source_data(evaluation: FinishedEvaluation) -> Values:
    dataset = evaluation.dataset
    if not dataset:
        return {"dataset_name": evaluation.task, "source_type": "other"}
    details = {"revision": dataset["revision"]} if dataset.get("revision") else {}
    return {
        "dataset_name": evaluation.task,
        "source_type": "hf_dataset",
        "hf_repo": dataset["id"],
        "samples_number": len(evaluation.problems),
        "additional_details": details,
    }


def _generation_args(decoding: Mapping[str, Any]) -> Values:
    named = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_new_tokens": "max_tokens"}
    return {named[key]: value for key, value in decoding.items() if key in named}


def _instance(answer: GradedAnswer, grader: str, model: str) -> Values:
    sample = answer.sample
    gold = answer.grade["gold"]
    read = answer.read_by(grader)
    question = answer.problem["question"]
    attribution = []
    if read is not None:
        attribution = [
            {
                **{"turn_idx": 0, "source": "output.raw", "extracted_value": read},
                **{"extraction_method": f"grader {grader}", "is_terminal": True},
            }
        ]
    is_correct = bool(answer.grade[grader])
    return {
        "schema_version": SCHEMA,
        "model_id": model,
        "sample_id": str(answer.problem["id"]),
        "sample_hash": hashlib.sha256((question + gold).encode()).hexdigest(),
        "interaction_type": "single_turn",
        "input": {
            "raw": question,
            "reference": [gold],
            "choices": list(answer.problem["options"]) or None,
        },
        "output": {"raw": [sample["text"]]},
        "answer_attribution": attribution,
        "evaluation": {"score": float(is_correct), "is_correct": is_correct},
        "metadata": {
            "seed": str(sample["seed"]),
            "sample": str(sample["sample"]),
            "finish_reason": str(sample.get("finish_reason")),
        },
    }


def write_inspect(evaluation: FinishedEvaluation, model: str, grader: str, to: Path) -> str:
    """One file, which `inspect view` and `read_eval_log` open. It has the scores of both graders."""
    check_file(to)
    log = inspect_log(evaluation, model)
    write_text(to, json.dumps(log, ensure_ascii=False) + "\n")
    return f"{to}: {len(log['samples'])} samples with the scores of both graders, for Inspect (inspect view)."


def write_every_eval(evaluation: FinishedEvaluation, model: str, grader: str, to: Path) -> str:
    """The two files of a record, at their places in the datastore."""
    check_new_folder(to)
    aggregate, instances = every_eval(evaluation, model, grader)
    # A second export of the same evaluation has the same name.
    name = hashlib.sha256(f"{aggregate['evaluation_id']}/{grader}".encode()).digest()
    record = uuid.UUID(bytes=name[:16], version=4)
    developer, _, short = model.rpartition("/")
    place = Path("data") / "lark" / (developer or "unknown") / short
    lines = "".join(json.dumps(instance, ensure_ascii=False) + "\n" for instance in instances)
    samples = place / f"{record}_samples.jsonl"
    aggregate["detailed_evaluation_results"] = {
        "format": "jsonl",
        "file_path": samples.as_posix(),
        "hash_algorithm": "sha256",
        "checksum": hashlib.sha256(lines.encode()).hexdigest(),
        "total_rows": len(instances),
    }
    (to / place).mkdir(parents=True)
    write_text(to / samples, lines)
    write_text(to / place / f"{record}.json", json.dumps(aggregate, indent=2, ensure_ascii=False) + "\n")
    return (
        f"{to / place}: a record of Every Eval Ever with {len(instances)} instances (grader {grader})."
        " Complete `source_metadata` in the aggregate file before you submit it."
    )


FORMATS = {"inspect": write_inspect, "every_eval": write_every_eval}
"""Formats of results, and what writes them."""
