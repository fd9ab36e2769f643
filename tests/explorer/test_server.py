"""The server as it is started, over the wire: who is refused, what is sent, and how fast it starts."""

import http.client
import json
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from lark.errors import LarkError
from lark.explorer import server as explorer_server
from lark.explorer.context import Context
from lark.explorer.security import Access
from lark.explorer.server import listen, serve
from tests.conftest import ROOT
from tests.explorer.conftest import Server, serving


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    """One request, with exactly these headers (underscores are hyphens)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": f"127.0.0.1:{server.port}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


@pytest.fixture(scope="module")
def cookie(server: Server) -> str:
    """What the browser keeps after the first visit."""
    response = ask(server, f"/?token={server.token}")
    assert response.status == 303 and response.headers["location"] == "/"
    said = response.headers["set-cookie"]
    assert "HttpOnly" in said and re.search("SameSite=strict", said, re.I) and "Path=/" in said
    return said.split(";")[0]


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(server: Server, cookie: str) -> None:
    page = ask(server, "/", Cookie=cookie)
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert server.token not in page.body.decode()  # type: ignore[attr-defined]
    data = ask(server, "/api/overview", Cookie=cookie)
    assert data.status == 200 and json.loads(data.body)["pools"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path", ["/", "/?again", "/api/overview", "/static/js/main.js", "/api/artifact/pool/aaaaaaaaaaaa"]
)
@pytest.mark.parametrize("token", ["", "wrong", "x" * 32])
def test_without_the_token_nothing_is_sent(server: Server, path: str, token: str) -> None:
    response = ask(server, path, **({"Cookie": f"lark-explorer-{server.port}={token}"} if token else {}))
    assert response.status == 403
    assert len(response.body) < 400  # type: ignore[attr-defined]


@pytest.mark.parametrize("token", ["wrong", "", "%00", "x" * 3000, "%F0%9F%92%A9"])
def test_a_wrong_token_gets_no_cookie(server: Server, token: str) -> None:
    response = ask(server, f"/?token={token}")
    assert response.status == 403 and "set-cookie" not in response.headers


def test_the_token_is_not_accepted_as_a_parameter_of_data(server: Server) -> None:
    assert ask(server, f"/api/overview?token={server.token}").status == 403


def test_a_single_use_token_works_once() -> None:
    """It is on the command line of the browser, which other users of the machine can read."""
    access = Access()
    code = access.single_use()
    assert code != access.token and not access.allows_token(code)
    assert access.exchanges(code) and not access.exchanges(code)
    assert access.exchanges(access.token) and access.exchanges(access.token)


def test_the_browser_is_given_a_single_use_token(store: Path, tmp_path: Path) -> None:
    browser, asked = tmp_path / "browser", tmp_path / "asked"
    browser.write_text(f'#!/bin/sh\necho "$1" > {asked}.part && mv {asked}.part {asked}\n')
    browser.chmod(0o755)
    with serving(store, browser=str(browser)) as running:
        deadline = time.time() + 60
        while not asked.exists():
            assert time.time() < deadline
            time.sleep(0.05)
        opened = asked.read_text().strip()
        assert opened.startswith(running.base) and running.token not in opened
        path = opened.removeprefix(running.base[:-1])
        assert [ask(running, path).status for _ in range(2)] == [303, 403]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8717",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "[::1",
        "10.0.0.1",
    ],
)
def test_another_host_name_is_refused(server: Server, cookie: str, host: str) -> None:
    """A page elsewhere can make its own name resolve to 127.0.0.1; the browser still sends that name."""
    assert ask(server, "/api/overview", Host=host, Cookie=cookie).status in (400, 421)
    assert ask(server, f"/?token={server.token}", Host=host).status in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:9000", "[::1]:8717"])
def test_names_of_this_machine_are_accepted_on_any_port(server: Server, cookie: str, host: str) -> None:
    """`ssh -L 9000:127.0.0.1:8717` forwards a port."""
    assert ask(server, "/api/overview", Host=host, Cookie=cookie).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "PROPFIND"])
def test_only_get_is_allowed(server: Server, cookie: str, method: str) -> None:
    response = ask(server, "/api/overview", method, Cookie=cookie)
    assert response.status == 405 and response.headers["allow"] == "GET"


TRAVERSALS = [
    "/static/../server.py",
    "/static/%2e%2e/server.py",
    "/static/..%2fserver.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/js/../../server.py",
    "/static/..\\server.py",
    "/static/%00",
    "/api/artifact/pool/..",
    "/api/artifact/../pool/aaaaaaaaaaaa",
    "/api/artifact/pool/%2e%2e%2f%2e%2e",
    "/api/text/../../etc/passwd",
    "/api/artifact/.locks/aaaaaaaaaaaa",
    "/api/",
    "/api//overview",
    "/etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/",
    "/static/index.html%00.js",
    "/api/curve/aaaaaaaaaaa%67",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_paths_lead_nowhere_else(server: Server, cookie: str, path: str) -> None:
    response = ask(server, path, Cookie=cookie)
    assert response.status in (400, 404)
    assert b"root:" not in response.body and b"import" not in response.body  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/", "/api/overview", "/static/js/main.js", "/nothing", "/api/nothing"])
def test_every_answer_has_the_security_headers(server: Server, cookie: str, path: str) -> None:
    for response in (ask(server, path, Cookie=cookie), ask(server, path), ask(server, path, "POST")):
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy and "http" not in policy and "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in response.headers and "access-control-allow-origin" not in response.headers


def test_other_sites_cannot_embed_the_data(server: Server, cookie: str) -> None:
    response = ask(
        server, "/api/overview", Cookie=cookie, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors"
    )
    assert response.status == 403


def test_odd_queries_are_answered_with_a_sentence(server: Server, cookie: str) -> None:
    for query in ("page=x", "page=-1", "sort=nothing", "flags=nothing", "page=99999999999"):
        response = ask(server, f"/api/artifacts?{query}", Cookie=cookie)
        assert response.status == 400 and json.loads(response.body)["problem"], query  # type: ignore[attr-defined]


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (ROOT / "lark" / "explorer" / "static" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=|https?:", page)
    for path in (ROOT / "lark" / "explorer" / "static").rglob("*"):
        if path.suffix in (".js", ".css"):
            text = path.read_text(encoding="utf-8")
            allowed = ("http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML")
            assert not re.search(r"https?://", re.sub("|".join(map(re.escape, allowed)), "", text)), path
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", text
            ), path
            assert len(text.splitlines()) <= 400, path


def test_a_host_that_is_not_loopback_needs_a_name_of_this_machine() -> None:
    everywhere = Access("0.0.0.0")
    assert (
        everywhere.allows_host("10.1.2.3:80")
        and everywhere.allows_host("localhost")
        and not everywhere.allows_host("evil.example")
    )
    named = Access("node7.cluster")
    assert named.allows_host("node7.cluster:8717") and not named.allows_host("node8.cluster")
    assert not named.is_loopback and Access("127.0.0.1").is_loopback and Access("::1").is_loopback


def test_another_host_is_announced_with_a_warning(store: Path) -> None:
    with serving(store, "--host", "0.0.0.0") as running:
        assert running.url.startswith("http://0.0.0.0:")
        assert ask(running, "/api/overview").status == 403


def test_it_starts_in_under_two_seconds_of_processor_time(store: Path) -> None:
    """Processor time, because other processes may use the cores. The largest part is importing pandas and
    pyarrow.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with serving(store) as running:
        response = ask(running, f"/?token={running.token}")
        cookie = response.headers["set-cookie"].split(";")[0]
        assert ask(running, "/api/overview", Cookie=cookie).status == 200
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


