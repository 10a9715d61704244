r"""Targets near the start: how small can the training loss be at some distance? Realizability, Assumption 2.

A target moves from the start $\theta_0$ in a direction of the tangent features. For a penalty $\lambda$ it minimises

.. math:: \frac1n\sum_i\log\big(1+e^{-y_i(\tilde\Phi(X_i;\theta_0)+\langle\nabla\tilde\Phi(X_i;\theta_0),w\rangle)}\big)
          +\frac\lambda2\|w\|^2,

a convex problem, so that no $w$ of the same norm has a smaller loss in the *linearised* network. The loss of the
network itself at $\theta_0+w$ is computed beside it; with very many heads the two are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head import layer
from attnbook.multi_head.layer import Counts, PerSample, Tokens
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.tangent_kernel import from_features, tangent_features

__all__ = ["PENALTIES", "Targets", "nearest_targets"]

PENALTIES = tuple(np.geomspace(0.1, 1e-10, 55).tolist())
"""Decreasing, so that distances increase."""


class Targets(NamedTuple):
    r"""The targets of all penalties, ``(members, penalties)``.

    Attributes:
        distance: $\|\tilde\theta-\theta_0\|$ over all heads, increasing.
        loss: Training loss of the network there, $\hat L(\tilde\theta)$.
    """

    distance: Float[np.ndarray, "members penalties"]
    loss: Float[np.ndarray, "members penalties"]

    def loss_at(self, distance: Float[np.ndarray, " members"]) -> Float[np.ndarray, " members"]:
        """Return the loss of the network at one distance for each member, between targets on log axes.

        NaN outside the range of the targets.
        """
        logs = zip(*map(np.log, (distance, self.distance, self.loss)), strict=True)
        return np.exp([np.interp(at, d, loss, left=np.nan, right=np.nan) for at, d, loss in logs])

    def distance_for(self, loss: float) -> Float[np.ndarray, " members"]:
        r"""Return the smallest distance at which the network has at most some loss: $g_0(\varepsilon)$, measured.

        Between targets on log axes; infinite where no target is good enough.
        """
        found, wanted = [], np.log(loss)
        for distances, losses in zip(np.log(self.distance), np.log(self.loss), strict=True):
            last = max(1, int((losses <= wanted).argmax()))
            between = np.interp(wanted, losses[last - 1 : last + 1][::-1], distances[last - 1 : last + 1][::-1])
            found.append(between if losses.min() <= wanted else np.inf)
        return np.exp(found)


def nearest_targets(
    parameters: Parameters,
    tokens: Tokens,
    labels: PerSample,
    *,
    counts: Counts,
    penalties: tuple[float, ...] = PENALTIES,
) -> Targets:
    """Return targets at increasing distances from a start.

    Args:
        parameters: The start, in groups of equal heads.
        tokens: Samples of each member.
        labels: 1 or -1.
        counts: Heads in each group.
        penalties: Positive and decreasing.

    Returns:
        Distances and losses.

    Raises:
        ValueError: If the shapes do not fit, or the penalties are not positive and decreasing.
    """
    if not penalties or min(penalties) <= 0 or list(penalties) != sorted(set(penalties), reverse=True):
        raise ValueError(f"penalties: expected decreasing positive numbers, got {penalties}")
    features = tangent_features(parameters, tokens, counts=counts)
    start, loss = layer.outputs(parameters, tokens, counts=counts), logistic(labels)
    moves = torch.stack([_ridge_path(*one, penalties) for one in zip(features, labels, start, strict=True)])
    losses = []
    for move in moves.unbind(1):
        step = from_features(move, parameters, counts=counts)
        target = {name: tensor + step[name] for name, tensor in parameters.items()}
        losses.append(loss(layer.outputs(target, tokens, counts=counts))[0])
    return Targets(moves.norm(dim=2).cpu().numpy(), torch.stack(losses, 1).cpu().numpy())


def _ridge_path(rows: Tensor, labels: Tensor, start: Tensor, penalties: tuple[float, ...]) -> Tensor:
    """Minimise logistic loss with each penalty in turn, in coordinates along the rows' principal directions."""
    from scipy.optimize import minimize

    margins = (labels * start).cpu().numpy()
    left, sizes, directions = np.linalg.svd((labels[:, None] * rows).cpu().numpy(), full_matrices=False)
    to_margins = left * sizes

    def objective(z: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
        t = margins + to_margins @ z
        slopes = -np.exp(-np.logaddexp(0, t)) / len(t)
        return float(np.logaddexp(0, -t).mean() + penalty / 2 * z @ z), to_margins.T @ slopes + penalty * z

    z, found = np.zeros(len(sizes)), []
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-11}
    for penalty in penalties:
        z = minimize(objective, z, args=(penalty,), jac=True, method="L-BFGS-B", options=options).x
        found.append(z @ directions)
    return torch.from_numpy(np.stack(found)).to(rows)
