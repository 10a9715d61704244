"""What a reader finds who opens a chapter in a real JupyterLab, runs it, and moves its sliders; with the network off.

The quickest chapters that have every kind of widget, or all chapters with ``ATTNBOOK_LAB=all``, as before publishing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "chapters").glob("*/*.ipynb"))
QUICK = ["chapters/mirror_descent/token_selection.ipynb", "chapters/softmax_ntk/kernel_regression.ipynb"]
OPENED = CHAPTERS if os.environ.get("ATTNBOOK_LAB") == "all" else QUICK
KIND = re.compile(r'class=\\"attnbook-(slider|train)\\"')  # as a notebook stores the first picture of a widget
SCREEN = {"width": 1366, "height": 768}
RAW = re.compile(r"\{prf:|\{exercise|\{solution|\{eq\}|\{cite|\{doc\}|:label:|^:::", re.M)
# jupyterlab-myst says this of a link to a cell that is not typeset yet, and of one to a heading; tests/test_markdown.py
# follows the links.
EARLY = re.compile("No target for internal reference|to an implicit heading reference")

# All that is wrong with a page, as lines of text.
PROBLEMS = """() => {
  const say = (what, selector) => [...document.querySelectorAll('.jp-Notebook ' + selector)]
    .map(e => what + ': ' + e.textContent.trim().slice(0, 160));
  return [
    ...say('error', '[data-mime-type="application/vnd.jupyter.error"]'),
    ...say('stderr', '[data-mime-type="application/vnd.jupyter.stderr"]'),
    ...say('formula', '.katex-error'),
    ...say('widget', '.jp-RenderedHTMLCommon.jupyter-widgets, .jupyter-widgets-error-widget'),
    ...say('widget', '.jupyter-widgets').filter(t => /javascript error|Error displaying widget/.test(t)),
  ];
}"""
# Presses a key on a slider's handle; answers with the milliseconds until what it shows is another picture, or null.
ANSWER = """async ([handle, key]) => {
  const box = handle.closest('.widget-vbox'), picture = () => box.querySelector('img')?.src;
  const before = picture(), start = performance.now();
  handle.focus();
  handle.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
  while (performance.now() - start < 5000) {
    await new Promise(requestAnimationFrame);
    if (picture() && picture() !== before) return performance.now() - start;
  }
  return null;
}"""
# Promises to say when all cells have run: each shows a star, from when it is its turn to wait until it has ended.
RUN = """() => { window.ran = new Promise(done => {
  let begun = false;
  const look = () => {
    const prompts = [...document.querySelectorAll('.jp-Notebook .jp-InputPrompt')];
    const waiting = prompts.some(prompt => prompt.textContent.includes('*'));
    begun ||= waiting;
    if (begun && !waiting) { watch.disconnect(); done(); }
  };
  const watch = new MutationObserver(look);
  watch.observe(document.querySelector('.jp-Notebook'), {subtree: true, childList: true, characterData: true});
}); }"""
# Waits until nothing in the notebook has changed for half a second.
SETTLED = """() => new Promise(done => {
  let timer = 0;
  const later = () => { clearTimeout(timer); timer = setTimeout(() => { watch.disconnect(); done(); }, 500); };
  const watch = new MutationObserver(later);
  watch.observe(document.querySelector('.jp-Notebook'), {subtree: true, childList: true, characterData: true});
  later();
})"""

pytestmark = pytest.mark.slow


def old_widget() -> nbformat.NotebookNode:
    """A slider as the first edition had it: its picture is given a tooltip, which the front end cannot show."""
    cell = nbformat.v4.new_code_cell(
        "import ipywidgets as w\n"
        "picture = w.Image(value=b'', format='png')\n"
        "picture.tooltip = 'what is shown'\n"
        "w.VBox([w.SelectionSlider(options=[1, 2]), picture])"
    )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel})


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of anything on a JupyterLab with its token, over a copy of the chapters: it saves what it has open."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "chapters", folder / "chapters", ignore=shutil.ignore_patterns(".*"))
    nbformat.write(old_widget(), folder / "old.ipynb")
    settings = folder / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    every_cell_is_drawn = '{"windowingMode": "none"}'  # else only those near the part in view can be looked at
    (settings / "tracker.jupyterlab-settings").write_text(every_cell_is_drawn, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = os.urandom(12).hex()
    own = {
        name: str(folder / name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    }
    own["JUPYTER_CONFIG_PATH"] = str(ROOT / "tools" / "jupyter")  # as in `make lab`: no question about news
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    if OPENED is QUICK:  # the numbers of the book's size are compared by nbval; here it is what shows them that counts
        own["ATTNBOOK_SIZE"] = "smoke"
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
         f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"],
        env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/api", server)
        yield f"http://127.0.0.1:{port}/{{}}?token={token}&reset"
    finally:
        server.terminate()
        server.wait(30)


def wait_for(address: str, server: subprocess.Popen, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(address, timeout=2).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not answer within {seconds:g} s (exit status {server.poll()})", pytrace=False)


@pytest.fixture
def opened(lab: str, tab: Any) -> Iterator[Callable[[str], Any]]:
    """Call with the path of a notebook to open it in JupyterLab; its kernel ends with the test."""

    def open_notebook(path: str) -> Any:
        tab.page.set_viewport_size(SCREEN)
        tab.turn_to(lab.format(f"lab/tree/{path}"))
        tab.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        tab.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)  # the kernel has started
        tab.page.evaluate(SETTLED)  # the text cells are typeset one after the other
        return tab

    yield open_notebook
    tab.page.goto("about:blank")
    with urllib.request.urlopen(lab.format("api/sessions")) as answer:
        for session in json.load(answer):
            place = lab.format(f"api/sessions/{session['id']}")
            urllib.request.urlopen(urllib.request.Request(place, method="DELETE")).close()


def run_all(page: Any) -> None:
    """Run all cells and wait until the kernel is idle again."""
    page.evaluate(RUN)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.evaluate("() => window.ran")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=300_000)
    page.evaluate(SETTLED)  # outputs arrive after the kernel has ended


def folded(path: str) -> int:
    """Return how many cells of a notebook hide their code."""
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    return sum(cell["metadata"].get("jupyter", {}).get("source_hidden", False) for cell in cells)


def serious(problems: list[str]) -> list[str]:
    return [line for line in problems if not EARLY.search(line)]


def seconds_of(slider: Any, enough: float, tries: int = 3) -> float:
    """Seconds until a slider's picture follows a key: the first that is enough, else the best; infinite if never."""
    found = float("inf")
    for key in ("ArrowRight", "ArrowLeft") * tries:
        answered = slider.evaluate(f"(handle, key) => ({ANSWER})([handle, key])", key)
        found = min(found, float("inf") if answered is None else answered / 1000)
        if found < enough:
            break
    return found


