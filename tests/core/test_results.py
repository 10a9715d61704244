"""Measured results: kept whole, read with suspicion."""

import errno
import json
import os
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_experiment import Toy

import attnbook
from attnbook import ledger
from attnbook.core import results
from attnbook.core.results import (
    FORMAT,
    Clock,
    Measurement,
    ResultError,
    plain,
    read_json,
    results_folder,
    stored_measurements,
    stored_path,
    write_json,
)
from attnbook.registry import experiments
from attnbook.rooms import rooms

FILES = sorted(path for path in results_folder().glob("*/*.json") if path.parent.name != "replications")
STORED = [(path.parent.name, path.stem) for path in FILES]
MEASURED = {"TY-1": Measurement({"loss": 0.1}, {"loss": (0.0, 1 / 3)}, 5), "TY-2": Measurement({"error": 1 / 3})}
CONTENT = {
    "format": FORMAT,
    "experiment": "toy.losses",
    "measurements": {claim: asdict(m) for claim, m in MEASURED.items()},
}


@pytest.fixture
def file(tmp_path):
    write_json(tmp_path / "deep" / "er" / "result.json", CONTENT)
    return tmp_path / "deep" / "er" / "result.json"


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_result_file_is_short_readable_json_that_anyone_may_read(file):
    assert read_json(file, "toy.losses") == json.loads(json.dumps(CONTENT))
    assert len(file.read_text(encoding="utf-8").splitlines()) == len(CONTENT) + 3  # and the checksum
    assert file.stat().st_mode & 0o777 == 0o644
    assert left_in(file.parent) == ["result.json"]


@given(st.lists(st.floats(width=64), max_size=7))
def test_numbers_are_written_bit_by_bit_and_json_knows_all_of_them(numbers):
    """Infinity and NaN, which JSON has not, as texts that NumPy reads."""
    written = json.dumps(plain({"numbers": np.array(numbers)}), allow_nan=False)
    np.testing.assert_array_equal(np.array(json.loads(written)["numbers"], dtype=np.float64), np.array(numbers))


def test_settings_and_numbers_of_numpy_become_plain_values():
    settings = plain(Toy())
    assert settings["sizes"] == [[0.1, [1, 2]]]
    assert settings["fails_at"] is None
    assert json.dumps(plain([np.int64(3), np.float64("inf"), np.array(7)])) == '[3, "inf", 7]'


def test_stored_measurements_are_found_by_experiment_and_scale(tmp_results):
    write_json(stored_path("toy.losses", "book"), CONTENT)
    assert left_in(tmp_results) == ["toy.losses.json"]
    assert stored_measurements("toy.losses", "book") == MEASURED
    assert stored_measurements("toy.losses", "full") == {}


def test_the_results_folder_is_that_of_the_repository_unless_the_environment_names_another(tmp_results, monkeypatch):
    assert results_folder() == tmp_results
    monkeypatch.delenv("ATTNBOOK_RESULTS")
    assert results_folder() == Path(attnbook.__file__).parent.parent / "results"


