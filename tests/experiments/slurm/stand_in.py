"""Stands in for SLURM's commands on one machine: jobs are processes that wait for the jobs that they depend
on.

Called as sbatch, srun, squeue or scancel (tests/experiments/test_submission.py makes links). The state is
in the folder $SLURM_STAND_IN: <id>.job has the state of a job, and `lose` the part of a job's name whose
first job is lost, as if its node had failed.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["SLURM_STAND_IN"])


def sbatch(script: str) -> None:
    text = Path(script).read_text()
    number = 1
    while True:
        try:
            (STATE / f"{number}.job").open("x").close()
            break
        except FileExistsError:
            number += 1
    (STATE / f"{number}.job").write_text("PENDING")
    (STATE / f"{number}.sh").write_text(text)
    subprocess.Popen(
        [sys.executable, __file__, "job", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    sys.stdout.write(f"Submitted batch job {number}\n")


def job(number: str) -> None:
    file, text = STATE / f"{number}.job", (STATE / f"{number}.sh").read_text()
    option = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
    needed = option.get("dependency", "").removeprefix("afterok:").split(":")
    while states := [(STATE / f"{other}.job").read_text() for other in needed if other]:
        if any(state in ("FAILED", "CANCELLED") for state in states) or file.read_text() == "CANCELLED":
            file.write_text("CANCELLED")
            return
        if all(state == "COMPLETED" for state in states):
            break
        time.sleep(0.1)
    lose = STATE / "lose"
    if lose.exists() and lose.read_text() in option["job-name"]:
        lose.unlink()
        file.write_text("FAILED")
        return
    file.write_text("RUNNING")
    env = {**os.environ, "SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
           "SLURM_LOCALID": "0",
           "SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "1"}  # fmt: skip
    code = subprocess.run(["bash", str(STATE / f"{number}.sh")], env=env, check=False).returncode
    file.write_text("FAILED" if code else "COMPLETED")


def srun(*arguments: str) -> None:
    words = list(arguments)
    values = {
        words[place]: words[place + 1]
        for place in range(len(words) - 1)
        if words[place] in ("--output", "--error")
    }
    command = words[
        next(place for place, word in enumerate(words) if word.endswith("python") or "/python" in word) :
    ]
    places = {
        key: value.replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
        for key, value in values.items()
    }
    with (
        Path(places["--output"]).open("ab") as output,
        Path(places.get("--error", places["--output"])).open("ab") as error,
    ):
        sys.exit(subprocess.run(command, stdout=output, stderr=error, check=False).returncode)


def squeue(*arguments: str) -> None:
    for file in STATE.glob("*.job"):
        if file.read_text() in ("PENDING", "RUNNING"):
            sys.stdout.write(f"{file.stem}\n")


def scancel(number: str) -> None:
    (STATE / f"{number}.job").write_text("CANCELLED")


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(sys.argv[2])
    else:
        {"sbatch": sbatch, "srun": srun, "squeue": squeue, "scancel": scancel}[Path(sys.argv[0]).name](
            *sys.argv[1:]
        )
