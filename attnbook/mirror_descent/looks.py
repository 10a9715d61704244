"""What each exponent looks like in every chapter of this part."""

from __future__ import annotations

from collections.abc import Mapping

from attnbook.core.figures import Look

__all__ = ["LOOKS"]

# On-off dashes, so that no two exponents share a line.
LOOKS: Mapping[float, Look] = {
    1.1: Look("p = 1.1", "#8e4604", (0, (1, 1)), "v"),
    1.25: Look("p = 1.25", "#7f0a3c", ":", "D"),
    1.5: Look("p = 1.5", "#bb30be", "-.", "^"),
    1.75: Look("p = 1.75", "#330d5a", (0, (5, 1)), "P"),
    2.0: Look("p = 2 (gradient descent)", "#0e0e0e", "--", "s"),
    2.5: Look("p = 2.5", "#075b05", (0, (3, 1, 1, 1)), "<"),
    3.0: Look("p = 3", "#03707f", "-", "o"),
    4.0: Look("p = 4", "#06306e", (0, (1, 3)), ">"),
}