LOCAL = b"Host: localhost\r\n"
UNFINISHED = {
    "nothing": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: local",
    "a request, then nothing": b"GET / HTTP/1.1\r\n" + LOCAL + b"\r\n",
    "a request without its body": b"POST / HTTP/1.1\r\n" + LOCAL + b"Content-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("sent", UNFINISHED)
def test_clients_that_only_wait_keep_no_one_else_out(sent: str, store: Path) -> None:
    with serving(store) as running, ExitStack() as clients:
        for _ in range(130):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            client.sendall(UNFINISHED[sent])
        assert [ask(running, f"/?token={running.token}").status for _ in range(3)] == [303] * 3


@pytest.mark.parametrize("before", ["nothing", "a request, then nothing"])
def test_a_request_that_is_never_completed_is_given_up(
    before: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorer_server, "REQUEST_SECONDS", 0.2)
    listening = listen("127.0.0.1", 0)
    running = serve(Context(store), Access())
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    with socket.create_connection(listening.getsockname(), timeout=60) as client:
        client.sendall(UNFINISHED[before] + UNFINISHED["half a request"])
        while client.recv(65_536):  # empty when the server has closed the connection
            pass
    running.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


def test_the_server_loads_no_model_code() -> None:
    heavy = "{'torch', 'transformers', 'scipy', 'matplotlib'}"
    code = f"import sys, lark.explorer.server, lark.explorer.export; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"


def command(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lark.explorer", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_wrong_arguments_get_a_sentence(tmp_path: Path, server: Server) -> None:
    code, said = command(str(tmp_path / "nothing"))
    assert code == 1 and "there is no such folder" in said and "Traceback" not in said
    code, said = command(str(tmp_path), "--port", str(server.port))
    assert code == 1 and "cannot be used" in said and "Traceback" not in said
    with pytest.raises(LarkError, match="--host has no value"):  # and does not listen on all addresses
        listen("", None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    code, said = command("export", str(tmp_path), "--to", str(tmp_path / "full"))
    assert code == 1 and "has other files" in said
    code, said = command("export", str(tmp_path), "--to", str(tmp_path / "new"), "--questions", "0")
    assert code == 1 and "at least 1" in said


def test_nothing_is_written_to_the_store(store: Path, server: Server, cookie: str) -> None:
    def state() -> dict[str, float]:
        return {str(path): path.stat().st_mtime_ns for path in store.rglob("*")}

    before, started = state(), time.time()
    for path in ("overview", "artifacts", "runs", "results", "curves", "benchmarks"):
        ask(server, f"/api/{path}", Cookie=cookie)
    assert state() == before and time.time() > started
