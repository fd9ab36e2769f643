"""Memory that a forward pass of a student needs, from its shape alone. Pure functions."""

from lark.models.shapes import Shape

HEAD_BYTES = 2**28
"""The head works on chunks (lark/scoring/statistics.py): under 256 MiB at any length."""


def forward_bytes(shape: Shape, tokens: int, element: int, scores: float = 0.0) -> float:
    """Memory of a forward pass without gradients: the widest layer's intermediate results. `scores`: bytes of
    attention scores of a token.
    """
    return tokens * (layer_elements(shape) * element / 2 + scores) + HEAD_BYTES


def score_bytes(shape: Shape, attention: str, length: int) -> float:
    """Bytes of one token's attention scores in one layer, in a sequence of this length: those of all heads
    and their softmax in fp32. Only eager attention keeps them.
    """
    is_eager = attention == "eager" or (attention == "auto" and shape.needs_eager)
    return 6.0 * shape.heads * length if is_eager else 0.0


def layer_elements(shape: Shape) -> int:
    """Elements that one token needs in one layer: norms, Q, K, V, attention's output, and SwiGLU's gate, up
    and product. For each active expert also its input and its output, as computed, weighted and in order.
    """
    routed = 0 if shape.experts is None else 4 * shape.experts.active * shape.hidden
    attention = 2 * shape.attention_width + 2 * shape.kv_width
    return 6 * shape.hidden + attention + 4 * shape.intermediate + routed
