"""Write the first cell of every notebook: it installs the book on Colab and says at what size and where to compute.

``python tools/first_cell.py``          write it where it is missing or different; no other cell changes
``python tools/first_cell.py --check``  write nothing; name the notebooks that differ
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TAGS = ["remove-cell", "nbval-ignore-output"]
SOURCE = """\
# On Colab this installs the book; elsewhere it installs nothing.
import sys

if "google.colab" in sys.modules:
    %pip install -q "attnbook @ git+{repository}"

# "auto" is the size of the book, on a GPU if there is one.
# To scale up, write scale="paper" and run all cells.
from attnbook.core import runtime

runtime.use(scale="auto", device="auto")"""


def main() -> int:
    """Write or compare.

    Returns:
        0, or 1 when a notebook differs and nothing was to be written.
    """
    parser = argparse.ArgumentParser(description="Write the first cell of every notebook.")
    parser.add_argument("--check", action="store_true", help="write nothing, name the notebooks that differ")
    options = parser.parse_args()
    stale = [path for path in notebooks() if not is_current(path)]
    for path in stale:
        if not options.check:
            write(path)
        print(f"{'differs' if options.check else 'written'}: {path.relative_to(ROOT).as_posix()}")
    return 1 if stale and options.check else 0


def notebooks() -> list[Path]:
    """Return the notebooks of the book."""
    return sorted(path for path in (ROOT / "chapters").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)


def source() -> str:
    """Return the code of the cell, with the address of the repository from ``_config.yml``."""
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    return SOURCE.format(repository=settings["repository"]["url"])


def is_current(path: Path) -> bool:
    """Tell whether a notebook begins with the cell."""
    first = _read(path)["cells"][0]
    return "".join(first["source"]) == source() and first["metadata"].get("tags") == TAGS


def write(path: Path) -> None:
    """Put the cell in the place of the old one, which it must have; identity and run count stay.

    Args:
        path: A notebook.

    Raises:
        ValueError: If the first cell of the notebook is another one.
    """
    notebook = _read(path)
    first = notebook["cells"][0]
    if first["cell_type"] != "code" or "google.colab" not in "".join(first["source"]):
        raise ValueError(f"{path.name}: the first cell is not the one for Colab; add an empty one with that word")
    first["source"] = source().splitlines(keepends=True)
    first["metadata"]["tags"] = TAGS
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
