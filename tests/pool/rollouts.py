"""Rows of rollouts, evaluation logs and agent sessions in the shapes in which they are published."""

import json
import zipfile
from pathlib import Path
from typing import Any

from tests.pool.rows import QUESTIONS, boxed, chat

TWICE = [(n, q, k) for n, q in enumerate(QUESTIONS) for k in range(2)]


def is_right(k: int) -> float:
    """The first of two candidates is right."""
    return float(k == 0)


def said(text: str) -> dict[str, Any]:
    """A message of the Responses API."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def nemo_gym(n: int, question: str, k: int) -> dict[str, Any]:
    return {
        "_ng_task_index": n,
        "_ng_rollout_index": k,
        "responses_create_params": {"input": [{"role": "user", "content": question}], "tools": []},
        "response": {
            "id": "resp_1",
            "model": "qwen3",
            "incomplete_details": None,
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": f"Way {k}."}]},
                said(f"Way {k}. {boxed(n)}"),
            ],
        },
        "expected_answer": str(n + 1),
        "reward": is_right(k),
    }


def verifiers(n: int, question: str, k: int) -> dict[str, Any]:
    return {
        "example_id": n,
        "prompt": chat(question, "")[:1],
        "completion": chat("", f"Way {k}. {boxed(n)}")[1:],
        "answer": str(n + 1),
        "reward": is_right(k),
        "task": "default",
    }


def batch_output(n: int, k: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": f"Way {k}. {boxed(n)}", "refusal": None}
    body = {"model": "gpt-5", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {"id": "batch_req_1", "custom_id": f"q{n}-{k}", "response": response, "error": None}


def batch_request(n: int, question: str, k: int) -> dict[str, Any]:
    body = {"model": "gpt-5", "messages": chat(question, "")[:1]}
    return {"custom_id": f"q{n}-{k}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def atif(n: int, question: str, k: int) -> dict[str, Any]:
    call = {"tool_call_id": "c1", "function_name": "add", "arguments": {"a": n, "b": 1}}
    return {
        "schema_version": "ATIF-v1.4",
        "session_id": f"s{n}-{k}",
        "agent": {"name": "terminus-2", "version": "2", "model_name": "qwen3"},
        "steps": [
            {"step_id": 1, "source": "user", "message": question},
            {
                "step_id": 2,
                "source": "agent",
                "message": f"Way {k}. I add.",
                "reasoning_content": "One more.",
                "tool_calls": [call],
                "observation": {"results": [{"source_call_id": "c1", "content": str(n + 1)}]},
            },
            {"step_id": 3, "source": "agent", "message": boxed(n)},
        ],
        "final_metrics": {"total_steps": 3},
    }


def lm_eval(n: int, question: str, filter_name: str) -> dict[str, Any]:
    answers = [f"Way {k}. {boxed(n)}" for k in range(2)]
    return {
        "doc_id": n,
        "doc": {"question": question, "answer": f"Add. #### {n + 1}"},
        "target": str(n + 1),
        "arguments": {
            "gen_args_0": {"arg_0": f"Question: {question}\nAnswer:", "arg_1": {"until": ["\n\n"]}}
        },
        "resps": [answers],
        "filtered_resps": [str(n + 1)],
        "filter": filter_name,
        "metrics": ["exact_match"],
        "doc_hash": "a",
        "prompt_hash": "b",
        "target_hash": "c",
        "exact_match": 1.0 if filter_name == "strict-match" else 0.0,
    }


def inspect_sample(n: int, question: str, k: int) -> dict[str, Any]:
    answer = [
        {"type": "reasoning", "reasoning": "One more."},
        {"type": "text", "text": f"Way {k}. {boxed(n)}"},
    ]
    return {
        "id": n,
        "epoch": k + 1,
        "input": question,
        "target": str(n + 1),
        "messages": [
            {"id": "m1", "role": "user", "content": question, "source": "input"},
            {"id": "m2", "role": "assistant", "content": answer, "source": "generate", "model": "qwen3"},
        ],
        "output": {"model": "qwen3", "choices": [{"stop_reason": "stop"}]},
        "scores": {"match": {"value": "C" if k == 0 else "I", "answer": str(n + 1)}},
    }


def write_eval(path: Path) -> None:
    """A log of Inspect."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        header = {"version": 2, "status": "success", "eval": {"task": "sums", "model": "openai/gpt-5"}}
        archive.writestr("header.json", json.dumps(header))
        for n, question, k in TWICE:
            sample = inspect_sample(n, question, k)
            archive.writestr(f"samples/{n}_epoch_{k + 1}.json", json.dumps(sample))
        archive.writestr("summaries.json", "[]")


def every_eval(n: int, question: str, k: int) -> dict[str, Any]:
    return {
        "schema_version": "0.2.1",
        "evaluation_id": "sums/qwen3/1",
        "model_id": f"qwen/qwen3-{k}",
        "evaluation_name": "sums",
        "sample_id": str(n),
        "interaction_type": "single_turn",
        "input": {"raw": question, "reference": [str(n + 1)]},
        "output": {"raw": [f"Way {k}. {boxed(n)}"], "reasoning_trace": ["One more."]},
        "messages": None,
        "answer_attribution": [],
        "evaluation": {"score": is_right(k), "is_correct": k == 0},
    }


