"""What the weights of a student must satisfy: one function and one sentence per refusal.

`label` names the model by the setting that chose it, such as `student.path=<folder>`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError
from lark.printing import some

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

    from lark.models.weights import Checkpoint, Loaded

SINGLE_FILE = "model.safetensors"
WEIGHT_INDEX = "model.safetensors.index.json"
"""Has the file of each tensor, if there are several files."""
HEAD_WEIGHT = "lm_head.weight"
DO_NOT_FIT = "The weights and config.json do not belong together, or the download is incomplete."
TENSORS_SHOWN = 3


def refuse_adapter(checkpoint: "Checkpoint") -> None:
    """Transformers would complete an adapter with a model from elsewhere."""
    name = "adapter_config.json"
    if (checkpoint.folder / name).exists():
        raise LarkError(
            f"{checkpoint.label}: the folder has an {name}, so it is an adapter for another model. Merge the"
            " adapter into its model, and give the merged model's folder."
        )


def require_weight_map(weight_map: Any, label: str) -> None:
    """Refuse an index that does not say which file each tensor is in."""
    is_map = isinstance(weight_map, dict) and bool(weight_map)
    if not is_map or not all(isinstance(file, str) for file in weight_map.values()):
        raise LarkError(
            f"{label}: {WEIGHT_INDEX} has no `weight_map` of file names. Download the model again."
        )


def require_files(checkpoint: "Checkpoint") -> None:
    """Refuse a folder that lacks a file of weights. An index may name files elsewhere, or lost ones."""
    missing = checkpoint.expected_files - checkpoint.file_names
    if missing:
        raise LarkError(
            f"{checkpoint.label}: its weights should be in {min(missing)!r}, which is not a file in the"
            f" folder. Download the model again, with its {WEIGHT_INDEX} if it has several files."
        )


def refuse_other_files(checkpoint: "Checkpoint") -> None:
    """Transformers would ignore such a file, and vLLM would load it."""
    others = checkpoint.file_names - checkpoint.expected_files
    if others:
        raise LarkError(
            f"{checkpoint.label}: {min(others)} is in the folder, but not named by {WEIGHT_INDEX}, so"
            " programs would load different weights. Remove the file that does not belong to the model."
        )


def require_safetensors(checkpoint: "Checkpoint") -> None:
    """Refuse a folder without weights, or with weights in pickles."""
    if checkpoint.files:
        return
    pickles = sorted(p.name for p in checkpoint.folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
    reason = f" ({pickles[0]} is a pickle, which can execute code)" if pickles else ""
    raise LarkError(
        f"{checkpoint.label}: the folder has no safetensors weights{reason}."
        " Convert the model to safetensors."
    )


def refuse_misplaced_tensors(checkpoint: "Checkpoint") -> None:
    """Refuse an index that names another file for a tensor, or only one of two: programs would differ in
    which tensor they use.
    """
    for file, tensors in checkpoint.headers.items():
        for name in tensors:
            indexed = checkpoint.index.get(name, file)
            if indexed != file:
                raise LarkError(
                    f"{checkpoint.label}: {WEIGHT_INDEX} names {indexed} for the tensor {name}, but it is in"
                    f" {file}. Download the model again."
                )


def require_tied_head(checkpoint: "Checkpoint") -> None:
    """Refuse a second head where config.json says that the embeddings are the head: transformers would use
    the head, and vLLM the embeddings.
    """
    embeddings = [name for name in checkpoint.tensors if name.endswith("embed_tokens.weight")]
    is_tied = checkpoint.config.get("tie_word_embeddings") is True
    if not is_tied or HEAD_WEIGHT not in checkpoint.tensors or len(embeddings) != 1:
        return
    # Many programs write an equal copy, which does no harm.
    if not checkpoint.tensor(HEAD_WEIGHT).equal(checkpoint.tensor(embeddings[0])):
        raise LarkError(
            f"{checkpoint.label}: `tie_word_embeddings` in config.json says that {embeddings[0]} is the head"
            f" too, but the checkpoint has another {HEAD_WEIGHT}, so programs would load different weights."
            f" Set it to false, or remove {HEAD_WEIGHT}."
        )


STORED: tuple[Callable[["Checkpoint"], None], ...] = (
    refuse_adapter,
    require_safetensors,
    require_files,
    refuse_other_files,
    refuse_misplaced_tensors,
    require_tied_head,
)
"""Checks of a local checkpoint's files, in this order: later ones rely on earlier ones."""


