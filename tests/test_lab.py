"""Experiments as functions: settings, groups of seeds, keeping, storing, measuring."""

import errno
import inspect
import json
import os
import pickle
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from attnbook import lab
from attnbook.core import executors, runtime, unfinished
from attnbook.core.results import ResultError

SCRIPT = Path(__file__).parent / "lab_script.py"
toy = lab.load_script(SCRIPT)
walk, still = toy.walk, toy.still


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(unfinished, "PATIENCE", 0.0)


def by_hand(seed, scale, steps=7, rate=0.5):
    position, path = 0.0, []
    for move in np.random.default_rng(seed).standard_normal(steps):
        position += move
        path.append(scale * rate * position)
    return path


def same(a, b):
    xr.testing.assert_identical(a.drop_attrs(), b.drop_attrs())
    assert a.attrs["settings"] == b.attrs["settings"]


def test_a_run_is_the_function_on_all_seeds_with_named_dimensions():
    data = walk.run()
    assert dict(data.sizes) == {"seed": 5, "scale": 2, "step": 7}
    assert data.end.dims == ("seed", "scale")
    for seed in range(5):
        for scale in (1.0, 2.0):
            np.testing.assert_allclose(data.path.sel(seed=seed, scale=scale), by_hand(seed, scale), rtol=1e-14)
    assert data.attrs["settings"] == {
        "seeds": [0, 1, 2, 3, 4],
        "scales": [1, 2],
        "steps": 7,
        "rate": 0.5,
        "trouble": "",
    }
    assert data.attrs["provenance"]["device"] == "cpu"


def test_settings_explain_themselves():
    assert "of each walk" in inspect.getdoc(walk)
    assert "scales = (1.0, 2.0): of the noise" in inspect.getdoc(walk)
    assert walk.summary == "Walk at random."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 0}, "steps: expected greater than 0, got 0"),
        ({"steps": "many"}, "steps: expected a value such as 7, got 'many'"),
        ({"steps": True}, "steps: .* got True"),
        ({"steps": 2.5}, "steps: expected integer.* got 2.5"),
        ({"rate": float("nan")}, "rate: .* got nan"),
        ({"rate": None}, "rate: .* got None"),
        ({"stepz": 3}, "stepz: toy.walk has no such setting; did you mean steps?"),
        ({"seeds": (1, 1)}, r"seeds: expected at least one seed and no repeats, got \(1, 1\)"),
        ({"seeds": ()}, "seeds"),
        ({"seeds": (0, -1)}, r"seeds: expected greater than or equal to 0, got -1"),
        ({"scales": (1, float("inf"))}, r"scales: expected increasing numbers, got \(1, inf\)"),
        ({"scales": (float("nan"),)}, r"scales: expected increasing numbers, got \(nan,\)"),
        ({"scales": (2, 1)}, r"scales: expected increasing numbers, got \(2, 1\)"),
        ({"scales": ()}, "scales"),
        ({"size": "paper"}, "size: 'paper' is now 'full'"),
        ({"size": "banana"}, "size: got 'banana', expected one of smoke, book, full"),
        ({"on": "mars"}, "on: got 'mars'"),
        ({"on": None}, "on: got 'None'"),
    ],
)
def test_a_bad_setting_is_one_sentence_that_names_it(change, said):
    with pytest.raises(ValueError, match=said) as caught:
        walk.run(**change)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_size_that_an_experiment_lacks_is_refused_by_name():
    with pytest.raises(ValueError, match=r"^size: toy.still has no size 'full', expected one of smoke, book$"):
        still.run("full")


def test_numbers_of_numpy_and_torch_are_settings():
    data = walk.run(steps=np.int64(3), scales=np.array([1.0, 3.0]), rate=torch.tensor(0.5))
    same(data, walk.run(steps=3, scales=(1.0, 3.0)))
    assert json.dumps(data.attrs["settings"])


def test_a_missing_size_is_said_and_never_taken_silently(capsys):
    try:
        runtime.use(size="full")
        assert still.run().attrs["size"] == "book"
        assert walk.run().attrs["size"] == "full"
        assert walk.run("smoke").attrs["size"] == "smoke"
    finally:
        runtime.use()
    assert capsys.readouterr().out == "toy.still has no full size: this is the book's\n"


