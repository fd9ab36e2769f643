"""What an engine must satisfy: one function and one sentence per refusal."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lark import config
from lark.errors import LarkError
from lark.printing import message
from lark.secrets import add_variable
from lark.work.machine import Machine, pinned

if TYPE_CHECKING:
    from lark.generation.engine import EngineKind


def check_sharing(setting: str, gpus: int, engine: str, kind: "EngineKind", machine: Machine) -> None:
    """Refuse a model on several `gpus` that the engine or the machine cannot share."""
    why = None
    if gpus > 1 and not kind.shares_model:
        why = f": engine={engine} keeps a whole model on each GPU; set it to 1, or use engine=vllm."
    elif gpus > 1 and machine.device == "cpu":
        why = f" shares a model among GPUs, and this run uses the CPU: set {setting}=1."
    elif machine.device == "cuda" and machine.processes % gpus:
        why = f" does not divide the {machine.processes} GPUs of this machine: set {setting}=1."
    if why is not None:
        raise LarkError(f"{setting}={gpus}{why}")


def require_installed(engine: str, kind: "EngineKind", machine: Machine) -> None:
    """Refuse an engine whose package is missing."""
    if kind.package is not None and machine.lacks(kind.package):
        raise LarkError(
            f"engine={engine}, but it is not installed:"
            f" {_installation(kind.package, kind)}, or use engine=hf."
        )


def _installation(package: str, kind: "EngineKind") -> str:
    if kind.environment:
        return f"conda env create -f {kind.environment} (it cannot be installed next to vLLM), and run there"
    version = pinned(package)
    if not kind.cpu_package:
        return f"pip install {version}"
    return f"pip install {version} ({version.replace(package, kind.cpu_package)} without a GPU)"


def require_gpu(device: str) -> None:
    """SGLang has no build without a GPU."""
    if device == "cpu":
        raise LarkError("engine=sglang needs a GPU: use engine=hf or engine=vllm on a machine without one.")


def require_finished(reason: dict[str, Any]) -> None:
    """Refuse an answer that SGLang aborted. `reason`: its finish reason."""
    if reason["type"] not in ("stop", "length"):
        raise LarkError(
            f"engine=sglang did not finish a request ({reason['type']}: {reason.get('message', '')})."
        )


LONGEST_SHOWN = 300
"""Characters of an endpoint's message in a sentence."""


def shown(text: str | None) -> str:
    """A text of an endpoint for a message: on one line, without credentials, cut."""
    line = " ".join(message(text or "").split())
    return line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}…"


def key_of(name: str, teacher: config.Teacher) -> str | None:
    """The endpoint's key, from its environment variable; None if it needs none."""
    if teacher.key is None:
        return None
    add_variable(teacher.key)
    value = os.environ.get(teacher.key, "").strip()
    if not value:
        raise LarkError(
            f"teacher.{name}.key={teacher.key}: there is no such environment variable. Set it to the key of"
            f" {teacher.host} (export {teacher.key}=…), or set teacher.{name}.key=null if it needs none."
        )
    if not (value.isascii() and value.isprintable()):
        raise LarkError(f"teacher.{name}.key={teacher.key}: its value contains characters that no key has.")
    return value


def require_model(name: str, teacher: config.Teacher, answered: str) -> None:
    """Refuse the answer of another model than the one that was asked for. Providers add dates to names."""
    accepted = [model for model in (teacher.model, teacher.path, teacher.answers_as) if model]
    if not any(_last(answered).startswith(_last(model)) for model in accepted):
        raise LarkError(
            f"teacher.{name}: {shown(answered)!r} answered in place of {accepted[0]!r}. Set"
            f" teacher.{name}.model to the model that you want, or, if it is this one under another name,"
            f" teacher.{name}.answers_as={shown(answered)}."
        )


def _last(model: str) -> str:
    """A model's name without its owner or folder."""
    return model.rstrip("/").rpartition("/")[2].partition(":")[0].lower().removesuffix("-latest")


def no_connection(name: str, teacher: config.Teacher, reason: str) -> LarkError:
    return LarkError(
        f"teacher.{name}.endpoint={teacher.endpoint}: no connection ({shown(reason)}). Start the server, or"
        " set the right address."
    )


def not_allowed(name: str, teacher: config.Teacher, detail: str) -> LarkError:
    reason = f"it needs a key: set teacher.{name}.key to the name of the environment variable that holds it"
    if teacher.key is not None:
        reason = f"it does not accept the key in the environment variable {teacher.key}; set the right one"
    return LarkError(f"teacher.{name}.endpoint={teacher.endpoint}: {reason} ({detail}).")


def not_there(name: str, teacher: config.Teacher, detail: str) -> LarkError:
    return LarkError(
        f"teacher.{name}.model={teacher.model}: {teacher.endpoint} has no such model, or is not the address"
        f" of an OpenAI-compatible server, which often ends in /v1 ({detail})."
    )


def not_paid(name: str, teacher: config.Teacher, detail: str) -> LarkError:
    return LarkError(
        f"teacher.{name}: {teacher.host} has no credit or quota left for this key ({detail}). Finished"
        " answers are kept; the same command continues."
    )


def not_understood(name: str, teacher: config.Teacher, status: int, detail: str) -> LarkError:
    return LarkError(
        f"teacher.{name}: {teacher.host} refuses every request ({status}: {detail}). Change the setting of"
        f" teacher.{name} that it names."
    )


def gave_up(name: str, teacher: config.Teacher, tries: int, detail: str) -> LarkError:
    return LarkError(
        f"teacher.{name}: {teacher.host} gave no answer in {tries} tries ({detail}). Finished answers are"
        f" kept; the same command continues. If it has too many requests, lower teacher.{name}.concurrency="
        f"{teacher.concurrency}."
    )


def require_few_failures(name: str, teacher: config.Teacher, failures: Mapping[str, int], asked: int) -> None:
    """Refuse more failures than the teacher's setting allows. `failures`: their number by reason; `asked`:
    the questions that were asked.
    """
    total = sum(failures.values())
    if total <= teacher.failures * asked:
        return
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in failures.items())
    raise LarkError(
        f"teacher.{name} failed at {total:,} of {asked:,} questions ({reasons}), more than"
        f" teacher.{name}.failures={teacher.failures:g} allows. Raise it to continue without them."
    )
