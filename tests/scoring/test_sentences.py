r"""Sentence-level steps: a table of cases, and what holds for any text. In the table, `|` marks the end of
a step.
"""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lark.scoring.sentences import SPLITTERS, split_paragraphs, split_steps, token_steps

CASES = [
    # plain sentences; the space opens the next step
    "Add them.| Then stop.",
    "Is it even?| Yes!| Good.",
    "one is odd.| two is even",
    "No final stop",
    "It ends.   ",
    # decimals, versions, file names
    "It is 3.14.| Then 2.5 more.",
    "Use v1.2.3 of a.txt.| Done.",
    # abbreviations
    "Take e.g. Two, i.e. This, cf. That, vs. Those.| Next.",
    "Dr. Smith and Mrs. Hall saw Fig. 3 and Eq. (4).| They left.",
    "It took 5 ms.| Then it stopped.",
    "Apples, pears, etc. are fruit.| Apples, etc.| They rot.",
    "See No. 5 on p. 12.| No.| That is wrong.",
    "Assume w.l.o.g. that x > 0.| Now use the U.S. value.",
    "Let it pass through A.| Then AB is a line.",
    "The set is X s.t. it is open.| Done.",
    # formulas
    "Let $x. Y = 3$ hold.| Then $z$.| So",
    r"Let \(a. B\) hold.| Then \[ c. D \] E.| F",
    "Then $$a. B$$ holds.| So",
    "Then\n|$$\n|ab.| C\n\n|is not closed.| So",
    "$$\na. B\n+ c\n$$\n|Next.",
    "\\[\na. B\n\n+ c\n\\]\n|Next.",
    "\\begin{align}\na. B \\\\[2pt]\n c. D\n\\end{align}\n|Next.| Then.",
    "\\begin{cases} a. B \\begin{cases} c. D \\end{cases} e. F \\end{cases} G.| H",
    r"\[ \text{if \(b\)} . C \] and.| D",
    r"\[ \text{if $b. C$} . C \] and.| D",
    "$a$$b. C$ is.| D",
    "$ x. Y $ is.| Z",
    "$a\n. B$ is.| C",
    # formulas that end a sentence
    "So $x = 3.$| Then $y = 4$.| So\n|$$z = 5.$$| Done",
    r"So \(x = 3.\)| Then",
    # dollars that are no formulas
    "It costs $5.| Then $6.| So $x$ is 11.| Done.",
    "It costs \\$5.| Then \\$6.| Done.",
    "It costs 5$.| Then 6$.| Done.",
    "A stray $ here.| One.\n\n|Two.| Three$ four.| Five.",
    "From ($5).| To ($6).| Done.",
    r"Open \[ x.| Then." + "\n|" + r"Now \[ y. Z \] is.| So",
    r"Open \begin{align} x.| Then.",
    r"Close x \end{align} y.| Then \) and.| Then \] too.| So",
    # ellipses
    "Wait...| Let me see... maybe.| Hmm…| Ok.",
    "Take 1, 2, ..., n.| Sum 1 + 2 + ... + 10.| Done.",
    "Take 1, 2, . . . , n.| Done.",
    # factorials and other marks
    "So 5! = 120 and n! is even.| Great!| so it is.",
    "There are (n-1)! ways.| What?!| Yes.",
    "x = ? + 3 is open.| So",
    # enumerations
    "1. Add.| Then stop.\n|2. Go on.\n|  3. Rest.",
    "a. First.| Done.\n|B. Second.\n|iv. Fourth.\n|(2.1. Fifth.)",
    "- 1. Add.\n|**2.** Go on.\n|### 3. Rest.",
    "Step 1. Add.| Step 2. Go on.| Answer 5.| Done.",
    "1. Add.| 2. Go on.",
    # newlines
    "One\n|two\n\n\n|three\n  \n|  four",
    "One.\n|Two. \n|Three.  \n\n",
    "\n\n  One.| Two.",
    "One\r\n|two\r\n\r\n|three\r|four",
    # closing quotes and brackets
    'He said "Stop."| Then (so he did.)| Then **bold.**| End',
    "It is ‘so.’| Then “thus.”| End",
    '"Why?" he asked.| "Because."',
    # other scripts
    "你好。|世界！|是吗？|对。",
    "他说：“是。”|好。",
    "第一。| 第二",
]


@pytest.mark.parametrize("case", CASES)
def test_steps_end_where_sentences_end(case):
    assert split_steps(case.replace("|", "")) == case.split("|")


PARAGRAPHS = [
    "One. Two.\nThree.\n\n|Four.\n\n\n|Five.",
    "\n\nOne.\n\n|Two.\n\n",
    "One.\n|Two. Three.\n|Four.",  # no blank line: lines are steps
    "One. Two.",
]