def test_the_chapters_that_are_opened_have_every_kind_of_widget() -> None:
    kinds, all_kinds = (
        {kind for path in paths for kind in KIND.findall((ROOT / path).read_text(encoding="utf-8"))}
        for paths in (QUICK, CHAPTERS)
    )
    assert kinds == all_kinds == {"slider", "train"}


@pytest.mark.parametrize("path", OPENED)
def test_a_chapter_opens_runs_and_answers(path: str, opened: Callable) -> None:
    """Before the run readable and short; after it no error, no red box, and every slider moves its picture."""
    here = opened(path)
    page = here.page
    text = page.locator(".jp-Notebook").inner_text()
    assert RAW.findall(text) == []
    assert page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').scrollHeight") < 60 * SCREEN["height"]
    assert page.locator(".jp-InputPlaceholder").count() == folded(path) > 0, "what the page hides stands open"
    assert page.locator(".Toastify__toast").count() == 0, "something covers the page"
    run_all(page)
    assert page.evaluate(PROBLEMS) + serious(here.problems) == []
    opens = page.locator(".jp-OutputArea summary").first  # the folds of text cells are drawn by JupyterLab
    assert opens.evaluate("e => getComputedStyle(e).listStyleType") == "disclosure-closed"
    assert not re.search(r": right: ", page.locator(".jp-Notebook").inner_text()), "praise for work not done"
    sliders = page.locator(".jp-Notebook .noUi-handle").all()
    assert sliders
    assert max(seconds_of(slider, enough=1) for slider in sliders) < 1
    assert page.evaluate(PROBLEMS) + serious(here.problems) == []


def test_the_widget_of_the_first_edition_would_be_noticed(opened: Callable) -> None:
    """The canary: its view fails, which the same questions find."""
    here = opened("old.ipynb")
    run_all(here.page)
    assert here.page.evaluate(PROBLEMS) + serious(here.problems)
