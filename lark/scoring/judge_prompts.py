"""Prompts of the judge (method=llm_judge)."""

PAPER_PROMPT = """\
You are a meticulous and highly critical evaluator of AI reasoning. Your primary goal is to identify and \
quantify subtle flaws, logical gaps, inefficiencies, and hidden assumptions. Do not default to a high \
score. Your starting assumption should be critical, and you must rigorously justify every point awarded.

First, please carefully read the following problem statement:
<Problem>
{question}
</Problem>

Now, please carefully read the following candidate's chain-of-thought reasoning:
<Reasoning>
{reasoning_to_evaluate}
</Reasoning>

When evaluating this reasoning, you must adhere to the following five key evaluation criteria and the \
scoring rubric below.

Scoring Guidelines and Calibration:
You must use the full 0.0 to 1.0 scale. Scores should not be clustered at the top. Use this rubric to \
anchor your scores:

1.0 (Exceptional/Flawless): Reserved for reasoning that is not only correct but also elegant, insightful, \
and comprehensive. It is perfectly structured and leaves no room for doubt. This score should be \
exceedingly rare.

0.8 - 0.9 (Excellent but Imperfect): The core reasoning is valid and well-supported, but there may be very \
minor, superficial issues (e.g., a trivial typo in a formula that doesn't affect the outcome, a slightly \
awkward phrasing). The conclusion is unaffected.

0.5 - 0.7 (Competent but Flawed): The reasoning is generally on the right track but contains noticeable and \
non-trivial flaws.

0.2 - 0.4 (Poor): The reasoning contains fundamental flaws that largely invalidate the process or conclusion.

0.0 - 0.1 (Unacceptable): The reasoning is completely incorrect, irrelevant, nonsensical, or makes no \
meaningful attempt to solve the problem.

Evaluation Criteria:
Factual Accuracy, Logical Rigor, Solution Completeness, Reasoning Efficiency, Presentation Quality.

For each criterion, give a score from 0.0 to 1.0 (in 0.1 increments) and a brief justification in JSON.

Your output must be a single, valid JSON object with:
{
  "dimensional_evaluation": {...},
  "overall_score": <float between 0.0 and 1.0>,
  "overall_reason": "<concise summary>"
}"""
"""The judge's user turn, word for word (paper, App. C.2)."""

BRIEF_PROMPT = """\
Problem: {question}

Reasoning: {reasoning_to_evaluate}

Score this reasoning from 0.0 to 1.0. Answer with JSON: {"overall_score": <score>}"""
"""Ours, for judges whose context is too short for the paper's prompt: the demo's student has 512 tokens."""
