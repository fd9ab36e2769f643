"""Packages that almost every step uses. Ray imports this module in processes of a local cluster that wait for work, so that a
step's actors need not import them (`lark/runtime/cluster.py`)."""

import contextlib
import importlib

PACKAGES = {
    "torch": (),
    "transformers": ("AutoModelForCausalLM", "AutoTokenizer", "Trainer"),
    "pyarrow.parquet": (),
    "safetensors.torch": (),
}
"""With names whose modules transformers imports when they are used."""

for package, names in PACKAGES.items():
    with contextlib.suppress(Exception):  # the step imports it again, and reports what is wrong
        module = importlib.import_module(package)
        for name in names:
            getattr(module, name)