def test_an_experiment_must_be_complete_when_it_is_defined():
    with pytest.raises(ValueError, match=r"seeds: expected a type and a default"):
        lab.experiment("toy.bad", smoke={})(lambda seeds, steps: None)
    with pytest.raises(ValueError, match=r"seeds: expected"):
        lab.experiment("toy.bad", smoke={})(lambda: None)
    with pytest.raises(ValueError, match=r"both have an experiment 'toy.walk'"):

        @lab.experiment("toy.walk", smoke={})
        def other(seeds: lab.Seeds = (0,)) -> xr.Dataset:
            """Another."""

    with pytest.raises(ValueError, match=r"step: toy.sizes has no such setting"):

        @lab.experiment("toy.sizes", smoke={"step": 2})
        def sizes(seeds: lab.Seeds = (0,), steps: int = 3) -> xr.Dataset:
            """Wrong size."""


def test_whoever_listens_hears_shares_that_rise_to_one():
    shares = []
    with lab.listening(shares.append):
        walk.run()
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert len(shares) > 5  # steps inside a group, not groups only


def kept():
    return sorted(Path(os.environ["ATTNBOOK_CACHE"]).rglob("*.nc"))


def test_an_interrupted_run_says_so_in_a_line_and_continues_to_the_same_numbers(tmp_path):
    trouble = str(tmp_path / "interrupt")
    with pytest.raises(
        unfinished.Stopped, match=r"stopped after 1 of 3 groups of seeds; run again to continue"
    ) as caught:
        walk.run(trouble=trouble)
    assert caught.value._render_traceback_() == [str(caught.value)]
    before = kept()[0].stat().st_mtime_ns
    assert len(kept()) == 1
    calls = []
    original, toy.walk.simulate = walk.simulate, lambda **given: calls.append(given["seeds"]) or original(**given)
    try:
        data = walk.run(trouble=trouble)
    finally:
        toy.walk.simulate = original
    assert calls == [(2, 3), (4,)]
    same(data.assign_attrs(settings={}), walk.run().assign_attrs(settings={}))
    assert before
    assert not kept()


@pytest.mark.parametrize("harm", [lambda b: b[:100], lambda b: b"", lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:]])
def test_a_damaged_kept_group_is_named_and_trained_again(tmp_path, capsys, harm):
    trouble = str(tmp_path / "interrupt")
    with pytest.raises(unfinished.Stopped):
        walk.run(trouble=trouble)
    kept()[0].write_bytes(harm(kept()[0].read_bytes()))
    data = walk.run(trouble=trouble)
    assert "the kept group of seeds (0, 1) is damaged; it is trained again" in capsys.readouterr().out
    same(data.assign_attrs(settings={}), walk.run().assign_attrs(settings={}))


def test_other_settings_do_not_continue_it(tmp_path):
    trouble = str(tmp_path / "interrupt")
    with pytest.raises(unfinished.Stopped):
        walk.run(trouble=trouble)
    assert walk.run(trouble=trouble, steps=2).sizes["step"] == 2
    assert len(kept()) == 1  # of the first, which may still go on


@pytest.mark.slow
def test_processes_give_the_same_bits_and_a_killed_worker_loses_its_groups_only(tmp_path):
    whole = walk.run(trouble=str(tmp_path))
    same(walk.run(trouble=str(tmp_path), on="processes:2"), whole)
    trouble = str(tmp_path / "kill")
    with pytest.raises(ValueError, match=r"toy.walk: a worker process was killed.*what is finished is kept"):
        walk.run(trouble=trouble, on="processes:2")
    same(walk.run(trouble=trouble, on="processes:2").assign_attrs(settings={}), whole.assign_attrs(settings={}))


