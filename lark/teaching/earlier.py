"""Rollouts that earlier artifacts of the same teacher have, copied before it is asked: more questions or more
samples ask only for these.

Which artifacts. Those with the same `depends` (model, sampling, prompt, seed), whatever their questions,
samples and limits (lark/store/siblings.py), also of interrupted runs.

Which rollouts. Those of a question with the same text. Ids and places do not matter.
"""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lark.errors import LarkError, first_line
from lark.generation import journal
from lark.reading.rows import jsonl_rows
from lark.store.integrity import verify
from lark.store.manifest import readable_manifest
from lark.store.siblings import siblings
from lark.store.store import write_text
from lark.teaching import answer_journals
from lark.teaching.answer_journals import JournalIndex
from lark.teaching.artifacts import ROLLOUTS
from lark.teaching.rollouts import FAILED, TAKEN, TeacherWork, merged, sample_of
from lark.work.operation import Job

log = logging.getLogger(__name__)

GROWS = ("samples", "limits", "pass_rate", "enough")
"""Parts of `depends` that do not change an answer."""


def carry(job: Job) -> None:
    """Copy the answers of the heat before (`Operation.carry`)."""
    heat_before = job.inputs.get(ROLLOUTS.name)
    workload = TeacherWork(job)
    if heat_before is not None and not merged(workload.folder):
        answer_journals.write(workload.folder, answer_journals.CARRIED, _of(heat_before))


def take_over(job: Job) -> None:
    """Copy the answers of earlier artifacts into a journal of the job's folder (`Operation.prepare`)."""
    workload = TeacherWork(job)
    if merged(workload.folder):
        return
    taken: Counter[str] = Counter()
    # What this artifact's own processes have answered is not copied. What an interrupted run has taken over
    # is copied again.
    own = JournalIndex(workload.folder, but=answer_journals.TAKEN)
    wanted = set(workload.missing(own))
    records = _records(workload, wanted, taken)
    answer_journals.write(workload.folder, answer_journals.TAKEN, records)
    write_text(workload.folder / TAKEN, json.dumps(taken))
    if taken:
        names = ", ".join(taken)
        log.info("%s: %d rollouts are taken over from %s", workload.name, taken.total(), names)


def _records(workload: TeacherWork, wanted: set[str], taken: Counter[str]) -> Iterator[dict[str, Any]]:
    """Lines for the questions that are wanted, each with as many samples as one artifact has."""
    have: Counter[str] = Counter()
    for folder in siblings(workload.folder, GROWS, unfinished=True):
        try:
            for record in _of(folder):
                key = record["key"]
                samples = record.get("samples", [])[: workload.samples]
                new = record["first"] + len(samples) - have[key]
                is_next = record["first"] <= have[key] and (new > 0 or "failure" in record)
                if key in wanted and is_next:
                    have[key] += max(0, new)
                    taken[folder.name] += max(0, new)
                    yield record
        except (LarkError, OSError, KeyError) as error:
            log.warning("%s: its other rollouts are not taken over (%s)", folder.name, first_line(error))


def _of(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of another artifact."""
    manifest = readable_manifest(folder)
    if manifest is None or not manifest.finished:
        yield from journal.read(folder.glob(answer_journals.JOURNALS), folder.name, lambda record: None)
        return
    verify(folder)
    rows = (row.values for row in jsonl_rows(folder / ROLLOUTS.file))
    for key, samples in itertools.groupby(rows, key=lambda row: row["key"]):
        yield {"key": key, "first": 0, "samples": [sample_of(row) for row in samples]}
    for row in jsonl_rows(folder / FAILED):
        failure = {"reason": row.values["reason"], "detail": row.values["detail"]}
        yield {"key": row.values["key"], "first": 0, "failure": failure}
