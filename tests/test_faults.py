"""The script that breaks things on purpose, and the table it has written."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest


def test_the_table_is_what_the_script_has_found_and_no_fault_did_harm():
    found = json.loads(faults.STORE.read_text(encoding="utf-8"))
    assert faults.page(found) == faults.PAGE.read_text(encoding="utf-8")
    assert set(found) <= set(faults.PARTS)
    rows = [row for part in found.values() for row in part]
    assert [row for row in rows if row["good"] < row["tried"]] == []


@pytest.mark.slow
def test_bad_inputs_get_clear_errors(tmp_path):
    """In a process of its own: while tests run, shapes are checked before the functions themselves can."""
    command = [sys.executable, faults.__file__, "inputs", "--show"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("200 of 200") == 2
    assert [file.name for file in tmp_path.iterdir() if file.name != ".hypothesis"] == []  # its own notes


@pytest.mark.slow
def test_a_worker_ends_with_a_run_that_is_killed():
    code = """
import os, time
from attnbook.core.executors import executor_on
if __name__ == "__main__":
    with executor_on("processes:1") as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(600)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(faults.__file__).parents[1])}
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    worker = int(run.stdout.readline())
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert not faults.lives(worker)


def test_a_process_that_is_there_lives(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert faults.lives(os.getpid())
