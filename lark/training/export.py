"""Write the student as a plain Hugging Face folder: the trained one (the artifact), and snapshots before."""

import contextlib
import copy
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, Trainer
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from lark.config import Config
from lark.models.chat import ChatFormat
from lark.models.load import copy_processor, load_model
from lark.training.checkpoints import FileStamp, stamps
from lark.training.checks import refuse_diverged
from lark.training.lora import merged, transposed_layers, with_unquantised_base

log = logging.getLogger(__name__)

SNAPSHOTS = "snapshots"


class Exporter:
    """Writes the current model. All processes call it together, because they gather ZeRO-3's weights."""

    def __init__(
        self,
        trainer: Trainer,
        student: PreTrainedModel,
        chat: ChatFormat,
        config: Config,
        zero: int,
        folder: Path,
        source: str,
    ) -> None:
        """`student` is the model itself, without wrappers; `source` is where it was loaded from."""
        self.trainer = trainer
        self.student = student
        self.chat = chat
        self.config = config
        self.zero = zero
        self.folder = folder
        self.source = source

    def export(self) -> dict[str, FileStamp]:
        """Write into the artifact's folder, and return its files; empty in a process that does not write."""
        draft = self.folder / "checkpoints" / "export"
        if not self._write(draft):
            return {}
        files = stamps(draft)
        for name in files:  # final names only when all files are complete
            (draft / name).replace(self.folder / name)
        return files

    def snapshot(self, step: int) -> None:
        """Write into snapshots/step-000123, unless a run that was killed later has written it."""
        final = self.folder / SNAPSHOTS / f"step-{step:06d}"
        if final.is_dir():
            return
        draft = final.with_name(f".{final.name}.part")
        if self._write(draft):
            draft.replace(final)

    def _write(self, folder: Path) -> bool:
        """Write the model. Returns whether this process was the one that wrote."""
        writes = self.trainer.is_world_process_zero()
        state = self.state(writes)
        if writes:
            shutil.rmtree(folder, ignore_errors=True)
            self._save(state, folder)
        self.trainer.accelerator.wait_for_everyone()
        return writes

    def state(self, needed: bool) -> dict[str, Tensor]:
        """The current weights (including adapters) by name; empty on processes with `needed=False`."""
        if self.zero == 3:  # a collective, whether or not this process writes
            return dict(self.trainer.accelerator.get_state_dict(self.trainer.model_wrapped) or {})
        if not needed:
            return {}
        return cast(nn.Module, self.trainer.model).state_dict()

    def _save(self, state: dict[str, Tensor], folder: Path) -> None:
        lora = self.config.training.lora
        if lora.bits is not None:
            # Merge into the weights as they were before quantization, which are read again.
            student = load_model(self.source, self.config.student, "cpu")
            state = with_unquantised_base(state, student.state_dict())
        if lora.rank:
            state = merged(state, transposed_layers(self.student), lora)
        dtype = getattr(torch, self.config.student.dtype)
        config = copy.deepcopy(self.student.config)
        config.use_cache = True
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        # The plain class, without adapters; its weights are those in `state`.
        with torch.device("meta"), _unsharded(self.trainer):
            shell = type(self.student)(config).to(dtype)
        shell.generation_config = self._generation_config()
        weights = _copies(state, dtype)
        self._check_finite(weights)
        shell.save_pretrained(folder, state_dict=weights)
        self.chat.tokenizer.save_pretrained(folder)
        copy_processor(self.source, self.config.student.revision, folder)
        # Only their owner can read new safetensors files; config.json has the mode of an ordinary file.
        mode = (folder / "config.json").stat().st_mode
        for file in folder.iterdir():
            file.chmod(mode)
            with file.open("rb") as handle:
                os.fsync(handle.fileno())

    def _check_finite(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse weights that are not numbers in the student's dtype: some may be too large for float16."""
        for name, value in weights.items():
            if not bool(value.isfinite().all()):
                harm = f"weights are not finite in {self.config.student.dtype}, e.g. {name}"
                refuse_diverged(self.trainer.state.global_step, harm, self.config.training.learning_rate)

    def _generation_config(self) -> GenerationConfig:
        """Both stop tokens, without the student's sampling defaults, which engines would apply."""
        tokenizer = self.chat.tokenizer
        stops = self.chat.stop_ids
        pad = cast("int | None", tokenizer.pad_token_id)
        return GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=stops,
            pad_token_id=stops[0] if pad is None else pad,
        )


@contextlib.contextmanager
def _unsharded(trainer: Trainer) -> Iterator[None]:
    """Make models of one process alone. With ZeRO-3, transformers would shard the parts of a multimodal model
    while they are made, and wait for the other processes, which make none.
    """
    sharding = getattr(trainer.args, "hf_deepspeed_config", None)
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if sharding is not None:
            set_hf_deepspeed_config(sharding)


def _copies(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies on the CPU in `dtype`, outside DeepSpeed's flat buffers. A tied head shares its copy."""
    copies: dict[tuple[int, torch.Size], Tensor] = {}
    result = {}
    for name, value in state.items():
        key = (value.data_ptr(), value.shape)
        if key not in copies:
            copies[key] = value.detach().to("cpu", dtype, copy=True)
        result[name] = copies[key]
    return result