@pytest.mark.parametrize("case", PARAGRAPHS)
def test_paragraphs_end_at_blank_lines_or_else_at_newlines(case):
    """As in the authors' script: stripped, the steps are the parts between blank lines that are not empty."""
    text = case.replace("|", "")
    assert split_paragraphs(text) == case.split("|")
    between = [part.strip() for part in text.split("\n\n") if part.strip()]
    if len(between) < 2:
        between = [part.strip() for part in text.split("\n") if part.strip()]
    assert [step.strip() for step in split_paragraphs(text)] == between


@pytest.mark.parametrize("split", SPLITTERS.values())
def test_text_without_content_is_at_most_one_step(split):
    assert split("") == []
    assert split(" \n\n\t") == [" \n\n\t"]


FORMULAS = ["$", "$$", "\\(", "\\)", "\\[", "\\]", "\\begin{a}", "\\end{a}", "\\\\", "\\$"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u2028", "\x0b"]
MARKS = [
    ".",
    "...",
    "…",
    "!",
    "?",
    "。",
    ")",
    '"',
    "*",
    "-",
    "e.g.",
    "Dr.",
    "1.",
    "Step 1.",
    "5",
    "x",
    "The",
    "é",
    "∑",
]
PIECES = st.sampled_from(FORMULAS + SPACES + MARKS)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))


@given(TEXTS)
@example("\n. ")
@example("$")
@example("! A")
def test_steps_partition_any_text(text):
    for split in SPLITTERS.values():
        steps = split(text)
        assert "".join(steps) == text
        assert all(step.strip() for step in steps) or (len(steps) == 1 and not text.strip())


@given(TEXTS, TEXTS)
def test_a_paragraph_is_split_the_same_whatever_precedes_it(before, text):
    """Nothing unbalanced swallows the document: only `\\[` and environments extend across a blank line."""
    before, text = (
        part.replace("\\[", "").replace("\\begin", "").replace("\\", "") for part in (before, text)
    )
    text = "Then " + text.strip()
    alone = split_steps(text)
    assert split_steps(f"{before}x\n\n{text}")[-len(alone) :] == alone


@given(
    st.lists(st.sampled_from(["a. B", "c\nd", "e.\n\nF", "g! H", "i? J"]), min_size=1, max_size=4).map(
        " ".join
    )
)
def test_nothing_is_split_inside_displays_and_environments(inside):
    for opening, closing in (("\\[", "\\]"), ("\\begin{align*}", "\\end{align*}")):
        formula = f"{opening} {inside} {closing}"
        assert split_steps(f"So {formula} holds. Then {formula}") == [
            f"So {formula} holds.",
            f" Then {formula}",
        ]


STEPS = st.lists(st.text(alphabet="abc. ", min_size=1, max_size=8), min_size=1, max_size=6)


@given(STEPS, st.data())
def test_tokens_belong_to_the_step_of_their_first_character(steps, data):
    length = sum(map(len, steps))
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length)))})
    offsets = list(pairwise(cuts))
    owner = [index for index, step in enumerate(steps) for _ in step]
    first = [owner[begin] for begin, _ in offsets]
    seen = sorted(set(first))
    assert token_steps(offsets, steps) == [seen.index(step) for step in first]


@given(STEPS, st.data())
def test_step_numbers_rise_without_gaps_whatever_the_offsets(steps, data):
    length = sum(map(len, steps))
    spans = st.tuples(st.integers(0, length + 3), st.integers(0, length + 3)).map(
        lambda span: (min(span), max(span))
    )
    numbers = token_steps(data.draw(st.lists(spans)), steps)
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(set(numbers))))


def test_the_end_of_the_turn_belongs_to_the_last_step():
    steps = ["One.", " Two."]
    assert token_steps([(0, 3), (3, 4), (4, 8), (8, 9), (0, 0)], steps) == [0, 0, 1, 1, 1]
    assert token_steps([(0, 4), (9, 9)], steps) == [0, 1]


def test_a_token_without_characters_elsewhere_belongs_to_the_token_before_it():
    assert token_steps([(0, 0), (0, 4), (4, 4), (4, 9), (0, 0)], ["One.", " Two."]) == [0, 0, 0, 1, 1]


def test_a_step_that_no_token_begins_has_no_number():
    assert token_steps([(0, 6), (6, 9), (0, 0)], ["One。", "T。", "wo."]) == [0, 1, 1]


def test_a_response_that_is_only_the_end_of_the_turn_is_one_step():
    assert token_steps([(0, 0)], []) == [0]
    assert token_steps([], ["One."]) == []


def test_characters_that_several_tokens_share_stay_in_one_step():
    assert token_steps([(0, 1), (0, 1), (1, 2), (2, 3)], ["∑", "ab"]) == [0, 0, 1, 1]


def test_real_trajectories_split_into_many_short_steps(shared_data):
    lines = (shared_data / "pools" / "gsm_symbolic.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["messages"][-1]["content"] for line in lines]
    for text in texts:
        steps = split_steps(text)
        assert "".join(steps) == text
        assert max(map(len, steps)) < 700
