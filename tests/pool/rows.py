"""Rows with the field names of public datasets, made for the tests."""

import json
from pathlib import Path
from typing import Any

from lark.config import Pool

QUESTIONS = [f"What is {number}+1?" for number in range(4)]


def boxed(number: int) -> str:
    return f"So it is \\boxed{{{number + 1}}}"


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Pool:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return Pool(name="test", format="rows", path=str(path))


def chat(question: str, answer: str, system: str | None = None, **more: Any) -> list[dict[str, Any]]:
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": question}, {"role": "assistant", "content": answer, **more}]


def sharegpt(question: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


def openr1(number: int, question: str) -> dict[str, Any]:
    """A row as in OpenR1-Math-220k: two generations, the second cut off."""
    return {
        "problem": question,
        "solution": "Add.",
        "answer": str(number + 1),
        "problem_type": "Algebra",
        "question_type": "math-word-problem",
        "source": "made",
        "uuid": f"uuid-{number}",
        "is_reasoning_complete": [True, False],
        "generations": [f"<think>One more.</think> {boxed(number)}", "<think>Hm, and then"],
        "correctness_math_verify": [True, False],
        "correctness_llama": None,
        "finish_reasons": None,
        "correctness_count": 1,
        "messages": chat(question, f"<think>One more.</think> {boxed(number)}"),
    }


def s1k(number: int, question: str) -> dict[str, Any]:
    """A row as in s1K-1.1: two teachers, of which one is right."""
    return {
        "solution": str(number + 1),
        "question": question,
        "cot_type": "math",
        "source_type": "made",
        "metadata": "{}",
        "gemini_thinking_trajectory": "One more.",
        "gemini_attempt": boxed(number),
        "deepseek_thinking_trajectory": "Two more?",
        "deepseek_attempt": boxed(number + 1),
        "gemini_grade": "Yes",
        "gemini_grade_reason": "Same.",
        "deepseek_grade": "No",
        "deepseek_grade_reason": "Not the same.",
    }


def calling(number: int, question: str) -> list[dict[str, str]]:
    """A ShareGPT conversation with a tool."""
    return [
        {"from": "human", "value": question},
        {"from": "function_call", "value": json.dumps({"name": "add", "arguments": {"a": number, "b": 1}})},
        {"from": "observation", "value": str(number + 1)},
        {"from": "gpt", "value": boxed(number)},
    ]


def layout_rows(name: str) -> list[dict[str, Any]]:
    """Four questions in one of the layouts (`tools`: conversations with tools), with two candidates for
    each.
    """
    pairs, twice = list(enumerate(QUESTIONS)), [(n, q, k) for n, q in enumerate(QUESTIONS) for k in range(2)]
    rows = {
        "columns": [
            {"question": q, "reasoning": f"Way {k}.", "response": boxed(n), "answer": float(n + 1)}
            for n, q, k in twice
        ],
        "messages": [
            {"messages": chat(q, boxed(n), reasoning_content=f"Way {k}."), "source": "made"}
            for n, q, k in twice
        ],
        "conversations": [
            {"system": "Be brief.", "conversations": sharegpt(q, f"Way {k}. {boxed(n)}")} for n, q, k in twice
        ],
        "tools": [{"tools": '[{"name": "add"}]', "conversations": calling(n, q)} for n, q, _ in twice],
        "prompt_completion": [{"prompt": q, "completion": f"Way {k}. {boxed(n)}"} for n, q, k in twice],
        "chat_prompt_completion": [
            {"prompt": chat(q, "")[:1], "completion": chat("", f"Way {k}. {boxed(n)}")[1:]}
            for n, q, k in twice
        ],
        "taught": [
            {
                "question_id": f"q{n}",
                "candidate_id": f"qwq.{k}",
                "teacher": "qwq",
                "rollout": k,
                "system": None,
                "question": q,
                "response": boxed(n),
                "reasoning_content": f"Way {k}.",
                "answer": str(n + 1),
                "key": f"{n:016x}",
                "finish_reason": "stop",
                "n_tokens": 7,
                "n_prompt_tokens": 9,
                "model": "Qwen/QwQ-32B",
            }
            for n, q, k in twice
        ],
        "generations": [openr1(n, q) for n, q in pairs],
        "teachers": [s1k(n, q) for n, q in pairs],
        "pairs": [
            {
                "input": chat(q, "")[:1],
                "output": f"Way {k}. {boxed(n)}",
                "reasoning": "on",
                "generator": f"teacher {k}",
                "system_prompt": "detailed thinking on",
                "license": "cc-by-4.0",
            }
            for n, q, k in twice
        ],
        "openthoughts3": [
            {
                "difficulty": 7,
                "source": "made",
                "domain": "math",
                "conversations": sharegpt(q, f"<think>Way {k}.</think> {boxed(n)}"),
            }
            for n, q, k in twice
        ],
    }
    return rows[name]
