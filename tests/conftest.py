"""One thread, no display, no settings of the caller; shapes checked. Comes before the first import of the package."""

import os
import sys
from collections.abc import Mapping

import jaxtyping
import pytest
import torch

jaxtyping.install_import_hook("attnbook", "shapes.check")
torch.set_num_threads(1)
os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "ATTNBOOK_OFFLINE": "1"}
for name in ("ATTNBOOK_SCALE", "ATTNBOOK_RESULTS", "COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)


def pytest_make_parametrize_id(val):
    """Name bytes by their length: packed ones hold the time, and all processes must collect the same names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture
def tmp_results(tmp_path, monkeypatch):
    """An empty folder that takes the place of the stored results."""
    monkeypatch.setenv("ATTNBOOK_RESULTS", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def close_figures():
    """Leave no figure open: Matplotlib warns at more than 20, and which tests share a process is not ours to say."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


class SmokeResults(Mapping):
    """Experiment id to its result at smoke scale; each is run once, when it is first asked for."""

    def __init__(self):
        from attnbook.registry import experiments  # not before the hook that checks shapes

        self._experiments, self._found = experiments(), {}

    def __getitem__(self, name):
        if name not in self._found:
            self._found[name] = self._experiments[name].at("smoke").run(device="cpu")
        return self._found[name]

    def measurements(self, name):
        """What was measured, by claim id; an experiment on the contract says it, not its data."""
        return self._experiments[name].at("smoke").measurements(self[name])

    def store(self, name, path):
        """Write a result with its measurements."""
        self._experiments[name].at("smoke").store(self[name], path)

    def __iter__(self):
        return iter(self._experiments)

    def __len__(self):
        return len(self._experiments)


@pytest.fixture(scope="session")
def smoke_results():
    """Results at smoke scale, for all tests that only read."""
    return SmokeResults()


@pytest.fixture(scope="session")
def cluster():
    """A client of a dask scheduler with two workers on this machine, which can import the tests' own modules."""
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": True}
    with LocalCluster(**options) as started, Client(started) as client:
        client.run(sys.path.insert, 0, os.path.dirname(__file__))
        yield client
