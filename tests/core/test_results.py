"""Measured results: kept whole, read with suspicion, continued after a kill."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook.core import storage
from attnbook.core.results import (
    Clock,
    Experiment,
    Measurement,
    Result,
    over_seeds,
    results_folder,
    stored_measurements,
    stored_path,
)
from attnbook.core.resuming import resumable
from attnbook.core.storage import ResultError, plain
from attnbook.registry import experiments

FILES = sorted(path for path in results_folder().glob("*/*.json") if path.parent.name != "replications")
STORED = [(path.parent.name, path.stem) for path in FILES]
NUMBERS = st.lists(st.floats(0.5, 1e6), min_size=1, max_size=7)


@dataclass(frozen=True)
class Settings:
    sizes: tuple[int, ...] = (3, 5)
    grid: tuple[tuple[float, ...], ...] = ((0.1, 1 / 3), (0.7,))
    rate: float = 2 / 3
    name: str = "plain"

    @classmethod
    def smoke(cls):
        return cls(sizes=(2,))


@dataclass(frozen=True)
class Losses(Result):
    experiment: ClassVar[str] = "toy.losses"
    settings_type: ClassVar[type] = Settings

    losses: np.ndarray

    def measurements(self):
        return {"TY-1": over_seeds(loss=self.losses[:, 0]), "TY-2": Measurement({"error": 1 / 3})}


@pytest.fixture
def result():
    losses = np.random.default_rng(0).standard_normal((5, 7))
    return Losses(Settings(), Clock().provenance(torch.device("cpu")), losses)


@pytest.fixture
def file(result, tmp_path):
    result.save(tmp_path / "deep" / "er" / "result.json")
    return tmp_path / "deep" / "er" / "result.json"


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_is_saved_is_what_is_loaded(result, file):
    """Settings and provenance exactly, arrays to six significant digits."""
    loaded = Losses.load(file)
    assert loaded.settings == result.settings
    assert loaded.provenance == result.provenance
    assert loaded.losses.dtype == np.float64
    np.testing.assert_allclose(loaded.losses, result.losses, rtol=5e-6)


def test_a_result_file_is_short_readable_json_that_anyone_may_read(file):
    raw = json.loads(file.read_text(encoding="utf-8"))
    assert (raw["format"], raw["experiment"]) == (storage.FORMAT, "toy.losses")
    assert len(file.read_text(encoding="utf-8").splitlines()) == len(raw) + 2
    assert file.stat().st_mode & 0o777 == 0o644
    assert left_in(file.parent) == ["result.json"]


def test_stored_results_are_found_by_experiment_and_scale(result, tmp_results):
    result.save(stored_path("toy.losses", "book"))
    assert left_in(tmp_results) == ["toy.losses.json"]
    np.testing.assert_allclose(Losses.load_stored("book").losses, result.losses, rtol=5e-6)
    assert stored_measurements("toy.losses", "book") == result.measurements()
    assert stored_measurements("toy.losses", "paper") == {}


def test_the_results_folder_is_that_of_the_repository_unless_the_environment_names_another(tmp_results, monkeypatch):
    assert results_folder() == tmp_results
    monkeypatch.delenv("ATTNBOOK_RESULTS")
    assert results_folder() == Path(attnbook.__file__).parent.parent / "results"


def test_an_installed_package_brings_its_own_results(monkeypatch, tmp_path):
    monkeypatch.setattr(attnbook, "__file__", str(tmp_path / "site-packages" / "attnbook" / "__init__.py"))
    assert results_folder() == tmp_path / "site-packages" / "attnbook" / "stored_results"


@pytest.mark.parametrize("experiment", experiments())
def test_every_experiment_has_a_stored_result(experiment):
    assert stored_path(experiment, "book").exists()


@pytest.mark.parametrize(("scale", "experiment"), STORED)
def test_stored_results_load_and_measure_what_is_stored(scale, experiment):
    """A result written by another version must be run again; at the paper's size the first seeds may stand alone."""
    experiment = experiments()[experiment]
    ready, loaded = experiment.at(scale), experiment.load_stored(scale)
    settings = loaded.settings if isinstance(loaded, Result) else loaded.attrs["settings"]
    expected = ready.settings if isinstance(loaded, Result) else plain(ready, None)
    if scale == "paper" and hasattr(expected, "seeds"):
        expected = replace(expected, seeds=expected.seeds[: len(settings.seeds)])
    assert settings == expected
    stored, found = stored_measurements(experiment.id, scale), ready.measurements(loaded)
    assert set(stored) <= set(found)
    for claim, measurement in stored.items():
        for name, value in measurement.values.items():
            assert found[claim].values[name] == pytest.approx(value, rel=1e-4, abs=1e-12), claim