@pytest.fixture(scope="module")
def cluster():
    """A worker in a process of its own, reached by TCP, as on another machine; it is restarted when it is killed."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "protocol": "tcp", "dashboard_address": ":0"}
    with distributed.LocalCluster(**options, processes=True, host="127.0.0.1") as found:
        yield found.scheduler_address


@pytest.mark.slow
def test_a_cluster_gives_the_same_bits_for_a_script_beside_a_notebook_too(cluster):
    lab.load_script(SCRIPT.parent.parent / "chapters" / "multi_head" / "how_many_heads.py")
    for one in (walk, lab.EXPERIMENTS["multi_head.alternating_labels"]):
        same(one.run("smoke", on=cluster), one.run("smoke"))


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_loses_its_groups_only(cluster, tmp_path):
    there = walk.run(trouble=str(tmp_path / "kill"), on=cluster)
    assert (tmp_path / "kill").exists()
    same(there.assign_attrs(settings={}), walk.run().assign_attrs(settings={}))


@pytest.mark.slow
def test_a_worker_with_other_source_files_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(lab, "_library", lambda: "another digest")
    with pytest.raises(ValueError, match=r"on: a worker has another attnbook \(other source files\) than this one"):
        walk.run(on=cluster)


def test_a_worker_of_another_version_is_refused():
    with pytest.raises(ValueError, match=r"on: a worker has another attnbook \(0.1.0\) than this one \(9.9.9\)"):
        lab._checked_group(("9.9.9", "digest"))


@pytest.mark.parametrize("listens", [False, True])
def test_where_no_scheduler_answers_the_address_is_named(listens, monkeypatch):
    """Something else may listen there, and never say a word."""
    monkeypatch.setattr(executors, "WAIT_SECONDS", 0.3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"on: no scheduler answers at {address} within 0.3 s; start one with"):
            walk.run(on=address)


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_and_what_was_stored_stays(monkeypatch):
    before = walk.store(walk.run())
    old = {file: file.read_bytes() for file in before.parent.iterdir()}
    with monkeypatch.context() as full:
        full.setattr(xr.Dataset, "to_netcdf", full_disk)
        data = walk.run()  # no group is kept, none is lost
        with pytest.raises(ResultError, match=r"^path: cannot write toy.walk.nc in book: No space left.*; make room"):
            walk.store(data)
    assert {file: file.read_bytes() for file in before.parent.iterdir()} == old
    same(walk.stored(), data)


def test_a_group_that_fails_leaves_the_finished_ones(monkeypatch):
    def fails(**given):
        if 2 in given["seeds"]:
            raise FloatingPointError("training diverged for seed 2")
        return original(**given)

    original = walk.simulate
    with monkeypatch.context() as failing:
        failing.setattr(walk, "simulate", fails)
        with pytest.raises(FloatingPointError, match="diverged for seed 2"):
            walk.run()
    assert len(kept()) == 1
    same(walk.run(), walk.run())


def test_a_stored_result_comes_back_bit_by_bit_with_its_measurements():
    data = walk.run()
    path = walk.store(data)
    again = walk.stored()
    same(again, data)
    assert again.attrs == data.attrs
    assert {name: one.dtype for name, one in again.variables.items()} == {n: o.dtype for n, o in data.variables.items()}
    content = json.loads(path.read_text())
    assert content["measurements"]["TOY-end"]["values"]["end"] == walk.measure(again)["TOY-end"].values["end"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["toy.walk.json", "toy.walk.nc"]


@pytest.mark.parametrize("part", ["json", "nc"])
@pytest.mark.parametrize("harm", [lambda b: b[:60], lambda b: b[:-70] + bytes([b[-70] ^ 1]) + b[-69:], lambda b: None])
def test_a_damaged_stored_file_is_named(part, harm):
    file = walk.store(walk.run()).with_suffix(f".{part}")
    left = harm(file.read_bytes())
    file.unlink() if left is None else file.write_bytes(left)
    for read in (walk.stored, walk.kind.load_stored):
        with pytest.raises(ResultError, match=file.name):
            read()


def test_a_changed_run_does_not_take_the_place_of_the_books_result(tmp_path):
    changed = walk.run(rate=0.7, seeds=(1, 2))
    with pytest.raises(
        ValueError, match=r"data: not the run of the size book: seeds .*, rate 0.7 \(0.5\); give a path"
    ):
        walk.store(changed)
    assert walk.store(changed, tmp_path / "mine.json").with_suffix(".nc").exists()


def test_arrays_and_measurements_of_two_runs_are_not_mixed():
    first = walk.store(walk.run()).with_suffix(".nc")
    old = first.read_bytes()
    walk.store(walk.run(rate=0.7), first.with_suffix(".json"))
    first.write_bytes(old)
    with pytest.raises(ResultError, match=r"not the arrays that toy.walk.json was measured from"):
        walk.stored()


def test_measuring_takes_medians_or_the_extremes_asked_for_and_the_range_over_seeds():
    data = walk.run()
    found = walk.measure(data)["TOY-end"]
    ends = [by_hand(seed, 1.0)[-1] for seed in range(5)]
    paths = np.array([by_hand(seed, scale) for seed in range(5) for scale in (1.0, 2.0)])
    assert found.values == pytest.approx({"end": np.median(ends), "low": paths.min(), "high": paths.max()}, rel=1e-14)
    assert found.spread["end"] == pytest.approx((min(ends), max(ends)), rel=1e-14)
    assert found.n_seeds == 5


def test_data_are_measured_by_their_own_settings_and_by_their_own_experiment_alone():
    assert set(walk.measure(walk.run())) == {"TOY-end", "TOY-twice"}
    assert set(walk.measure(walk.run(scales=(1.0, 3.0)))) == {"TOY-end"}
    with pytest.raises(ValueError, match=r"data: expected a result of toy.walk, got one of 'toy.still'"):
        walk.measure(still.run())


def test_a_sweep_without_values_is_refused():
    with pytest.raises(ValueError, match=r"b: expected at least one value"):
        lab.sweep(lambda a, b: {}, a=[1], b=[])


def test_slopes_on_log_axes_and_wilsons_interval():
    x = xr.DataArray([1.0, 10.0, 100.0], dims="n", coords={"n": [1.0, 10.0, 100.0]})
    assert lab.slope(x**-1.5, "n").item() == pytest.approx(-1.5)
    assert np.isnan(lab.slope(x - 1, "n"))
    passed = xr.DataArray([1.0] * 9 + [0.0], dims="seed")
    # Wilson's interval for 9 of 10, by hand
    assert lab.share_of_seeds(passed).item() == 0.9
    ends = [lab.share_of_seeds(passed, side).item() for side in (-1, 1)]
    assert ends == pytest.approx([0.59585, 0.98212], abs=1e-4)


def test_a_notebook_beside_the_script_and_the_command_line_share_one_module():
    assert lab.load_script(SCRIPT) is toy
    with pytest.raises(ValueError, match=r"script: missing.py is not in"):
        lab.load_script(SCRIPT.with_name("missing.py"))


def test_scripts_of_two_papers_have_different_names(tmp_path, monkeypatch):
    for name in ("one", "other"):
        (tmp_path / "chapters" / name).mkdir(parents=True)
        (tmp_path / "chapters" / name / "twin.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(lab, "checkout", lambda: tmp_path)
    monkeypatch.setitem(lab.sys.modules, "twin", None)
    lab.load_script(tmp_path / "chapters" / "one" / "twin.py")
    with pytest.raises(ValueError, match=r"script: one has a twin.py as well"):
        lab.load_script(tmp_path / "chapters" / "other" / "twin.py")


def test_a_readers_copy_that_was_imported_takes_the_place_of_the_script(tmp_path, monkeypatch):
    """Both define the same experiments; `attnbook.check` in a copied notebook asks for the script of the chapter."""
    own, copy = (tmp_path / part / "copied.py" for part in ("chapters/some_paper", "anywhere"))
    for file in (own, copy):
        file.parent.mkdir(parents=True)
        file.write_text(SCRIPT.read_text(encoding="utf-8").replace("toy.", "some_paper."), encoding="utf-8")
    monkeypatch.setattr(lab, "EXPERIMENTS", {})
    monkeypatch.setitem(lab.sys.modules, "copied", None)
    module = lab.load_script(copy)
    assert lab.load_script(own) is module
    assert Path(module.__file__) == copy


def test_the_groups_of_a_changed_script_are_not_those_of_the_old_one(monkeypatch):
    """Also where the command line keeps them."""
    before = unfinished.part_name(walk.kind(), (0, 1), "cpu")
    assert unfinished.part_name(walk.kind(), (0, 1), "cpu") == before
    monkeypatch.setattr(walk.kind, "code", "another digest")
    assert unfinished.part_name(walk.kind(), (0, 1), "cpu") != before


def test_an_experiment_that_a_worker_cannot_make_says_why_when_it_is_used(monkeypatch):
    """An error while a message is read would end a worker of dask, and the run would wait for ever."""
    sent = pickle.dumps(walk.kind(steps=3))
    assert pickle.loads(sent) == walk.kind(steps=3)
    monkeypatch.setattr(lab, "_relative", lambda script: "chapters/some_paper/missing.py")
    elsewhere = pickle.loads(pickle.dumps(walk.kind()))
    with pytest.raises(ValueError, match=r"^on: a worker cannot load chapters/some_paper/missing.py: script: missing"):
        elsewhere.place(None)
    monkeypatch.setattr(lab, "_here", lambda: ("9.9.9", "another digest"))
    with pytest.raises(ValueError, match=r"^on: a worker has another attnbook \(other source files\) than"):
        pickle.loads(sent).simulate((0,), None, None)
