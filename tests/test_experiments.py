"""Every experiment of every paper passes the same checks; the tiny one of the tests goes through them as well."""

import json
import multiprocessing
import os
import signal
import time
import types
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_experiment import Toy

from attnbook import ledger, registry
from attnbook.core.experiment import Experiment
from attnbook.core.results import stored_path
from attnbook.registry import experiments

ALL = list(experiments().values())


@pytest.fixture(params=ALL, ids=lambda e: e.id)
def experiment(request):
    return request.param


def room(experiment):
    return experiment.id.split(".")[0]


SAMPLE = {next(filter(lambda e: room(e) == name, ALL)) for name in map(room, ALL)}
"""One experiment of each room, which stands for the others in `make quick`."""


@pytest.fixture(
    params=[Toy, *(e if e in SAMPLE else pytest.param(e, marks=pytest.mark.slow) for e in ALL)], ids=lambda e: e.id
)
def kind(request):
    """The class of an experiment, the tiny one among them; it runs at smoke size, a seed at a time."""
    return request.param


@dataclass
class First:
    """The first run of an experiment: its data, how far it said it was, and the folder of its parts."""

    data: Any
    shares: list[float]
    parts: Path


@pytest.fixture(scope="session")
def first(tmp_path_factory):
    """A run at smoke size, a seed at a time, by experiment; each runs once, and all other ways are held to it."""
    kept = {}

    def of(kind):
        if kind not in kept:
            shares, parts = [], tmp_path_factory.mktemp("parts")
            progress = lambda done, total: shares.append(done / total)  # noqa: E731  (shorter than a function of three lines)
            data = kind.at("smoke", chunk=1).run(device="cpu", workdir=parts, progress=progress)
            kept[kind] = First(data, shares, parts)
        return kept[kind]

    return of


def assert_same(one, other):
    assert one.drop_attrs().identical(other.drop_attrs())


def test_a_smoke_run_reports_progress_and_survives_a_round_trip(kind, first, tmp_path):
    ready, run = kind.at("smoke", chunk=1), first(kind)
    assert run.shares == sorted(run.shares)
    assert run.shares[-1] == 1
    ready.store(run.data, tmp_path / "result.json")
    loaded = kind.load(tmp_path / "result.json")
    assert_same(loaded, run.data)
    assert ready.measurements(loaded) == ready.measurements(run.data)


def test_killed_and_resumed_is_the_same(kind, first):
    """The last group is missing, as after a kill."""
    ready, run = kind.at("smoke", chunk=1), first(kind)
    parts = sorted(run.parts.iterdir())
    assert len(parts) == len(ready.seeds) > 1
    parts[-1].unlink()
    before = {part: part.stat().st_mtime_ns for part in parts[:-1]}
    assert_same(ready.run(device="cpu", workdir=run.parts), run.data)
    assert {part: part.stat().st_mtime_ns for part in parts[:-1]} == before


@pytest.fixture(scope="session")
def pool():
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as started:
        yield started


@pytest.mark.slow
def test_a_second_run_on_a_process_pool_is_the_same(kind, first, pool):
    assert_same(kind.at("smoke", chunk=1).run(device="cpu", executor=pool), first(kind).data)


@pytest.mark.slow
def test_a_second_run_on_a_cluster_is_the_same(kind, first, cluster):
    assert_same(kind.at("smoke", chunk=1).run(device="cpu", executor=cluster.get_executor()), first(kind).data)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_loses_nothing(cluster, tmp_path):
    """SIGKILL, as the kernel does for want of memory: its group goes to the other worker, all others stay."""
    toy = Toy(seeds=tuple(range(8)), chunk=1, seconds=0.5, log=str(tmp_path))
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(toy.run, device="cpu", executor=cluster.get_executor())
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.02)
        victim = int(sorted(tmp_path.iterdir())[-1].name.split("-")[1])
        os.kill(victim, signal.SIGKILL)
        data = run.result(timeout=120)
    assert_same(data, replace(toy, log="", seconds=0.0).run(device="cpu"))
    started = [int(file.name.split("-")[0]) for file in tmp_path.iterdir()]
    assert set(started) == set(toy.seeds)
    assert len(started) > len(toy.seeds)  # the group of the killed worker ran twice
    cluster.wait_for_workers(2, timeout=60)


@pytest.mark.slow
def test_every_measured_claim_is_in_the_ledger_and_names_this_experiment(experiment, smoke_results):
    measured = experiment.at("smoke").measurements(smoke_results[experiment.id])
    for claim_id, measurement in measured.items():
        verdict = ledger.judge(ledger.claim(claim_id), measurement)
        assert verdict.claim.experiment == experiment.id
        assert not verdict.claim.pending


def test_all_sizes_differ(experiment):
    sizes = [repr(experiment.at(scale)) for scale in experiment.scales()]
    assert len(set(sizes)) == len(sizes) >= 2


def test_an_unavailable_device_is_refused(experiment):
    with pytest.raises(ValueError, match="device"):
        experiment.at("smoke").run(device="tpu")


def test_every_experiment_says_what_it_is_and_respects_a_time_budget_of_under_a_minute(experiment):
    """The budget that a chapter's experiments share; the stored book run shows the time each one took."""
    assert experiment.summary
    stored = json.loads(stored_path(experiment.id, "book").read_text(encoding="utf-8"))["provenance"]
    assert stored["cpu_seconds"] <= experiment.budget_seconds <= 60


def test_an_id_is_that_of_its_experiment_and_belongs_to_one_class():
    assert all(issubclass(found, Experiment) and found.id == name for name, found in experiments().items())
    one, other = (type("Other", (Toy,), {"__module__": "room.chapter.experiments"}) for _ in range(2))
    module = types.ModuleType("room.chapter.experiments")
    module.__package__, module.one, module.again, module.other = "room.chapter", one, one, other
    with pytest.raises(ValueError, match=r"room\.chapter\.experiments: Other has the id of Other, 'toy\.draws'"):
        registry._add({}, module)