def edit(file, **changes):
    raw = json.loads(file.read_text(encoding="utf-8")) | changes
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}), encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged or unreadable"),
        (b'{"format": 1, "experi', "damaged or unreadable"),
        (b"\xff\xfe\x00", "damaged or unreadable"),
        (b"[1, 2]", "format None, this version reads 1"),
        (b'{"format": 1}', "holds None, expected 'toy.losses'"),
    ],
)
def test_a_damaged_file_is_refused_by_name(content, message, tmp_results):
    path = stored_path("toy.losses", "book")
    path.parent.mkdir()
    path.write_bytes(content)
    for read in (lambda: Losses.load_stored("book"), lambda: stored_measurements("toy.losses", "book")):
        with pytest.raises(ResultError, match=f"toy.losses.json: .*{message}"):
            read()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"experiment": "toy.others"}, "'toy.others', expected 'toy.losses'"),
        ({"losses": None}, "losses"),
        ({"losses": "many"}, "does not fit Losses"),
        ({"losses": [[1.0], [1.0, 2.0]]}, "does not fit Losses"),
        ({"settings": None}, "settings"),
        ({"settings": 3}, "does not fit Losses"),
        ({"settings": {"sise": 3}}, "sise"),
        ({"provenance": {"torch": "2"}}, "does not fit Losses"),
        ({"provenance": 3}, "does not fit Losses"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_the_reason(changes, message, file):
    edit(file, **changes)
    with pytest.raises(ResultError, match=message):
        Losses.load(file)


@pytest.mark.parametrize(
    "measurements",
    [
        None,
        3,
        [],
        {"TY-1": 3},
        {"TY-1": {"values": {"loss": 1.0}}},
        {"TY-1": {"values": 3, "spread": {}, "n_seeds": 1}},
        {"TY-1": {"values": {"loss": "low"}, "spread": {}, "n_seeds": 1}},
        {"TY-1": {"values": {"loss": 1.0}, "spread": {"loss": [1.0]}, "n_seeds": 1}},
    ],
)
def test_damaged_measurements_are_refused_by_name(measurements, result, tmp_results):
    path = stored_path("toy.losses", "book")
    result.save(path)
    edit(path, measurements=measurements)
    with pytest.raises(ResultError, match=r"toy.losses.json: damaged measurements"):
        stored_measurements("toy.losses", "book")


def test_a_missing_file_comes_with_the_command_that_makes_it(tmp_results):
    with pytest.raises(ResultError, match=r"no result file toy\.losses\.json; make it with `attnbook run toy\.losses`"):
        Losses.load_stored("book")


def test_saving_below_a_file_fails_and_leaves_all_as_it_was(result, tmp_path):
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    with pytest.raises(ResultError, match=r"path: cannot write result\.json in "):
        result.save(tmp_path / "taken" / "result.json")
    assert left_in(tmp_path) == ["taken"]
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("refused", ["mkdir", "chmod", "replace"])
def test_saving_without_permission_fails_and_leaves_nothing(refused, result, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, refused, refuse)
    with pytest.raises(ResultError, match=r"path: cannot write result.json in .*: Permission denied"):
        result.save(tmp_path / "result.json")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError, OSError(28, "No space left on device")])
def test_saving_that_breaks_off_keeps_the_old_file_and_leaves_no_part(error, result, file, monkeypatch):
    before = file.read_bytes()

    def break_off(_):
        raise error

    monkeypatch.setattr(storage, "_layout", break_off)
    with pytest.raises((KeyboardInterrupt, TypeError, ResultError)):
        result.save(file)
    assert file.read_bytes() == before
    assert left_in(file.parent) == ["result.json"]


def test_saving_onto_a_folder_fails_and_leaves_no_part(result, tmp_path):
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ResultError, match="path: cannot write"):
        result.save(tmp_path / "result.json")
    assert left_in(tmp_path) == []


@given(NUMBERS)
def test_over_seeds_is_the_median_and_the_range(sample):
    measured = over_seeds(loss=sample, twice=2 * np.array(sample))
    assert measured.values["loss"] == np.median(sample)
    assert measured.values["twice"] == 2 * measured.values["loss"]
    assert measured.spread["loss"] == (min(sample), max(sample))
    assert measured.n_seeds == len(sample)


@pytest.mark.parametrize("samples", [{}, {"loss": []}, {"loss": [1.0], "error": [1.0, 2.0]}])
def test_samples_of_no_or_unequal_length_are_refused_by_name(samples):
    with pytest.raises(ValueError, match="samples"):
        over_seeds(**samples)


def test_infinity_survives_a_round_trip(result, tmp_path, monkeypatch):
    """A member that diverged counts as infinite: in arrays, in values and in their range."""
    monkeypatch.setenv("ATTNBOOK_RESULTS", str(tmp_path))
    diverged = replace(result, losses=np.array([[np.inf], [np.inf], [1.0]]))
    diverged.save(stored_path("toy.losses", "book"))
    np.testing.assert_array_equal(Losses.load(stored_path("toy.losses", "book")).losses, diverged.losses)
    assert stored_measurements("toy.losses", "book")["TY-1"] == diverged.measurements()["TY-1"]


