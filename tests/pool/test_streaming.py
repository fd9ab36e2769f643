"""A pool of the paper's size is read, selected from with every method, and written in little memory."""

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

SCRIPT = r"""
import json, re, sys
from pathlib import Path

import numpy as np
import pandas as pd

import lark.pipeline.pipeline  # also in memory in run.py
from lark.pool import trajectories as pools
from lark.pool.read import read
from lark.selection import write as selecting
from lark.config import Pool
from lark.scoring.methods import METHODS
from lark.scoring.text import write_indicators
from tests.conftest import composed, job_of

folder, questions, candidates = Path(sys.argv[1]), 5000, 33
with (folder / "pool.jsonl").open("w") as handle:
    for q in range(questions):
        for c in range(candidates):
            response = f"First check {q}. Perhaps {c} might do, since {q * c} is near. " * 3 + f"It is {q}."
            ids = {"question_id": f"q{q:05d}", "candidate_id": f"{c:02d}"}
            row = {**ids, "teacher": f"t{c // 3:02d}", "rollout": c % 3}
            handle.write(json.dumps({**row, "question": f"What is {q}?", "response": response}) + "\n")

pool = Pool(name="large", format="rows", path=str(folder / "pool.jsonl"))
counts = pools.write(read(pool), folder / pools.FILE, pool)
write_indicators(job_of(composed(), folder, inputs={"pool": folder}))

rng = np.random.default_rng(0)
keys = pd.read_parquet(folder / pools.FILE, columns=["question_id", "candidate_id"])
n_tokens = rng.integers(5, 400, len(keys))
nll = n_tokens * rng.gamma(4, 0.1, len(keys))
lengths = keys.assign(n_tokens=n_tokens, truncated=False)
lengths.to_parquet(folder / "lengths.parquet", index=False)
brier = nll * rng.uniform(0.2, 0.7, len(keys))
scores = lengths.assign(nll=nll, brier=brier, rank_sum=3.0 * n_tokens)
scores.to_parquet(folder / "scores.parquet", index=False)
lengths.assign(local_naturalness=-rng.random(len(keys))).to_parquet(folder / "local.parquet", index=False)

chosen = {}
sources = {"lengths", "statistics", "local", "text"}
for name in [name for name, method in METHODS.items() if method.needs <= sources]:
    inputs = {source: folder for source in ("pool", "lengths", "scores", "local", "text")}
    job = job_of(composed(f"method={name}"), folder, inputs=inputs)
    chosen[name] = selecting.write_selection(job)["trajectories"]
lines = sum(1 for _ in (folder / "train.jsonl").open())
# Not `ru_maxrss`, which a child inherits from its parent.
peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
assert not {"torch", "transformers"} & set(sys.modules)
print(json.dumps({"read": counts["trajectories"], "chosen": chosen, "lines": lines, "peak_mib": peak}))
"""


def test_165_000_trajectories_stream_through_in_under_a_gibibyte(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout.splitlines()[-1])
    assert said["read"] == 165_000
    assert set(said["chosen"].values()) == {15_000}
    assert {"lark", "random", "rule_quality", "local_naturalness", "rsr"} <= set(said["chosen"])
    assert said["lines"] == 15_000
    assert said["peak_mib"] < 700, said
