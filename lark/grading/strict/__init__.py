"""The reader of answers behind the grader `verify`. Its contract is the corpus in tests/grading."""
