"""Random settings on the command line and damaged configuration files: a plan or a sentence, and no file
outside of `outputs`.
"""

import random
import resource
import shutil
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from lark.config import Config
from lark.config.argument_checks import CONF, options_of
from lark.pipeline import pipeline as pipelines
from tests.conftest import SMALL, work_here
from tests.fuzz.case import DIFFERENT, Case, Result, judged
from tests.fuzz.mutations import HOSTILE, change_bytes
from tests.hostile import forked, program

SECONDS = 60.0
WHOLE = 150.0
"""Seconds of a whole run, which takes about five."""
MEMORY = 12 << 30
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "1.5",
    "1e9",
    "1e300",
    "9" * 30,
    "9" * 2000,
    "nan",
    "inf",
    "-inf",
    "1e-300",
    "0x10",
    "1_000",
    "-0.0",
]
TEXTS = [
    "null", "''", "[]", "{}", "[1]", "[a,b]", "{a:1}", "true", "maybe", "a,b", "${oc.env:HOME}", "${nope}",
    "${student.name}",
    "../../evil",
    "/etc/passwd", "/dev/zero", "/dev/full", "/proc/self/mem", "~", "~nobody-here/x", ".", "..", "a b",
    "'a b'", '"', "\\", "=",
    "a=b",
    "x" * 300, "é" * 120, "[" * 60, "{a:" * 30 + "1" + "}" * 30, "\u202e", "\x1b[31m", "a\nb", "<|im_end|>",
    "(", "(x+x+)+y", "%",
    "#", "@",
    "demo", "Qwen/Qwen2.5-7B", "$(touch pwned)", "`touch pwned`", "!!python/object/apply:os.system [id]", "*",
    "&a", "- x", "---",
]  # fmt: skip


def keys(schema: Any = Config, prefix: str = "") -> list[str]:
    """All keys of the configuration."""
    found = []
    for field in fields(schema):
        found.append(prefix + field.name)
        if is_dataclass(field.type):
            found += keys(field.type, f"{prefix}{field.name}.")
    return found


KEYS = [key for key in keys() if key not in ("outputs", "dry_run")]
FREE = [
    "pool.fields.question", "pool.fields.nope", "pool.mix.a.path", "pool.mix.a", "method.options.x",
    "student.template_options.x",
    "benchmark.tasks.demo_words.path", "benchmark.tasks.demo_words.limit",
    "benchmark.tasks.demo_words.answer_format",
    "benchmark.tasks.demo_words.distractor_fields", "benchmark.tasks.x.path", "hydra.run.dir",
    "hydra.job.name", "hydra.verbose",
    "+nope", "~student", "++a.b.c",
]  # fmt: skip
"""Keys that the schema does not list, and some that do not exist."""
GROUPS = (
    "student",
    "pool",
    "method",
    "benchmark",
    "engine",
    "hardware",
    "tracking",
    "training",
    "experiment",
    "weighting",
    "scoring",
)


def setting(rng: random.Random) -> str:
    """One argument."""
    if rng.random() < 0.2:
        group = rng.choice(GROUPS)
        return f"{group}={rng.choice([*options_of(group), 'nope'])}"
    key = rng.choice([*KEYS, *KEYS, *KEYS, *FREE])
    value = rng.choice([*NUMBERS, *TEXTS, *(item for item in HOSTILE if isinstance(item, str))])
    return (
        f"{key}={value}".replace("\0", "")
        if rng.random() < 0.97
        else rng.choice([f"--{key}", f"-{key[:3]}", key, f"{key}=", f"~{key}"])
    )


