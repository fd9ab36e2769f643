"""Verify artifacts where they are used, so that no result is made from wrong bytes.

A finished artifact is reused without being read: the sizes and times of its files are those in its
manifest. A file that was changed without changing either is found here, by its checksum, when it is about
to be read. Its artifact is marked as damaged, and the pipeline rebuilds it: in the same run, or in the next
one.
"""

import contextlib
import json
from pathlib import Path, PurePosixPath

from lark.errors import DamagedError
from lark.reading.untrusted import readable_object
from lark.store.manifest import DAMAGED, MANIFEST
from lark.store.store import checksum, write_text


def verify(folder: Path, *names: str, under: str = "") -> None:
    """Raise DamagedError unless the files of a finished artifact have the content that they had when it was
    made.

    `names`: compare only these. Files in subfolders are compared only if `under` names theirs: a
    checkpoint's snapshots are large and seldom used. A folder without a manifest is not an artifact, and
    nothing is known about its files.
    """
    manifest = readable_object(folder / MANIFEST)
    if manifest is None or manifest.get("status") != "finished":
        return
    files = manifest.get("files")
    for name, stamp in (files if isinstance(files, dict) else {}).items():
        if PurePosixPath(name).parent != PurePosixPath(under) or (names and name not in names):
            continue
        harm = _harm(folder / name, stamp)
        if harm:
            harm = f"{name} {harm}"
            with contextlib.suppress(OSError):  # on a read-only disk, it is only reported
                write_text(
                    folder / MANIFEST,
                    json.dumps({**manifest, "status": DAMAGED, "error": harm}, indent=2) + "\n",
                )
            raise DamagedError(f"{folder}: {harm} since the artifact was made.", folder)


def _harm(path: Path, stamp: object) -> str | None:
    """What happened to a file, as a phrase, or None."""
    expected = stamp[2] if isinstance(stamp, list) and len(stamp) == 3 else None
    try:
        return None if checksum(path) == expected else "has changed"
    except FileNotFoundError:
        return "has been removed"
    except OSError as error:
        return f"has become unreadable ({error.strerror})"
