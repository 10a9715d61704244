"""The contract of experiments: settings, groups of seeds, executors, resuming, provenance, storing, summary."""

import dataclasses
import errno
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import xarray as xr
from toy_experiment import Toy

import attnbook
from attnbook.core import experiment as contract
from attnbook.core import results, runtime, unfinished
from attnbook.core.experiment import highest, lowest
from attnbook.core.results import Clock, Measurement, ResultError, stored_measurements, stored_path
from attnbook.core.unfinished import Stopped


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "log").mkdir()
    return Toy(log=str(tmp_path / "log"))


def trained(toy):
    """First seeds of the groups that were trained."""
    return sorted(name.split("-")[0] for name in os.listdir(toy.log))


def groups_in(folder):
    """First and last seed of the groups that are kept."""
    return sorted(name.split("-", 2)[2].rpartition("-")[0] for name in os.listdir(folder))


def same(one, other):
    return one.drop_attrs().identical(other.drop_attrs())


def test_sizes_change_what_they_say_and_single_settings_can_be_changed():
    assert Toy.has() == ("smoke", "book", "full")
    assert Toy.at("book") == Toy()
    assert Toy.at("full", chunk=2) == Toy(steps=11, chunk=2)
    with pytest.raises(ValueError, match=r"^size: 'paper' is now 'full'$"):
        Toy.at("paper")


class Still(Toy):
    """Has no full size."""

    id = "toy.still"
    full = None


@pytest.fixture
def session():
    """A function that chooses the size of the session; none is chosen afterwards."""
    yield lambda size: runtime.use(size=size)
    runtime.use()


@pytest.mark.parametrize(
    ("size", "kind", "expected", "said"),
    [
        ("auto", Toy, Toy(), ""),
        ("smoke", Toy, Toy.at("smoke"), ""),
        ("full", Toy, Toy.at("full"), ""),
        ("full", Still, Still(), "toy.still has no full size: this is the book's\n"),
    ],
)
def test_the_session_picks_the_default_size_where_the_experiment_has_it(size, kind, expected, said, session, capsys):
    """And a line says so where it does not."""
    session(size)
    assert kind.at() == expected
    assert capsys.readouterr() == (said, "")


@pytest.mark.parametrize(
    ("size", "steps", "said"),
    [
        ("auto", 5, ""),
        ("full", 11, ""),
        ("smoke", 5, "toy.draws has no stored result of the smoke size: this is the book's\n"),
    ],
)
def test_the_session_picks_the_stored_result_where_there_is_one(size, steps, said, session, capsys, tmp_results):
    for one in ("book", "full"):
        Toy.at(one).store(Toy.at(one).run(device="cpu"), stored_path("toy.draws", one))
    session(size)
    assert Toy.load_stored().sizes["step"] == steps
    assert capsys.readouterr() == (said, "")