def test_outside_a_checkout_nothing_is_stored_and_the_message_says_what_to_do(tmp_path, monkeypatch):
    """As for a package that was installed without the book."""
    monkeypatch.setattr(attnbook, "__file__", str(tmp_path / "site-packages" / "attnbook" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    for call in (results_folder, partial(stored_measurements, "toy.losses", "book"), ledger.papers, rooms):
        with pytest.raises(ValueError, match=r"^checkout: .* are in the repository of the book, .*; clone it and "):
            call()
    monkeypatch.setenv("ATTNBOOK_RESULTS", str(tmp_path / "mine"))
    assert results_folder() == tmp_path / "mine"


def test_results_are_those_of_the_checkout_that_one_is_in(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").touch()
    (tmp_path / "chapters" / "toy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "chapters" / "toy")
    assert results_folder() == tmp_path / "results"


def test_every_size_that_an_experiment_has_was_run_and_is_stored():
    sizes = [(name, size) for name, experiment in experiments().items() for size in experiment.has()[1:]]
    assert [(name, size) for name, size in sizes if not stored_path(name, size).exists()] == []


@pytest.mark.parametrize(("scale", "experiment"), STORED)
def test_stored_results_load_and_measure_what_is_stored(scale, experiment):
    """All of it, to the last digits: a change of what is measured must change what is stored.

    A result written by another version must be run again. The absolute tolerance is for errors of rounding.
    """
    loaded = experiments()[experiment].load_stored(scale)
    settings = plain(experiments()[experiment].at(scale))
    assert {"chunk": settings["chunk"], **loaded.attrs["settings"]} == settings
    stored, found = stored_measurements(experiment, scale), experiments()[experiment].measurements(loaded)
    assert set(stored) == set(found)
    for claim, now in found.items():
        before = stored[claim]
        assert (now.n_seeds, set(now.spread)) == (before.n_seeds, set(before.spread)), claim
        assert now.values == pytest.approx(before.values, rel=1e-9, abs=1e-14), claim
        for name, ends in now.spread.items():
            assert ends == pytest.approx(before.spread[name], rel=1e-9, abs=1e-14), (claim, name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged or unreadable"),
        (b'{"format": 1, "experi', "damaged or unreadable"),
        (b"\xff\xfe\x00", "damaged or unreadable"),
        (b"[1, 2]", "format None, this version reads 1"),
        (b'{"format": 2}', "format 2, this version reads 1"),
        (b'{"format": 1}', r"holds None, expected 'toy\.draws'"),
        (b'{"format": 1, "experiment": "toy.others"}', r"holds 'toy\.others', expected 'toy\.draws'"),
    ],
)
def test_a_damaged_file_is_refused_by_name(content, message, tmp_results):
    path = stored_path("toy.draws", "book")
    path.parent.mkdir()
    path.write_bytes(content)
    for read in (lambda: Toy.load_stored("book"), lambda: stored_measurements("toy.draws", "book")):
        with pytest.raises(ResultError, match=f"toy.draws.json: .*{message}"):
            read()


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
def test_damaged_measurements_are_refused_by_name(measurements, tmp_results):
    damaged = {**CONTENT, "measurements": measurements}
    if measurements is None:
        del damaged["measurements"]
    write_json(stored_path("toy.losses", "book"), damaged)
    with pytest.raises(ResultError, match=r"toy.losses.json: damaged measurements"):
        stored_measurements("toy.losses", "book")


def test_writing_below_a_file_fails_and_leaves_all_as_it_was(tmp_path):
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    with pytest.raises(ResultError, match=r"path: cannot write result\.json in "):
        write_json(tmp_path / "taken" / "result.json", CONTENT)
    assert left_in(tmp_path) == ["taken"]
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("refused", ["mkdir", "chmod", "replace"])
def test_writing_without_permission_fails_and_leaves_nothing(refused, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, refused, refuse)
    with pytest.raises(ResultError, match=r"path: cannot write result.json in .*: Permission denied"):
        write_json(tmp_path / "result.json", CONTENT)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError, OSError(28, "No space left on device")])
def test_writing_that_breaks_off_keeps_the_old_file_and_leaves_no_part(error, file, monkeypatch):
    before = file.read_bytes()

    def break_off(_):
        raise error

    monkeypatch.setattr(results, "_layout", break_off)
    with pytest.raises((KeyboardInterrupt, TypeError, ResultError)):
        write_json(file, CONTENT)
    assert file.read_bytes() == before
    assert left_in(file.parent) == ["result.json"]


def test_writing_onto_a_folder_fails_and_leaves_no_part(tmp_path):
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ResultError, match="path: cannot write"):
        write_json(tmp_path / "result.json", CONTENT)
    assert left_in(tmp_path) == []


def test_one_bit_changed_anywhere_is_refused_by_name_or_changes_nothing(file):
    """A digit of a number among them; only the name of the checksum is not covered by it."""
    good, content, wrong = file.read_bytes(), json.loads(json.dumps(CONTENT)), []
    for bit in range(0, 8 * len(good), 3):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            if {**read_json(file, "toy.losses"), **content} != read_json(file, "toy.losses"):
                wrong.append(bit)
        except ResultError as error:
            if "result.json" not in str(error):
                wrong.append(bit)
    assert wrong == []


def test_a_file_of_before_has_no_checksum_and_is_read(file):
    file.write_text(json.dumps(CONTENT), encoding="utf-8")
    assert read_json(file, "toy.losses") == json.loads(json.dumps(CONTENT))


def test_what_a_killed_process_left_goes_with_the_next_write(file):
    (file.parent / ".result.json.abc.part").write_text("half", encoding="utf-8")
    (file.parent / ".other.json.abc.part").write_text("of another", encoding="utf-8")
    write_json(file, CONTENT)
    assert left_in(file.parent) == [".other.json.abc.part", "result.json"]


def test_a_folder_that_another_run_takes_away_is_made_again(tmp_path, monkeypatch):
    honest, taken = Path.replace, []

    def replace(part, target):
        if not taken:
            taken.append(part)
            shutil.rmtree(target.parent)
        return honest(part, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_json(tmp_path / "parts" / "result.json", CONTENT)
    assert taken
    assert left_in(tmp_path / "parts") == ["result.json"]


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.ENOSPC, "make room and run again, what is finished is kept"),
        (errno.EDQUOT, "make room and run again, what is finished is kept"),
        (errno.EROFS, "choose another place with --output or ATTNBOOK_RESULTS"),
    ],
)
def test_what_cannot_be_written_comes_with_a_remedy(number, mend, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(ResultError, match=f"cannot write result.json in .*: {os.strerror(number)}; {mend}"):
        write_json(tmp_path / "result.json", CONTENT)
    assert left_in(tmp_path) == []


def test_provenance_says_where_and_how_long():
    clock = Clock()
    clock.wall, clock.cpu = clock.wall - 30.0, clock.cpu - 20.0
    said = clock.provenance(torch.device("cpu"))
    assert (said["attnbook"], said["torch"], said["numpy"]) == (attnbook.__version__, torch.__version__, np.__version__)
    assert said["device"] == "cpu"
    assert 30.0 <= said["wall_seconds"] < 31.0
    assert 20.0 <= said["cpu_seconds"] < 21.0
    assert 1 < said["peak_memory_mib"] < 10**5
    assert not [name for name, value in said.items() if value in ("", None)]
