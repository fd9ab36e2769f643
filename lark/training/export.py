"""Write the trained student as a plain Hugging Face folder: the final one (the artifact), and snapshots
during training.
"""

import copy
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, Trainer

from lark.config import Config
from lark.errors import LarkError
from lark.models.chat import ChatFormat
from lark.models.load import load_model
from lark.training.checkpoints import Stamp, stamps
from lark.training.lora import merged, transposed_layers, with_unquantised_base
from lark.training.trainer import diverged

log = logging.getLogger(__name__)

SNAPSHOTS = "snapshots"


class Exporter:
    """Writes the current model. All processes must call it together: ZeRO-3's weights are gathered from all
    of them.
    """

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
        self.trainer, self.student, self.chat = trainer, student, chat
        self.config, self.zero, self.folder, self.source = config, zero, folder, source

    def export(self) -> dict[str, Stamp]:
        """Write into the artifact's folder, and return its files. They get their final names only when all
        are complete.
        """
        draft = self.folder / "checkpoints" / "export"
        if not self._write(draft):
            return {}
        files = stamps(draft)
        for name in files:
            (draft / name).replace(self.folder / name)
        return files

    def snapshot(self, step: int) -> None:
        """Write into snapshots/step-000123. A step that already exists (from a run that was killed later)
        is left alone.
        """
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
        return cast(nn.Module, self.trainer.model).state_dict() if needed else {}

    def _save(self, state: dict[str, Tensor], folder: Path) -> None:
        lora = self.config.training.lora
        if (
            lora.bits is not None
        ):  # merge into the weights as they were before quantization, which are read again
            state = with_unquantised_base(
                state, load_model(self.source, self.config.student, "cpu").state_dict()
            )
        if lora.rank:
            state = merged(state, transposed_layers(self.student), lora)
        dtype = getattr(torch, self.config.student.dtype)
        config = copy.deepcopy(self.student.config)
        config.use_cache = True
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device(
            "meta"
        ):  # the plain class and dtype, without adapters; its weights are those in `state`
            shell = type(self.student)(config).to(dtype)
        shell.generation_config = self._generation_config()
        shell.save_pretrained(folder, state_dict=self._checked(_copies(state, dtype)))
        self.chat.tokenizer.save_pretrained(folder)
        mode = (
            (folder / "config.json").stat().st_mode
        )  # that of an ordinary file; only the owner can read safetensors
        for file in folder.iterdir():
            file.chmod(mode)
            with file.open("rb") as handle:
                os.fsync(handle.fileno())

    def _checked(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights as they are written, if they are numbers. A weight may also be too large for float16."""
        for name, value in weights.items():
            if not bool(value.isfinite().all()):
                what = f"weights are not finite in {self.config.student.dtype}, e.g. {name}"
                raise LarkError(
                    diverged(self.trainer.state.global_step, what, self.config.training.learning_rate)
                )
        return weights

    def _generation_config(self) -> GenerationConfig:
        """Both stop tokens, without the student's sampling defaults, which engines would apply."""
        tokenizer, stops = self.chat.tokenizer, self.chat.stop_ids
        pad = cast("int | None", tokenizer.pad_token_id)
        return GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=stops,
            pad_token_id=stops[0] if pad is None else pad,
        )


def _copies(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies on the CPU, in `dtype`, outside DeepSpeed's flat buffers. Names that share a weight (a tied
    head) still do.
    """
    copies: dict[tuple[int, torch.Size], Tensor] = {}
    result = {}
    for name, value in state.items():
        key = (value.data_ptr(), value.shape)
        if key not in copies:
            copies[key] = value.detach().to("cpu", dtype, copy=True)
        result[name] = copies[key]
    return result
