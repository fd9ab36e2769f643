"""Large stores: every page of 165,000 trajectories (the paper's pool) in half a second of processor time,
in less than 1 GiB; and work that grows with the number of artifacts, not with its square.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lark.explorer.api import respond
from lark.explorer.context import Context
from tests.conftest import ROOT
from tests.explorer import synthetic
from tests.explorer.synthetic import LENGTHS, POOL, SCORES, artifact

PROBE = """
import json, re, sys, time
from pathlib import Path
from lark.explorer.context import Context
from lark.explorer.api import answer as _answer
from lark.explorer.server import _encoded, warm
context, where, found = Context(Path(sys.argv[1])), sys.argv[2], {}
benchmark = _answer(context, "benchmarks")["benchmarks"][0]
models = [model["id"] for model in benchmark["models"]]
own = {"where": where, "pool": where[:12]}
own["answers"] = "/".join([benchmark["group"], *models])
own["sample"] = "/".join([benchmark["group"], models[0]])
context = Context(Path(sys.argv[1]))
started = time.process_time()
warm(context)
warming = time.process_time() - started
for path in json.loads(sys.argv[3]):
    started = time.process_time()
    address, _, search = path.partition("?search=")
    status, body = _encoded(context, address.format(**own), {"search": search} if search else {})
    found[path] = [status, time.process_time() - started, len(body)]
peak = int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps({"pages": found, "memory": peak, "warming": warming}))
"""
PAGES = [
    "overview",
    "artifacts",
    "runs",
    "results",
    "curves",
    "pool/{where}",
    "questions/{where}",
    "questions/{where}?search=buying 11 more",
    "question/{where}/4321",
    "question/{where}/17",
    "text/{pool}/4321/7",
    "methods/{where}",
    "agreement/{where}/3",
    "agreement/{where}/1",
    "distribution/{where}/lark",
    "distribution/{where}/random",
    "distribution/{where}/rule_quality",
    "disagreement/{where}/lark/rsr/3",
    "disagreement/{where}/lark/random/10",
    "artifact/pool/{pool}",
    "shares/{where}/B-3",
    "question/{where}/0",
    "tokens/{where}/0/7",
    "alternatives/{where}/0/7/3",
    "curve/ffffffffffff",
    "benchmarks",
    "problems/{answers}/paper",
    "problem/{answers}/17",
    "sample/{sample}/17",
]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = synthetic.large_store(tmp_path_factory.mktemp("large"))
    synthetic.large_evaluation(root)
    return root


def test_every_page_of_165_000_trajectories_is_fast_and_small(large: Path) -> None:
    """The server ranks the candidates of the newest pool when it starts; apart from that, each page is
    asked for the first time.
    """
    command = [sys.executable, "-c", PROBE, str(large), f"{POOL}/{SCORES}", json.dumps(PAGES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {path: status for path, (status, _, _) in found["pages"].items() if status != 200} == {}
    assert {
        path: round(seconds, 2) for path, (_, seconds, _) in found["pages"].items() if seconds > 0.5
    } == {}
    assert found["warming"] < 2
    assert found["memory"] < 2**30
    sizes = {path: size for path, (_, _, size) in found["pages"].items()}
    assert sizes.pop("tokens/{where}/0/7") < 500_000  # 8,000 tokens
    assert max(sizes.values()) < 200_000  # pages of rows, never the whole table


INPUTS = {"pool": f"pool-{POOL}", "lengths": f"student-pool-{LENGTHS}"}


def trials(root: Path, count: int) -> None:
    """Selections from one pool, each with a checkpoint."""
    for i in range(count // 2):
        artifact(root, "selection", "s", f"1{i:011x}", {"method": "lark", "budget": i}, INPUTS)
        artifact(
            root,
            "checkpoint",
            "s",
            f"2{i:011x}",
            {"training": {}},
            {"selection": f"s-1{i:011x}"},
            started=f"{i:09}",
        )


def pools(root: Path, count: int) -> None:
    """Pools, each with token counts and scores."""
    for i in range(count // 3):
        artifact(root, "pool", f"p{i}", f"1{i:011x}", {}, {})
        inputs = {"pool": f"p{i}-1{i:011x}"}
        artifact(root, "lengths", "s", f"2{i:011x}", {}, inputs)
        artifact(root, "scores", "s", f"3{i:011x}", {}, {**inputs, "lengths": f"s-2{i:011x}"})


def students(root: Path, count: int) -> None:
    """Students with the same tokenizer, each with scores and tokens of one pool."""
    for i in range(count // 2):
        for kind in ("scores", "tokens"):
            artifact(root, kind, f"student{i}-pool", f"1{i:011x}", {"weights": i}, INPUTS)


def unfinished(root: Path, count: int) -> None:
    """Artifacts that are being made."""
    for i in range(count):
        artifact(root, "scores", f"student{i}-pool", f"1{i:011x}", {"weights": i}, INPUTS, status="started")


def calls(work: Callable[[], object]) -> int:
    """Functions that are called, which is proportional to the time taken but the same on every machine."""
    number = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize("page", ["artifacts", "overview", "curves", f"artifact/pool/{POOL}"])
@pytest.mark.parametrize("fill", [trials, pools, students, unfinished])
def test_work_grows_with_the_number_of_artifacts_and_not_with_its_square(
    fill: Callable[[Path, int], None], page: str, tmp_path: Path
) -> None:
    """With four times the artifacts, a quadratic part takes 16 times the work."""
    work = {}
    for count in (150, 600):
        root = tmp_path / str(count)
        artifact(root, "pool", "pool", POOL, {}, {})
        artifact(root, "lengths", "student-pool", LENGTHS, {}, {"pool": f"pool-{POOL}"})
        fill(root, count)
        assert respond(Context(root), page, {})[0] == 200
        work[count] = calls(partial(respond, Context(root), page, {}))
    assert work[600] < 4.5 * work[150]
