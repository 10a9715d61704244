"""What ``address.py`` writes into every notebook: its first two cells, and which cells JupyterLab shows folded.

The first cell installs the book on Colab and holds the size and the device, which a reader changes there and Papermill
with ``-p size smoke``: it has the tag ``parameters``, and what Papermill injects comes right below it. The second cell
uses them. What the built page hides by a tag is folded in JupyterLab, too. Needs nothing but Python.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path
from typing import Any

WIDTH = 84  # columns that fit into the page and into JupyterLab
OWN = ["remove-cell", "nbval-ignore-output"]
PARAMETERS = ["parameters", *OWN]
INSTALLS = """\
# On Colab this fetches and installs the book; elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    !test -d /content/book || git clone -q --depth 1 {address} /content/book
    %pip install -q /content/book
    %cd -q /content/book/{folder}
"""
INSTALLS_NOTHING = """\
# On Colab the book must be installed first. `make address URL=...`, with the address of
# your copy of the repository, writes here the lines that do it.
"""
AUTO = 'Size and device: "auto" is the size "book", on a GPU if there is one; "smoke" is a quick test'
USE = """\
from attnbook.core import runtime

runtime.use(size=size, device=device)"""
HIDDEN = {  # by the second half of a tag, such as hide-input
    "input": ["source_hidden"],
    "output": ["outputs_hidden"],
    "cell": ["outputs_hidden", "source_hidden"],
}
CLASS = re.compile(r'^class (\w+)\((?:(?!^class ).)*?^    id = "([\w.]+)"$', re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r'^@experiment\(\s*"([\w.]+)".*?^def (\w+)\(', re.MULTILINE | re.DOTALL)


def with_own_cells(path: Path, url: str) -> str:
    """Return a notebook with these cells in the place of those that it has, and folded where its tags say so.

    Args:
        path: A notebook, ``chapters/<paper>/<chapter>.ipynb``.
        url: The address of the repository, or nothing.

    Returns:
        Its text; identity and run count of the cells stay.

    Raises:
        ValueError: If the first cell of the notebook is another one.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    if cells[0]["cell_type"] != "code" or "# On Colab" not in source(cells[0]):
        raise ValueError(f"{path.name}: the first cell is not the one for Colab; add one with the words # On Colab")
    if cells[1:2] == [] or cells[1]["cell_type"] != "code" or "runtime.use(" not in source(cells[1]):
        identity = {"id": f"{cells[0]['id']}-use"} if "id" in cells[0] else {}
        new = {"cell_type": "code", "execution_count": None, **identity, "metadata": {}, "outputs": [], "source": []}
        cells.insert(1, new)
    written = first_cell(url, path), USE
    for cell, text, tags in zip(cells, written, (PARAMETERS, OWN), strict=False):
        cell["source"], cell["metadata"]["tags"] = text.splitlines(keepends=True), tags
    for cell in cells:
        fold(cell)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def first_cell(url: str, path: Path) -> str:
    """Return the code of the first cell.

    Args:
        url: The address of the repository, or nothing.
        path: The notebook.

    Returns:
        What installs the book on Colab, or how to make it do so, and the size and the device, with the sizes to choose.
    """
    rest = '"full" is the same as "book" here' if any(sized(path)) else "in this chapter the size changes nothing"
    comment = "; ".join([AUTO, f'"full" {what}' if (what := full_size(path)) else rest]) + "."
    lines = textwrap.fill(comment, WIDTH, initial_indent="# ", subsequent_indent="# ")
    folder = path.parent.relative_to(path.parents[2]).as_posix()
    installs = INSTALLS.format(address=url, folder=folder) if url else INSTALLS_NOTHING
    return f'{installs}\n{lines}\nsize = "auto"\ndevice = "auto"'


