"""Run the chapters as Colab does: the built package at its lowest versions, each notebook in a clone of the book.

``python tools/colab.py [chapter.ipynb ...]`` runs these chapters, or all, one after the other, without a network, and
moves every slider as a front end does. It needs nothing but Python: the versions of ``binder/colab.txt`` are installed
in ``_build/colab``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch_index
from address import notebooks

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "_build" / "colab"
PYTHONS = ((3, 11), (3, 12))  # NumPy 2.0 has no build for later ones
VIEW = "application/vnd.jupyter.widget-view+json"
NOWHERE = "http://127.0.0.1:9"  # nothing answers on the port called "discard"
TIMEOUT = 600  # seconds per cell

# What a front end sends when a handle is moved is the index of the new value.
MOVE = """\
import gc
from attnbook.core.widgets import VIEW, Explorer

moved = 0
for explorer in [thing for thing in gc.get_objects() if issubclass(type(thing), Explorer)]:
    assert VIEW in explorer._repr_mimebundle_(), "no widget in the output"
    *sliders, live = explorer.widget.children
    for slider in sliders:
        before, index = live.value, (slider.index + 1) % len(slider.options)
        slider.set_state({"index": index})
        assert slider.index == index, f"{slider.description}: the slider stays at {slider.label}"
        assert len(slider.options) == 1 or live.value != before, f"{slider.description}: the same picture and words"
        moved += 1
print(moved, "sliders moved")
"""


def main() -> int:
    """Install, run, and say of each chapter how long it took.

    Returns:
        1 if a chapter failed, else 0.
    """
    parser = argparse.ArgumentParser(description="Run the chapters as Colab does.")
    parser.add_argument("chapters", nargs="*", type=Path, help="notebooks; default all")
    chapters = [path.resolve() for path in parser.parse_args().chapters] or notebooks(ROOT)
    if missing := [str(path) for path in chapters if not path.is_file()]:
        parser.error(
            f"chapters: expected notebooks, chapters/softmax_ntk/diffusion.ipynb for example, got {missing[0]}"
        )
    if sys.version_info[:2] not in PYTHONS:
        wanted = " or ".join(".".join(map(str, version)) for version in PYTHONS)
        parser.error(f"Python {wanted} is needed, this is {sys.version.split()[0]}")
    install()
    failed = 0
    with tempfile.TemporaryDirectory() as home:
        environment = surroundings(Path(home))
        # Matplotlib lists the fonts once, and on Colab it has done so.
        subprocess.run([PLACE / "bin" / "python", "-c", "import matplotlib.pyplot"], env=environment, check=True)
        for chapter in chapters:
            started = time.perf_counter()
            wrong, said = run(chapter, environment)
            print(f"{chapter.parent.name}/{chapter.stem}: {time.perf_counter() - started:.1f} s, {said}", flush=True)
            if wrong:
                failed += 1
                print(wrong, flush=True)
    return int(failed > 0)


def install() -> None:
    """Build the package as it is now, and put it with the lowest versions into an environment of its own."""
    python, index = PLACE / "bin" / "python", torch_index.wanted()
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PLACE], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], check=True)
        (wheel,) = Path(wheels).iterdir()
        lowest = ["--constraint", ROOT / "binder" / "colab.txt", *(["--extra-index-url", index] if index else [])]
        subprocess.run([*pip, "install", *lowest, wheel, "ipykernel", "nbclient", "notebook"], check=True)
        subprocess.run([*pip, "install", "--no-deps", "--force-reinstall", wheel], check=True)


def surroundings(home: Path) -> dict[str, str]:
    """Return the variables that a chapter sees: none of the caller's, and every way to the network leads nowhere.

    Args:
        home: An empty folder.

    Returns:
        All variables.
    """
    path = os.pathsep.join([str(PLACE / "bin"), os.environ["PATH"]])
    no_network = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", **no_network}


def run(chapter: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Run one chapter in its place in a copy of the book without the package, and move its sliders.

    Args:
        chapter: A notebook.
        environment: All variables.

    Returns:
        What is wrong, nothing if all is well; and how many sliders moved.
    """
    notebook = json.loads(chapter.read_text(encoding="utf-8"))
    last = {"cell_type": "code", "id": "move", "metadata": {}, "source": MOVE, "outputs": [], "execution_count": None}
    notebook["cells"].append(last)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("chapters", "results"):
            shutil.copytree(ROOT / part, Path(folder, part))
        shutil.copy(ROOT / "_toc.yml", folder)
        copy = Path(folder, chapter.relative_to(ROOT))
        copy.write_text(json.dumps(notebook), encoding="utf-8")
        execute = [PLACE / "bin" / "jupyter-execute", "--allow-errors", f"--timeout={TIMEOUT}", "--inplace", copy]
        done = subprocess.run(execute, cwd=copy.parent, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        cells = json.loads(copy.read_text(encoding="utf-8"))["cells"]
    if done.returncode:
        return done.stderr, "not finished"
    said = ["".join(output["text"]).strip() for output in cells[-1]["outputs"] if output.get("name") == "stdout"]
    return fault(cells), "".join(said) or "no slider moved"


def fault(cells: list[dict[str, Any]]) -> str:
    """Return the first cell that failed, wrote to stderr or shows a slider without its widget.

    Args:
        cells: Cells of a notebook that was run.

    Returns:
        Number, code and what is wrong; nothing if all is well.
    """
    for number, cell in enumerate(cells, 1):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if output["output_type"] == "error":
                wrong = "\n".join(output["traceback"])
            elif output.get("name") == "stderr":
                wrong = "".join(output["text"])
            elif "attnbook-slider" in "".join(data.get("text/html", "")) and VIEW not in data:
                wrong = "a slider without its widget"
            else:
                continue
            return f"cell {number} of {len(cells)}\n{''.join(cell['source'])}\n{wrong}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
