"""Arithmetic that shares no code with `lark.demo`, to check its problems and trajectories."""

import ast
import operator
import re

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def evaluate(text: str, unknown: int = 1000) -> int:
    """Python's own grammar decides precedence; `unknown` (too large for a coefficient to hide) stands for a
    letter.
    """
    source = re.sub(r"(?<=\d)(?=[xyn])", "*", text.replace("×", "*"))

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.Constant):
            return int(node.value)
        assert isinstance(node, ast.Name)
        return unknown

    return walk(ast.parse(source, mode="eval").body)