def full_size(path: Path) -> str:
    """Return what the full size changes in a chapter.

    Args:
        path: A notebook, ``chapters/<paper>/<chapter>.ipynb``, in the folder of the book.

    Returns:
        What the chapter then runs, how long the stored run took, and what it then shows without running it; empty
        where it changes nothing.
    """
    root, paper = path.parents[2], path.parent.name
    modules = sorted((root / "attnbook" / paper / path.stem).glob("*.py"))
    ids = dict(pair for module in modules for pair in CLASS.findall(module.read_text(encoding="utf-8")))
    ids |= functions(path)
    stored = {kind: root / "results" / "full" / f"{name}.json" for kind, name in ids.items()}
    kinds, (ran, shown) = [kind for kind, file in stored.items() if file.is_file()], sized(path)
    said = []
    if runs := [kind for kind in kinds if kind in ran]:
        said.append(f"runs {listed(runs)} ({time_and_place([stored[kind] for kind in runs])})")
    if shows := [kind for kind in kinds if kind in shown]:
        said.append(f"shows stored runs of {listed(shows)}")
    return " and ".join(said)


def functions(path: Path) -> dict[str, str]:
    """Return the ids of the experiments in the script beside a notebook, by the names of their functions."""
    script = path.with_suffix(".py")
    found = FUNCTION.findall(script.read_text(encoding="utf-8")) if script.is_file() else ()
    return {name: one for one, name in found}


def sized(path: Path) -> tuple[set[str], set[str]]:
    """Return which experiments a notebook runs, and of which it shows stored runs, at the size of the session.

    Args:
        path: A notebook.

    Returns:
        Two sets of names: classes with ``.at(...).run()``, perhaps by way of a name, and functions with ``.run()``;
        classes with ``.load_stored()``.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [source(cell) for cell in cells if cell["cell_type"] == "code"]
    nodes = [node for text in code if "%pip" not in text for node in ast.walk(ast.parse(text))]
    named = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            both = [getattr(side, "elts", [side]) for side in (node.targets[0], node.value)]
            named |= {ast.unparse(name): called(value, "at") for name, value in zip(*both, strict=False)}
    objects = [node.func.value for node in nodes if called(node, "run")]
    ran = {called(value, "at") or named.get(ast.unparse(value)) for value in objects}
    ran |= {called(node, "run") for node in nodes} & functions(path).keys()
    return ran - {None}, {called(node, "load_stored") for node in nodes} - {None}


def called(node: ast.AST, method: str) -> str | None:
    """Return the class or object whose method a call calls without naming a size; None for anything else."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if not is_call or node.func.attr != method or node.args:
        return None
    return ast.unparse(node.func.value).rpartition(".")[2]


def listed(names: list[str]) -> str:
    """Return names as a sentence has them: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def time_and_place(files: list[Path]) -> str:
    """Return how long stored runs took, and on what: 14 min on a CPU."""
    runs = [json.loads(file.read_text(encoding="utf-8"))["provenance"] for file in files]
    minutes = max(1, round(sum(run["wall_seconds"] for run in runs) / 60))
    return f"{minutes} min on {listed(sorted({'a CPU' if run['device'][:3] == 'cpu' else 'a GPU' for run in runs}))}"


def fold(cell: dict[str, Any]) -> None:
    """Fold a cell in JupyterLab as its tags have it on the built page; open what no tag hides.

    The cell with the parameters stays open, which no page shows: it is where a reader changes them.

    Args:
        cell: Changed in place.
    """
    tags = cell["metadata"].get("tags", [])
    folded: dict[str, bool] = {}
    for tag in tags if "parameters" not in tags else ():
        how, _, part = tag.partition("-")
        folded |= dict.fromkeys(HIDDEN.get(part, ()) if how in ("hide", "remove") else (), True)
    others = {key: value for key, value in cell["metadata"].get("jupyter", {}).items() if not key.endswith("_hidden")}
    cell["metadata"].pop("jupyter", None)
    if kept := {**others, **folded}:
        cell["metadata"] = dict(sorted({**cell["metadata"], "jupyter": kept}.items()))