def test_provenance_says_whether_a_full_size_is_the_papers_own():
    class Own(Toy):
        id, paper_size = "toy.own", True

    found = [kind.at(size).run(device="cpu").provenance for kind in (Toy, Own) for size in ("book", "full")]
    assert [one.get("paper_size") for one in found] == [None, False, None, True]
    assert "paper_size" not in Own.at("full", factor=2.0).run(device="cpu").provenance


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"step": 3}, ValueError, "step: Toy has no such setting; did you mean steps?"),
        ({"xyzzy": 3}, ValueError, "xyzzy: Toy has no such setting; expected one of seeds, chunk, steps"),
        ({"steps": "3"}, TypeError, "steps: expected int, got '3'"),
        ({"steps": 3.0}, TypeError, "steps: expected int, got 3.0"),
        ({"steps": True}, TypeError, "steps: expected int, got True"),
        ({"factor": "big"}, TypeError, "factor: expected float, got 'big'"),
        ({"kind": 3}, TypeError, "kind: expected str, got 3"),
        ({"seeds": [0, 1]}, TypeError, "seeds: expected tuple[int, ...], got [0, 1]"),
        ({"seeds": 3}, TypeError, "seeds: expected tuple[int, ...], got 3"),
        ({"seeds": (0, 1.0)}, TypeError, "seeds: expected tuple[int, ...], got (0, 1.0)"),
        ({"sizes": ((0.1, 2),)}, TypeError, "sizes: expected tuple["),
        ({"fails_at": 1.5}, TypeError, "fails_at: expected int | None, got 1.5"),
        ({"seeds": ()}, ValueError, "seeds: expected at least one and no repeats, got ()"),
        ({"seeds": (0, 1, 0)}, ValueError, "seeds: expected at least one and no repeats, got (0, 1, 0)"),
        ({"chunk": 0}, ValueError, "chunk: expected at least one seed, got 0"),
    ],
)
def test_settings_are_checked_where_they_enter(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Toy.at(**changes)


def test_whole_numbers_may_stand_for_others_and_none_where_it_is_allowed():
    assert Toy(factor=2, sizes=((1, (2,)),), fails_at=None).factor == 2


def test_numbers_of_numpy_become_those_of_python():
    """In all that a result stores; a whole number stays whole, and what does not fit is refused as before."""
    toy = Toy.at(steps=np.int64(5), factor=np.float32(0.5), seeds=tuple(np.arange(3)), sizes=((np.float64(0.1), (1,)),))
    assert toy == Toy.at(steps=5, factor=0.5, seeds=(0, 1, 2), sizes=((0.1, (1,)),))
    assert {type(toy.steps), *map(type, toy.seeds)} == {int}
    json.dumps(dataclasses.asdict(toy))
    for wrong in (np.float64(5.0), np.bool_(True)):
        with pytest.raises(TypeError, match="steps: expected int"):
            Toy.at(steps=wrong)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8])
def test_groups_of_seeds_change_nothing(chunk):
    data, other = Toy(chunk=chunk).run(device="cpu"), Toy().run(device="cpu")
    assert same(data, other)
    assert data["seed"].values.tolist() == list(Toy().seeds)
    assert [group["seeds"][0] for group in data.attrs["provenance"]["groups"]] == list(range(0, 7, chunk))


def test_an_executor_changes_nothing_and_progress_ends_at_its_total():
    here, seen = Toy().run(device="cpu"), []
    with ThreadPoolExecutor(2) as pool:
        there = Toy().run(device="cpu", executor=pool, progress=lambda *told: seen.append(told))
    assert same(here, there)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_progress_is_told_inside_a_group_that_runs_here():
    seen = []
    Toy().run(device="cpu", progress=lambda done, total: seen.append(done / total))
    assert seen == sorted(seen)
    assert len(set(seen)) > 4
    assert seen[-1] == 1


def test_provenance_has_the_cost_of_every_group_and_its_sum():
    with ThreadPoolExecutor(2) as pool:
        run = Toy(seconds=0.05, chunk=4).run(device="cpu", executor=pool).attrs["provenance"]
    assert [group["seeds"] for group in run["groups"]] == [[0, 1, 2, 3], [4, 5, 6]]
    assert all(group["wall_seconds"] >= 0.05 and group["device"] == "cpu" for group in run["groups"])
    assert run["cpu_seconds"] == pytest.approx(sum(group["cpu_seconds"] for group in run["groups"]), abs=0.011)
    assert run["attnbook"] == attnbook.__version__


def test_a_run_broken_off_continues_to_the_same_numbers(toy, tmp_path):
    """Group 3, 4, 5 fails at first; the others are not trained again."""
    broken = replace(toy, fails_at=4)
    with pytest.raises(FloatingPointError, match="seed 4"):
        broken.run(device="cpu", workdir=tmp_path / "parts")
    (file,) = (tmp_path / "parts").iterdir()  # parts of other settings would not be used
    edit(file, lambda raw: raw["settings"].update(fails_at=None))
    file.rename(file.with_name(unfinished.part_name(toy, (0, 1, 2), "cpu")))
    seen = []
    data = toy.run(device="cpu", workdir=tmp_path / "parts", progress=lambda *told: seen.append(told))
    assert same(data, toy.run(device="cpu"))
    assert trained(toy).count("0") == 2  # before the failure, and in the line above
    assert seen[0][0] / seen[0][1] > 1 / 3
    again = toy.run(device="cpu", workdir=tmp_path / "parts")
    assert same(data, again)
    assert trained(toy).count("0") == 2


