"""Know when a chapter must run again.

jupyter-cache knows a notebook by its code cells alone, and Sphinx reads a page again only when the
page's own file changes. Neither sees a change in the package that the chapter imports. :func:`digest`
does: it covers the source of every module a chapter imports, directly or not, and the claims and
results of its paper. ``tools/build.py`` stores it with the outputs of each run; the Sphinx extension
below reads a page again when its digest has changed, and never runs a chapter itself.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.modules.setdefault("rfc3987_syntax", None)  # see LIGHTLY in tools/build.py
import nbformat  # noqa: E402

PACKAGE = "attnbook"
KEY = "attnbook_digest"
TIMES = "times"  # marks in its metadata a page that tells how long chapters take


def digest(notebook: Path, root: Path) -> str:
    """Return a fingerprint of everything but the notebook itself that its outputs depend on.

    Args:
        notebook: The chapter, ``<root>/chapters/<paper>/<chapter>.ipynb``.
        root: Folder that holds the package, the chapters and the results.

    Returns:
        A SHA-256 in hexadecimal digits.
    """
    total = hashlib.sha256(os.environ.get("ATTNBOOK_SIZE", "book").encode())
    for file in sources(notebook, root):
        total.update(file.relative_to(root).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def sources(notebook: Path, root: Path) -> list[Path]:
    """Return the files that :func:`digest` covers: script and modules imported, the paper's claims and results.

    Args:
        notebook: The chapter.
        root: Folder that holds the package, the chapters and the results.

    Returns:
        Existing files, sorted.
    """
    paper = notebook.parent.name
    imported = _imports(notebook)
    beside = [file for name in imported if (file := notebook.parent / f"{name}.py").is_file()]
    imported = imported.union(*(_imported(ast.parse(file.read_text(encoding="utf-8"))) for file in beside))
    inside = {name for name in imported if name.split(".")[0] == PACKAGE}
    files = {*beside, *(_file(module, root) for module in _closure(inside, _graph(root)))}
    files.update(notebook.parent.glob("claims.toml"))
    files.update(file for kind in ("json", "nc") for file in (root / "results").rglob(f"{paper}.*.{kind}"))
    return sorted(files)


def cached_run(store: Any, notebook: Path) -> dict[str, Any]:
    """Return what is known of the run whose outputs of a chapter were stored.

    Args:
        store: A jupyter-cache.
        notebook: The chapter.

    Returns:
        Its digest, as ``KEY``, and ``execution_seconds``; nothing when there are no outputs, or none that can be read.
    """
    try:
        record = store.match_cache_notebook(nbformat.read(notebook, as_version=4))
        store.get_cache_bundle(record.pk)  # a record whose file was never finished is no record
    except (KeyError, ValueError, OSError):
        return {}
    return record.data or {}


def cached_digest(store: Any, notebook: Path) -> str | None:
    """Return the digest under which the outputs of a chapter were stored, None when there is none."""
    return cached_run(store, notebook).get(KEY)


def _imports(notebook: Path) -> set[str]:
    """Names in the import statements of the code cells."""
    from IPython.core.inputtransformer2 import TransformerManager  # a magic such as %pip is not Python

    found: set[str] = set()
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        found |= _imported(ast.parse(TransformerManager().transform_cell(cell.source)))
    return found


def _imported(tree: ast.Module) -> set[str]:
    """Names of imported modules (and of their attributes, which do no harm)."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return found


def _closure(start: set[str], graph: Any) -> set[str]:
    seen: set[str] = set()
    todo = list(start)
    while todo:
        module = todo.pop()
        if module and module not in seen:
            todo.append(module.rpartition(".")[0])  # importing a module runs the __init__ of each package above it
            if module in graph.modules:
                seen.add(module)
                todo.extend(graph.find_modules_directly_imported_by(module))
    return seen


@cache
def _graph(root: Path) -> Any:
    import grimp

    sys.path.insert(0, str(root))
    try:
        return grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    finally:
        sys.path.remove(str(root))


def _file(module: str, root: Path) -> Path:
    stem = root.joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def read_again(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Name the pages of chapters that ran since they were last read, and pages that tell times; refuse stale outputs.

    What is known of the runs is kept as ``env.attnbook_runs``: nothing where pages are made from stored outputs.

    Returns:
        Names of pages.

    Raises:
        SystemExit: If a chapter has not run; any other exception would show seventy lines of traceback below it.
    """
    from jupyter_cache import get_cache

    before, env.attnbook_runs = getattr(env, "attnbook_runs", {}), {}
    if app.config.nb_execution_mode != "cache":
        return []
    root, store = Path(app.srcdir), get_cache(str(Path(app.outdir).parent / ".jupyter_cache"))
    paths = {name: Path(env.doc2path(name)) for name in sorted(env.found_docs)}
    chapters = {name: path for name, path in paths.items() if path.suffix == ".ipynb"}
    runs = {name: cached_run(store, path) for name, path in chapters.items()}
    stale = [name for name, path in chapters.items() if runs[name].get(KEY) != digest(path, root)]
    if stale:
        which = f"{len(stale)} of {len(chapters)} have not run with the present code, {stale[0]} among them"
        raise SystemExit(f"\nnot built: run `make book`, which runs the chapters first; {which}")
    env.attnbook_runs = runs
    again = [name for name in runs if before.get(name) != runs[name]]
    return again + [name for name, known in env.metadata.items() if again and TIMES in known and name in env.found_docs]


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("env-get-outdated", read_again)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
