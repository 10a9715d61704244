"""The Makefile: what its commands hand on."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ("attnbook", "jupyter", "lint-imports", "mypy", "python", "ruff")


@pytest.fixture
def folder(tmp_path):
    """A folder with spaces in its name: the Makefile, and an environment whose programs say what they were told."""
    place = tmp_path / "my books, all of them" / "attnbook"
    programs = place / ".venv" / "bin"
    programs.mkdir(parents=True)
    (place / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("requirements.txt", "pyproject.toml"):
        (place / name).touch()
    for name in PROGRAMS:
        (programs / name).write_text('#!/bin/sh\necho "told: $ATTNBOOK_FRAMES$JUPYTER_CONFIG_PATH"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    (programs.parent / ".installed").touch()
    return place


@pytest.mark.parametrize(
    "target",
    ["book", "test", "outputs", "quick", "slow", "lint", "lab", "notebooks", "address", "serve", "print", "pdf", "look",
     "results", "verify", "benchmarks", "faults", "measure", "lock", "clean"],
)  # fmt: skip
def test_every_command_works_in_a_folder_whose_name_has_spaces(target, folder, monkeypatch):
    monkeypatch.delenv("ATTNBOOK_FRAMES", raising=False)
    monkeypatch.delenv("JUPYTER_CONFIG_PATH", raising=False)
    command = ["make", "--no-print-directory", "PYTHON=.venv/bin/python", target]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = {line.removeprefix("told: ") for line in done.stdout.splitlines() if line.startswith("told: ")} - {""}
    places = {"test": "_build/frames", "outputs": "_build/frames", "lab": "tools/jupyter"}
    assert told == ({f"{folder}/{places[target]}"} if target in places else set())
