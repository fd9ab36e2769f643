"""Open a store of artifacts in the browser, or export some of its questions as a folder of static pages.

Run as: python -m lark.explorer outputs/
        python -m lark.explorer export outputs/ --questions 20 --to folder
"""

import argparse
import contextlib
import logging
import os
import re
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from lark.errors import LarkError
from lark.printing import log_to
from lark.store.manifest import MANIFEST
from lark.work.entry import run_main

log = logging.getLogger(__name__)

FOLDER = re.compile(r".*-[0-9a-f]{12}")
"""The name of an artifact's folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, then serve or export."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["export"]:
        _export(words[1:])
    else:
        _serve(words)


def _serve(words: list[str]) -> None:
    options = _parser().parse_args(words)
    root = _store(options.outputs)
    from lark.explorer.context import Context  # noqa: PLC0415  # --help must not load pandas
    from lark.explorer.security import Access  # noqa: PLC0415
    from lark.explorer.server import listen, serve, warm  # noqa: PLC0415

    listening = listen(options.host, options.port)
    port = listening.getsockname()[1]
    access = Access(options.host, cookie=f"lark-explorer-{port}")
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{host}:{port}/?token="
    if not access.is_loopback:
        log.warning(
            "Warning: --host %s makes this server reachable from other machines, without encryption. Everyone"
            " who has the address below can read all texts and results in %s.",
            options.host,
            root,
        )
    log.info("LARK explorer of %s. It is read-only; Ctrl-C ends it.", root)
    sys.stdout.write(f"\n  {address}{access.token}\n\n")  # not logged: the log redacts tokens
    sys.stdout.flush()
    if not options.no_browser and _has_display():
        opening = f"{address}{access.single_use()}"
        threading.Thread(target=webbrowser.open, args=(opening,), daemon=True).start()
    context = Context(root)
    threading.Thread(target=warm, args=(context,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        serve(context, access).run(sockets=[listening])


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _store(folder: str) -> Path:
    """The folder of a store. Refuses one that is missing, or only a part of a store."""
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise LarkError(
            f"{folder}: there is no such folder. Give the folder that runs write to (outputs=), such as"
            " outputs/, which `make run` fills."
        )
    _check_whole(root, folder)
    return root


def _check_whole(root: Path, folder: str) -> None:
    """Refuse the folder of an artifact or of a kind."""
    if _is_artifact(root):
        store = root.parent.parent
    elif any(map(_is_artifact, root.iterdir())):
        store = root.parent
    else:
        return
    raise LarkError(f"{folder}: this is a part of a store. Give the whole folder that runs write to: {store}")


def _is_artifact(folder: Path) -> bool:
    return bool(FOLDER.fullmatch(folder.name)) and (folder / MANIFEST).is_file()


def _export(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "python -m lark.explorer export", description="Write the pages of some questions as static files."
    )
    parser.add_argument("outputs", nargs="?", default="outputs", help="the store (default: outputs)")
    parser.add_argument(
        "--questions", type=int, default=20, help="questions of each pool, spread evenly (default: 20)"
    )
    parser.add_argument("--ids", help="question ids instead, separated by commas")
    parser.add_argument(
        "--to", required=True, help="the folder to write; it must be new, empty, or an earlier export"
    )
    options = parser.parse_args(words)
    from lark.explorer.context import Context  # noqa: PLC0415
    from lark.explorer.export import export  # noqa: PLC0415

    parts = map(str.strip, (options.ids or "").split(","))
    ids = list(filter(None, parts)) or None
    target = Path(options.to).expanduser()
    files, size = export(Context(_store(options.outputs)), target, options.questions, ids)
    log.info(
        "%s: %s files, %.1f MB. Any static web server can serve them; to look at them here:\n\n"
        "  python -m http.server -d %s",
        target,
        f"{files:,}",
        size / 1e6,
        target,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lark.explorer", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("outputs", nargs="?", default="outputs", help="the store (default: outputs)")
    parser.add_argument("--port", type=int, help="port (default: 8717, or the next free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    return parser


if __name__ == "__main__":
    log_to(sys.stdout, logging.WARNING)
    logging.getLogger("lark").setLevel(logging.INFO)
    log.setLevel(logging.INFO)
    run_main(main)
