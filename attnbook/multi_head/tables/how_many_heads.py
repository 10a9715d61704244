"""The tables of the chapter on the number of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from attnbook.core.tables import Measured, Table
from attnbook.multi_head.experiments import heads_on_mixture, planted_teacher, starts_compared

__all__ = ["error_rates", "explorer_text", "full_size", "path_text", "step_sizes_tried", "three_starts"]

SPREAD = "mean over {} seeds [smallest, largest]"


def step_sizes_tried(result: planted_teacher.PlantedTeacher) -> Table:
    """Return loss and error on the planted teacher for each step size and number of heads."""
    s = result.settings
    rows: list[list[str | Measured]] = [
        [
            f"{eta:g}",
            *(Measured(_range(result.tuned_loss[:, i, j], 3)) for i in range(len(s.tuned_heads))),
            *(Measured(_range(result.tuned_error[:, i, j], 2)) for i in range(len(s.tuned_heads))),
        ]
        for j, eta in enumerate(s.step_sizes)
    ]
    names = ["1 head" if h == 1 else f"{h} heads" for h in s.tuned_heads]
    caption = f"After {s.steps} steps: {SPREAD.format(len(s.seeds))}."
    groups = [("", 1), ("training loss", len(names)), ("test error", len(names))]
    return Table(["step size", *names, *names], rows, caption, groups)


def three_starts(result: starts_compared.StartsCompared) -> Table:
    """Return the training loss from each start."""
    s = result.settings
    rows: list[list[str | Measured]] = [
        [name, *(Measured(_range(result.train_loss[:, i, j], 4)) for j in range(len(s.heads)))]
        for i, name in enumerate(starts_compared.STARTS)
    ]
    caption = f"Training loss after {s.steps} steps of size {s.step_size:g}: {SPREAD.format(len(s.seeds))}."
    return Table(["start", *(f"H = {h}" for h in s.heads)], rows, caption)


def full_size(result: heads_on_mixture.HeadsOnMixture) -> Table:
    """Return loss, error and attention after the last step for each number of heads."""
    s = result.settings
    arrays = {"train_loss": 4, "test_error": 3, "mean_mass": 3}
    rows: list[list[str | Measured]] = [
        [f"{h}", *(Measured(_range(result.final(name, h), digits)) for name, digits in arrays.items())] for h in s.heads
    ]
    caption = (
        f"d = {s.dimension}, M = {s.n_patterns}, n = {s.n_samples}, {s.steps} steps of size {s.step_size:g}: "
        f"{SPREAD.format(len(s.seeds))}; uniform attention gives {s.relevant_fraction:g}."
    )
    return Table(["heads", "training loss", "test error", "attention on relevant tokens"], rows, caption)


def error_rates(found: Mapping[str, Sequence[float]], caption: str) -> Table:
    """Return a row with the test error over seeds for each of some networks.

    Args:
        found: Name of the network to its test errors.
        caption: What the networks are.

    Returns:
        The table.
    """
    rows: list[list[str | Measured]] = [[name, Measured(_range(np.asarray(e), 3))] for name, e in found.items()]
    seeds = len(next(iter(found.values())))
    return Table(["", "test error"], rows, f"{caption}: {SPREAD.format(seeds)}.")


def explorer_text(result: heads_on_mixture.HeadsOnMixture, n_heads: int) -> str:
    """Return the numbers behind one picture of the slider."""
    loss, error = (np.median(result.final(name, n_heads)) for name in ("train_loss", "test_error"))
    plus, minus = np.median(result.mass[:, result.settings.heads.index(n_heads), -1], axis=0)
    minus_text = f", of minus heads {minus:.2f}" if n_heads > 1 else " (one head, a plus head)"
    return (
        f"H = {n_heads}, after {result.settings.steps} steps: training loss {loss:.3f}, test error {error:.3f}; "
        f"attention on relevant tokens of plus heads {plus:.2f}{minus_text}. Medians over seeds."
    )


def path_text(decoder: Float[np.ndarray, " records"], attention: Float[np.ndarray, " records"], n_heads: int) -> str:
    """Return where the head of two numbers ends.

    Args:
        decoder: Its decoder before the first step and after each.
        attention: Its attention on relevant tokens, likewise.
        n_heads: Number of heads.

    Returns:
        A sentence.
    """
    loss = np.logaddexp(0, -decoder[-1] * attention[-1])
    return (
        f"H = {n_heads}, after {len(decoder) - 1} steps: decoder {decoder[-1]:.1f}, attention on relevant tokens "
        f"{attention[-1]:.2f} (at the start {attention[0]:.2f}), loss {loss:.2g}."
    )


def _range(values: np.ndarray, digits: int) -> str:
    return f"{values.mean():.{digits}f} [{values.min():.{digits}f}, {values.max():.{digits}f}]"
