"""Matrix and head trained together on three samples in the plane, where both limits are known by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import plane_joint
from attnbook.mirror_descent.experiments.joint_comparing import attended
from attnbook.mirror_descent.joint import descend_jointly
from attnbook.mirror_descent.relaxed_svm import head_svm

__all__ = ["HEAD", "MATRIX", "JointToy", "Settings", "run"]

HEAD, MATRIX = np.array([0.0, 1.0]), np.array([4 / 3, 1 / 3])
"""The smallest head and the first column of the smallest matrix, for every exponent."""

# Exponents that the claims name; for smaller and larger ones there are claims of their own.
NEEDED = (1.5, 1.75, 2.0, 3.0)
SMALL = 1.1


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        ps: Exponents, increasing.
        matrix_start: First column of the matrix at the start; the second is zero and stays so. From earlier work.
        head_start: The head at the start, from the same source.
        steps: Steps of each run.
        step_size: Step size of the scale-free steps, separate for both.
        records: Points kept of each path, about.
    """

    ps: tuple[float, ...] = (SMALL, 1.25, *NEEDED)
    matrix_start: tuple[float, float] = (0.0, -1.0)
    head_start: tuple[float, float] = (-1.0, 0.0)
    steps: int = 3000
    step_size: float = 0.1
    records: int = 60

    def __post_init__(self) -> None:
        if {SMALL, *NEEDED} - set(self.ps) or list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers with {(SMALL, *NEEDED)} among them, got {self.ps}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(steps=30, records=5)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more exponents and longer runs."""
        return cls(ps=(SMALL, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0), steps=30_000)


@dataclass(frozen=True)
class JointToy(Result):
    """Paths in the plane and the solver's answers.

    Attributes:
        matrix: First column of the key-query matrix along the way, ``(ps, points, 2)``.
        head: The head along the way, ``(ps, points, 2)``.
        selected: Token with the highest logit at the end, ``(ps, samples)``.
        solved_matrix: First column of the attention SVM's solution for the second tokens, ``(ps, 2)``.
        solved_head: The head SVM's solution for the second tokens, ``(ps, 2)``.
    """

    experiment: ClassVar[str] = "mirror_descent.joint_toy"
    settings_type: ClassVar[type] = Settings

    matrix: Float[np.ndarray, "ps points 2"]
    head: Float[np.ndarray, "ps points 2"]
    selected: Float[np.ndarray, "ps samples"]
    solved_matrix: Float[np.ndarray, "ps 2"]
    solved_head: Float[np.ndarray, "ps 2"]

    def cosines(self) -> Float[np.ndarray, "ps 2"]:
        """Return the cosines of matrix and head with their max-margin directions at the end."""
        pairs = ((self.matrix[:, -1], MATRIX), (self.head[:, -1], HEAD))
        return np.stack([w @ to / np.linalg.norm(w, axis=1) / np.linalg.norm(to) for w, to in pairs], axis=1)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        named = [at for at, p in enumerate(self.settings.ps) if p in NEEDED]
        second = (self.selected == 1).all(axis=1)
        error = max(np.abs(self.solved_matrix - MATRIX).max(), np.abs(self.solved_head - HEAD).max())
        return {
            "MD-jtoy": Measurement({"share_second_token": float(second[named].mean())}),
            "MD-jtoy-direction": Measurement({"min_cosine": float(self.cosines()[named].min())}),
            "MD-jtoy-svm": Measurement({"max_error": float(error)}),
            "MD-jtoy-p1.1": Measurement({"selects_second_tokens": float(second[self.settings.ps.index(SMALL)])}),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> JointToy:
    """Follow matrix and head in the plane for all exponents, and solve both max-margin problems.

    Args:
        settings: Exponents, start and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)
    ps = np.array(settings.ps)
    problems = plane_joint().repeated(len(ps))
    start = np.zeros((len(ps), 2, 2))
    start[:, :, 0] = settings.matrix_start
    history = descend_jointly(
        problems,
        ps,
        steps=settings.steps,
        step_size=settings.step_size,
        start=(start, np.tile(settings.head_start, (len(ps), 1)).astype(float)),
        record_at=log_spaced(settings.steps, settings.records),
        device=where,
        progress=progress,
    )
    second = np.ones(problems.labels.shape, dtype=int)
    matrix = history.records["key_query"]
    return JointToy(
        settings=settings,
        provenance=clock.provenance(where),
        matrix=np.swapaxes(matrix[..., 0], 0, 1),
        head=np.swapaxes(history.records["decoder"], 0, 1),
        selected=attended(matrix[-1], problems).astype(np.float64),
        solved_matrix=attention_svm(problems.tokens, problems.queries, second, ps).weight[..., 0],
        solved_head=head_svm(problems.tokens, problems.labels, second, ps).weight,
    )
