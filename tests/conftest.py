"""One thread, no display, no settings of the caller; shapes checked. Comes before the first import of the package."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jaxtyping
import pytest
import shapes
import torch

jaxtyping.jaxtyped = shapes.only_shaped(jaxtyping.jaxtyped)
jaxtyping.install_import_hook("attnbook", "shapes.check")
torch.set_num_threads(1)
os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "ATTNBOOK_OFFLINE": "1"}
OURS = "ATTNBOOK_SIZE", "ATTNBOOK_SCALE", "ATTNBOOK_RESULTS", "ATTNBOOK_FRAMES"
for name in (*OURS, "COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)


def pytest_make_parametrize_id(val):
    """Name bytes by their length: packed ones hold the time, and all processes must collect the same names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


LISTED = (Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").split()
SLOW = frozenset() if "ATTNBOOK_TIME_TESTS" in os.environ else frozenset(LISTED)
"""Tests that `make quick` leaves out besides those marked in their files; written by tools/time_tests.py."""
APART = ("opened", "kind", "experiment")
"""Parameters whose values are looked at by different processes: pages and experiments."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what is slow; name what stays together in one process, and put what needs the pages last.

    One test that needs them comes first: while its process builds them, the others have something else to do. Next are
    the tests of every experiment, which leave results that others read. Last come pages that are looked at one by one:
    small parts of the work, which leave no process without any at the end.
    """
    for item in items:
        if item.nodeid.split("[")[0] in SLOW:
            item.add_marker("slow")
        known = item.callspec.params if hasattr(item, "callspec") else {}
        parts = [str(getattr(known[name], "id", known[name])) for name in APART if name in known]
        parts += ["pages"] * needs_pages(item)
        together = [item.location[0], *parts]
        if "all_smoke_results" in fixtures(item):
            together = ["all smoke results"]
        item.add_marker(pytest.mark.xdist_group(":".join(together)))
    yield  # pytest-xdist adds the group to the name of each test, and shares tests out by these names
    for item in items:
        if hasattr(item, "_id") and hasattr(item, "_nodeid"):  # to the name before pytest 9.2 (its issue 1386)
            item._id = type(item._id).parse(item._nodeid)
    items.sort(key=turn)


def turn(item):
    """When a test has its turn: smaller is earlier."""
    if item.name == "test_the_book_builds":
        return 0
    if needs_pages(item):
        return 3 + ("opened" in item.fixturenames)
    return 2 - (item.path.name == "test_experiments.py")


def needs_pages(item):
    """Whether a test looks at the built book."""
    return "html" in fixtures(item) and item.name != "test_the_book_builds"


def fixtures(item):
    """The names of what a test asks for; a doctest asks for nothing."""
    return getattr(item, "fixturenames", ())


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """An empty folder that takes the place of the user's cache, in the processes that tests start as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBOOK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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
    """Experiment id to its result at smoke scale; each is run once, by the process that first asks for it."""

    def __init__(self, folder):
        from attnbook.registry import experiments  # not before the hook that checks shapes

        self._experiments, self._folder, self._found, self._measured = experiments(), folder, {}, {}

    def run(self, kind, progress=None):
        """Run an experiment at smoke scale, a seed at a time; its result and its groups appear whole or not at all."""
        ready = kind.at("smoke", chunk=1)
        with tempfile.TemporaryDirectory(dir=self._folder) as own:
            data = ready.run(device="cpu", workdir=Path(own), progress=progress)
            for group in Path(own).iterdir():
                group.replace(self._folder / group.name)
        ready.store(data, self._folder / f"{kind.id}.json")
        return data

    def file(self, kind):
        """The file of a result, which all processes share."""
        file = self._folder / f"{kind.id}.json"
        if not file.exists():
            self.run(kind)
        return file

    def groups(self, kind):
        """The files of its groups, one for each seed."""
        return sorted(self.file(kind).parent.glob(f"{kind.id}-seeds-*.json"))

    def __getitem__(self, name):
        if name not in self._found:
            self._found[name] = self._experiments[name].load(self.file(self._experiments[name]))
        return self._found[name]

    def measurements(self, name):
        """What was measured, by claim id; an experiment on the contract says it, not its data."""
        if name not in self._measured:
            self._measured[name] = self._experiments[name].at("smoke").measurements(self[name])
        return self._measured[name]

    def store(self, name, path):
        """Write a result with its measurements."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.file(self._experiments[name]), path)

    def __iter__(self):
        return iter(self._experiments)

    def __len__(self):
        return len(self._experiments)


@pytest.fixture(scope="session")
def smoke_results(tmp_path_factory, pytestconfig):
    """Results at smoke scale, for all tests that only read."""
    own = tmp_path_factory.getbasetemp()
    shared = hasattr(pytestconfig, "workerinput")  # its variables also reach a pytest that a test starts
    folder = (own.parent if shared else own) / "smoke_results"
    folder.mkdir(exist_ok=True)
    return SmokeResults(folder)


@pytest.fixture(scope="session")
def all_smoke_results(smoke_results):
    """The same, for tests that read those of all experiments: they stay in one process, so that no other runs them."""
    return smoke_results


@pytest.fixture(scope="session")
def cluster():
    """A client of a dask scheduler with two workers on this machine, which can import the tests' own modules."""
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": True}
    with LocalCluster(**options) as started, Client(started) as client:
        client.run(sys.path.insert, 0, os.path.dirname(__file__))
        yield client
