"""The skeleton of a new paper in a checkout: library, chapter with its script, tests, and entries in the book's files.

All texts lie in ``tools/new_paper``: files at the places that they go to, and ``entries.toml`` with what is added to
files that are there. A few words stand for the paper's own and are replaced, in names of files too.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attnbook
from attnbook.core.results import results_folder
from attnbook.ledger import Paper, read_paper

__all__ = ["planned", "written"]

TEMPLATE = Path("tools") / "new_paper"
ENTRIES = "entries.toml"


def planned(root: Path, name: str, *, chapter: str, prefix: str | None, title: str | None) -> dict[Path, str]:
    """Return the files that a new paper needs, and check that nothing is in their way; nothing is written.

    Args:
        root: The checkout of the repository whose package this is.
        name: Of its two folders, in ``attnbook`` and ``chapters``: small letters, digits and underscores.
        chapter: Of its first chapter, likewise; the script beside the notebook is a module of this name.
        prefix: Of claims and exercises, two capital letters; default from the name.
        title: Of the paper; default the name in words.

    Returns:
        File, relative to ``root``, to its new text.

    Raises:
        ValueError: If this is no checkout, a name is not one, or something is there already.
    """
    if root.resolve() != Path(attnbook.__file__).resolve().parents[1] or not (root / TEMPLATE).is_dir():
        raise ValueError(
            f"folder: got {root}, expected a checkout of the repository with this package in it: clone it, "
            "`pip install -e .` there, and call this in its first folder"
        )
    for argument, value in (("name", name), ("chapter", chapter)):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", value) or keyword.iskeyword(value):
            raise ValueError(
                f"{argument}: got {value!r}, expected a name for a module: small letters, digits and underscores, a "
                "letter first, and no word of Python"
            )
    for place in (f"attnbook/{name}", f"attnbook/{name}.py", f"chapters/{name}", f"tests/{name}"):
        if (root / place).exists():
            raise ValueError(f"name: got {name!r}, expected a new one: {place} is there already")
    if taken := _module_of_this_name(root, chapter):
        raise ValueError(f"chapter: got {chapter!r}, expected a name that no module has: {taken} is there already")
    papers = [read_paper(file) for file in sorted(root.glob("chapters/*/claims.toml"))]
    title = title or name.replace("_", " ").capitalize()
    if not title.strip() or re.search(r"[\"\\{}\[\]\n]", title):
        raise ValueError(f"title: got {title!r}, expected one line without quotation marks, brackets and backslashes")
    words = {
        "paper_name": name, "chapter_name": chapter, "Paper Title": title, "PART_NUMBER": str(len(papers) + 1),
        "XX": (letters := _prefix(name, prefix, papers)), "xx-": f"{letters.lower()}-",
    }  # fmt: skip
    return _new_files(root, words) | _longer_files(root, words)


@contextmanager
def written(root: Path, name: str, files: dict[Path, str]) -> Iterator[None]:
    """Write what :func:`planned` returned; if the block fails, the checkout is again what it was, and this is said.

    Args:
        root: The checkout.
        name: Of the paper's folders.
        files: File to text.
    """
    before = {path: (root / path).read_text(encoding="utf-8") for path in files if (root / path).exists()}
    try:
        _write(root, files)
        yield
    except BaseException:
        _write(root, before)
        stored, new = results_folder(), (root / path for path in files if path not in before)
        for path in (*new, *stored.glob(f"*/{name}.*.json"), *stored.glob(f"*/{name}.*.nc")):
            path.unlink(missing_ok=True)
        folders = [root / part / name for part in ("attnbook", "chapters", "tests")]
        for folder in (*folders, *stored.glob(f"*/.parts/{name}.*")):
            shutil.rmtree(folder, ignore_errors=True)
        print("attnbook: everything written for it is removed again", file=sys.stderr)
        raise


def _module_of_this_name(root: Path, chapter: str) -> str:
    """What a script of this name would hide, or be hidden by: another paper's, or a module that can be imported."""
    scripts = [path.relative_to(root).as_posix() for path in sorted(root.glob(f"chapters/*/{chapter}.py"))]
    return next(iter(scripts), f"the module {chapter}" if importlib.util.find_spec(chapter) else "")


def _write(root: Path, files: dict[Path, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def _prefix(name: str, wanted: str | None, papers: list[Paper]) -> str:
    """The prefix that was asked for, or the first letters of the name's words, if it is free."""
    parts = [part for part in name.split("_") if part]
    prefix = wanted or (parts[0][0] + parts[1][0] if len(parts) > 1 else name[:2]).upper()
    owner = {paper.prefix: f", which belongs to {paper.name}" for paper in papers}.get(prefix, "")
    if owner or not re.fullmatch("[A-Z]{2}", prefix):
        raise ValueError(f"prefix: got {prefix!r}{owner}, expected two capital letters of your own: --prefix XY")
    return prefix


def _new_files(root: Path, words: dict[str, str]) -> dict[Path, str]:
    found = {}
    for file in sorted((root / TEMPLATE).rglob("*.*")):
        path = Path(_replaced(file.relative_to(root / TEMPLATE).as_posix(), words))
        if file.is_file() and file.suffix != ".pyc" and path.name != ENTRIES:
            if (root / path).exists():
                raise ValueError(f"name: expected a new one: {path} is there already")
            found[path] = _replaced(file.read_text(encoding="utf-8"), words)
    return found


def _longer_files(root: Path, words: dict[str, str]) -> dict[Path, str]:
    """The files of the book with their new entries."""
    found: dict[Path, str] = {}
    for entry in tomllib.loads((root / TEMPLATE / ENTRIES).read_text(encoding="utf-8"))["entry"]:
        path = Path(entry["file"])
        text = found.get(path) or (root / path).read_text(encoding="utf-8")
        places = list(re.finditer(entry["after"], text))
        if not places:
            raise ValueError(f"{path}: expected a place for the new entry, found nothing like {entry['after']!r}")
        at = places[-1].end()
        found[path] = text[:at] + _replaced(entry["text"], words) + text[at:]
    return found


def _replaced(text: str, words: dict[str, str]) -> str:
    """Replace all words in one go, so that no replacement is replaced again."""
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)
