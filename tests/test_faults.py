"""The script that breaks things on purpose, and the table it has written."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import faults
import pytest


def test_the_table_is_what_the_script_has_found_and_no_fault_did_harm():
    found = json.loads(faults.STORE.read_text(encoding="utf-8"))
    assert faults.page(found) == faults.PAGE.read_text(encoding="utf-8")
    assert set(found) <= {*faults.PARTS, "trials"}
    rows = [row for part in faults.PARTS for row in found.get(part, [])]
    assert [row for row in rows if row["good"] < row["tried"]] == []


def test_the_kills_hit_runs_and_workers_before_and_after_groups_were_kept():
    trials = json.loads(faults.STORE.read_text(encoding="utf-8"))["trials"]
    assert [trial["who"] for trial in trials] == [who for who, _ in zip(cycle(faults.VICTIMS), trials, strict=False)]
    assert all(trial["computed"] + trial["left"] == trial["groups"] for trial in trials)
    for who in set(faults.VICTIMS) if len(trials) == faults.KILLS else ():
        assert any(0 < trial["kept"] < trial["groups"] for trial in trials if trial["who"] == who)


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


def test_workers_are_found_whichever_thread_has_begun_them():
    """The command line trains in a thread; only the main one was looked at once, and no kill hit a worker."""
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    with ThreadPoolExecutor(1) as threads:
        threads.submit(worker.start).result()
        found = worker.pid in faults.workers(os.getpid())
    worker.kill()
    worker.join()
    assert found


def test_a_process_that_is_there_lives(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert faults.lives(os.getpid())
    assert faults.spent(os.getpid()) >= time.process_time() - 1