@pytest.mark.parametrize("changes", [{"factor": 2.0}, {"seeds": (0, 9, 2, 3)}])
def test_parts_of_other_settings_are_not_used(changes, toy, tmp_path):
    toy.run(device="cpu", workdir=tmp_path / "parts")
    other = replace(toy, **changes)
    assert same(other.run(device="cpu", workdir=tmp_path / "parts"), other.run(device="cpu"))


def test_parts_of_another_version_are_not_used(toy, tmp_path, monkeypatch):
    toy.run(device="cpu", workdir=tmp_path / "parts")
    monkeypatch.setattr(attnbook, "__version__", "9.9.9")
    toy.run(device="cpu", workdir=tmp_path / "parts")
    assert trained(toy) == ["0", "0", "3", "3", "6", "6"]


@pytest.mark.parametrize("content", ["", '{"format": 1, "experi', '{"format": 1, "experiment": "toy.draws"}'])
def test_a_damaged_part_is_named_with_what_to_do(content, toy, tmp_path):
    toy.run(device="cpu", workdir=tmp_path / "parts")
    (tmp_path / "parts" / unfinished.part_name(toy, (3, 4, 5), "cpu")).write_text(content)
    with pytest.raises(ResultError, match=r"toy\.draws-seeds-3-5-\w+\.json: damaged.*delete it and run .*in .*parts"):
        toy.run(device="cpu", workdir=tmp_path / "parts")


