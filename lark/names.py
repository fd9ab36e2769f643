"""The one place where names become file names.

Names of teachers, students, pools and benchmarks come from files and from the command line, and can contain
anything: slashes, `..`, line breaks, 300 letters. A folder is always named with `file_name`, so no name
leads out of the folder that it is in.
"""

import hashlib
import re

LONGEST = 150
"""Longest file name in bytes. File systems allow 255; fingerprints, endings and marks of drafts are added
to it.
"""


def file_name(name: str) -> str:
    """A name that is safe as one part of a path. Ordinary names are unchanged; others are cleaned, cut and
    get a checksum, so that different names stay different.
    """
    clean = re.sub(r"[^\w .,:;!@#%&()\[\]{}+=~^'-]", "_", name).lstrip(" .-~")
    if (
        clean == name
        and name
        and name.isprintable()
        and len(name.encode("utf-8", "surrogatepass")) <= LONGEST
    ):
        return name
    checksum = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    short = re.sub(r"_+", "_", clean).encode("utf-8", "ignore")[: LONGEST - len(checksum) - 1]
    return f"{short.decode('utf-8', 'ignore').rstrip(' .')}-{checksum}"


def is_demo(name: str | None) -> bool:
    """True for the built-in demo: the format of a pool, the path of a student or a benchmark, or a scale."""
    return name == "demo"
