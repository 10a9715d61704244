"""Check of the exercise of the chapter: None for a right answer, else the likely mistake."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake


def steps_needed(answer: Callable[..., Any]) -> str | None:
    r"""Check the number of steps after which an angle like $1/\log t$ is a given fraction of what it is."""
    steps, fraction = np.array([100.0, 1000.0, 50.0]), np.array([0.5, 0.8, 0.25])
    got, right = np.array([float(answer(*case)) for case in zip(steps, fraction, strict=True)]), steps ** (1 / fraction)
    likely = {
        "that many would do if the angle fell like 1/t": steps / fraction,
        "the logarithm is divided by the fraction, not multiplied": steps**fraction,
        "this is the logarithm of the number of steps": np.log(right),
    }
    return None if np.allclose(got, right) else likely_mistake(got, right, likely)


CHECKS = {"IB-1": steps_needed}
