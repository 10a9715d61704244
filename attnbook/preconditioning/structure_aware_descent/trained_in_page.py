"""Two descents on the population loss, side by side: ``style/train_descent.js`` and its live form.

The problem is small and written out, so that it is the same on every machine: orthogonal matrices of fractions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from attnbook.core.figures import Look, style
from attnbook.core.rng import stream
from attnbook.core.training_panel import TrainingPanel
from attnbook.preconditioning.manifold import minimum, split, stack
from attnbook.preconditioning.metric import metric
from attnbook.preconditioning.population import Preconditioner, imbalance, square_roots
from attnbook.preconditioning.structure_aware_descent.figures import LOOKS
from attnbook.preconditioning.structure_aware_descent.near_minima import Factorisation

__all__ = ["Curves", "curves", "panel", "problem", "setup"]

KAPPAS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
SIZES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
STEPS = (0, 30, 100, 300, 1000)
STARTS = {"near": "near a minimum", "white": "random, whitened", "plain": "random"}
VARIANTS = {  # name, weight of the penalty, preconditioner
    "Algorithm 1": ("algorithm_1", 1, "two"), "plain descent": ("sgd", 0, "none"),
    "regulariser only": ("sgd_regularised", 1, "none"), "preconditioner only": ("unregularised", 0, "two"),
    "one-sided": ("left", 1, "left"), "one-sided, no regulariser": ("left_unregularised", 0, "left"),
}  # fmt: skip
DISPLACEMENT = 0.1  # standard deviation of the entries around a minimum, in whitened coordinates
DIMENSION, OUTPUTS = 3, 4
LOST = 1e8  # a loss of so many times the first one counts as divergence


class Curves(NamedTuple):
    """Excess loss and imbalance of the layers at every step until it ends or diverges."""

    excess: list[float]
    imbalance: list[float]


def _matrices() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The axes of the covariance, the map on whitened inputs, and normal entries for value and key-query layer."""
    reflect = [np.eye(3) - 2 * np.outer(v, v) / np.dot(v, v) for v in ([1.0, 1.0, 1.0], [1.0, 2.0, 2.0])]
    left = np.array([[1, 1, 1], [1, -1, 1], [1, 1, -1], [1, -1, -1]]) / 2
    whitened_map = (left * [0.3, 0.225, 0.15]) @ reflect[1]
    normal = stream(0, "trained in the page").standard_normal((OUTPUTS + DIMENSION, DIMENSION)).round(3)
    parts = reflect[0], whitened_map, normal[:OUTPUTS], normal[OUTPUTS:]
    axes, of_inputs, value, key_query = map(torch.from_numpy, parts)
    return axes, of_inputs, value, key_query


def problem(kappa: float) -> tuple[Tensor, Tensor]:
    """Return covariance and linear map of the problem with a condition number; singular values 0.3 to 0.15."""
    axes, whitened_map, *_ = _matrices()
    eigenvalues = torch.from_numpy(np.geomspace(kappa**0.5, kappa**-0.5, DIMENSION))
    covariance = (axes * eigenvalues) @ axes.mT
    return covariance, whitened_map @ square_roots(covariance)[1]


def begin(kappa: float, start: str) -> Tensor:
    """Return the point, in whitened coordinates, of a start, one of :data:`STARTS`."""
    _, whitened_map, value, key_query = _matrices()
    if start == "plain":
        return stack(value, key_query, covariance=problem(kappa)[0])
    normal = torch.cat([value, key_query.mT])
    return minimum(whitened_map) + DISPLACEMENT * normal if start == "near" else normal


def curves(kappa: float, start: str, kind: str, penalty: float, step_size: float, steps: int) -> Curves:
    """Descend on the population loss, with or without the balance penalty and a preconditioner; shorter if lost."""
    covariance, whitened_map = problem(kappa)[0], _matrices()[1]
    factors = metric(covariance, OUTPUTS, cast(Preconditioner, kind))  # its name is checked there
    size, weight = whitened_map.new_tensor([step_size, penalty])
    descent = Factorisation(whitened_map, size, weight, factors)
    losses, points = descent.descend(begin(kappa, start), steps, keep=range(steps + 1))
    kept = int((losses < LOST * losses[0]).cumprod(0).sum())
    value, key_query = split(torch.stack(points[:kept]))
    unequal = imbalance(value, key_query.mT, covariance=whitened_map.new_ones(DIMENSION).diag())
    return Curves(losses[:kept].tolist(), unequal.tolist())


