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
from each import each
from toy_experiment import Toy

from attnbook import ledger, registry
from attnbook.core.experiment import Experiment
from attnbook.core.results import stored_path
from attnbook.registry import experiments

ALL = list(experiments().values())


def name(experiment):
    return experiment.id


def room(experiment):
    return experiment.id.split(".")[0]


SAMPLE = {next(filter(lambda e: room(e) == one, ALL)) for one in map(room, ALL)}
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
def first(tmp_path_factory, smoke_results):
    """A run at smoke size, a seed at a time, by experiment; each runs once, and all other ways are held to it."""
    kept = {}

    def of(kind):
        if kind not in kept:
            shares, parts, ready = [], tmp_path_factory.mktemp("parts"), kind.at("smoke", chunk=1)
            progress = lambda done, total: shares.append(done / total)  # noqa: E731  (shorter than a function of three lines)
            kept[kind] = First(ready.run(device="cpu", workdir=parts, progress=progress), shares, parts)
            if kind in ALL and ready == kind.at("smoke"):
                smoke_results.keep(kind.id, kept[kind].data)
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


def resume(kind, run, lost, **where):
    """Run again where one group is missing, as after a kill; what is there stays as it is."""
    ready, parts = kind.at("smoke", chunk=1), sorted(run.parts.iterdir())
    assert len(parts) == len(ready.seeds) > 1
    parts.pop(lost).unlink()
    before = {part: part.stat().st_mtime_ns for part in parts}
    assert_same(ready.run(device="cpu", workdir=run.parts, **where), run.data)
    assert {part: part.stat().st_mtime_ns for part in parts} == before


def test_killed_and_resumed_is_the_same(kind, first):
    resume(kind, first(kind), -1)


@pytest.fixture(scope="session")
def pool():
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as started:
        yield started


def again(kind, run, executor):
    """Run again on workers: all of the tiny experiment and of a sample; of all others one group, which is missing."""
    if kind is Toy or kind in SAMPLE:
        assert_same(kind.at("smoke", chunk=1).run(device="cpu", executor=executor), run.data)
    else:
        resume(kind, run, 0, executor=executor)


@pytest.mark.slow
def test_a_second_run_on_a_process_pool_is_the_same(kind, first, pool):
    again(kind, first(kind), pool)


@pytest.mark.slow
def test_a_second_run_on_a_cluster_is_the_same(kind, first, cluster):
    again(kind, first(kind), cluster.get_executor())


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
def test_every_measured_claim_is_in_the_ledger_and_names_this_experiment(all_smoke_results):
    def check(experiment):
        for claim_id, measurement in all_smoke_results.measurements(experiment.id).items():
            verdict = ledger.judge(ledger.claim(claim_id), measurement)
            assert verdict.claim.experiment == experiment.id
            assert not verdict.claim.pending

    each(ALL, check, name)


def test_all_sizes_differ():
    def check(experiment):
        sizes = [repr(experiment.at(scale)) for scale in experiment.scales()]
        assert len(set(sizes)) == len(sizes) >= 2

    each(ALL, check, name)


def test_an_unavailable_device_is_refused():
    def check(experiment):
        with pytest.raises(ValueError, match="device"):
            experiment.at("smoke").run(device="tpu")

    each(ALL, check, name)


def test_every_experiment_says_what_it_is_and_respects_a_time_budget_of_under_a_minute():
    """The budget that a chapter's experiments share; the stored book run shows the time each one took."""

    def check(experiment):
        assert experiment.summary
        stored = json.loads(stored_path(experiment.id, "book").read_text(encoding="utf-8"))["provenance"]
        assert stored["cpu_seconds"] <= experiment.budget_seconds <= 60

    each(ALL, check, name)


def test_an_id_is_that_of_its_experiment_and_belongs_to_one_class():
    assert all(issubclass(found, Experiment) and found.id == name for name, found in experiments().items())
    one, other = (type("Other", (Toy,), {"__module__": "room.chapter.experiments"}) for _ in range(2))
    module = types.ModuleType("room.chapter.experiments")
    module.__package__, module.one, module.again, module.other = "room.chapter", one, one, other
    with pytest.raises(ValueError, match=r"room\.chapter\.experiments: Other has the id of Other, 'toy\.draws'"):
        registry._add({}, module)
