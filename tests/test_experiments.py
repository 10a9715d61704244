"""Every experiment of every paper passes the same checks; the tiny one of the tests goes through them as well."""

import json
import multiprocessing
import os
import shutil
import signal
import time
import types
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from each import each
from toy_experiment import Toy
from tracing import Pretended

from attnbook import ledger, registry
from attnbook.core.experiment import Experiment
from attnbook.core.results import results_folder, stored_path
from attnbook.registry import experiments

ALL = list(experiments().values())


def name(experiment):
    return experiment.id


def room(experiment):
    return experiment.id.split(".")[0]


SCRIPTED = [e for e in ALL if not e.__module__.startswith("attnbook.")]
SAMPLE = [*{room(e): e for e in reversed(ALL) if e not in SCRIPTED}.values(), *SCRIPTED]
"""One experiment of each room, which stands for the others in `make quick`, and all that chapters' scripts define."""


@pytest.fixture(
    params=[Toy, *(e if e in SAMPLE else pytest.param(e, marks=pytest.mark.slow) for e in ALL)], ids=lambda e: e.id
)
def kind(request):
    """The class of an experiment, the tiny one among them; it runs at smoke size, a seed at a time."""
    return request.param


def assert_same(one, other):
    assert one.drop_attrs().identical(other.drop_attrs())


def test_a_smoke_run_reports_progress_and_survives_a_round_trip(kind, smoke_results, tmp_path):
    ready, shares = kind.at("smoke", chunk=1), []
    data = smoke_results.run(kind, lambda done, total: shares.append(done / total))
    assert shares == sorted(shares)
    assert shares[-1] == 1
    ready.store(data, tmp_path / "result.json")
    loaded = kind.load(tmp_path / "result.json")
    assert_same(loaded, data)
    assert ready.measurements(loaded) == ready.measurements(data)


@pytest.fixture
def resume(smoke_results, tmp_path):
    """Run an experiment again where one group is missing, as after a kill; what is there stays as it is."""

    def again(kind, lost, **where):
        ready, groups, own = kind.at("smoke", chunk=1), smoke_results.groups(kind), tmp_path / kind.id
        assert len(groups) == len(ready.seeds) > 1
        groups.pop(lost)
        own.mkdir()
        before = {part: part.stat().st_mtime_ns for part in (Path(shutil.copy(group, own)) for group in groups)}
        assert_same(ready.run(device="cpu", workdir=own, **where), kind.load(smoke_results.file(kind)))
        assert {part: part.stat().st_mtime_ns for part in before} == before

    return again


@pytest.mark.parametrize("kind", [Toy, *SAMPLE], ids=name)
def test_killed_and_resumed_is_the_same(kind, resume):
    resume(kind, -1)


@pytest.fixture(scope="session")
def pool():
    """One process, which imports once; on two, groups finish in any order (tests/test_running.py, and the cluster)."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as started:
        yield started


def assert_runs_on(executor):
    """The tiny experiment as a whole."""
    assert_same(Toy.at("smoke").run(device="cpu", executor=executor), Toy.at("smoke").run(device="cpu"))


@pytest.mark.slow
def test_a_second_run_on_a_process_pool_is_the_same(pool, resume):
    """All of the tiny experiment; of every other a group that is missing, as what runs groups is the same for all."""
    assert_runs_on(pool)
    each(ALL, lambda kind: resume(kind, 0, executor=pool), name)


@pytest.mark.slow
def test_a_second_run_on_a_cluster_is_the_same(cluster, resume):
    """The same, of one experiment of each room: a cluster is sent what a pool is sent."""
    assert_runs_on(cluster.get_executor())
    each(SAMPLE, lambda kind: resume(kind, 0, executor=cluster.get_executor()), name)


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
        sizes = [repr(experiment.at(scale)) for scale in experiment.has()]
        assert len(set(sizes)) == len(sizes) >= 2

    each(ALL, check, name)


def test_what_is_the_same_for_all_experiments_stands_once():
    """A method of the same name would take its place without a word."""
    once = {"at", "from_data", "groups", "load", "load_stored", "measurements", "nearest", "run", "has", "store"}

    def check(kind):
        bases = kind.__mro__[: kind.__mro__.index(Experiment)]
        in_script = {"load", "store"} if not kind.__module__.startswith("attnbook.") else set()  # as netCDF
        assert not [own for base in bases for own in (once - in_script) & set(vars(base))]

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
    own = {"__module__": "room.chapter.experiments", "id": "toy.others"}
    one, other = (type("Other", (Toy,), own) for _ in range(2))
    module = types.ModuleType("room.chapter.experiments")
    module.__package__, module.one, module.again, module.other = "room.chapter", one, one, other
    with pytest.raises(ValueError, match=r"room\.chapter\.experiments: Other has the id of Other, 'toy\.others'"):
        registry._add({}, module)


def test_what_torch_is_told_to_do_by_default_changes_no_number(kind, smoke_results):
    """Another device, on which nothing can be computed, and another type: the package names both wherever it matters.

    Both together, of the first seed: what fails under one of them fails here.
    """
    ready = kind.at("smoke", chunk=1)
    expected = kind.load(smoke_results.groups(kind)[0])
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        found = replace(ready, seeds=ready.seeds[:1]).run(device="cpu")
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert_same(found.drop_vars(ready.coordinates(), errors="ignore"), expected)


def test_provenance_names_the_device_that_was_used(kind):
    """Traced on a GPU that is not there; what computes in float64 alone says so, as mps has none."""
    ready = kind.at("smoke", chunk=1)
    with Pretended() as traced:
        data = replace(ready, seeds=ready.seeds[:1]).run(device="cuda")
    numbers = {one for one in traced.kinds if one.is_floating_point}
    used = "cpu" if not traced.kinds else "cuda (pretended)"
    assert data.attrs["provenance"]["device"] == used
    assert {group["device"] for group in data.attrs["provenance"]["groups"]} == {used}
    assert (kind.needs == "float64") == (numbers == {torch.float64})


def test_every_stored_result_names_a_device_that_its_experiment_can_use():
    def check(file):
        found = json.loads(file.read_text(encoding="utf-8"))["provenance"]
        runs = found if isinstance(found, list) else [found]
        devices = {
            run["device"].split()[0] for run in [*runs, *(part for one in runs for part in one.get("groups", ()))]
        }
        allowed = {"any": {"cpu", "cuda", "mps"}, "float64": {"cpu", "cuda"}, "cpu": {"cpu"}}
        assert devices <= allowed[experiments()[file.stem].needs]

    each(sorted(results_folder().glob("*/*.json")), check, lambda file: f"{file.parent.name}/{file.name}")
