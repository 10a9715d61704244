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
WIDE = 1280


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the finished pages: those of ``make book`` if nothing changed since, else built from stored outputs."""
    pytest.importorskip("jupyter_book", reason="Jupyter Book is not installed")
    built = ROOT / "_build" / "html"
    if build.is_made_of(built / "index.html", ROOT / "_build" / "made_of", build.fingerprint(ROOT)):
        return built
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "book"
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


@dataclass
class Visit:
    """An open page and all that went wrong while it loaded.

    Attributes:
        page: The page, for playwright; wide and light unless a test changes it.
        problems: Foreign and failed requests, messages and errors on the console.
    """

    page: Any
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def visit(browser: Any) -> Iterator[Callable[[str], Visit]]:
    """Call with a URL to open it, offline (``chromium.FLAGS``); what one page has loaded, the next ones need not."""
    context = browser.new_context(viewport={"width": WIDE, "height": 900}, color_scheme="light")

    def open_page(url: str) -> Visit:
        here = Visit(context.new_page())
        _listen(here, url)
        here.page.goto(url)
        chromium.settle(here.page)
        return here

    yield open_page
    context.close()


def _listen(here: Visit, url: str) -> None:
    own = ("file://" if url.startswith("file://") else url[: url.index("/", 8) + 1], "data:", "blob:", "ws://127.0.0.1")
    note = here.problems.append
    here.page.on("request", lambda r: None if r.url.startswith(own) else note(f"foreign request: {r.url}"))
    here.page.on("response", lambda r: note(f"status {r.status}: {r.url}") if r.status >= 400 else None)
    here.page.on("requestfailed", lambda r: note(f"failed: {r.url}"))
    here.page.on("pageerror", lambda error: note(f"error: {error}"))
    here.page.on("console", lambda m: note(f"console: {m.text}") if m.type == "error" else None)
