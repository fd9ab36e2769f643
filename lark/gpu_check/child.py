"""The process of one check.

Run as: python -m lark.gpu_check.child package.module:function cuda|cpu <processes> <folder>
"""

import json
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lark.errors import LarkError, first_line
from lark.gpu_check.check import CheckPlace, Measurements
from lark.printing import log_to
from lark.work.launch import die_with_parent
from lark.work.operation import imported

RESULT = "result.json"


def main(target: str, device: str, processes: str, folder: str) -> int:
    """Call the check's function and write its result. The exit code is 0 if it passed."""
    die_with_parent()
    log_to()
    place = CheckPlace(device, int(processes), Path(folder))
    try:
        measured = imported(target)(place)
        result: dict[str, Any] = asdict(
            measured if isinstance(measured, Measurements) else Measurements(measured)
        )
    except Exception as error:  # the failures of kernels and compilers have no common type
        traceback.print_exc()
        reason = first_line(error)
        if not isinstance(error, LarkError):
            reason = f"{type(error).__name__}: {reason}"
        result = {"error": reason}
    (place.folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
