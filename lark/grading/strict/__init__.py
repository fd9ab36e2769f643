"""The reader of answers behind the grader `verify`: is a text in a box right for a gold answer?

The contract is the corpus in tests/grading/corpus.txt: thousands of answers that must be right (`v`) or wrong
(`x`). A change must keep every verdict, and a new rule begins with new lines in the corpus. The package
imports nothing else of lark. `verify_process` runs it, in a process that is allowed to die.

From the text to the verdict:

    notation, vocabulary    tables: LaTeX commands and characters; English words
    rewriting               notations from outside LaTeX, as LaTeX
    lexer                   text to tokens (answer_tokens), with `brackets` and `bare_words`
    labels, units           words beside a value: names and openings; units
    parser                  tokens to the structure (structure, expressions), with the recognition of names
                            (quantity_names) and units (unit_tokens)
    equality                compares two answers: `compare` is the entry
    statements, variables   compare statements with their values, and their names, with `matching`
    mathematics, sets       compare expressions and sets with sympy
    unreadable              the error of a reader that is not certain
"""