def test_a_full_disk_is_told_and_finished_parts_stay(toy, tmp_path, monkeypatch):
    honest, written = Path.write_text, []

    def write(path, *arguments, **options):
        written.append(path)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return honest(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(ResultError, match="No space left on device; make room and run again, what is finished is kept"):
        toy.run(device="cpu", workdir=tmp_path / "parts")
    assert groups_in(tmp_path / "parts") == ["0-2"]
    assert same(toy.run(device="cpu", workdir=tmp_path / "parts"), Toy().run(device="cpu"))
    assert trained(toy).count("0") == 1


def test_the_first_failure_on_an_executor_calls_off_what_waits(toy, tmp_path):
    """What other workers had begun is kept."""
    failing = replace(toy, fails_at=0, chunk=1, seconds=0.2)
    with ThreadPoolExecutor(2) as pool, pytest.raises(FloatingPointError):
        failing.run(device="cpu", executor=pool, workdir=tmp_path / "parts")
    begun = trained(toy)
    assert len(begun) <= 5
    assert groups_in(tmp_path / "parts") == [f"{s}-{s}" for s in begun if s != "0"]


def test_a_worker_of_another_version_is_refused(monkeypatch):
    honest = Toy.simulate

    def upgrade(*arguments):  # what this process has, after the worker has looked
        found = honest(*arguments)
        monkeypatch.setattr(Clock, "provenance", lambda *_: {"attnbook": "0.0.1", "wall_seconds": 1.0})
        return found

    monkeypatch.setattr(Toy, "simulate", upgrade)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ValueError, match=r"worker has attnbook 0\.0\.1; install 0\.1\.0"),
    ):
        Toy(chunk=7).run(device="cpu", executor=pool)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder in the user's cache; the tiny experiment seems to be the package's own, and every run a long one."""
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Toy, "__module__", "attnbook.toy")
    monkeypatch.setattr(unfinished, "PATIENCE", 0.0)
    return tmp_path / "cache" / "unfinished"


@pytest.fixture
def interrupt():
    """Interrupt a run when it comes to a seed."""
    honest = Toy.simulate

    def interrupt(toy, seed, **options):
        def simulate(self, seeds, *arguments):
            if seed in seeds:
                raise KeyboardInterrupt
            return honest(self, seeds, *arguments)

        with mock.patch.object(Toy, "simulate", simulate), pytest.raises(Stopped) as stopped:
            toy.run(device="cpu", **options)
        assert stopped.value._render_traceback_() == [str(stopped.value)]
        assert stopped.value.__cause__ is None
        return str(stopped.value)

    return interrupt


def test_an_interrupted_run_says_what_is_kept_and_continues_to_the_same_numbers(toy, kept, interrupt, capsys):
    assert interrupt(toy, 6) == "stopped after 6 of 7 seeds; run again to continue"
    assert groups_in(kept) == ["0-2", "3-5"]
    data = toy.run(device="cpu")
    assert capsys.readouterr().err == "toy.draws: 6 of 7 seeds were kept by a run that was stopped; it continues\n"
    assert trained(toy) == ["0", "3", "6"]
    assert not kept.exists()
    assert same(data, toy.run(device="cpu"))
    assert capsys.readouterr() == ("", "")


def test_a_short_run_writes_nothing_until_it_is_interrupted(toy, kept, interrupt, monkeypatch):
    monkeypatch.setattr(unfinished, "PATIENCE", 60.0)
    with mock.patch.object(Toy, "_write", pytest.fail):
        toy.run(device="cpu")
    interrupt(toy, 6)
    assert groups_in(kept) == ["0-2", "3-5"]


def test_runs_of_other_settings_and_devices_keep_their_own(toy, kept, interrupt):
    other = replace(toy, factor=2.0)
    interrupt(toy, 3), interrupt(other, 6)
    assert groups_in(kept) == ["0-2", "0-2", "3-5"]
    assert same(toy.run(device="cpu"), Toy().run(device="cpu"))
    assert groups_in(kept) == ["0-2", "3-5"]
    names = {unfinished.part_name(toy, (0, 1, 2), device) for device in ("cpu", "cuda", None)}
    assert len(names) == 3


def test_what_is_killed_loses_only_the_group_that_was_training(toy, kept):
    with pytest.raises(FloatingPointError):
        replace(toy, fails_at=6).run(device="cpu")
    assert groups_in(kept) == ["0-2", "3-5"]


@pytest.mark.parametrize("why", ["own code", "newer source", "no folder", "no home", "one group"])
def test_where_nothing_can_be_kept_an_interrupt_says_so(why, toy, kept, interrupt, monkeypatch, tmp_path):
    """Groups of other code are never mixed; a cache that cannot be written stops no run."""
    if why == "own code":
        monkeypatch.setattr(Toy, "__module__", "__main__")
    elif why == "newer source":
        monkeypatch.setattr(unfinished, "_source", lambda: "")
    elif why == "no folder":
        (tmp_path / "cache").write_text("a file")
    elif why == "no home":
        monkeypatch.delenv("ATTNBOOK_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError))
    chosen = replace(toy, chunk=7) if why == "one group" else toy
    done, mend = (0, "; with a `chunk` below 7 finished seeds would be") if why == "one group" else (6, "")
    assert interrupt(chosen, 6) == f"stopped after {done} of 7 seeds, nothing is kept{mend}"
    assert same(chosen.run(device="cpu"), Toy().run(device="cpu"))
    assert not kept.exists()


def test_source_that_is_newer_than_what_was_loaded_is_seen(monkeypatch):
    assert unfinished._source.__wrapped__()
    monkeypatch.setattr(unfinished, "LOADED", 0.0)
    assert unfinished._source.__wrapped__() == ""


def test_of_two_equal_runs_at_once_neither_harms_the_other(toy, kept, interrupt):
    """The first ends, and takes away what is kept, at any moment of the second."""
    expected = Toy().run(device="cpu")
    for where, moment in ((contract, "read_json"), (Toy, "_write"), (Toy, "_together")):
        interrupt(toy, 6)
        honest = getattr(where, moment)

        def after_the_other_has_ended(*arguments, honest=honest):
            shutil.rmtree(kept, ignore_errors=True)
            return honest(*arguments)

        with mock.patch.object(where, moment, after_the_other_has_ended):
            assert same(toy.run(device="cpu"), expected)


def test_what_was_left_more_than_a_month_ago_goes(toy, kept, interrupt):
    interrupt(toy, 3), interrupt(replace(toy, factor=2.0), 3)
    for file in kept.iterdir():
        os.utime(file, (0, 0))
    toy.run(device="cpu")
    assert not kept.exists()


@pytest.mark.parametrize(("needs", "expected"), [("any", "mps"), ("float64", "cpu"), ("cpu", "cpu")])
def test_an_experiment_computes_where_it_can(needs, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(Toy, "needs", needs)
    assert Toy.place().type == Toy.place("mps").type == expected
    assert Toy.place("cpu").type == "cpu"
    assert Toy().run(device="mps").attrs["provenance"]["device"] == expected


def test_an_unavailable_device_is_refused_before_anything_is_trained(toy):
    with pytest.raises(ValueError, match="device: 'tpu'"):
        toy.run(device="tpu")
    assert trained(toy) == []


def test_what_is_stored_is_what_is_loaded_bit_by_bit(tmp_results):
    """Infinity, undefined values, texts that look like numbers, settings and provenance among it."""
    toy, data = Toy(), Toy().run(device="cpu")
    toy.store(data, stored_path("toy.draws", "book"))
    loaded = Toy.load_stored("book")
    assert loaded.identical(data)
    assert loaded.attrs["settings"] == json.loads(json.dumps(data.attrs["settings"]))
    assert stored_measurements("toy.draws", "book") == toy.measurements(loaded) == toy.measurements(data)


def test_a_stored_result_is_strict_json_with_a_line_for_every_array(tmp_path):
    Toy().store(Toy().run(device="cpu"), tmp_path / "result.json")
    text = (tmp_path / "result.json").read_text(encoding="utf-8")

    def refuse(token):
        pytest.fail(f"{token} is not JSON")

    raw = json.loads(text, parse_constant=refuse)
    assert list(raw) == [
        "format",
        "experiment",
        "measurements",
        "settings",
        "provenance",
        "coords",
        "data_vars",
        "sha256",
    ]
    lines = [line.split(":")[0].strip() for line in text.splitlines()]
    assert {f'"{name}"' for name in (*raw["coords"], *raw["data_vars"])} <= set(lines)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_storing_that_breaks_off_keeps_the_old_file(error, tmp_path, monkeypatch):
    toy, file = Toy(), tmp_path / "result.json"
    data = toy.run(device="cpu")
    toy.store(data, file)
    before = file.read_bytes()

    def break_off(*_):
        raise error

    monkeypatch.setattr(results, "_layout", break_off)
    with pytest.raises((KeyboardInterrupt, ResultError)):
        toy.store(data, file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["result.json"]


def edit(file, change):
    raw = json.loads(file.read_text(encoding="utf-8"))
    change(raw)
    file.write_text(json.dumps(raw), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(format=2), "format 2"),
        (lambda raw: raw.update(experiment="toy.others"), r"'toy\.others', expected 'toy\.draws'"),
        (lambda raw: raw.pop("coords"), "damaged: KeyError"),
        (lambda raw: raw.update(data_vars=3), "damaged: AttributeError"),
        (lambda raw: raw["data_vars"]["drawn"].update(data=[1, [2]]), "damaged: ValueError"),
        (lambda raw: raw["data_vars"]["drawn"].update(dims=["step"]), "damaged: ValueError"),
        (lambda raw: raw["data_vars"]["drawn"].pop("dtype"), "damaged: KeyError"),
    ],
)
def test_a_damaged_file_is_refused_by_name(change, message, tmp_path):
    file = tmp_path / "result.json"
    Toy().store(Toy().run(device="cpu"), file)
    edit(file, change)
    with pytest.raises(ResultError, match=rf"result\.json: .*{message}"):
        Toy.load(file)


def test_a_missing_file_comes_with_the_command_that_makes_it(tmp_results):
    with pytest.raises(ResultError, match=r"make it with `attnbook run toy\.draws`"):
        Toy.load_stored("book")


def values(*numbers, dimension="seed"):
    return xr.DataArray(list(numbers), dims=dimension)


TWO_ROWS = xr.DataArray([[1.0, 3.0], [5.0, 2.0]], dims=("seed", "step"))


@pytest.fixture
def told(monkeypatch):
    """Measurements of an experiment that measures what it is told."""

    def measurements(found):
        monkeypatch.setattr(Toy, "measure", lambda *_: {"TY-1": found})
        return Toy.measurements(Toy().run(device="cpu"))

    return measurements


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"a": values(1.0, 5.0, 2.0)}, Measurement({"a": 2.0}, {"a": (1.0, 5.0)}, 3)),
        ({"a": values(1.0, np.inf)}, Measurement({"a": np.inf}, {"a": (1.0, np.inf)}, 2)),
        ({"a": values(3.0).isel(seed=0)}, Measurement({"a": 3.0}, {}, 1)),
        ({"a": values(3.0)}, Measurement({"a": 3.0}, {}, 1)),
        ({"a": 3.0}, Measurement({"a": 3.0}, {}, 1)),
        ({"a": values(1.0, 2.0, 4.0), "b": 7.0}, Measurement({"a": 2.0, "b": 7.0}, {"a": (1.0, 4.0)}, 3)),
        ({"a": lowest(values(3.0, 1.0, 7.0))}, Measurement({"a": 1.0}, {"a": (1.0, 7.0)}, 3)),
        ({"a": highest(TWO_ROWS)}, Measurement({"a": 5.0}, {"a": (3.0, 5.0)}, 2)),
        ({"a": lowest(TWO_ROWS)}, Measurement({"a": 1.0}, {"a": (1.0, 2.0)}, 2)),
    ],
)
def test_the_summary_is_median_range_and_number_of_seeds(found, expected, told):
    assert told(found) == {"TY-1": expected}


@pytest.mark.parametrize("extreme", [lowest, highest])
def test_an_undefined_entry_is_not_passed_over(extreme):
    assert np.isnan(extreme(TWO_ROWS.where(TWO_ROWS != 3)).sel(seed=0))


@pytest.mark.parametrize("value", [values(1.0, 2.0, dimension="step"), np.ones(3), values(1.0).expand_dims("step")])
def test_a_value_with_other_dimensions_than_seed_is_refused_by_name(value, told):
    with pytest.raises(ValueError, match=r"TY-1: a has dimensions .*, expected none but 'seed'"):
        told({"a": value})


def test_what_is_measured_follows_the_settings_of_the_data_and_no_others(monkeypatch):
    """Of tuples in tuples, alternatives, infinity and texts that look like numbers among them."""
    monkeypatch.setattr(Toy, "measure", lambda self, data: made_by.append(self) or {})
    made_by, odd = [], Toy(sizes=((0.5, (1, 2)),), fails_at=99, factor=float("inf"), kind="inf", seeds=(7, 8))
    data = odd.run(device="cpu")
    Toy(steps=99).measurements(data)
    Toy.measurements(data.isel(seed=[1]).drop_vars("drawn"))
    assert made_by == [odd, replace(odd, seeds=(8,))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.drop_attrs(), "data: expected what Toy.run or load_stored returned, got data that name no"),
        (lambda d: d.assign_attrs(experiment="toy.other"), "got data of toy.other"),
        (
            lambda d: d.assign_attrs(settings=d.settings | {"old": 1}),
            "another version of toy.draws, by the setting old",
        ),
        (lambda d: d.assign_attrs(settings={"seeds": [0]}), "another version of toy.draws, by the setting factor"),
    ],
)
def test_data_that_do_not_name_their_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Toy.measurements(change(Toy().run(device="cpu")))


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (Toy(), ("book", "")),
        (Toy(chunk=1), ("book", "")),
        (Toy.at("full"), ("full", "")),
        (Toy(steps=12, factor=3), ("book", "steps 12 (5), factor 3 (1.0)")),
        (Toy.at("full", factor=3.0), ("full", "size full, factor 3.0 (1.0)")),
        (Toy.at("smoke"), ("smoke", "")),
        (Toy(seeds=tuple(range(99))), ("book", "seeds 0, 1, 2, …, 98 (0, 1, 2, 3, 4, 5, 6)")),
    ],
)
def test_a_run_says_how_it_differs_from_the_nearest_size(ready, expected):
    assert ready.nearest() == expected
