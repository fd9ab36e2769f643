"""Stores made without a model: a pool of any size with scores, selections, tokens, training curves and
answers.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from lark.evaluation.metrics import GradedSample, benchmark_metrics
from lark.pool import trajectories as pools
from lark.scoring.methods import METHODS
from lark.scoring.token_files import write_index, write_pieces, write_shard
from lark.scoring.tokens import TrajectoryTokens
from lark.selection.rules import select
from lark.selection.write import as_table

POOL, LENGTHS, SCORES, TEXT = "a" * 12, "b" * 12, "c" * 12, "d" * 12
MODEL = {"weights": "w", "tokenizer": "t", "max_length": 32768}


def artifact(
    root: Path,
    kind: str,
    name: str,
    print_: str,
    depends: Mapping[str, Any],
    inputs: Mapping[str, str],
    **more: Any,
) -> Path:
    """An artifact's folder with its configuration and manifest. `inputs`: kind → name-fingerprint."""
    folder = root / kind / f"{name}-{print_}"
    folder.mkdir(parents=True)
    prints = {label: where.rsplit("-", 1)[1] for label, where in inputs.items()}
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"version": 1, "depends": dict(depends), "inputs": prints})
    )
    manifest = {
        "status": "finished", "kind": kind, "fingerprint": print_, "git": "abc",
        "inputs": {k: f"{k}/{v}" for k, v in inputs.items()}, "versions": {"python": "3"},
        "started": "2026-01-02T03:04:05", "seconds": 1.5, "counts": {}, **more,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def write_pool(root: Path, rows: Sequence[Mapping[str, Any]] | pa.Table, group: int = 2000) -> Path:
    folder = artifact(root, "pool", "pool", POOL, {"answer_format": "free_form"}, {})
    table = (
        rows
        if isinstance(rows, pa.Table)
        else pa.Table.from_pylist([dict(row) for row in rows], schema=pools.SCHEMA)
    )
    pq.write_table(table, folder / pools.FILE, compression="zstd", row_group_size=group)
    return folder


def trajectory(id: str, candidate: str, response: str, **more: Any) -> dict[str, Any]:
    """A row of a pool."""
    teacher, _, rollout = candidate.rpartition(".")
    values = {
        "system": None,
        "question": f"Question {id}?",
        "answer": "1",
        "correct": True,
        "thinking": None,
        "conversation": None,
    }
    return {
        "question_id": id,
        "candidate_id": candidate,
        "teacher": teacher,
        "rollout": int(rollout or 0),
        "response": response,
        **values,
        **more,
    }


def write_scores(root: Path, keys: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Token counts, statistics and text indicators of every row; returns the statistics."""
    rng, n = np.random.default_rng(seed), len(keys)
    inputs = {"pool": f"pool-{POOL}"}
    tokens = rng.integers(20, 30_000, n)
    lengths = keys.assign(n_tokens=tokens, truncated=rng.random(n) < 0.02, n_prompt=50)
    folder = artifact(
        root, "lengths", "student-pool", LENGTHS, {"tokenizer": "t", "max_length": 32768}, inputs
    )
    lengths.to_parquet(folder / "lengths.parquet", index=False)
    nll = tokens * rng.gamma(4, 0.2, n)
    table = keys.assign(
        n_tokens=tokens, truncated=lengths["truncated"], nll=nll, brier=nll * rng.uniform(0.2, 0.6, n),
        rank_sum=nll * rng.gamma(3, 2, n), ties=0.0, p_gold=0.5, wrong_p2=0.1, sum_p2=0.4,
    )  # fmt: skip
    inputs |= {"lengths": f"student-pool-{LENGTHS}"}
    folder = artifact(root, "scores", "student-pool", SCORES, {**MODEL, "rank_clip": 100}, inputs)
    table.to_parquet(folder / "scores.parquet", index=False)
    folder = artifact(root, "text", "pool", TEXT, {}, {"pool": f"pool-{POOL}"})
    words = {
        name: rng.integers(0, 9, n).astype(float)
        for name in ("words", "self_verification", "exploration", "granularity")
    }
    keys.assign(**words).to_parquet(folder / "text.parquet", index=False)
    return table


def write_selection(
    root: Path, table: pd.DataFrame, method: str, budget: int, weighting: str, print_: str
) -> Path:
    """A selection as the select stage makes it."""
    chosen = METHODS[method]
    made = select(
        chosen.score(table),
        table["question_id"],
        table["candidate_id"],
        budget,
        weighting,
        higher_is_better=chosen.higher_is_better,
    )
    inputs = {
        "pool": f"pool-{POOL}",
        "lengths": f"student-pool-{LENGTHS}",
        "scores": f"student-pool-{SCORES}",
    }
    depends = {"method": method, "weighting": weighting, "budget": budget}
    folder = artifact(
        root, "selection", f"student-pool-{method}-{weighting}-B{budget}", print_, depends, inputs
    )
    as_table(made, table.assign(teacher=table["candidate_id"].str.split(".").str[0])).to_parquet(
        folder / "selection.parquet", index=False
    )
    return folder


def write_tokens(root: Path, texts: Mapping[tuple[str, str], Sequence[str]], seed: int = 0) -> Path:
    """Tokens of some trajectories, each given as its pieces of text. The vocabulary: what occurs in them."""
    rng = np.random.default_rng(seed)
    words = list(dict.fromkeys(piece for pieces in texts.values() for piece in pieces))
    number = {word: i for i, word in enumerate(words)}
    inputs = {"pool": f"pool-{POOL}", "lengths": f"student-pool-{LENGTHS}"}
    folder = artifact(root, "tokens", "student-pool", "e" * 12, MODEL, inputs)
    rows = []
    for (question, candidate), pieces in texts.items():
        T = len(pieces)
        p = np.sort(rng.dirichlet(np.ones(6), T)[:, :5])[:, ::-1]
        rows.append(
            TrajectoryTokens(
                question,
                candidate,
                np.array([number[piece] for piece in pieces], np.int32),
                rng.gamma(0.7, 1.4, T).astype(np.float32),
                rng.uniform(0, 2, T).astype(np.float32),
                rng.integers(1, 90_000, T).astype(np.int32),
                rng.gamma(1, 1, T).astype(np.float32),
                rng.integers(0, len(words), (T, 5)).astype(np.int32),
                p.astype(np.float32),
            )
        )
    path = folder / f"tokens-{0:08d}-{len(rows):08d}.parquet"
    write_shard(path, rows)
    write_index(folder, [path])
    write_pieces(folder, [word.encode("utf-8", "surrogatepass") for word in words], [False] * len(words))
    return folder


def write_answers(
    root: Path,
    model: str,
    problems: int,
    print_: str,
    checkpoint: str | None = None,
    text: str = "so \\boxed{1}",
) -> None:
    """Answers of a model to a benchmark, 2 seeds × 2 samples, and their grades."""
    rng = np.random.default_rng(len(model))
    inputs = {} if checkpoint is None else {"checkpoint": checkpoint}
    name = f"{model}-sums"
    folder = artifact(
        root,
        "generations",
        name,
        f"1{print_[1:]}",
        {"task": {"questions": "q"}, "decoding": {}, "engine": "hf"},
        inputs,
    )
    asked = [
        {"id": f"p{i}", "question": f"What is {i} + {i}?", "answer": str(2 * i), "level": 1, "options": []}
        for i in range(problems)
    ]
    samples = [(i, seed, sample) for seed in (0, 1) for i in range(problems) for sample in (0, 1)]
    right = rng.random(len(samples)) < 0.5
    _lines(folder / "problems.jsonl", asked)
    _lines(
        folder / "generations.jsonl",
        [
            {
                "problem": f"p{i}",
                "seed": seed,
                "sample": k,
                "text": text,
                "finish_reason": "stop" if i else "length",
                "n_tokens": 9,
            }
            for i, seed, k in samples
        ],
    )
    graded = artifact(
        root, "metrics", name, print_, {"answers": "a"}, {"generations": f"{name}-1{print_[1:]}"}
    )
    _lines(
        graded / "grades.jsonl",
        [
            {
                "problem": f"p{i}",
                "seed": seed,
                "sample": k,
                "answer": "1" if i != 2 else None,
                "gold": str(2 * i),
                "answer_verify": "1",
                "paper": bool(ok),
                "verify": bool(ok) if i != 1 else not ok,
            }
            for (i, seed, k), ok in zip(samples, right, strict=True)
        ],
    )
    metrics = benchmark_metrics(
        GradedSample(f"p{i}", seed, k, bool(ok), i == 0, i != 2, 1)
        for (i, seed, k), ok in zip(samples, right, strict=True)
    ).to_dict()
    (graded / "metrics.json").write_text(json.dumps({"paper": metrics, "verify": metrics}))


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def large_store(
    root: Path,
    questions: int = 5000,
    teachers: int = 11,
    rollouts: int = 3,
    words: int = 40,
    tokens: int = 8000,
) -> Path:
    """A store of the paper's size: 5,000 questions with 33 candidates each. The tokens of the first
    question are kept.
    """
    rng = np.random.default_rng(7)
    per, n = teachers * rollouts, questions * teachers * rollouts
    question = np.repeat(np.arange(questions), per)
    candidate = np.tile(np.arange(per), questions)
    teacher = candidate // rollouts
    filler = [" ".join(rng.choice(["so", "we", "add", "then", "$x^2$", "check"], 40)) for _ in range(50)]
    text = pa.array([f"{filler[i % 50]} \\boxed{{{i % 9}}}" for i in range(n)])
    pieces = {
        "question_id": [f"q{i:05d}" for i in question],
        "candidate_id": [f"teacher{t}.{c % rollouts}" for t, c in zip(teacher, candidate, strict=True)],
        "teacher": [f"teacher{t}" for t in teacher],
        "rollout": pa.array(candidate % rollouts, pa.int32()),
        "system": pa.nulls(n, pa.string()),
        "question": [
            f"Question number {i}: how many apples does Ana have after buying {i % 17} more?"
            for i in question
        ],
        "response": text,
        "answer": [str(i % 9) for i in question],
        "correct": pa.array(rng.random(n) < 0.6),
        "thinking": pa.nulls(n, pa.string()),
        "conversation": pa.nulls(n, pa.string()),
        "pass_rate": pa.nulls(n, pools.SCHEMA.field("pass_rate").type),
    }
    table = pa.table(pieces, schema=pools.SCHEMA)
    write_pool(root, table)
    keys = table.select(pools.KEY).to_pandas()
    scores = write_scores(root, keys)
    for i, (method, budget, weighting) in enumerate(
        [("lark", 3, "chi2"), ("rsr", 3, "uniform"), ("grape", 1, "uniform")]
    ):
        write_selection(root, scores, method, budget, weighting, f"{i + 1:012x}")
    vocabulary = [f" word{i}" for i in range(997)]
    first = table.column("candidate_id").slice(0, per).to_pylist()
    write_tokens(
        root,
        {
            ("q00000", name): [vocabulary[i % 997] for i in range(k, k + tokens)]
            for k, name in enumerate(first)
        },
    )
    return root


def large_evaluation(root: Path, problems: int = 500, steps: int = 20_000, runs: int = 100) -> None:
    """Answers of a base and a trained student to a benchmark of MATH500's size, a long training curve, and
    many runs.
    """
    folder = artifact(root, "checkpoint", "student-lark-B3", "f" * 12, {"training": {}}, {})
    _lines(
        folder / "metrics.jsonl",
        [{"step": i, "epoch": i / steps, "loss": 1 / (i + 1), "grad_norm": 1.0} for i in range(steps)],
    )
    write_answers(root, "student-base", problems, "5" * 12, text="so we add " * 300 + "\\boxed{1}")
    write_answers(
        root,
        "student-lark-B3",
        problems,
        "6" * 12,
        f"student-lark-B3-{'f' * 12}",
        text="then " * 600 + "\\boxed{1}",
    )
    for i in range(runs):
        run = root / "runs" / "student" / f"lark-B{i}"
        run.mkdir(parents=True)
        plan = [{"step": "pool", "artifacts": [f"pool/pool-{POOL}"]}]
        lines = [
            {"event": "start", "plan": plan},
            {"event": "step", "step": "pool", "made": [], "reused": plan[0]["artifacts"]},
        ]
        _lines(
            run / "steps.jsonl",
            [{"run": "1", "time": "2026-01-01T00:00:00", **line} for line in [*lines, {"event": "end"}]],
        )
