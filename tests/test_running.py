"""``attnbook run`` with several experiments, on processes and on a dask scheduler."""

import json
import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from toy_experiment import Toy
from typer.testing import CliRunner

import attnbook
from attnbook import cli, registry
from attnbook.core import executors


@dataclass(frozen=True, kw_only=True)
class Failing(Toy):
    """Diverges at its last seed."""

    id = "toy.failing"
    smoke = {"fails_at": 2, "seeds": (0, 1, 2), "chunk": 1}
    full = None


@pytest.fixture
def call(tmp_results, monkeypatch):
    """Call `attnbook run`; the registry holds two tiny experiments, results go to an empty folder."""
    known = {kind.id: kind for kind in (Failing, Toy)}
    monkeypatch.setattr(registry, "experiments", lambda: known)

    def call(*arguments, code=0):
        done = CliRunner(env={"COLUMNS": "500"}).invoke(cli.app, ["run", "--device", "cpu", *map(str, arguments)])
        assert done.exit_code == code, done.output
        return done

    return call


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("where", ["here", "processes:2"])
def test_one_failure_is_named_and_the_others_finish(where, call, tmp_results):
    done = call("--all", "--size", "smoke", "--on", where, code=1)
    assert "failed toy.failing: training diverged for seed 2: try a smaller step size" in done.stderr
    assert "toy.draws: " in done.stderr
    kept = [name for name in files_in(tmp_results) if ".parts" in name]
    assert [name for name in files_in(tmp_results) if name not in kept] == ["smoke/toy.draws.json"]
    assert any("toy.failing-seeds-0-0-" in name for name in kept)


def test_a_single_experiment_that_fails_is_one_line(call, tmp_results):
    done = call("toy.failing", "--size", "smoke", code=2)
    assert done.stderr == "attnbook: training diverged for seed 2: try a smaller step size\n"


def test_what_has_no_such_size_is_left_out_of_all_and_refused_by_name(call):
    assert "left out toy.failing: no size full" in call("--all", "--size", "full").stderr
    message = "size: toy.failing has no size 'full', expected one of smoke, book"
    assert message in call("toy.failing", "--size", "full", code=2).stderr


def test_several_names_give_their_measurements_as_data_once_each(call):
    found = json.loads(call("toy.draws", "toy.draws", "--json", "--size", "smoke").stdout)
    assert set(found) == {"TY-1", "TY-2"}
    found = json.loads(call("toy.draws", "toy.failing", "--json", "--size", "book").stdout)
    assert set(found) == {"toy.draws", "toy.failing"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "experiment: name one or several, or use --all, or --paper NAME"),
        (["--all", "toy.draws"], "experiment: name one or several, or use --all, or --paper NAME"),
        (["--paper", "banana"], "paper: got 'banana', expected one of global_attention, "),
        (["--all", "--output", "mine.json"], "output: one file for 2 experiments; name one experiment"),
        (["--all", "--on", "banana"], "on: got 'banana', expected here, processes:N or the address of a scheduler"),
        (["--all", "--on", "processes:0"], "on: got 'processes:0'"),
        (["--all", "--on", "tcp://localhost"], "on: got 'tcp://localhost'"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_leaves_nothing(arguments, message, call, tmp_results):
    (line,) = call(*arguments, code=2).stderr.splitlines()
    assert line.startswith(f"attnbook: {message}")
    assert files_in(tmp_results) == []


def test_a_scheduler_that_does_not_answer_is_named(call, monkeypatch):
    monkeypatch.setattr(executors, "WAIT_SECONDS", 0.5)
    message = "on: no scheduler answers at tcp://127.0.0.1:1 within 0.5 s; start one with `dask scheduler`"
    assert message in call("--all", "--on", "tcp://127.0.0.1:1", code=2).stderr


def test_an_interrupted_run_calls_off_what_dask_has_not_begun_and_says_so(call, monkeypatch):
    """Its executor takes no word on what to cancel."""
    from concurrent.futures import Executor, Future

    class Idle(Executor):
        called_off = False

        def submit(self, *_, **__):
            self.future = Future()
            os.kill(os.getpid(), signal.SIGINT)
            return self.future

        def shutdown(self, wait=True):
            self.called_off = not wait
            self.future.cancel()
            self.future.set_running_or_notify_cancel()

    idle = Idle()
    monkeypatch.setattr(executors, "executor_on", lambda where: nullcontext(idle))
    done = call("toy.draws", "--size", "smoke", "--on", "tcp://127.0.0.1:1", code=130)
    assert done.stderr == "attnbook: stopped; run again to continue after what was finished\n"
    assert idle.called_off


def test_ten_seconds_are_waited_for_a_scheduler():
    assert executors.WAIT_SECONDS == 10


@pytest.mark.slow
def test_a_worker_of_another_version_is_refused_before_anything_is_submitted(call, cluster, monkeypatch, tmp_results):
    monkeypatch.setattr(attnbook, "__version__", "9.9.9")
    done = call("toy.draws", "--size", "smoke", "--on", cluster.scheduler.address, code=2)
    assert "and 1 more has attnbook 0.1.0; install 9.9.9 there and start it again" in done.stderr
    assert files_in(tmp_results) == []


@pytest.mark.parametrize(("found", "says"), [("0.0.9", "has attnbook 0.0.9"), (ImportError("none"), "has no attnbook")])
def test_the_worker_that_does_not_fit_is_named(found, says):
    with pytest.raises(ValueError, match=f"on: worker tcp://b {says}; install {attnbook.__version__} there"):
        executors._check_versions({"tcp://a": attnbook.__version__, "tcp://b": found})


@pytest.mark.slow
def test_a_scheduler_gives_the_numbers_of_a_run_here(call, cluster, tmp_results):
    call("toy.draws", "--size", "smoke", "--on", cluster.scheduler.address)
    there = Toy.load(tmp_results / "smoke" / "toy.draws.json")
    assert there.drop_attrs().identical(Toy.at("smoke").run(device="cpu").drop_attrs())
    assert files_in(tmp_results) == ["smoke/toy.draws.json"]


@pytest.mark.slow
def test_a_process_that_was_killed_is_explained(call, monkeypatch, tmp_results):
    monkeypatch.setattr(Toy, "smoke", Toy.smoke | {"kills_itself": True})
    done = call("toy.draws", "--size", "smoke", "--on", "processes:1", code=2)
    assert "a worker process was killed, perhaps for want of memory; run again, what is finished is kept" in done.stderr


def test_a_class_is_found_in_its_chapter():
    from attnbook.preconditioning.structure_aware_descent.experiments import Ablation

    assert registry.experiments()["preconditioning.ablation"] is Ablation


def test_two_classes_with_one_id_are_refused():
    from attnbook.preconditioning.structure_aware_descent import experiments as chapter

    with pytest.raises(ValueError, match=r"experiments: Ablation has the id of Toy, 'preconditioning\.ablation'"):
        registry._add({"preconditioning.ablation": Toy}, chapter)
