"""The shape of a student without its weights: sizes, context, parameters. Imports no model code.

architectures/ has the shapes of the students in conf/student/ and of the paper's judge, so that a run can
be planned and checked before anything is downloaded. Each file is a `config.json` that transformers can
read; tests build it on the meta device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.config import Student
from lark.errors import LarkError
from lark.names import is_demo
from lark.reading.untrusted import quoted, read_object

DEMO = Path(__file__).parents[1] / "demo" / "student"
"""The shipped student."""
ARCHITECTURES = Path(__file__).parent / "architectures"


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder of the Llama family (including Qwen-2.5 and Qwen-3), which determine its cost and
    memory.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """Whether input embeddings and the head are one matrix."""
    qkv_bias: bool
    qk_norm: bool
    """Whether queries and keys are normalised in each head (Qwen-3)."""
    context: int
    """Length of the longest sequence that it supports."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """Read a shape from the keys of a `config.json`; missing keys have the family's defaults."""
        heads = _count(config, "num_attention_heads")
        hidden = _count(config, "hidden_size")
        return cls(
            layers=_count(config, "num_hidden_layers"),
            hidden=hidden,
            intermediate=_count(config, "intermediate_size"),
            heads=heads,
            kv_heads=_count(config, "num_key_value_heads", heads),
            head_size=_count(config, "head_dim", max(1, hidden // heads)),
            vocabulary=_count(config, "vocab_size"),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=config.get("model_type") == "qwen2" or bool(config.get("attention_bias", False)),
            qk_norm=config.get("model_type") == "qwen3",
            context=_count(config, "max_position_embeddings"),
        )

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer that multiply every token: Q, K, V, O and the three matrices of SwiGLU."""
        return self.hidden * (2 * self.attention_width + 2 * self.kv_width + 3 * self.intermediate)

    @property
    def head(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def backbone_matrices(self) -> int:
        return self.layers * self.layer_matrices

    @property
    def parameters(self) -> int:
        heads = self.head if self.tied else 2 * self.head  # with the input embeddings
        norms = (2 * self.layers + 1) * self.hidden
        if self.qk_norm:
            norms += 2 * self.layers * self.head_size
        biases = 0
        if self.qkv_bias:
            biases = self.layers * (self.attention_width + 2 * self.kv_width)
        return self.backbone_matrices + heads + norms + biases


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A size. Raises KeyError if it is missing, or a list: the model is then of another family."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None or isinstance(value, list | dict):
        raise KeyError(key)
    _require_whole(key, value)
    return value


def _require_whole(key: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise LarkError(f"`{key}` must be a whole number of at least 1, not {quoted(value)}")


def config_of(student: Student) -> dict[str, Any] | None:
    """The student's `config.json` from its folder, architectures/ or the hub's cache. None if it is in none
    of them.
    """
    folder = DEMO if is_demo(student.path) else Path(student.path).expanduser()
    if (folder / "config.json").is_file():
        return _read(folder / "config.json", student)
    for path in ARCHITECTURES.glob("*.json"):
        config = read_object(path)
        if config["_name_or_path"] == student.path:
            return config
    cached = _cached(student)
    return None if cached is None else _read(cached, student)


def _read(path: Path, student: Student) -> dict[str, Any]:
    try:
        return read_object(path)
    except LarkError as error:
        raise LarkError(
            f"{student.setting}.path={student.path}: its config.json cannot be read ({error})"
        ) from error


def shape_of(student: Student) -> Shape | None:
    """The student's shape, or None if it is unknown without downloading, or if the student is of another
    family.
    """
    config = config_of(student)
    try:
        return None if config is None else Shape.of(config)
    except KeyError:
        return None
    except LarkError as error:
        raise LarkError(
            f"{student.setting}.path={student.path}: config.json: {error}. Download the model again."
        ) from error


def _cached(student: Student) -> Path | None:
    """A hub model's config.json, if an earlier run has downloaded it."""
    if student.path.count("/") != 1 or student.path.startswith((".", "/", "~")):
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  # light, but rarely needed

    # None if it was never requested; an object that is not a path if it is known to be missing.
    file = try_to_load_from_cache(student.path, "config.json", revision=student.revision)
    return Path(file) if isinstance(file, str) else None
