"""A chapter runs again when something it depends on has changed, and only then; a stopped build continues."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import build
import chapter_cache
import pytest

nbformat = pytest.importorskip("nbformat")
jupyter_cache = pytest.importorskip("jupyter_cache")
pytest.importorskip("grimp")
from jupyter_cache.base import CacheBundleIn  # noqa: E402  (only where it is installed)

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "__init__.py": "",
    "core/__init__.py": "",
    "core/rng.py": "SEED = 7",
    "core/figures.py": "",
    "core/unused.py": "",
    "alpha/__init__.py": "",
    "alpha/models.py": "def draw():\n    from attnbook.core import rng\n    return rng.SEED",
    "beta/__init__.py": "",
    "beta/models.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project of the same plan: a package, a ledger, results, one chapter that imports ``alpha.models``."""
    for name, text in MODULES.items():
        file = tmp_path / "attnbook" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (tmp_path / "results" / "book").mkdir(parents=True)
    for name in ("_ext", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "_config.yml").write_text("execute: {timeout: 60}\n", encoding="utf-8")
    cells = ["%pip --version\nfrom attnbook.alpha import models", "import attnbook.core.figures"]
    write_chapters(tmp_path, alpha=cells)
    for paper in ("alpha", "beta"):
        (tmp_path / "chapters" / paper).mkdir(exist_ok=True)
        (tmp_path / "chapters" / paper / "claims.toml").touch()
    return tmp_path


def write_chapters(project: Path, **chapters: list[str]) -> None:
    """Write notebooks ``chapters/alpha/<name>.ipynb`` with these code cells, and a table of contents."""
    folder = project / "chapters" / "alpha"
    folder.mkdir(parents=True, exist_ok=True)
    for name, cells in chapters.items():
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, chapter(project, name))
    lines = [f"  - file: chapters/alpha/{name}" for name in chapters]
    toc = ["format: jb-book", "root: intro", "chapters:", *lines]
    (project / "_toc.yml").write_text("\n".join(toc) + "\n", encoding="utf-8")


