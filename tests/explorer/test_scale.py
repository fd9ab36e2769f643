"""A store of the paper's size, 165,000 trajectories: every page in half a second of processor time, in less than 1 GiB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.explorer import synthetic
from tests.explorer.synthetic import POOL, SCORES

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
own |= {"answers": "/".join([benchmark["group"], *models]), "sample": "/".join([benchmark["group"], models[0]])}
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
    "overview", "artifacts", "runs", "results", "curves", "pool/{where}", "questions/{where}",
    "questions/{where}?search=buying 11 more", "question/{where}/4321", "question/{where}/17", "text/{pool}/4321/7",
    "methods/{where}", "agreement/{where}/3", "agreement/{where}/1",
    "distribution/{where}/lark", "distribution/{where}/random", "distribution/{where}/rule_quality",
    "disagreement/{where}/lark/rsr/3", "disagreement/{where}/lark/random/10", "artifact/pool/{pool}",
    "shares/{where}/B-3", "question/{where}/0", "tokens/{where}/0/7", "alternatives/{where}/0/7/3",
    "curve/ffffffffffff", "benchmarks", "problems/{answers}/paper", "problem/{answers}/17", "sample/{sample}/17",
]  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = synthetic.large_store(tmp_path_factory.mktemp("large"))
    synthetic.large_evaluation(root)
    return root


def test_every_page_of_165_000_trajectories_is_fast_and_small(large: Path) -> None:
    """The server ranks the candidates of the newest pool when it starts; apart from that, each page is asked for the first time."""
    command = [sys.executable, "-c", PROBE, str(large), f"{POOL}/{SCORES}", json.dumps(PAGES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {path: status for path, (status, _, _) in found["pages"].items() if status != 200} == {}
    assert {path: round(seconds, 2) for path, (_, seconds, _) in found["pages"].items() if seconds > 0.5} == {}
    assert found["warming"] < 2
    assert found["memory"] < 2**30
    sizes = {path: size for path, (_, _, size) in found["pages"].items()}
    assert sizes.pop("tokens/{where}/0/7") < 500_000  # 8,000 tokens
    assert max(sizes.values()) < 200_000  # pages of rows, never the whole table
