"""What is wrong with this installation, and the command that mends it: ``attnbook doctor``.

Everything beyond the standard library is imported inside the check that needs it, so that a missing or broken package
is something the doctor reports, never something it dies of.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import attnbook

__all__ = ["Finding", "examine", "main"]

ROOT = Path(attnbook.__file__).resolve().parent.parent
TESTED = ((3, 11), (3, 13))
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LOADED = ("numpy", "scipy", "torch", "matplotlib", "scikit-learn", "ipywidgets")
MODULES = {"scikit-learn": "sklearn"}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
LAB_WIDGETS = Path("share", "jupyter", "labextensions", "@jupyter-widgets", "jupyterlab-manager")
GB = 1e9


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        subject: What was looked at.
        state: ``ok``; ``note``: the book works, with less; ``broken``: something that is needed does not work.
        says: What is there, or what is wrong.
        mend: The command or step that mends it; empty where nothing is wrong.
    """

    subject: str
    state: str
    says: str
    mend: str = ""


def main(arguments: list[str]) -> int:
    """Print what was found, with ``--json`` as data; return 1 if something that is needed is broken, else 0."""
    parser = argparse.ArgumentParser(prog="attnbook doctor", description="Say what is wrong and what mends it.")
    parser.add_argument("--json", action="store_true", help="Print data as JSON.")
    as_json = parser.parse_args(arguments).json
    found = examine()
    if as_json:
        print(json.dumps({**_system(), "findings": [asdict(f) for f in found]}, indent=2))
    else:
        print(", ".join(f"{name} {value}" for name, value in _system().items()))
        for f in found:
            print(f"{f.state:<7} {f.subject}: {f.says}")
            if f.mend:
                print(f"{'':<7} mend: {f.mend}")
        counts = {state: sum(f.state == state for f in found) for state in ("broken", "note")}
        print(f"{counts['broken']} broken, {counts['note']} to note, {len(found) - sum(counts.values())} ok")
    return int(any(f.state == "broken" for f in found))


def examine() -> list[Finding]:
    """Return what was found, in the order in which it should be mended."""
    return [finding for check in CHECKS for finding in _safely(check)]


