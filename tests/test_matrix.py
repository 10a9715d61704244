"""The table of other Pythons: what is finished is kept, what failed is shown and tried again."""

from pathlib import Path
from types import ModuleType

import in_float64
import matrix
import pytest
import torch

PYTHON = Path("3.13-newest/bin/python")
VERSIONS = dict.fromkeys(matrix.SHOWN, "1.0")
CLAIMS = [{"claim": "one", "holds": True}, {"claim": "two", "holds": False}]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Nothing finished yet; files go to a folder of the test."""
    monkeypatch.setattr(matrix, "STORED", tmp_path / "matrix.json")
    monkeypatch.setattr(matrix, "TABLE", tmp_path / "matrix.md")
    return {"rows": {}, "float64": {}}


@pytest.fixture
def asked(monkeypatch):
    """What the other interpreter was asked, and what it answers the next time."""
    answers = {"versions": VERSIONS, "verify": CLAIMS, "calls": 0}

    def answer(python, *command, threads=1):
        answers["calls"] += 1
        return answers["versions" if command[0] == "-c" else "verify"]

    monkeypatch.setattr(matrix, "answer", answer)
    return answers


def test_a_finished_row_is_kept_and_shown(stored, asked):
    for _ in range(2):
        matrix.add_row(stored, PYTHON, "3.13", 2, ["room.experiment"])
    assert asked["calls"] == 2  # versions and verdicts, once
    assert "| 3.13 | 1.0 | 1.0 | 1.0 | 1.0 | 1.0 | 2 | 1 of 2 (not two) |" in matrix.TABLE.read_text()


def test_a_failure_is_shown_and_tried_again(stored, asked):
    asked["verify"] = {"failure": "ImportError: no such name"}
    matrix.add_row(stored, PYTHON, "3.13", 1, ["room.experiment"])
    assert "failed: ImportError: no such name |" in matrix.TABLE.read_text()
    asked["verify"] = CLAIMS
    matrix.add_row(stored, PYTHON, "3.13", 1, ["room.experiment"])
    assert "failed" not in matrix.TABLE.read_text()


def test_float64_is_told_by_experiment(stored, asked):
    found = {"a": {"float32": False}, "b": {"float32": True, "holding": ["one"], "other": []}, "c": {"failure": "why"}}
    for name, asked["verify"] in found.items():
        matrix.add_float64(stored, PYTHON, name)
    said = matrix.in_float64(stored["float64"])
    assert "Of 3 experiments 2 train in float32" in said
    assert "1 of 1 of their verdicts" in said
    assert "Not in float64: c (why)." in said


def test_a_command_that_prints_nothing_gives_its_last_line(monkeypatch):
    failing = ("-c", "raise ValueError('seed: too small')")
    assert matrix.answer(Path(matrix.sys.executable), *failing) == {"failure": "ValueError: seed: too small"}


def test_widening_changes_the_default_of_functions_in_place(monkeypatch):
    def train(*, dtype: torch.dtype = torch.float32):
        return dtype

    def solve(*, dtype: torch.dtype = torch.float16):
        return dtype

    module = ModuleType("attnbook.made_up")
    module.train, module.solve = train, solve
    monkeypatch.setattr(in_float64.sys, "modules", {"attnbook.made_up": module})
    in_float64.widen()
    assert (train(), solve(), train(dtype=torch.float32)) == (torch.float64, torch.float16, torch.float32)
