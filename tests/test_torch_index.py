"""Where ``make`` takes torch from: the CPU index where it helps and answers, else nothing, and never a long wait."""

import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch_index

ROOT = Path(__file__).parent.parent


class Index(BaseHTTPRequestHandler):
    """Has a page for torch and nothing else."""

    def do_HEAD(self):
        self.send_response(200 if self.path == "/torch/" else 404)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def index():
    """The address of an index on this machine."""
    with HTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def mute():
    """The address of a machine that takes calls and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def linux(monkeypatch):
    """A Linux machine without a GPU, whose pip was told nothing."""
    monkeypatch.setattr(torch_index.sys, "platform", "linux")
    monkeypatch.setattr(torch_index.shutil, "which", lambda name: None)
    for name in torch_index.TOLD:
        monkeypatch.delenv(name, raising=False)


def test_the_cpu_index_is_named_where_it_answers(linux, index, monkeypatch):
    monkeypatch.setattr(torch_index, "CPU_INDEX", index)
    assert torch_index.wanted() == index


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/torch/", "http://nowhere.invalid/torch/", "nonsense"])
def test_an_index_that_cannot_be_reached_is_not_named(address, linux, monkeypatch):
    assert not torch_index.answers(address)


def test_an_index_without_the_page_is_not_named(index):
    assert not torch_index.answers(f"{index}/jax/")


def test_an_index_that_never_answers_is_given_up_soon(mute):
    started = time.perf_counter()
    assert not torch_index.answers(f"{mute}/torch/", patience=0.2)
    assert time.perf_counter() - started < 1.5


@pytest.mark.parametrize("told", torch_index.TOLD)
def test_nobody_is_asked_where_pip_was_told_where_to_look(told, linux, monkeypatch):
    monkeypatch.setenv(told, "https://mirror.example/simple")
    monkeypatch.setattr(torch_index, "answers", lambda *_: pytest.fail("asked"))
    assert torch_index.wanted() == ""


@pytest.mark.parametrize(("platform", "gpu"), [("linux", "/usr/bin/nvidia-smi"), ("darwin", None)])
def test_nobody_is_asked_where_the_usual_build_is_the_right_one(platform, gpu, linux, monkeypatch):
    monkeypatch.setattr(torch_index.sys, "platform", platform)
    monkeypatch.setattr(torch_index.shutil, "which", lambda name: gpu)
    monkeypatch.setattr(torch_index, "answers", lambda *_: pytest.fail("asked"))
    assert torch_index.wanted() == ""


def test_the_script_prints_one_line_and_nothing_else(linux, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    done = subprocess.run([sys.executable, ROOT / "tools" / "torch_index.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ({"TORCH_INDEX": "https://index.example/cpu"}, "--extra-index-url https://index.example/cpu "),
        ({"TORCH_INDEX": ""}, ""),
        ({"PIP_NO_INDEX": "1"}, ""),
    ],
)
def test_make_passes_the_index_on_to_pip(setting, options, tmp_path):
    """The very line of the Makefile, with an `echo` in the place of Python."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    line = re.search(r"\tindex=.*\\\n\t\$\(BIN\).*\n", recipe)[0]
    for name, value in {"$(BIN)/python": "echo", "$(PYTHON)": sys.executable, "$$": "$"}.items():
        line = line.replace(name, value)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=ROOT, env={"PATH": "/bin", **setting})
    assert done.stdout.strip() == f"-m pip install --disable-pip-version-check --quiet {options}-r requirements.txt"


def test_binder_takes_the_same_torch_and_a_python_that_the_package_allows():
    pins = [re.findall(r"^torch==.*", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
            for name in ("requirements.txt", "binder/requirements.txt")]  # fmt: skip
    assert pins[0] == pins[1] != []
    lines = (ROOT / "binder" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert {"-e .", f"--extra-index-url {torch_index.CPU_INDEX}"} <= set(lines)
    python = re.fullmatch(r"python-3\.(\d+)\n", (ROOT / "binder" / "runtime.txt").read_text(encoding="utf-8"))
    assert 11 <= int(python[1]) <= 13