def require_size(checkpoint: "Checkpoint", parameters: int) -> None:
    """Refuse a config of a much larger model. `parameters`: the size of the model that it describes."""
    stored = sum(tensor.elements for tensor in checkpoint.tensors.values())
    # A smaller difference is found after loading, with the names of the tensors.
    if parameters > 2 * stored:
        raise LarkError(
            f"{checkpoint.label}: config.json describes a model with {parameters:,} parameters, but the"
            f" checkpoint has {stored:,}. {DO_NOT_FIT}"
        )


def refuse_quantised(config: "PreTrainedConfig", label: str) -> None:
    """Refuse a model whose weights are stored quantised."""
    if getattr(config, "quantization_config", None) is not None:
        raise LarkError(
            f"{label}: its config.json has a quantization_config, and quantised weights can be neither scored"
            " exactly nor trained. Use the original model; training=lora training.lora.bits=4 quantises it by"
            " itself."
        )


# A model after loading.


def require_complete(loaded: "Loaded") -> None:
    """Refuse a model with tensors that did not come from the checkpoint, and the reverse."""
    mismatched = [key[0] for key in loaded.report.get("mismatched_keys") or ()]
    problems = {
        "lacks": loaded.report.get("missing_keys"),
        "has the wrong shape for": mismatched,
        "has, without a place in the model,": loaded.report.get("unexpected_keys"),
    }
    for verb, names in problems.items():
        if names:
            noun = "tensor" if len(names) == 1 else "tensors"
            tensors = some(sorted(names), TENSORS_SHOWN)
            raise LarkError(f"{loaded.label}: its checkpoint {verb} the {noun} {tensors}. {DO_NOT_FIT}")


def require_finite(loaded: "Loaded") -> None:
    """Refuse NaN and infinite weights."""
    name = not_finite(loaded.model)
    if name is not None:
        raise LarkError(
            f"{loaded.label}: the tensor {name} has values that are not finite (NaN or infinite). Use an"
            " intact copy of the model."
        )


def not_finite(model: "nn.Module") -> str | None:
    """Name of a parameter with a value that is NaN or infinite; None if all are numbers. Of a sharded one,
    only this process's part is checked.
    """
    for name, parameter in model.named_parameters():
        local = getattr(parameter, "ds_tensor", parameter).detach()
        # Not in types of one byte: `isfinite` is not implemented for all of them.
        if local.is_floating_point() and local.element_size() > 1 and not bool(local.isfinite().all()):
            return name
    return None


def require_floating(loaded: "Loaded") -> None:
    """Refuse integers in the checkpoint where the model has floating-point numbers."""
    for name, parameter in loaded.model.named_parameters():
        stored = loaded.checkpoint.tensors.get(name)
        if stored is None or not parameter.is_floating_point():
            continue
        if not stored.dtype.startswith(("F", "BF")):
            raise LarkError(
                f"{loaded.label}: the tensor {name} is stored as {stored.dtype}, but the model's weights are"
                " floating-point numbers. Use the original model: quantised weights can be neither scored"
                " exactly nor trained."
            )


def require_embeddings(loaded: "Loaded") -> None:
    """Refuse embeddings that are all zero: predictions would not depend on the text."""
    embedding: Any = loaded.model.get_input_embeddings().weight
    # Under ZeRO-3 no process has the whole matrix.
    is_complete = embedding.numel() > 0 and not hasattr(embedding, "ds_tensor")
    if is_complete and not embedding.any():
        raise LarkError(f"{loaded.label}: all of its embeddings are zero. Use an intact copy of the model.")


LOADED: tuple[Callable[["Loaded"], None], ...] = (
    require_complete,
    require_finite,
    require_floating,
    require_embeddings,
)
