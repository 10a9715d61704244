"""Draw the picture of the README from a stored result and write it to ``style/readme.png``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from attnbook.core import figures as core_figures  # noqa: E402  (its folder is on the path only now)
from attnbook.lab import load_script  # noqa: E402  (likewise)

FILE = ROOT / "style" / "readme.png"


def picture() -> bytes:
    """Return the PNG: error against samples, with and without a mask; it brings its own background."""
    chapter = load_script(ROOT / "chapters" / "global_attention" / "sample_complexity.py")
    return core_figures.png(chapter.errors(chapter.error_rate.stored()), dpi=150, colors=32)


if __name__ == "__main__":
    FILE.write_bytes(picture())
