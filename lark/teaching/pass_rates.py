"""How often the student itself solves each question: the share of its samples that are correct."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.config.teacher import SELF
from lark.pool.taught import pass_rates
from lark.store.store import atomic
from lark.teaching import checks, verdicts
from lark.teaching.artifacts import PASS_RATES, VERDICTS
from lark.work.operation import Job

SCHEMA = pa.schema([("question_id", pa.string()), ("samples", pa.int32()), ("correct", pa.int32())])


def write_pass_rates(job: Job) -> dict[str, Any]:
    """Count the verdicts of the student's samples. Samples without a verdict do not count."""
    samples: dict[str, int] = {}
    correct: dict[str, int] = {}
    for row in verdicts.stored(job.inputs[VERDICTS.name]):
        question = row["question_id"]
        samples[question] = samples.get(question, 0) + (row["correct"] is not None)
        correct[question] = correct.get(question, 0) + (row["correct"] is True)
    columns = [list(samples), list(samples.values()), list(correct.values())]
    with atomic(job.folder / PASS_RATES.file) as draft:
        pq.write_table(pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA), draft)
    rates = list(pass_rates(job.folder).values())
    if job.config.questions.pass_rate is not None:
        checks.has_rates(rates, SELF)
    mean = round(float(np.mean(rates)), 4) if rates else None
    counts = {"never": rates.count(0.0), "always": rates.count(1.0)}
    return {"questions": len(samples), "known": len(rates), "mean": mean, **counts}
