"""Write the address of the repository wherever it is needed: ``make address URL=https://github.com/someone/attnbook``.

It is kept in one place, ``repository: url`` of ``_config.yml``: the buttons that open Colab, Binder and the repository,
and the address of the published book, follow from it when the book is built. This tool puts it into the lines that
clone and install (README, landing page, CONTRIBUTING, "Use it in your work"), into the first cell of every notebook,
which installs the book on Colab, and into the links of notebooks to other pages.

``python tools/address.py URL``   set it
``python tools/address.py none``  take it away: nothing is left of it
``python tools/address.py``       leave it, and write what is missing or different, as in a new notebook
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "_ext"))
from book_address import pages, published_at, to_local, to_published  # noqa: E402  (its folder is on the path only now)

KEPT = re.compile(r'^(repository:\n  url: )"?([^"\n]*)"?$', re.MULTILINE)
NOT_SET = "<the address of this repository>"
LINE = re.compile(rf"(git clone |git\+)(?:{NOT_SET}|https://github\.com/[\w.-]+/[\w.-]+)")
WITH_LINES = ("README.md", "intro.md", "CONTRIBUTING.md", "reference/use_it.md")
TAGS = ["remove-cell", "nbval-ignore-output"]
INSTALLS = """\
# On Colab this installs the book; elsewhere it installs nothing.
import sys

if "google.colab" in sys.modules:
    %pip install -q "attnbook @ git+{address}"
"""
INSTALLS_NOTHING = """\
# On Colab the book must be installed first: `make address URL=https://github.com/someone/attnbook`, with the address of
# your copy of the repository, writes here the lines that do it.
"""
ALWAYS = """
# "auto" is the size of the book, on a GPU if there is one.
# To scale up, write scale="paper" and run all cells.
from attnbook.core import runtime

runtime.use(scale="auto", device="auto")"""


def main(arguments: list[str]) -> int:
    """Write, and say what the address is and which files were written.

    Args:
        arguments: One address, ``none``, or nothing.

    Returns:
        0, or 1 when the address is malformed or a notebook does not begin with its cell; then nothing was written.
    """
    parser = argparse.ArgumentParser(description="Write the address of the repository wherever it is needed.")
    parser.add_argument("url", nargs="?", help="https://github.com/someone/attnbook, or none")
    url = parser.parse_args(arguments).url
    try:
        written = write(ROOT, current(ROOT) if url is None else "" if url == "none" else url)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for path in written:
        print(f"written: {path.relative_to(ROOT).as_posix()}")
    print(f"address of this repository: {current(ROOT) or 'not set'}")
    return 0


def current(root: Path) -> str:
    """Return the address of the repository, or nothing.

    Args:
        root: Folder of the book.

    Returns:
        What ``_config.yml`` has.

    Raises:
        ValueError: If it has no such line.
    """
    kept = KEPT.search((root / "_config.yml").read_text(encoding="utf-8"))
    if kept is None:
        raise ValueError('_config.yml: expected the lines "repository:" and "  url: ...", found none')
    return kept[2]


def write(root: Path, url: str) -> list[Path]:
    """Write an address into all files that need it.

    Args:
        root: Folder of the book.
        url: The address of the repository; nothing to take the old one away.

    Returns:
        The files that were not yet so.

    Raises:
        ValueError: If the address is malformed or a notebook does not begin with its cell; then nothing is written.
    """
    old, new, book = published_at(current(root)), published_at(url), pages(root)
    url = url.removesuffix("/").removesuffix(".git")
    texts = {root / name: _spelled(root / name, url) for name in WITH_LINES if (root / name).exists()}
    for path in notebooks(root):
        folder = path.parent.relative_to(root).as_posix()
        texts[path] = to_published(to_local(with_first_cell(path, url), folder, book, old), folder, book, new)
    settings = root / "_config.yml"  # last, so that a run that was stopped still knows the old address
    kept = url or '""'
    texts[settings] = KEPT.sub(rf"\g<1>{kept}", settings.read_text(encoding="utf-8"))
    changed = {path: text for path, text in texts.items() if text != path.read_text(encoding="utf-8")}
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    return list(changed)


def notebooks(root: Path) -> list[Path]:
    """Return the notebooks of the book.

    Args:
        root: Folder of the book.

    Returns:
        Their files, sorted.
    """
    return sorted(path for path in (root / "chapters").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)


def first_cell(url: str) -> str:
    """Return the code that every notebook begins with.

    Args:
        url: The address of the repository, or nothing.

    Returns:
        What installs the book on Colab, or how to make it do so, and the size and the device of what follows.
    """
    return (INSTALLS.format(address=url) if url else INSTALLS_NOTHING) + ALWAYS


def with_first_cell(path: Path, url: str) -> str:
    """Return a notebook with this cell in the place of the one it has; identity and run count of the cell stay.

    Args:
        path: A notebook.
        url: The address of the repository, or nothing.

    Returns:
        Its text.

    Raises:
        ValueError: If the first cell of the notebook is another one.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    first = notebook["cells"][0]
    if first["cell_type"] != "code" or "# On Colab" not in "".join(first["source"]):
        raise ValueError(f"{path.name}: the first cell is not the one for Colab; add one with the words # On Colab")
    first["source"] = first_cell(url).splitlines(keepends=True)
    first["metadata"]["tags"] = TAGS
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _spelled(path: Path, url: str) -> str:
    return LINE.sub(rf"\g<1>{url or NOT_SET}", path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
