"""``attnbook doctor``: each way in which an installation can be broken, and what it says then."""

import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnbook import __main__, doctor
from attnbook.core import places
from attnbook.data.files import KNOWN

ROOT = Path(__file__).parent.parent


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    """A machine with a CPU, an empty writable cache, no data and one stored result, whatever this one has."""
    for name in ("ATTNBOOK_DATA", "ATTNBOOK_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "results" / "book").mkdir(parents=True)
    shutil.copy(ROOT / "results" / "book" / "global_attention.error_rate.json", tmp_path / "results" / "book")
    monkeypatch.setenv("ATTNBOOK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "chromium" else None)
    gpu(monkeypatch, built=None)
    return tmp_path


def gpu(monkeypatch, *, built, usable=False):
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a fine GPU")


def found(subject):
    """What the doctor says about a subject, all that is not about it left out."""
    return [f for f in doctor.examine() if f.subject == subject]


def versions(monkeypatch, **changed):
    """Give packages other versions; None takes a package away."""
    honest = importlib.metadata.version

    def version(name):
        if changed.get(name, "") is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return changed.get(name) or honest(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_nothing_is_wrong_with_a_healthy_machine(healthy, capsys, monkeypatch):
    """With all stored results of the book."""
    monkeypatch.delenv("ATTNBOOK_RESULTS")
    assert doctor.main([]) == 0
    assert "0 broken, 0 to note" in capsys.readouterr().out


def test_every_fault_comes_with_its_cure(healthy, monkeypatch):
    versions(monkeypatch, numpy="1.26.4", nbval=None)
    monkeypatch.setenv("ATTNBOOK_SIZE", "banana")
    faults = [f for f in doctor.examine() if f.state != "ok"]
    assert [f.subject for f in faults] == ["numpy", "nbval", "size"]
    assert all(f.mend for f in faults)


@pytest.mark.parametrize(
    ("version", "state", "says"),
    [((3, 10), "broken", "needed is Python 3.11 to 3.13"), ((3, 14), "note", "tested is Python 3.11 to 3.13")],
)
def test_another_python_is_named(version, state, says, healthy, monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (*version, 0))
    (python,) = found("python")
    assert python.state == state
    assert says in python.says
    assert "make book PYTHON=python3.1" in python.mend


def test_a_missing_and_a_wrong_version_are_told_with_what_is_needed(healthy, monkeypatch, capsys):
    versions(monkeypatch, scipy=None, numpy="1.26.4")
    (scipy,), (numpy,) = found("scipy"), found("numpy")
    assert scipy.says.startswith("not installed, attnbook needs scipy")
    assert numpy.says.startswith("1.26.4, attnbook needs numpy")
    assert numpy.mend.startswith(f'{sys.executable} -m pip install "numpy')
    assert doctor.main([]) == 1
    assert "mend: " in capsys.readouterr().out


def test_what_only_book_and_tests_need_breaks_nothing(healthy, monkeypatch):
    versions(monkeypatch, nbval=None)
    (nbval,) = found("nbval")
    assert nbval.state == "note"
    assert doctor.main([]) == 0


def test_what_an_extra_needs_is_not_missed(healthy, monkeypatch):
    monkeypatch.setattr(doctor, "ROOT", healthy)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["numpy", 'distributed>=1; extra == "cluster"'])
    versions(monkeypatch, distributed=None)
    assert [f.says for f in found("packages")] == ["all 1 of attnbook are here in a right version"]
    assert found("distributed") == []


def test_many_missing_packages_are_one_line_with_one_cure(healthy, monkeypatch):
    versions(monkeypatch, **dict.fromkeys(("scipy", "numpy", "rich", "typer"), None))
    broken = [f for f in doctor.examine() if f.state == "broken"]
    assert [f.subject for f in broken] == ["packages"]
    assert broken[0].mend == f"{sys.executable} -m pip install -r {ROOT / 'requirements.txt'}"


def test_many_missing_packages_without_a_copy_of_the_repository_are_listed(healthy, monkeypatch):
    monkeypatch.setattr(doctor, "ROOT", healthy)
    versions(monkeypatch, **dict.fromkeys(("scipy", "numpy", "rich", "typer"), None))
    (broken,) = [f for f in doctor.examine() if f.state == "broken"]
    pip, *listed = broken.mend.split(' "')
    assert pip == f"{sys.executable} -m pip install"
    assert [re.match(r"\w+", name)[0] for name in listed] == ["numpy", "rich", "scipy", "typer"]


def test_a_package_that_does_not_load_is_named_with_its_error(healthy, monkeypatch):
    honest = importlib.import_module

    def load(name, *rest):
        if name == "sklearn":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return honest(name, *rest)

    monkeypatch.setattr(doctor.importlib, "import_module", load)
    (learn,) = found("scikit-learn")
    assert learn.state == "broken"
    assert "installed but does not load: OSError: libgomp.so.1" in learn.says


@pytest.mark.parametrize(
    ("built", "smi", "usable", "state", "says"),
    [
        ("12.6", True, True, "ok", "computes on cuda (a fine GPU)"),
        ("12.6", True, False, "note", "cannot use the NVIDIA GPU (driver older than CUDA 12.6, or hidden)"),
        ("12.6", False, False, "note", "gigabytes of CUDA libraries, and there is no NVIDIA GPU"),
        (None, True, False, "note", "built without CUDA, so the NVIDIA GPU lies idle"),
        (None, False, False, "ok", "computes on cpu"),
    ],
)
def test_torch_and_gpu_are_compared(built, smi, usable, state, says, healthy, monkeypatch):
    gpu(monkeypatch, built=built, usable=usable)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name if smi or name != "nvidia-smi" else None)
    (device,) = found("device")
    assert device.state == state
    assert says in device.says
    assert bool(device.mend) == (state != "ok")


def test_a_cache_that_cannot_be_written_is_only_noted(healthy, monkeypatch):
    (healthy / "cache").write_text("a file in its place", encoding="utf-8")
    (cache,) = found("cache")
    assert (cache.state, cache.mend) == ("note", "export ATTNBOOK_CACHE=/some/folder/of/yours")
    assert "cannot be written" in cache.says


def test_a_data_folder_that_is_not_there_is_broken(healthy, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_DATA", str(healthy / "nowhere"))
    (data,) = found("data")
    assert data.state == "broken"
    assert "ATTNBOOK_DATA: no folder" in data.says
    assert "unset ATTNBOOK_DATA" in data.mend


def test_damaged_files_of_data_are_named_with_their_place(healthy, monkeypatch):
    name = "mnist/t10k-labels-idx1-ubyte.gz"
    size = KNOWN[name].size
    for folder in ("mine", "cache"):
        (healthy / folder / "mnist").mkdir(parents=True)
        (healthy / folder / name).write_bytes(bytes(size))
    monkeypatch.setenv("ATTNBOOK_DATA", str(healthy / "mine"))
    mine, cached = found("data")
    assert (mine.state, mine.says) == ("broken", f"{name} in ATTNBOOK_DATA is damaged")
    assert (cached.state, cached.says) == ("broken", f"{name} in cache is damaged")
    assert mine.mend == "copy it there again"
    assert cached.mend.startswith("delete it")


def test_an_installed_library_without_a_checkout_is_not_broken(healthy, monkeypatch, tmp_path):
    monkeypatch.delenv("ATTNBOOK_RESULTS")
    monkeypatch.setattr(places.attnbook, "__file__", str(tmp_path / "attnbook" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    (results,) = found("results")
    assert (results.state, "clone the repository" in results.mend) == ("note", True)


@pytest.mark.parametrize(("text", "says"), [(None, "no stored results in "), ("{", "a.json: damaged or unreadable")])
def test_missing_and_damaged_results_are_broken(text, says, healthy, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_RESULTS", str(healthy))
    if text:
        (healthy / "book").mkdir()
        (healthy / "book" / "a.json").write_text(text, encoding="utf-8")
    (results,) = found("results")
    assert results.state == "broken"
    assert says in results.says
    assert results.mend


def test_a_lab_without_the_extension_for_widgets_is_noted(healthy, monkeypatch):
    monkeypatch.setattr(doctor, "LAB_WIDGETS", Path("share", "nowhere"))
    (sliders,) = found("sliders")
    assert sliders.state == "note"
    assert "sliders would not appear" in sliders.says
    assert sliders.mend.endswith("jupyterlab-widgets")


def test_a_missing_browser_is_noted(healthy, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setenv("HOME", str(healthy))
    (browser,) = found("browser")
    assert browser.state == "note"
    assert "playwright install chromium" in browser.mend


@pytest.mark.parametrize(("free", "state"), [(5e9, "ok"), (5e8, "note"), (1e8, "broken")])
def test_a_full_disk_is_told(free, state, healthy, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    (disk,) = found("disk")
    assert disk.state == state
    assert bool(disk.mend) == (state != "ok")


def test_a_check_that_fails_stops_no_other(healthy, monkeypatch):
    def _weather():
        raise KeyError("rain")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (_weather, doctor._disk))
    weather, disk = doctor.examine()
    assert (weather.subject, weather.state) == ("weather", "broken")
    assert "KeyError: 'rain'" in weather.says
    assert disk.subject == "disk"


def bare(*arguments):
    """Run the command where no package at all is installed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-S", "-m", "attnbook", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


def test_it_runs_where_no_package_is_installed():
    done = bare("doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    said = json.loads(done.stdout)
    assert said["torch"] == "missing"
    assert [f["subject"] for f in said["findings"] if f["state"] == "broken"] == ["attnbook", "packages"]


def test_other_commands_point_to_it_where_packages_are_missing():
    done = bare("list")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("`python -m attnbook doctor` says what to install")


def test_the_command_passes_everything_else_on(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attnbook", "show", "GA-BANANA"])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 2
    assert "no claim 'GA-BANANA'" in capsys.readouterr().err
