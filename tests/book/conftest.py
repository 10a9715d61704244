"""Builds the book once per session from the stored outputs, serves it, and opens it in a headless browser."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import build
import chromium
import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Folder of the finished pages: those of ``make book`` if nothing changed since, else built from stored outputs."""
    pytest.importorskip("jupyter_book", reason="Jupyter Book is not installed")
    built = ROOT / "_build" / "html"
    if build.is_made_of(built / "index.html", ROOT / "_build" / "made_of", build.fingerprint(ROOT)):
        return built
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if hasattr(pytestconfig, "workerinput") else shared) / "book"
    with FileLock(f"{folder}.lock"):  # of several processes one builds, the others wait
        if not (folder / "_build" / "html" / "searchindex.js").exists():
            build_pages(folder)
    return folder / "_build" / "html"


def build_pages(folder: Path) -> None:
    """Build the pages from stored outputs; fail with what the build says."""
    command = [sys.executable, str(ROOT / "tools" / "build.py"), "--stored", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"the book does not build:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}", pytrace=False)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve files without a line per request."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def end_headers(self) -> None:
        """Let the browser keep MathJax and the styles from page to page."""
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()


@pytest.fixture(scope="session")
def address(html: Path) -> Iterator[str]:
    """Where the book is served, ending in a slash."""
    handler = functools.partial(Quiet, directory=str(html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; without one the tests are skipped, or fail if ATTNBOOK_REQUIRE_BROWSER=1."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _no_browser("playwright is not installed (pip install playwright)")
    with sync_playwright() as play:
        try:
            started = chromium.launch(play)
        except Error as error:
            _no_browser(f"no Chromium could be started: {error}")
        yield started
        started.close()


def _no_browser(reason: str) -> None:
    if os.environ.get("ATTNBOOK_REQUIRE_BROWSER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


# Leaves the formulas of a page as they are, where nobody looks at them: MathJax is told so when its settings are made.
AS_SOURCE = """Object.defineProperty(window, 'MathJax', {configurable: true, set(settings) {
  delete window.MathJax;
  window.MathJax = {...settings, startup: {typeset: false}};
}});"""


@dataclass
class Visit:
    """An open page and all that went wrong since it was asked for.

    Attributes:
        page: The page, for playwright; light, and wide unless a test changes it.
        problems: Foreign and failed requests, messages and errors on the console.
    """

    page: Any
    problems: list[str] = field(default_factory=list)
    own: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Listen to the page."""
        self.page.on("request", lambda r: self.note(f"foreign request: {r.url}", wrong=not r.url.startswith(self.own)))
        self.page.on("response", lambda r: self.note(f"status {r.status}: {r.url}", wrong=r.status >= 400))
        self.page.on("requestfailed", lambda r: self.note(f"failed: {r.url}"))
        self.page.on("pageerror", lambda error: self.note(f"error: {error}"))
        self.page.on("console", lambda m: self.note(f"console: {m.text}", wrong=m.type == "error"))

    def note(self, problem: str, *, wrong: bool = True) -> None:
        """Remember what went wrong."""
        if wrong:
            self.problems.append(problem)

    def turn_to(self, url: str, size: dict[str, int] = WIDE) -> None:
        """Open another page in place of this one, and wait until its formulas are typeset."""
        place = "file://" if url.startswith("file://") else url[: url.index("/", 8) + 1]
        self.page.goto("about:blank")  # what the page before still asks for ends here
        self.page.set_viewport_size(size)
        self.page.emulate_media(media="screen", color_scheme="light")
        self.problems, self.own = [], (place, "data:", "blob:", "ws://127.0.0.1")
        self.page.goto(url)
        chromium.settle(self.page)


@pytest.fixture(scope="session")
def context(browser: Any) -> Iterator[Any]:
    """What pages share; it is offline (``chromium.FLAGS``), and what one page has loaded, the next ones need not."""
    shared = browser.new_context(viewport=WIDE, color_scheme="light")
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def visit(context: Any) -> Callable[..., Visit]:
    """Call with a URL to open it, with ``formulas=False`` if they need not be typeset, which takes most of the time."""

    def open_page(url: str, size: dict[str, int] = WIDE, *, formulas: bool = True) -> Visit:
        here = Visit(context.new_page())
        if not formulas:
            here.page.add_init_script(AS_SOURCE)
        here.turn_to(url, size)
        return here

    return open_page


@pytest.fixture(scope="module")
def tab(context: Any) -> Iterator[Visit]:
    """A tab that shows one page after the other: a new one would start a process, and MathJax in it, each time."""
    here = Visit(context.new_page())
    yield here
    here.page.close()
