"""Publishing shows everything first, uploads only on request, and turns every refusal of a hub into a
sentence.
"""

import base64
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from lark.errors import LarkError
from lark.output.markdown import metadata
from lark.publish.__main__ import main
from lark.store.integrity import CARD, stamps
from lark.store.manifest import MANIFEST
from tests.explorer.synthetic import write_answers

TOKEN = "hf_" + "secret" * 5


class Hub(ThreadingHTTPServer):
    """Stands in for a hub, on this machine only: answers the requests of huggingface_hub and remembers
    them.
    """

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.requests = status, []  # type: ignore[var-annotated]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def uploaded(self) -> dict[str, bytes]:
        """Files of the last commit."""
        body = next(body for path, body, _ in self.requests if "/commit/" in path)
        lines = [json.loads(line) for line in body.splitlines()]
        return {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.path, body, dict(self.headers)))
        if self.server.status != 200:
            return self.reply(self.server.status, {"error": "no"})
        url = f"{self.server.address}/datasets/me/mine"
        if "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.reply(200, {"files": files})
        if "/commit/" in self.path:
            return self.reply(
                200, {"commitUrl": f"{url}/commit/1", "commitOid": "1", "hookOutput": "", "success": True}
            )
        return self.reply(200, {"url": url, "errors": [], "warnings": []})

    def do_GET(self) -> None:
        self.reply(self.server.status, {"id": "me/mine", "sha": "0", "siblings": []})

    def reply(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests reach the hub of these tests, which is on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return made(
        tmp_path,
        "selection",
        {"train.jsonl": '{"messages": []}\n', "selection.parquet": "rows", "config.yaml": "{}"},
    )


def made(root: Path, kind: str, files: dict[str, str], status: str = "finished") -> Path:
    folder = root / kind / "mine-0123456789ab"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    manifest = {
        "status": status,
        "kind": kind,
        "fingerprint": "0123456789ab",
        "files": stamps(folder),
        "counts": {},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_by_default_nothing_is_uploaded(artifact: Path, hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        main([str(artifact), "--to", "me/mine", "--hub", hub.address])
    assert hub.requests == []
    assert "train.jsonl" in caplog.text
    assert "Missing in README.md: license." in caplog.text
    assert "Nothing was uploaded" in caplog.text
    assert (artifact / CARD).is_file()  # made for an artifact that has none


@pytest.mark.parametrize(
    "licence", ["MIT\nCopyright me", "mit\n", "", "--- x: y", "Apache License, Version 2.0", "x" * 200]
)
def test_the_text_of_a_licence_is_not_an_identifier_and_leaves_the_card_alone(
    licence: str, artifact: Path, hub: Hub
) -> None:
    main([str(artifact), "--to", "me/mine", "--hub", hub.address])
    before = (artifact / CARD).read_text()
    with pytest.raises(LarkError, match="not the identifier of a licence"):
        main([str(artifact), "--to", "me/mine", "--hub", hub.address, f"--license={licence}", "--really"])
    assert (artifact / CARD).read_text() == before and hub.requests == []


def test_a_selection_is_uploaded_as_a_private_dataset_with_its_card(
    artifact: Path, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        main(["0123456789ab", "--outputs", str(artifact.parents[1]), "--to", "me/mine", "--hub", hub.address,
              "--license", "apache-2.0", "--really"])  # fmt: skip
    created = next(json.loads(body) for path, body, _ in hub.requests if path == "/api/repos/create")
    assert created["type"] == "dataset"
    assert created.get("private", True) is True
    assert created.get("visibility", "private") == "private"
    files = hub.uploaded()
    assert set(files) == {CARD, "train.jsonl", "selection.parquet"}
    assert files["train.jsonl"] == (artifact / "train.jsonl").read_bytes()
    assert metadata(files[CARD].decode())["license"] == "apache-2.0"
    assert any(
        TOKEN in headers.get("authorization", headers.get("Authorization", ""))
        for _, _, headers in hub.requests
    )
    assert TOKEN not in caplog.text
    assert "Published: " in caplog.text


def test_of_a_checkpoint_only_the_model_is_uploaded(tmp_path: Path, hub: Hub) -> None:
    names = [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "training.json",
        "metrics.jsonl",
        "log.txt",
        "job.json",
        "config.yaml",
        "snapshots/model.safetensors",
    ]
    folder = made(tmp_path, "checkpoint", dict.fromkeys(names, "x"))
    main([str(folder), "--to", "me/mine", "--hub", hub.address, "--license", "mit", "--really"])
    assert set(hub.uploaded()) == {
        CARD,
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
    }


def test_without_a_licence_nothing_is_uploaded(artifact: Path, hub: Hub) -> None:
    with pytest.raises(LarkError, match=r"README\.md has no licence: add --license"):
        main([str(artifact), "--to", "me/mine", "--hub", hub.address, "--really"])
    assert hub.requests == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "needs a token"),
        (403, "does not allow this token"),
        (404, "has no owner or repository me/mine"),
        (418, "HTTP status 418"),
    ],
)
def test_refusals_of_the_hub_are_sentences_without_the_token(
    status: int, said: str, artifact: Path, hub: Hub
) -> None:
    hub.status = status
    with pytest.raises(LarkError, match=said) as caught:
        main([str(artifact), "--to", "me/mine", "--hub", hub.address, "--license", "mit", "--really"])
    assert TOKEN not in str(caught.value)


def test_without_a_network_there_is_a_sentence(artifact: Path) -> None:
    with pytest.raises(
        LarkError, match=r"The upload to http://127\.0\.0\.1:9 failed \(\w+\)\. Check the network"
    ):
        main(
            [str(artifact), "--to", "me/mine", "--hub", "http://127.0.0.1:9", "--license", "mit", "--really"]
        )


@pytest.mark.parametrize("name", ["mine", "a/b/c", "me/mi ne", "-me/mine", "me/"])
def test_a_bad_repository_name_is_refused_before_anything_else(name: str, artifact: Path) -> None:
    with pytest.raises(LarkError, match=f"--to {name}: .*owner/name"):
        main([str(artifact), f"--to={name}"])


def test_what_is_not_a_finished_artifact_is_refused(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match="no selection or checkpoint with this fingerprint"):
        main(["ba9876543210", "--to", "me/mine", "--outputs", str(tmp_path)])
    with pytest.raises(LarkError, match=r"no readable manifest\.json"):
        main([str(tmp_path), "--to", "me/mine"])
    (artifact / "train.jsonl").write_text("changed")
    with pytest.raises(LarkError, match=r"train\.jsonl has 7 bytes instead of"):
        main([str(artifact), "--to", "me/mine"])
    with pytest.raises(LarkError, match="only a selection or a checkpoint"):
        main([str(made(tmp_path, "scores", {"scores.parquet": "x"})), "--to", "me/mine"])
    with pytest.raises(LarkError, match="not finished"):
        main(
            [
                str(made(tmp_path / "other", "selection", {"train.jsonl": "x"}, status="started")),
                "--to",
                "me/mine",
            ]
        )


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """A trained student with two evaluations: of a public dataset, and of a file."""
    folder = made(
        tmp_path, "checkpoint", {"config.json": "{}", "model.safetensors": "w", "config.yaml": "{}"}
    )
    name = folder.name.removesuffix("-0123456789ab")
    for task, print_, dataset in (("gsm8k", "1" * 12, GSM8K), ("mine", "2" * 12, None)):
        write_answers(tmp_path, f"{name}-{task}", 4, print_, checkpoint=folder.name)
        (metrics,) = (tmp_path / "metrics").glob(f"*-{print_}")
        manifest = json.loads((metrics / MANIFEST).read_text())
        manifest["counts"] = {} if dataset is None else {"dataset": dataset}
        (metrics / MANIFEST).write_text(json.dumps(manifest))
    return folder


GSM8K = {"id": "openai/gsm8k", "revision": "7" * 40, "task_id": "gsm8k"}


@pytest.mark.parametrize("grader", ["verify", "paper"])
def test_results_on_public_benchmarks_are_published_with_the_student(
    grader: str, student: Path, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        main([str(student), "--to", "me/mine", "--hub", hub.address, "--license", "mit", "--really",
              "--results", grader])  # fmt: skip
    (name,) = [file for file in hub.uploaded() if file.startswith(".eval_results/")]
    assert name in caplog.text
    text = hub.uploaded()[name].decode()
    (entry,) = yaml.safe_load(text)
    (metrics,) = (student.parents[1] / "metrics").glob(f"*-{'1' * 12}")
    grades = [json.loads(line)[grader] for line in (metrics / "grades.jsonl").open()]
    assert entry["dataset"] == {"id": "openai/gsm8k", "task_id": "gsm8k", "revision": "7" * 40}
    assert entry["value"] == round(100 * sum(grades) / len(grades), 2)
    assert (str(entry["date"]), entry["source"]["url"]) == ("2026-01-02", "https://huggingface.co/me/mine")
    assert "pass@1 over 4 samples per problem (95% interval over problems" in entry["notes"]
    assert f"grader {grader}" in entry["notes"]
    (parsed,) = parse_eval_result_entries(yaml.safe_load(text))
    assert (parsed.dataset_id, parsed.task_id, parsed.value) == ("openai/gsm8k", "gsm8k", entry["value"])
    assert "left out: they are not of a complete public dataset" in caplog.text


def test_a_student_can_be_published_without_results(student: Path, hub: Hub) -> None:
    main([str(student), "--to", "me/mine", "--hub", hub.address, "--license", "mit", "--really",
          "--results", "none"])  # fmt: skip
    assert set(hub.uploaded()) == {CARD, "config.json", "model.safetensors"}
