"""A Hugging Face hub on this machine: a server for the requests of a download, and the layout of the hub's
cache.
"""

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMIT = "0" * 40
"""The commit of every repository that the server has."""


class Hub(http.server.BaseHTTPRequestHandler):
    """The parts of the hub's API that a download uses, for repositories in the folders
    <root>/<owner>/<name>.
    """

    root: Path
    gated: tuple[str, ...] = ()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        place = self.path.split("?")[0]
        match = re.fullmatch(
            r"/(?:api/)?(?:datasets/|models/)?([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)/?(.*)", place
        )
        if match is None or not (self.root / match[1]).is_dir():
            return self.answer(b"", {"X-Error-Code": "RepoNotFound"}, status=404)
        if match[1] in self.gated:
            return self.answer(b"", {"X-Error-Code": "GatedRepo"}, status=403)
        folder, commit = self.root / match[1], match[3] if len(match[3]) == len(COMMIT) else COMMIT
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        if match[2] == "revision":
            info = {"id": match[1], "sha": commit, "siblings": [{"rfilename": name} for name in names]}
            return self.answer(json.dumps(info).encode())
        if match[2] == "tree":
            tree = [
                {"type": "file", "path": name, "size": (folder / name).stat().st_size, "oid": name}
                for name in names
            ]
            return self.answer(json.dumps(tree).encode())
        if match[4] not in names:
            return self.answer(b"", {"X-Error-Code": "EntryNotFound"}, status=404)
        tag = match[4].replace("/", "-")
        return self.answer((folder / match[4]).read_bytes(), {"ETag": f'"{tag}"', "X-Repo-Commit": commit})

    def answer(self, content: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(root: Path, *gated: str) -> Iterator[dict[str, str]]:
    """Serve the repositories below a folder. Yields the environment of a process that uses this server as
    its hub.
    """
    handler = type("OurHub", (Hub,), {"root": root, "gated": gated})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
        }
    finally:
        server.shutdown()
        server.server_close()


def in_cache(home: Path, kind: str, repository: str, revision: str | None) -> Path:
    """The folder of a repository's files in the cache below HF_HOME. `kind`: models or datasets."""
    folder = home / "hub" / f"{kind}--{repository.replace('/', '--')}"
    commit = revision or COMMIT
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    files = folder / "snapshots" / commit
    files.mkdir(parents=True, exist_ok=True)
    return files
