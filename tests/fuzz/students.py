"""Damaged folders of students: refused, or used under another fingerprint. What has the same fingerprint
has the same content.
"""

import json
import random
import resource
import shutil
import struct
from pathlib import Path

from lark.models.shapes import DEMO
from lark.pipeline import pipeline as pipelines
from tests.conftest import work_here
from tests.fuzz.case import Case, Result, judged
from tests.fuzz.kills import data
from tests.fuzz.mutations import change_file, change_value
from tests.hostile import Ended, forked, program

SECONDS = 120.0
MEMORY = 12 << 30
"""Bytes of address space: a configuration may ask for any size."""
SETTINGS = (
    "pool.questions=2", "stages=[score]", "tracking=none", "hardware.threads=1", "hardware.warm=false",
    "benchmark=demo_words",
    "benchmark.tasks.demo_words.limit=2", "benchmark.decoding.samples=1", "benchmark.decoding.seeds=[0]",
    "benchmark.decoding.max_new_tokens=8",
)  # fmt: skip


def score(student: Path, outputs: Path, stage: str = "score") -> Ended:
    """Score a small pool with a student, or let it answer a benchmark, in one process."""

    def prepare() -> None:
        pipelines.run_worker = work_here  # type: ignore[assignment]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    arguments = (*SETTINGS, f"stages=[{stage}]", *(["method=base"] if stage == "evaluate" else []))
    return forked(
        lambda: program((f"outputs={outputs}", f"student.path={student}", *arguments), prepare=prepare),
        SECONDS,
    )


def damage(folder: Path, rng: random.Random) -> str:
    """Damage one or two files of a student's folder."""
    said = []
    for _ in range(rng.choice([1, 1, 2])):
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        path = rng.choice(paths)
        if path.suffix == ".safetensors" and rng.random() < 0.6:
            said.append(_change_header(path, rng))
        else:
            said.append(change_file(path, [other for other in paths if other != path], rng))
    if rng.random() < 0.15:
        name = rng.choice(
            [
                "adapter_config.json",
                "extra.safetensors",
                "pytorch_model.bin",
                "model.safetensors.index.json",
                "merges.txt",
            ]
        )
        (folder / name).write_bytes(
            rng.choice([b"{}", b"[]", b"", b"\x80\x04N.", b'{"weight_map": {"x": "../x"}}'])
        )
        said.append(f"a file {name}")
    return "; ".join(said)


def _change_header(path: Path, rng: random.Random) -> str:
    """Change the list of tensors in a safetensors file, which then still is one."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    values, how = change_value(json.loads(content[8 : 8 + size]), rng)
    header = json.dumps(values).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    return f"{path.name}: header, {how}"


class Students:
    """Damaged copies of the demo's student."""

    name = "student"
    share = 2.0

    def prepare(self, shared: Path) -> None:
        self.expected: dict[str, bytes] = {}
        for stage in ("score", "evaluate"):
            ended = score(DEMO, shared / "student", stage)
            assert ended.code == 0, ended.output
        self.expected = data(shared / "student")

    def run(self, case: Case, folder: Path) -> Result:
        rng = case.rng
        student = Path(shutil.copytree(DEMO, folder / "student"))
        what, outputs = damage(student, rng), folder / "outputs"
        stage = rng.choice(["score", "score", "evaluate"])
        return judged(score(student, outputs, stage), f"{stage}: {what}", lambda: self._difference(outputs))

    def _difference(self, outputs: Path) -> str | None:
        found = data(outputs)
        differ = [name for name, content in found.items() if self._expected(name, content) != content]
        return f"{differ[0]} has the same fingerprint, but another content" if differ else None

    def _expected(self, name: str, otherwise: bytes) -> bytes:
        """The content of the same artifact's file, whatever the artifact is called."""
        kind, folder, *rest = (*Path(name).parts, "")
        mark = folder.rsplit("-", 1)[-1]
        same = [
            key
            for key in self.expected
            if key.startswith(f"{kind}/") and f"-{mark}/" in key and key.endswith("/".join(rest[:-1]))
        ]
        return self.expected[same[0]] if same and kind not in ("runs", "") and rest[:-1] else otherwise


KINDS = (Students(),)
