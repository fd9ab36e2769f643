"""Names: the one place where they become file names, and what settings and the demo are called.

Names of teachers, students, pools and benchmarks come from files and from the command line, and can contain
anything: slashes, `..`, line breaks, 300 letters. A folder is always named with `file_name`, so no name
leads out of the folder that it is in.
"""

import hashlib
import re

LONGEST_NAME = 150
"""Longest file name in bytes. File systems allow 255; fingerprints, endings and marks of drafts are added
to it.
"""


def file_name(name: str) -> str:
    """A name that is safe as one part of a path. Ordinary names are unchanged; others are cleaned, cut and
    get a checksum, so that different names stay different.
    """
    clean = re.sub(r"[^\w .,:;!@#%&()\[\]{}+=~^'-]", "_", name).lstrip(" .-~")
    encoded = name.encode("utf-8", "surrogatepass")
    if clean == name and name and name.isprintable() and len(encoded) <= LONGEST_NAME:
        return name
    checksum = hashlib.sha256(encoded).hexdigest()[:8]
    short = re.sub(r"_+", "_", clean).encode("utf-8", "ignore")[: LONGEST_NAME - len(checksum) - 1]
    return f"{short.decode('utf-8', 'ignore').rstrip(' .')}-{checksum}"


def is_demo(name: str | None) -> bool:
    """True for the built-in demo: the format of a pool, or the path of a student or a benchmark."""
    return name == "demo"


def override_key(override: str) -> str:
    """The key of a setting as it is typed: `training.seed` of `+training.seed=1` and of `~training.seed`."""
    return override.partition("=")[0].lstrip("+~")