def setup() -> dict[str, object]:
    """Return what the script starts from."""
    axes, whitened_map, value, key_query = _matrices()
    outer, inner = split(minimum(whitened_map))
    state = {"kappa": 10, "size": 0.2, "rivalSize": 0.2, "rival": "sgd", "start": "near"}
    variants = [
        {"name": name, "label": label, "penalty": penalty, "kind": kind}
        for label, (name, penalty, kind) in VARIANTS.items()
    ]
    return {
        "axes": _rounded(axes), "map": _rounded(whitened_map), "displacement": DISPLACEMENT,
        "minimum": {"value": _rounded(outer), "keyQuery": _rounded(inner.mT)},
        "normal": {"value": _rounded(value), "keyQuery": _rounded(key_query)},
        "kappas": KAPPAS, "stepSizes": SIZES, "starts": STARTS, "variants": variants, "state": state,
    }  # fmt: skip


def _rounded(matrix: Tensor) -> list[list[float]]:
    """The entries to thirteen places, the same on every machine; so many that nothing of the agreement is lost."""
    return (np.round(matrix.numpy(), 13) + 0.0).tolist()


def panel() -> TrainingPanel:
    """Return what the notebook shows."""
    labels = {"kappa": "condition number", "size": "step size, Algorithm 1", "rival_size": "step size, rival",
              "rival": "rival", "begin": "start", "steps": "steps"}  # fmt: skip
    first = {"kappa": 10, "size": 0.2, "rival_size": 0.2, "rival": "plain descent", "begin": "near a minimum",
             "steps": 300}  # fmt: skip
    grid = {"kappa": KAPPAS, "size": SIZES, "rival_size": SIZES, "rival": tuple(VARIANTS)[1:],
            "begin": tuple(STARTS.values()), "steps": STEPS}  # fmt: skip
    return TrainingPanel("descent", setup(), draw, text=text, start=first, labels=labels, **grid)


@lru_cache(maxsize=1)
def _both(kappa: float, size: float, rival_size: float, rival: str, begin: str, steps: int) -> dict[str, Curves]:
    """The picture and its words need the same two descents."""
    at = next(name for name, label in STARTS.items() if label == begin)
    parts = ((label, *VARIANTS[label][1:], eta) for label, eta in (("Algorithm 1", size), (rival, rival_size)))
    return {label: curves(kappa, at, kind, penalty, eta, steps) for label, penalty, kind, eta in parts}


def draw(kappa: float, size: float, rival_size: float, rival: str, begin: str, steps: int) -> Figure:
    """Draw the excess loss and the imbalance of both descents."""
    both = _both(kappa, size, rival_size, rival, begin, steps)
    looks = (LOOKS["algorithm_1"], Look(rival, "#c2410c", "--", ""))
    with style():
        figure, (loss, balance) = plt.subplots(1, 2, figsize=(7.6, 3.6), width_ratios=(1.6, 1))
        for (label, found), look in zip(both.items(), looks, strict=True):
            for ax, values in ((loss, found.excess), (balance, found.imbalance)):
                ax.plot(values, color=look.color, linestyle=look.line, label=label)
        first = both["Algorithm 1"].excess[0]
        loss.set(yscale="log", ylim=(1e-16, 1e3 * first), xlim=(0, max(steps, 1)), xlabel="steps", title="excess loss")
        balance.set(ylim=(0, 1), xlim=(0, max(steps, 1)), xlabel="steps", title="imbalance of the layers")
        loss.legend(fontsize=9.5, loc="upper right")
    return figure


def text(kappa: float, size: float, rival_size: float, rival: str, begin: str, steps: int) -> str:
    """Return the numbers behind the picture."""
    both = _both(kappa, size, rival_size, rival, begin, steps)
    each = []
    for (label, found), eta in zip(both.items(), (size, rival_size), strict=True):
        end = f"diverges at step {len(found.excess)}" if len(found.excess) <= steps else (
            f"excess loss {found.excess[-1]:.1e}, imbalance {found.imbalance[-1]:.2f}")  # fmt: skip
        each.append(f"{label} (step size {eta:g}): {end}")
    return f"Step {steps}, condition number {kappa:g}, start {begin}. {'; '.join(each)}."