class Settings:
    """Random arguments of `run.py`, with `dry_run=true`."""

    name = "settings"
    share = 1.5

    def prepare(self, shared: Path) -> None:
        pass

    def run(self, case: Case, folder: Path) -> Result:
        rng = case.rng
        outputs = folder / "a" / "b" / "outputs"
        chosen = [setting(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        arguments = [f"outputs={outputs}", "dry_run=true", "tracking=none", *chosen]
        what = " ".join(f"{argument!r:.120}" for argument in chosen)
        return confined(judged(forked(lambda: program(tuple(arguments)), SECONDS), what), folder, outputs)


EXTREMES = {
    int: ["0", "1", "2", "3", "-1", str(2**31 - 1), str(2**31), str(2**32 - 1), str(2**62), str(2**63 - 1)],
    float: ["0", "1e-300", "1e-9", "0.5", "0.999", "1", "2", "1e6", "1e9", "1e300", "-1", "nan"],
    bool: ["true", "false"],
}
OTHERS = ("hardware.processes", "hardware.nodes", "hardware.node", "hardware.device", "hardware.threads",
          "hardware.warm", "hardware.sequence_parallel", "tracking.", "engine.kv_cache_gib",
          "experiment", "analysis.", "hardware.silence")  # fmt: skip
"""Settings that start other processes, or that this run does not use."""
METHODS = (
    "lark",
    "lark",
    "rsr",
    "grape",
    "local_naturalness",
    "random",
    "rule_quality",
    "entropy",
    "token_length",
    "inverse_loss",
)


def typed(schema: Any = Config, prefix: str = "") -> dict[str, list[str]]:
    """Settings that are numbers or switches, and extreme values of each."""
    found: dict[str, list[str]] = {}
    for field in fields(schema):
        kinds = get_args(field.type) or (field.type,)
        if is_dataclass(field.type):
            found |= typed(field.type, f"{prefix}{field.name}.")
        elif values := [value for kind in kinds for value in EXTREMES.get(kind, [])]:
            found[prefix + field.name] = values + (["null"] if NoneType in kinds else [])
    return {key: values for key, values in found.items() if not key.startswith(OTHERS)}


class Extremes:
    """Whole runs with extreme values of one or two settings."""

    name = "extremes"
    share = 2.0

    def prepare(self, shared: Path) -> None:
        self.values = typed()

    def run(self, case: Case, folder: Path) -> Result:
        rng = case.rng
        chosen = [
            f"{key}={rng.choice(self.values[key])}"
            for key in rng.sample(sorted(self.values), rng.choice([1, 1, 2]))
        ]
        chosen += [f"method={rng.choice(METHODS)}"] if rng.random() < 0.5 else []
        arguments = (f"outputs={folder / 'outputs'}", *SMALL, "hardware.warm=false", *chosen)

        def prepare() -> None:
            pipelines.run_worker = work_here  # type: ignore[assignment]
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

        return judged(forked(lambda: program(arguments, prepare=prepare), WHOLE), " ".join(chosen))


class Files:
    """Damaged files of `conf/`, from a folder that is given with --config-dir."""

    name = "config files"
    share = 0.5

    def prepare(self, shared: Path) -> None:
        pass

    def run(self, case: Case, folder: Path) -> Result:
        rng = case.rng
        group = rng.choice(["student", "benchmark", "method", "training", "hardware", "engine", "pool"])
        source = rng.choice([path for path in sorted((CONF / group).glob("*.yaml")) if "/" not in path.stem])
        (folder / "conf" / group).mkdir(parents=True)
        data, what = change_bytes(source.read_bytes(), rng)
        if rng.random() < 0.4:
            lines = source.read_text().splitlines()
            at = rng.randrange(len(lines))
            key = lines[at].split(":")[0]
            lines[at] = f"{key}: {rng.choice([*NUMBERS, *TEXTS])}"
            data, what = (
                "\n".join(lines).encode("utf-8", "surrogatepass"),
                f"line {at + 1}: {lines[at]!r:.80}",
            )
        (folder / "conf" / group / "mine.yaml").write_bytes(data)
        outputs = folder / "outputs"
        arguments = [
            f"outputs={outputs}",
            "dry_run=true",
            "tracking=none",
            f"{group}=mine",
            "--config-dir",
            str(folder / "conf"),
        ]
        if group == "pool":
            shutil.copy(source, folder / "pool.jsonl")
            arguments.append(f"pool.path={folder / 'pool.jsonl'}")
        ended = judged(forked(lambda: program(tuple(arguments)), SECONDS), f"{group}/{source.name}: {what}")
        return confined(ended, folder, outputs)


def confined(result: Result, folder: Path, outputs: Path) -> Result:
    """The result, or a failure if there are files next to the outputs."""
    allowed = {outputs, *outputs.parents, *folder.glob("conf/**/*"), folder / "conf", folder / "pool.jsonl"}
    strays = [path for path in folder.rglob("*") if path not in allowed and not path.is_relative_to(outputs)]
    return (
        Result(DIFFERENT, result.what, f"files outside of the outputs: {strays[:3]}")
        if strays and not result.failed
        else result
    )


KINDS = (Settings(), Extremes(), Files())
