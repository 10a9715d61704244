"""Draw the picture of the README from a stored result and write it to ``style/readme.png``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from attnbook.core import figures as core_figures  # noqa: E402  (its folder is on the path only now)
from attnbook.global_attention.sample_complexity import experiments, figures  # noqa: E402  (likewise)

FILE = ROOT / "style" / "readme.png"


def picture() -> bytes:
    """Return the PNG: Table 1 of the first paper, the paper's numbers beside ours; it brings its own background."""
    data = experiments.EarlyStop.load_stored("full")
    return core_figures.png(figures.table_1(data, experiments.nearest_stop(data)), dpi=150, colors=32)


if __name__ == "__main__":
    FILE.write_bytes(picture())