def _safely(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check may stumble over what another one reports: a package that cannot be imported is no finding of its own."""
    subject = check.__name__.strip("_")
    try:
        yield from check()
    except ImportError as error:
        yield Finding(subject, "note", f"not looked at, because a package is missing or broken ({error})")
    except Exception as error:  # whatever it is, the other checks still have to run
        yield Finding(subject, "broken", f"{type(error).__name__}: {error}", "please report this line as an issue")


def _python() -> Iterator[Finding]:
    version, (first, last) = sys.version_info[:2], TESTED
    here = platform.python_version()
    wanted = f"Python {'.'.join(map(str, first))} to {'.'.join(map(str, last))}"
    if version < first:
        yield Finding("python", "broken", f"{here}, needed is {wanted}", "rm -rf .venv; make book PYTHON=python3.12")
    elif version > last:
        yield Finding("python", "note", f"{here}, tested is {wanted}", "rm -rf .venv; make book PYTHON=python3.13")
    else:
        yield Finding("python", "ok", f"{here} in {sys.prefix}")


def _packages() -> Iterator[Finding]:
    """Versions against what the package asks for and, in a copy of the repository, what book and tests ask for."""
    try:
        asked = importlib.metadata.requires("attnbook") or []
        needed = [line for line in asked if "extra ==" not in line]  # nobody must have installed what is extra
    except importlib.metadata.PackageNotFoundError:
        import tomllib

        yield Finding("attnbook", "broken", "not installed", f"{sys.executable} -m pip install -e {ROOT}")
        needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    yield from _compared("attnbook", needed, "broken")
    if (listed := ROOT / "requirements.txt").is_file():
        lines = listed.read_text(encoding="utf-8").splitlines()
        yield from _compared("the book and its tests", [line for line in lines if line[:1].isalpha()], "note")


def _compared(what: str, requirements: list[str], state: str) -> Iterator[Finding]:
    wrong = {}
    for requirement in (line.split(";")[0].strip() for line in requirements):
        name = re.split(r"[^\w.-]", requirement)[0]
        found = _version(name)
        if found is None or not _fits(found, requirement[len(name) :]):
            wrong[requirement] = found or "not installed"
    pip = f"{sys.executable} -m pip install"
    if len(wrong) > 3:
        listed = ROOT / "requirements.txt"
        quoted = " ".join(f'"{requirement}"' for requirement in wrong)
        mend = f"{pip} -r {listed}" if listed.is_file() else f"{pip} {quoted}"
        yield Finding("packages", state, f"missing or of another version, of {what}: {', '.join(wrong)}", mend)
        return
    for requirement, found in wrong.items():
        name = re.split(r"[^\w.-]", requirement)[0]
        yield Finding(name, state, f"{found}, {what} needs {requirement}", f'{pip} "{requirement}"')
    if not wrong:
        yield Finding("packages", "ok", f"all {len(requirements)} of {what} are here in a right version")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fits(version: str, wanted: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # without the judge every version passes; that packages are there has been seen
        return True
    return SpecifierSet(wanted).contains(version, prereleases=True)


def _loading() -> Iterator[Finding]:
    """Packages that are installed may still not load: half an update, a missing system library."""
    for name in LOADED:
        try:
            importlib.import_module(MODULES.get(name, name))
        except Exception as error:
            if _version(name) is not None:
                says = f"{_version(name)} is installed but does not load: {type(error).__name__}: {error}"
                mend = f"{sys.executable} -m pip install --force-reinstall --no-deps {name}=={_version(name)}"
                yield Finding(name, "broken", says, mend)


def _device() -> Iterator[Finding]:
    import torch

    built, gpu = torch.version.cuda, shutil.which("nvidia-smi")
    here = f"torch {torch.__version__}"
    plain = torch.__version__.split("+")[0]
    reinstall = f"{sys.executable} -m pip install --force-reinstall torch=={plain}"
    if built and torch.cuda.is_available():
        yield Finding("device", "ok", f"{here} computes on cuda ({torch.cuda.get_device_name()})")
    elif built and gpu:
        says = f"{here} cannot use the NVIDIA GPU (driver older than CUDA {built}, or hidden); the CPU is used"
        yield Finding("device", "note", says, "update the driver, or unset CUDA_VISIBLE_DEVICES")
    elif gpu:
        says = f"{here} is built without CUDA, so the NVIDIA GPU lies idle; the CPU is enough for the book"
        yield Finding("device", "note", says, f"{reinstall} --index-url https://download.pytorch.org/whl/cu126")
    elif built:
        says = f"{here} brings gigabytes of CUDA libraries, and there is no NVIDIA GPU; the CPU is used"
        yield Finding("device", "note", says, f"{reinstall} --index-url {CPU_INDEX}")
    else:
        yield Finding("device", "ok", f"{here} computes on {'mps' if torch.backends.mps.is_available() else 'cpu'}")


def _size() -> Iterator[Finding]:
    from attnbook.core import runtime

    try:
        yield Finding("size", "ok", runtime.size())
    except ValueError as error:
        yield Finding("size", "broken", str(error), "unset ATTNBOOK_SIZE and ATTNBOOK_SCALE")


def _cache() -> Iterator[Finding]:
    from attnbook.core.places import cache_folder

    try:
        folder = there = cache_folder()
    except ValueError as error:
        yield Finding("cache", "note", str(error), "export ATTNBOOK_CACHE=/some/folder/of/yours")
        return
    while not there.exists():
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        yield Finding("cache", "ok", str(folder))
    else:
        says = f"{folder} cannot be written, so nothing can be downloaded; stand-ins take the place of data sets"
        yield Finding("cache", "note", says, "export ATTNBOOK_CACHE=/some/folder/of/yours")


def _data() -> Iterator[Finding]:
    from attnbook import data

    try:
        entries = data.available()
    except (ValueError, OSError) as error:
        yield Finding("data", "broken", str(error), "unset ATTNBOOK_DATA, or give it the name of a folder of yours")
        return
    damaged = [e for e in entries if e.state == "damaged"]
    for e in damaged:
        how = "copy it there again" if e.place == "ATTNBOOK_DATA" else "delete it; `attnbook data` says how to fetch it"
        yield Finding("data", "broken", f"{e.path} in {e.place} is damaged", how)
    if not damaged:
        there = sum(e.place != "download" for e in entries)
        yield Finding("data", "ok", f"{there} files of data sets are here; stand-ins take the place of the others")


def _results() -> Iterator[Finding]:
    from attnbook import ledger
    from attnbook.core import results
    from attnbook.core.places import NoCheckout

    mend = "git checkout results chapters"
    try:
        stored = sorted(results.results_folder().glob("*/*.json"))
        if not stored:
            yield Finding("results", "broken", f"no stored results in {results.results_folder()}", mend)
            return
        for file in stored:
            results.read_json(file, file.stem)
        yield Finding("results", "ok", f"{len(stored)} stored results for {len(ledger.claims())} claims")
    except NoCheckout:  # the library works without
        mend = "clone the repository of the book and call this from a folder of the clone"
        yield Finding("results", "note", "no chapters, claims and results: this is no checkout of the book", mend)
    except ValueError as error:
        yield Finding("results", "broken", str(error), mend)


def _sliders() -> Iterator[Finding]:
    """JupyterLab shows sliders only with the extension in the environment that it is started from."""
    if _version("jupyterlab") is None:
        return
    if (Path(sys.prefix) / LAB_WIDGETS).is_dir():
        yield Finding("sliders", "ok", f"ipywidgets {_version('ipywidgets')} with JupyterLab {_version('jupyterlab')}")
    else:
        mend = f"{sys.executable} -m pip install --force-reinstall --no-deps jupyterlab-widgets"
        yield Finding("sliders", "note", "JupyterLab has no extension for widgets: sliders would not appear", mend)


def _browser() -> Iterator[Finding]:
    if _version("playwright") is None:  # no tests here
        return
    home = Path(os.path.expanduser("~"))
    own = [file for place in (".cache", "Library/Caches") for file in home.glob(f"{place}/ms-playwright/chromium*")]
    if found := next(filter(None, map(shutil.which, CHROMIUM)), None) or next(map(str, own), None):
        yield Finding("browser", "ok", found)
    else:
        mend = f"sudo apt-get install chromium, or {sys.executable} -m playwright install chromium"
        yield Finding("browser", "note", "no Chromium: the tests that open the built pages are skipped", mend)


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(ROOT).free / GB
    state = "broken" if free < 0.2 else "note" if free < 1 else "ok"
    mend = "" if state == "ok" else "make clean, pip cache purge, or move the book to a larger disk"
    yield Finding("disk", state, f"{free:.1f} GB free at {ROOT}", mend)


CHECKS = (_python, _packages, _loading, _device, _size, _cache, _data, _results, _sliders, _browser, _disk)


def _system() -> dict[str, Any]:
    return {
        "attnbook": attnbook.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: _version(name) or "missing" for name in ("torch", "numpy", "matplotlib", "ipywidgets", "jupyterlab")},
    }
