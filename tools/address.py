"""Write the address of the repository wherever it is needed: ``make address URL=https://github.com/someone/attnbook``.

It is kept in one place, ``repository: url`` of ``_config.yml``: the buttons that open Colab, Binder and the repository,
and the address of the published book, follow from it when the book is built. This tool puts it into the lines that
clone and install (README, landing page, CONTRIBUTING, "Use it in your work"), into the first cell of every notebook,
which installs the book on Colab, and into the links of notebooks to other pages. With it go the rest of what tools
write into a notebook (``own_cells.py``) and the table of full sizes in "How to read, run and change this book".

``python tools/address.py URL``   set it
``python tools/address.py none``  take it away: nothing is left of it
``python tools/address.py``       leave it, and write what is missing or different, as in a new notebook
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "_ext")]
import own_cells  # noqa: E402  (beside this file)
from book_address import pages, published_at, to_local, to_published  # noqa: E402  (its folder is on the path only now)

KEPT = re.compile(r'^(repository:\n  url: )"?([^"\n]*)"?$', re.MULTILINE)
NOT_SET = "<the address of this repository>"
LINE = re.compile(rf"(git clone |git\+)(?:{NOT_SET}|https://github\.com/[\w.-]+/[\w.-]+)")
WITH_LINES = ("README.md", "intro.md", "CONTRIBUTING.md", "reference/use_it.md")
HOW_TO_READ = Path("chapters") / "how_to_read.md"
BEGIN, END = "<!-- sizes: written by tools/address.py -->\n", "<!-- end of sizes -->"


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
        texts[path] = to_published(to_local(own_cells.with_own_cells(path, url), folder, book, old), folder, book, new)
    if (page := root / HOW_TO_READ).exists():
        above, below = page.read_text(encoding="utf-8").split(BEGIN)
        texts[page] = f"{above}{BEGIN}{table_of_sizes(root)}{END}{below.split(END)[1]}"
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


def table_of_sizes(root: Path) -> str:
    """Return what the full size changes in which chapter, as a table in Markdown.

    Args:
        root: Folder of the book.
    """
    lines = ["| chapter | what the full size changes |", "|---|---|"]
    for page, file in pages(root).items():
        if what := file.endswith(".ipynb") and own_cells.full_size(root / file):
            name = page.rpartition("/")[2].replace("_", " ")
            lines.append(f"| [{name}]({file.removeprefix('chapters/')}) | {what} |")
    return "\n".join(lines) + "\n"


def _spelled(path: Path, url: str) -> str:
    return LINE.sub(rf"\g<1>{url or NOT_SET}", path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