@pytest.fixture
def digest(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Call to get the digest of a chapter as the files are now."""
    for name in [name for name in sys.modules if name.split(".")[0] == "attnbook"]:
        monkeypatch.delitem(sys.modules, name)  # else the import graph is that of the installed package

    def now(name: str = "alpha") -> str:
        chapter_cache._graph.cache_clear()
        return chapter_cache.digest(chapter(project, name), project)

    return now


def chapter(project: Path, name: str) -> Path:
    """The notebook of a chapter."""
    return project / "chapters" / "alpha" / f"{name}.ipynb"


@pytest.mark.parametrize(
    "name",
    [
        "attnbook/alpha/models.py",  # imported
        "attnbook/core/rng.py",  # imported by what is imported, inside a function
        "attnbook/core/figures.py",  # imported in a later cell
        "attnbook/__init__.py",  # run by every import
        "attnbook/alpha/__init__.py",
        "attnbook/core/__init__.py",
        "chapters/alpha/claims.toml",  # the claims of its paper
        "results/book/alpha.first.json",  # the results of its paper
    ],
)
def test_digest_changes_with_what_a_chapter_depends_on(name: str, project: Path, digest: Callable[[], str]) -> None:
    """Modules imported directly or not, and the paper's ledger and results, are part of the digest."""
    before = digest()
    with (project / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert digest() != before


@pytest.mark.parametrize(
    "name",
    [
        "attnbook/core/unused.py",
        "attnbook/beta/models.py",
        "chapters/beta/claims.toml",
        "results/book/beta.first.json",
        "results/book/alphabet.first.json",
        "_config.yml",
    ],
)
def test_digest_ignores_everything_else(name: str, project: Path, digest: Callable[[], str]) -> None:
    """Other modules, other papers and the settings of the book leave the digest alone."""
    before = digest()
    with (project / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert digest() == before


def test_digest_depends_on_the_scale(digest: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of a smoke run are never shown as those of the book."""
    monkeypatch.delenv("ATTNBOOK_SIZE", raising=False)
    book = digest()
    monkeypatch.setenv("ATTNBOOK_SIZE", "smoke")
    assert digest() != book


@pytest.mark.parametrize(
    "name", ["chapters/alpha/alpha.ipynb", "attnbook/core/rng.py", "results/book/a.json", "_toc.yml"]
)
def test_nothing_is_built_while_nothing_changes(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pages are made of has a fingerprint, which a finished build leaves beside them; notes do not count."""
    made_of, page, stamp = build.fingerprint(project), project / "index.html", project / "made_of"
    assert not build.is_made_of(page, stamp, made_of)
    stamp.write_text(made_of, encoding="utf-8")
    assert not build.is_made_of(page, stamp, made_of)
    page.touch()
    (project / "notes.md").touch()
    (project / "attnbook" / "__pycache__").mkdir()
    (project / "attnbook" / "__pycache__" / "rng.pyc").touch()
    assert build.is_made_of(page, stamp, build.fingerprint(project))
    with (project / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    changed = build.fingerprint(project)
    assert not build.is_made_of(page, stamp, changed)
    monkeypatch.setenv("ATTNBOOK_SIZE", "smoke")
    assert build.fingerprint(project) not in (made_of, changed)


def test_a_second_build_says_that_nothing_has_changed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """And does nothing else."""
    stamp = pretend_built(project)
    before = stamp.stat().st_mtime_ns
    monkeypatch.setattr(build, "ROOT", project)
    monkeypatch.setattr(sys, "argv", ["build.py"])
    assert build.main() == 0
    assert "nothing has changed: open" in capsys.readouterr().out
    assert stamp.stat().st_mtime_ns == before


def pretend_built(project: Path) -> Path:
    """Put a page there as if it were made of what there is now; return the stamp that says so."""
    html, stamp = project / "_build" / "html", project / "_build" / "made_of"
    html.mkdir(parents=True)
    (html / "index.html").touch()
    stamp.write_text(build.fingerprint(project), encoding="utf-8")
    return stamp


@pytest.fixture
def pages(project: Path, digest: Callable[..., str]) -> tuple[SimpleNamespace, Callable[..., None]]:
    """What Sphinx knows of a small book with two chapters, and how to store a run of one."""
    write_chapters(project, one=["1 + 1"], two=["2 + 2"])
    names = {f"chapters/alpha/{name}": chapter(project, name) for name in ("one", "two")}
    found = {**names, "chapters/how_to_read": project / "chapters" / "how_to_read.md"}
    env = SimpleNamespace(found_docs=set(found), doc2path=found.get, srcdir=project)
    env.metadata = {"chapters/how_to_read": {chapter_cache.TIMES: "of chapters"}, "chapters/alpha/one": {}}
    config, out = SimpleNamespace(nb_execution_mode="cache"), project / "_build" / "html"
    app = SimpleNamespace(config=config, srcdir=project, outdir=out, env=env)
    store = jupyter_cache.get_cache(str(project / "_build" / ".jupyter_cache"))

    def ran(name: str, seconds: float) -> None:
        outputs = nbformat.read(chapter(project, name), as_version=4)
        data = {"execution_seconds": seconds, chapter_cache.KEY: digest(name)}
        bundle = CacheBundleIn(outputs, str(chapter(project, name)), data=data)
        store.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)

    return app, ran


def test_pages_are_read_again_after_a_run_and_tell_its_time(pages: tuple) -> None:
    """Also after one of the same code, for instance in a cache that was emptied; with the pages that list times."""
    app, ran = pages

    def again() -> list[str]:
        return chapter_cache.read_again(app, app.env, set(), set(), set())

    ran("one", 90.0)
    ran("two", 20.0)
    assert again() == ["chapters/alpha/one", "chapters/alpha/two", "chapters/how_to_read"]
    assert again() == []
    ran("one", 36.0)
    assert again() == ["chapters/alpha/one", "chapters/how_to_read"]
    assert app.env.attnbook_runs["chapters/alpha/one"]["execution_seconds"] == 36.0
    app.config.nb_execution_mode = "off"
    assert again() == []
    assert app.env.attnbook_runs == {}


def test_a_book_whose_chapters_have_not_run_says_what_to_do_and_nothing_after_it(pages: tuple) -> None:
    app, ran = pages
    ran("two", 20.0)
    with pytest.raises(SystemExit) as stopped:  # no other exception: Jupyter Book writes a traceback below those
        chapter_cache.read_again(app, app.env, set(), set(), set())
    assert str(stopped.value).strip().startswith("not built: run `make book`")
    assert "1 of 2 have not run with the present code, chapters/alpha/one" in str(stopped.value)


RUN_STALE_TWICE = """
from rich.console import Console
from run_chapters import run_stale
for time in 1, 2:
    print("failed:", run_stale(Console(width=200), jobs=2, timeout=60))
"""


# Becomes the Python of its arguments, with SIGINT set to this, whatever it is where the tests were started.
BORN = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.{});"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def start(project: Path, *command: str) -> subprocess.Popen:
    """Start Python in the project's ``tools``, its output in one pipe."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(project / "tools")}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=project / "tools",
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends a Unix signal")
def test_stopped_build_keeps_finished_chapters_and_continues(project: Path) -> None:
    """A build that is stopped ends within seconds; chapters that had ended do not run again, the others do.

    What a script starts in the background with ``&``, as in ``nohup make book &``, is born with SIGINT ignored.
    """
    log, begun, hurry = project / "log", project / "begun", project / "hurry"
    note = f"open({str(log)!r}, 'a').write('{{}}\\n')"
    wait = f"import time, os\nif not os.path.exists({str(hurry)!r}): time.sleep(60)"
    slow = [f"open({str(begun)!r}, 'w').close()", wait, note.format("slow")]
    write_chapters(project, slow=slow, quick=[note.format("quick")])
    for born, stop in (("SIG_DFL", signal.SIGINT), ("SIG_IGN", signal.SIGINT), ("SIG_IGN", signal.SIGTERM)):
        begun.unlink(missing_ok=True)
        with start(project, "-c", BORN.format(born), "build.py", "--jobs", "2") as process:
            while born == "SIG_DFL" and "quick:" not in (line := process.stdout.readline()):
                assert line, "the build ended before its quick chapter"
            while not begun.exists():
                assert process.poll() is None, "the build ended before its slow chapter"
                time.sleep(0.05)
            stopped = time.monotonic()
            process.send_signal(stop)
            assert "stopped" in process.communicate(timeout=30)[0]
            assert process.returncode == 130
            assert time.monotonic() - stopped < 20
    hurry.touch()
    with start(project, "-c", RUN_STALE_TWICE) as process:
        printed = process.communicate(timeout=120)[0]
    assert "1 of 2 chapters are up to date" in printed
    assert printed.count("failed: []") == 2
    assert log.read_text().split() == ["quick", "slow"]
    assert "2 of 2 chapters are up to date" in printed


@pytest.mark.slow
def test_failure_names_chapter_and_cell_and_keeps_the_rest(project: Path, digest: Callable[..., str]) -> None:
    """A failing chapter is reported with cell and traceback, ends the build with 1 and is not stored.

    The pages of a build that was broken off are not taken for those of its sources.
    """
    stamp = pretend_built(project)
    write_chapters(project, good=["1 + 1"], bad=["x = 0", "1 / x", "print('never')"])
    with start(project, "build.py", "--jobs", "1") as process:
        printed = process.communicate(timeout=120)[0]
        assert process.returncode == 1
    assert "chapters/alpha/bad failed in cell 2 of 3" in printed
    assert "ZeroDivisionError" in printed
    assert "never" not in printed
    assert not stamp.exists()
    store = jupyter_cache.get_cache(str(project / "_build" / ".jupyter_cache"))
    kept = {name: chapter_cache.cached_digest(store, chapter(project, name)) for name in ("good", "bad")}
    assert kept == {"good": digest("good"), "bad": None}
