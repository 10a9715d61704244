"""No network but a server on this machine, no data but what a test makes."""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pooch
import pytest

from attnbook.data.files import KNOWN, File


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache; names of other machines are not found."""
    for name in ("ATTNBOOK_DATA", "ATTNBOOK_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    honest = socket.getaddrinfo

    def local_only(host, *arguments, **options):
        if host != "127.0.0.1":
            raise socket.gaierror(f"no network in tests: {host}")
        return honest(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", local_only)
    monkeypatch.setattr(pooch.core.time, "sleep", lambda seconds: None)
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty folder ATTNBOOK_DATA."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("ATTNBOOK_DATA", str(folder))
    return folder


@pytest.fixture
def write():
    """Write bytes into a folder of data."""

    def write(folder, path, content):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    return write


@pytest.fixture
def server(monkeypatch):
    """Serve files whose checksums are known: `server.offer(path, content, *answers)`."""
    with Server() as running:
        running.offer = lambda *arguments: _offer(running, monkeypatch, *arguments)
        yield running


def _offer(running, monkeypatch, path, content, *answers):
    """Make a file known. Requests get the answers in turn, the last one for ever; default its content."""
    running.answers[f"/{path}"] = list(answers or [content])
    url = f"http://127.0.0.1:{running.server_port}/{path}"
    monkeypatch.setitem(KNOWN, path, File(len(content), hashlib.sha256(content).hexdigest(), url))


class Server(ThreadingHTTPServer):
    """Answers with bytes, with a status, or with half of (bytes,)."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = {}, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self):
        self.server.asked.append(self.path)
        answers = self.server.answers[self.path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, int):
            self.send_error(answer)
            return
        broken, whole = isinstance(answer, tuple), answer[0] if isinstance(answer, tuple) else answer
        self.send_response(200)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole[: len(whole) // 2] if broken else whole)

    def log_message(self, *_):
        pass