def swe_smith(n: int, question: str, k: int) -> dict[str, Any]:
    messages = chat(question, f"Way {k}. {boxed(n)}", system="You fix bugs.")
    return {
        "messages": json.dumps(messages),
        "instance_id": f"repo__{n}",
        "resolved": k == 0,
        "model": f"model {k}",
        "traj_id": f"repo__{n}.{k}",
        "patch": "diff",
    }


def reasoning_gym(rows: range) -> dict[str, Any]:
    results = []
    for n in rows:
        completions = []
        for k in range(2):
            text = f"Way {k}. <answer>{n + 1}</answer>"
            completions.append(
                {"model_answer": str(n + 1), "full_model_response": text, "score": is_right(k)}
            )
        best = {"best_score": 1.0, "mean_score": 0.5, "best_model_answer": str(n + 1)}
        row = {"question": QUESTIONS[n], "expected_answer": str(n + 1), "completions": completions}
        results.append({**row, **best})
    return {"name": "sums", "category": "arithmetic", "system_prompt": "Use <answer>.", "results": results}


def claude_session(n: int, question: str, k: int) -> list[dict[str, Any]]:
    common = {"sessionId": f"s{n}-{k}", "cwd": "/x", "version": "2.0", "isSidechain": False}
    call = {"type": "tool_use", "id": "t1", "name": "Add", "input": {"a": n}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": str(n + 1)}]}

    def answer(identity: str, block: dict[str, Any], is_sidechain: bool = False) -> dict[str, Any]:
        message = {"id": identity, "model": "claude-x", "role": "assistant", "content": [block]}
        return {"type": "assistant", "message": message, **common, "isSidechain": is_sidechain}

    return [
        {"type": "summary", "summary": "Sums", "leafUuid": "u3"},
        {"type": "user", "message": {"role": "user", "content": "<command-name>/clear"}, **common},
        {"type": "user", "message": {"role": "user", "content": question}, "uuid": "u1", **common},
        answer("a", {"type": "thinking", "thinking": "Hm.", "signature": "x"}),
        answer("a", call),
        {"type": "user", "message": {"role": "user", "content": [result]}, "toolUseResult": {}, **common},
        answer("s", {"type": "text", "text": "A subagent."}, is_sidechain=True),
        answer("b", {"type": "text", "text": f"Way {k}. {boxed(n)}"}),
    ]


def codex_session(n: int, question: str, k: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "<environment_context>x"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "x"},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        said(f"Way {k}. {boxed(n)}"),
    ]
    events = [{"type": "session_meta", "payload": {"id": f"c{n}-{k}", "cwd": "/x"}}]
    events.append({"type": "turn_context", "payload": {"model": "gpt-5-codex"}})
    events += [{"type": "response_item", "payload": item} for item in items]
    events.append({"type": "event_msg", "payload": {"type": "token_count"}})
    return [{"timestamp": "2026-01-01T00:00:00Z", **event} for event in events]


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_published(name: str, folder: Path) -> str:
    """Write a pool in a published shape, four questions with two candidates each; return `pool.path`."""
    rows = {"nemo_gym": nemo_gym, "verifiers": verifiers, "every_eval": every_eval, "swe_smith": swe_smith}
    if name in rows:
        _jsonl(folder / "rows.jsonl", [rows[name](n, q, k) for n, q, k in TWICE])
    elif name == "openai_batch":
        _jsonl(folder / "output.jsonl", [batch_output(n, k) for n, _, k in TWICE])
        _jsonl(folder / "requests" / "requests.jsonl", [batch_request(n, q, k) for n, q, k in TWICE])
    elif name == "lm_eval":
        filters = ("strict-match", "flexible-extract")
        samples = [lm_eval(n, q, name) for name in filters for n, q in enumerate(QUESTIONS)]
        _jsonl(folder / "qwen__qwen3" / "samples_sums_2026-01-01T00-00-00.1.jsonl", samples)
    elif name == "inspect":
        write_eval(folder / "log.eval")
    elif name == "atif":
        for n, q, k in TWICE:
            trial = folder / f"task-{n}__{k}"
            (trial / "agent").mkdir(parents=True)
            (trial / "agent" / "trajectory.json").write_text(json.dumps(atif(n, q, k), indent=2))
            rewards = {"verifier_result": {"rewards": {"reward": is_right(k)}}, "task_name": f"task-{n}"}
            (trial / "result.json").write_text(json.dumps({"trial_name": trial.name, **rewards}))
        return f"{folder}/**/trajectory.json"
    elif name == "reasoning_gym":
        target = folder / "openai_o3-mini_20250315_181742" / "arithmetic" / "sums.json"
        target.parent.mkdir(parents=True)
        target.write_text(json.dumps(reasoning_gym(range(4)), indent=2))
    else:
        session = claude_session if name == "claude_session" else codex_session
        for n, q, k in TWICE:
            _jsonl(folder / f"{n}-{k}.jsonl", session(n, q, k))
    return str(folder)