@dataclass(frozen=True)
class Named(Losses):
    """Losses with words beside them."""

    words: "tuple[str, ...]" = ("", "inf", "two words")
    source: "str" = "3"


def test_texts_survive_a_round_trip(result, tmp_path):
    """Beside numbers: a word that reads like a number stays a word among words."""
    named = Named(**{f.name: getattr(result, f.name) for f in fields(result)})
    named.save(tmp_path / "named.json")
    loaded = Named.load(tmp_path / "named.json")
    assert (loaded.words, loaded.source) == (named.words, named.source)
    np.testing.assert_allclose(loaded.losses, named.losses, rtol=1e-8)


def test_provenance_says_where_and_how_long():
    clock = Clock()
    clock.add(30.0, 20.0)
    said = clock.provenance(torch.device("cpu"))
    assert (said.attnbook, said.torch, said.numpy) == (attnbook.__version__, torch.__version__, np.__version__)
    assert said.device == "cpu"
    assert 30.0 <= said.wall_seconds < 31.0
    assert 20.0 <= said.cpu_seconds < 21.0
    assert 1 < said.peak_memory_mib < 10**5
    assert not [f.name for f in fields(said) if getattr(said, f.name) in ("", None)]


def test_an_experiment_knows_the_settings_of_a_scale():
    toy = Experiment("toy.losses", "a toy", Settings, Losses, run=lambda *_: None, budget_seconds=1)
    assert toy.settings_for("smoke") == Settings(sizes=(2,))


def test_a_result_that_does_not_say_what_it_measured_is_an_error(result):
    with pytest.raises(NotImplementedError, match="Result must say"):
        Result(result.settings, result.provenance).measurements()


class Work:
    """Draws the numbers of a part; breaks off at one part if told to."""

    def __init__(self, broken=None):
        self.broken, self.done = broken, []

    def __call__(self, part, progress):
        if part == self.broken:
            raise KeyboardInterrupt
        for step in (1, 2, 3) if progress else ():
            progress(step, 3)
        self.done.append(part)
        return {"losses": np.random.default_rng(len(part)).random((3, 5)), "count": np.array(7)}


PARTS = ["a", "bb", "ccc"]


def test_a_run_broken_off_continues_with_the_missing_parts_to_the_same_numbers(tmp_path):
    whole = resumable(PARTS, Work(), settings=Settings(), clock=Clock())
    first, second, third = Work(broken="ccc"), Work(), Work()
    with pytest.raises(KeyboardInterrupt):
        resumable(PARTS, first, settings=Settings(), clock=Clock(), workdir=tmp_path)
    assert left_in(tmp_path) == ["a.json", "bb.json"]
    for work in (second, third):
        continued = resumable(PARTS, work, settings=Settings(), clock=Clock(), workdir=tmp_path)
        assert list(continued) == PARTS
        for part in PARTS:
            for name, value in whole[part].items():
                np.testing.assert_array_equal(continued[part][name], value, strict=True)
    assert (first.done, second.done, third.done) == (["a", "bb"], ["ccc"], [])


def test_the_time_of_kept_parts_counts(tmp_path):
    resumable(["a"], Work(), settings=Settings(), clock=Clock(), workdir=tmp_path)
    edit(tmp_path / "a.json", seconds=[3000.0, 2000.0])
    clock = Clock()
    resumable(["a", "bb"], Work(), settings=Settings(), clock=clock, workdir=tmp_path)
    assert clock.spent() == pytest.approx((3000.0, 2000.0), abs=60)


def test_parts_of_other_settings_are_not_used(tmp_path):
    other = replace(Settings(), rate=np.nextafter(Settings().rate, 1).item())
    for settings in (Settings(), other):
        work = Work()
        resumable(PARTS, work, settings=settings, clock=Clock(), workdir=tmp_path)
        assert work.done == PARTS


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resumable(PARTS, Work(), settings=Settings(), clock=Clock())
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    "changes", [{"format": 2}, {"experiment": "bb"}, {"arrays": None}, {"seconds": None}, {"seconds": 3}, {"arrays": 3}]
)
def test_a_damaged_part_is_refused_by_name(changes, tmp_path):
    resumable(PARTS, Work(), settings=Settings(), clock=Clock(), workdir=tmp_path)
    edit(tmp_path / "a.json", **changes)
    with pytest.raises(ResultError, match=r"a\.json"):
        resumable(PARTS, Work(), settings=Settings(), clock=Clock(), workdir=tmp_path)


def test_parts_that_cannot_be_kept_stop_the_run(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(ResultError, match="cannot write"):
        resumable(PARTS, Work(), settings=Settings(), clock=Clock(), workdir=tmp_path / "taken")


def test_progress_counts_every_part_the_same():
    seen = []
    resumable(
        PARTS, Work(), settings=Settings(), clock=Clock(), progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(done, 9) for done in range(1, 10)]
