"""Random changes of bytes, JSON values and files. Each returns a description of what it did."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 5.0, 0.5, 1e300, -1e300, float("nan"), float("inf"), 2**31, 2**63, 2**70, "",
    " ", "\t", "x",
    "0", "-0", "007", "1e5", "nan", "NaN", "null", "None", "true", "A", "=1+1", "../../x", "/etc/passwd",
    "~root/x", "a/b", ".",
    "..",
    "\x00", "\x1b[31mred", "\u202eevil", "\ufdd0", "\ufeffx", "é" * 300, "x" * 5000, "<|im_end|>",
    "<|endoftext|><|im_start|>user",
    "${oc.env:HOME}", "{{ 7 * 7 }}", "\\boxed{", "\\boxed{5}\\boxed{6}", "<think>", "</think>x", "a\nb",
    "a\r\nb", "|", "`x`", '"',
    [], {}, [[]], [None], ["x"], [1, 2], {"a": 1}, {"": {}}, [{"role": "user", "content": "x"}],
    [{"role": "assistant"}],
]  # fmt: skip
"""Values that are not what a reader expects."""


def value(rng: random.Random) -> Any:
    """A hostile value. Sometimes one that is deep or long."""
    if rng.random() < 0.06:
        depth: Any = "x"
        for _ in range(rng.choice([20, 200, 900])):
            depth = [depth] if rng.random() < 0.5 else {"a": depth}
        return depth
    return rng.choice(HOSTILE)


def change_value(values: Any, rng: random.Random) -> tuple[Any, str]:
    """Change one place of a JSON value: replace it, remove it, rename its key, or wrap it."""
    path, owner = [], values
    while isinstance(owner, dict | list) and owner:
        key = rng.choice(list(owner)) if isinstance(owner, dict) else rng.randrange(len(owner))
        path.append(key)
        if not isinstance(owner[key], dict | list) or not owner[key] or rng.random() < 0.3:
            break
        owner = owner[key]
    if not path:
        return value(rng), "another value"
    key, where = path[-1], ".".join(map(str, path))
    how = rng.choice(["replace", "replace", "replace", "remove", "wrap", "rename", "add"])
    if how == "remove":
        del owner[key]
    elif how == "wrap":
        owner[key] = [owner[key]]
    elif how == "rename" and isinstance(owner, dict):
        owner[rng.choice([key + "s", key.upper(), "", "x", " " + key])] = owner.pop(key)
    elif how == "add" and isinstance(owner, dict):
        owner[rng.choice(["extra", "id", "thinking", "messages", "system", "correct", "tools", "level"])] = (
            value(rng)
        )
    else:
        new = value(rng)
        owner[key] = new
        return values, f"{where} = {new!r:.60}"
    return values, f"{how} {where}"


GARBAGE = [
    b"\x00" * 20,
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\n",
    b"\r",
    b"{",
    b"}]",
    b'"',
    b",",
    b"[" * 3000,
    b"9" * 5000,
    b"NaN",
    b"\xc3",
]


def change_bytes(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Change some bytes: cut, flip, remove, repeat, insert; or lines: remove, repeat, swap, empty."""
    if not data:
        return rng.choice(GARBAGE), "bytes in an empty file"
    at, length = rng.randrange(len(data)), rng.choice([1, 1, 2, 8, 100])
    part, lines = data[at : at + length], data.splitlines(keepends=True)
    line = rng.randrange(len(lines))
    changes: dict[str, Callable[[], bytes]] = {
        "cut": lambda: data[:at],
        "flip a bit": lambda: data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :],
        "remove": lambda: data[:at] + data[at + length :],
        "repeat": lambda: data[:at] + part + part + data[at + length :],
        "zeros": lambda: data[:at] + bytes(len(part)) + data[at + length :],
        "insert": lambda: data[:at] + rng.choice(GARBAGE) + data[at:],
        "append": lambda: data + rng.choice(GARBAGE),
        "twice": lambda: data + data,
        "remove a line": lambda: b"".join(lines[:line] + lines[line + 1 :]),
        "repeat a line": lambda: b"".join([*lines[: line + 1], lines[line], *lines[line + 1 :]]),
        "empty a line": lambda: b"".join([*lines[:line], b"\n", *lines[line:]]),
        "reverse lines": lambda: b"".join(reversed(lines)),
        "carriage returns": lambda: data.replace(b"\n", b"\r\n"),
        "another byte order": lambda: data.decode("utf-8", "replace").encode("utf-16"),
    }
    how = rng.choice(list(changes))
    return changes[how](), f"{how} at byte {at} of {len(data)}"


def change_file(path: Path, others: list[Path], rng: random.Random) -> str:
    """Damage a file of a folder. `others`: files that may get into its place. Sometimes its time stays as
    it was.
    """
    stat = path.stat()
    how = rng.choice(
        ["bytes"] * 5
        + ["json"] * 3
        + ["missing", "empty", "folder", "full folder", "loop", "dangling", "other", "swap"]
    )
    if how == "json":
        how = _change_json(path, rng)
    if how == "bytes":
        data, how = change_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "other":
        other = rng.choice(others)
        path.write_bytes(other.read_bytes())
        how = f"the content of {other.name}"
    elif how == "swap":
        other = rng.choice(others)
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)
        how = f"swapped with {other.parent.name}/{other.name}"
    elif how in ("missing", "folder", "full folder", "loop", "dangling"):
        replace(path, how)
    if path.is_file() and not path.is_symlink() and rng.random() < 0.4:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        how += ", with its old time"
    return f"{path.parent.name}/{path.name}: {how}"


def replace(path: Path, how: str) -> None:
    """Put something else in the place of a file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if how in ("folder", "full folder"):
        path.mkdir()
        if how == "full folder":
            (path / "x").write_text("x")
    elif how == "file":
        path.write_text("x")
    elif how != "missing":
        path.symlink_to(path.name if how == "loop" else "/nonexistent/x")


def _change_json(path: Path, rng: random.Random) -> str:
    """Change a value in a JSON or JSONL file: it stays JSON. `bytes` if it is another kind of file."""
    try:
        lines = (
            path.read_text(encoding="utf-8").splitlines()
            if path.suffix == ".jsonl"
            else [path.read_text(encoding="utf-8")]
        )
        at = rng.randrange(len(lines))
        values, how = change_value(json.loads(lines[at]), rng)
        lines[at] = json.dumps(values)
    except (ValueError, RecursionError):
        return "bytes"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return f"line {at + 1}: {how}" if path.suffix == ".jsonl" else how
