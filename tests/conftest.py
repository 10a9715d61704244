"""One thread, no display, no settings of the caller; shapes checked. Comes before the first import of the package."""

import os

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


@pytest.fixture(scope="session")
def smoke_results():
    """Experiment id to its result at smoke scale, run once for all tests that only read."""
    from attnbook.registry import experiments

    return {e.id: e.run(e.settings_for("smoke"), device="cpu") for e in experiments().values()}
