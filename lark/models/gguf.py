"""Convert a student from the package registry: its quantised GGUF file becomes a plain Hugging Face folder,
once.

Everything else (scoring, training, vLLM) loads the converted folder, so no other code needs to handle GGUF.
"""

import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lark.models.chat import ChatFormat
from lark.work.operation import Job

log = logging.getLogger(__name__)


def convert(job: Job) -> dict[str, Any]:
    """Convert the GGUF file at `job.weights` to config, weights and tokenizer in `job.folder`."""
    file = Path(job.weights)
    torch.set_num_threads(job.machine.threads)  # on the CPU, even if the machine has GPUs
    transformers.logging.set_verbosity_error()
    return {"parameters": dequantise(file, job.folder), "file": file.name}


def dequantise(file: Path, folder: Path) -> int:
    """Write the model of a GGUF file in float32 (its exact values) with its tokenizer; return the number of
    parameters.
    """
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "trust_remote_code": False,
    }
    config = AutoConfig.from_pretrained(**source)
    quantised = AutoModelForCausalLM.from_pretrained(**source, config=config, dtype=torch.float32)
    # The loaded model remembers that it was quantised and refuses to be saved; a fresh one does not.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # GGUF names its pre-tokenizer (`smollm`: every digit alone, then GPT-2's rule); transformers uses only
    # GPT-2's rule, and would split a paragraph break before a digit into two tokens that the student has
    # never seen together.
    digits = pre_tokenizers.Digits(individual_digits=True)
    rule = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rule])
    tokenizer.model_max_length = config.max_position_embeddings
    ChatFormat(tokenizer)  # fail here if its template does not work
    tokenizer.save_pretrained(folder)
    return int(sum(parameter.numel() for parameter in model.parameters()))
