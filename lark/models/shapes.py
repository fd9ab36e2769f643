"""The shape of a student without its weights: sizes, context, parameters. Imports no model code.

architectures/ has the shapes of the students in conf/student/ and of the paper's judge, so that a run can
be planned and checked before anything is downloaded. Each file is a `config.json` that transformers can
read; tests build it on the meta device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lark.config import Student
from lark.errors import LarkError
from lark.reading.untrusted import quoted, read_object

DEMO = Path(__file__).parents[1] / "demo" / "student"
"""The shipped student."""
ARCHITECTURES = Path(__file__).parent / "architectures"


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of a `config.json` for the number of experts in a layer."""
EXPERT_WIDTH = {
    "qwen3_moe": "moe_intermediate_size",
    "mixtral": "intermediate_size",
    "gpt_oss": "intermediate_size",
}
"""The families of mixtures of experts whose size is known, and their key for the width of one expert."""
WITH_QK_NORM = ("qwen3", "qwen3_moe", "gemma3_text")
GEMMA3: Mapping[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}
"""Sizes that a Gemma 3 leaves out of its `config.json` where they are the family's."""


@dataclass(frozen=True)
class Experts:
    """The gated MLPs of a layer of a mixture of experts. A router chooses `active` of them for each token."""

    count: int
    active: int
    width: int
    """Intermediate size of one expert."""
    biased: bool = False
    """Whether experts and routers have biases (gpt-oss)."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder of the Llama family (including Qwen-2.5 and Qwen-3), of a mixture of experts or of
    Gemma 3, which determine its cost and memory.
    """

    layers: int
    hidden: int
    intermediate: int
    """Width of the MLP, as one token sees it: with experts, of all active ones together."""
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
    experts: Experts | None = None
    norms: int = 2
    """RMSNorms of a layer, without those of queries and keys."""
    beside: int = 0
    """Parameters of a layer that nothing above counts: gpt-oss's attention sinks and the bias of its output.
    """
    vision: int = 0
    """Parameters of a multimodal model that text does not reach. They are loaded, but not trained."""
    needs_eager: bool = False
    """Whether its attention is more than sdpa computes (lark/models/attention.py)."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """Read a shape from the keys of a `config.json`; missing keys have the family's defaults."""
        if config.get("model_type") == "gemma3":
            text = {**_part(config, "text_config"), "model_type": "gemma3_text"}
            vision = _vision(_part(config, "vision_config"), _count(text, "hidden_size"))
            return replace(cls.of(text), vision=vision)
        family = config.get("model_type")
        if family == "gemma3_text":
            config = {**GEMMA3, **config}
        is_gemma = family in ("gemma2", "gemma3_text")
        is_gpt_oss = family == "gpt_oss"
        heads = _count(config, "num_attention_heads")
        hidden = _count(config, "hidden_size")
        experts = _experts(config)
        width = _count(config, "intermediate_size") if experts is None else experts.active * experts.width
        return cls(
            layers=_count(config, "num_hidden_layers"),
            hidden=hidden,
            intermediate=width,
            heads=heads,
            kv_heads=_count(config, "num_key_value_heads", heads),
            head_size=_count(config, "head_dim", max(1, hidden // heads)),
            vocabulary=_count(config, "vocab_size"),
            tied=bool(config.get("tie_word_embeddings", is_gemma)),
            qkv_bias=family == "qwen2" or bool(config.get("attention_bias", is_gpt_oss)),
            qk_norm=family in WITH_QK_NORM,
            context=_count(config, "max_position_embeddings"),
            experts=experts,
            norms=4 if is_gemma else 2,
            beside=hidden + heads if is_gpt_oss else 0,
            needs_eager=is_gpt_oss or config.get("attn_logit_softcapping") is not None,
        )

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer that multiply every token: Q, K, V, O and the three matrices of SwiGLU.
        With experts, the router and those matrices of the active ones.
        """
        router = 0 if self.experts is None else self.experts.count
        return self.hidden * (2 * self.attention_width + 2 * self.kv_width + 3 * self.intermediate + router)

    @property
    def whole_layer(self) -> int:
        """Parameters of the matrices of one layer, with all of its experts."""
        return self.layer_matrices + self._idle

    @property
    def head(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def backbone_matrices(self) -> int:
        return self.layers * self.layer_matrices

    @property
    def active_parameters(self) -> int:
        """Parameters of the decoder that a token uses. They decide how long a forward pass takes."""
        heads = self.head if self.tied else 2 * self.head  # with the input embeddings
        norms = (self.norms * self.layers + 1) * self.hidden
        if self.qk_norm:
            norms += 2 * self.layers * self.head_size
        biases = self.layers * self.beside
        if self.qkv_bias:
            biases += self.layers * (self.attention_width + 2 * self.kv_width)
        return self.backbone_matrices + heads + norms + biases

    @property
    def parameters(self) -> int:
        """All parameters. They decide how much memory and disk space the model needs."""
        return self.active_parameters + self.layers * self._idle + self.vision

    @property
    def _idle(self) -> int:
        """Parameters of the experts of one layer that `active_parameters` does not count."""
        experts = self.experts
        if experts is None:
            return 0
        idle = 3 * self.hidden * experts.width * (experts.count - experts.active)
        if experts.biased:  # of the gate, the MLP's input, its output and the router
            idle += experts.count * (2 * experts.width + self.hidden + 1)
        return idle


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` describes a mixture of experts."""
    return _expert_count(config) is not None


def _expert_count(config: Mapping[str, Any]) -> int | None:
    """The number of experts in a layer; None if there is at most one."""
    counts = [config.get(key) for key in EXPERTS]
    return next((count for count in counts if isinstance(count, int) and count > 1), None)


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The config of a part of a model. Raises KeyError if there is none."""
    part = config.get(key)
    if not isinstance(part, Mapping):
        raise KeyError(key)
    return part


def _experts(config: Mapping[str, Any]) -> Experts | None:
    """The experts of each layer; None for a dense model. Raises KeyError if only some layers have experts, or
    the family is unknown.
    """
    count = _expert_count(config)
    if count is None:
        return None
    key = EXPERT_WIDTH[str(config.get("model_type"))]
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise KeyError("mlp_only_layers")
    is_biased = config.get("model_type") == "gpt_oss"
    return Experts(count, _count(config, "num_experts_per_tok"), _count(config, key), is_biased)


def _vision(config: Mapping[str, Any], hidden: int) -> int:
    """Parameters of Gemma 3's vision tower (SigLIP) and of the projection into the decoder."""
    size = partial(_count, config)
    width = size("hidden_size")
    patch = size("patch_size")
    embedding = width * (3 * patch**2 + 1 + (size("image_size") // patch) ** 2)
    mlp = 2 * width * size("intermediate_size") + size("intermediate_size") + width
    layer = 4 * (width**2 + width) + mlp + 4 * width  # attention, the MLP and two LayerNorms
    return embedding + size("num_hidden_layers") * layer + 2 * width + width * (hidden + 1)


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
    folder = DEMO if student.is_bundled else Path(student.path).expanduser()
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
