"""Proximal steps of the group penalty against the minimum that they stand for."""

import numpy as np
import torch
from scipy.optimize import minimize

from attnbook.global_attention.shrinkage import group_shrinkage, shrink_columns, span


def test_shrinking_minimises_the_penalty_plus_half_the_squared_way():
    rng = np.random.default_rng(0)
    start = rng.standard_normal((3, 5))
    for by in (0.3, 1.1):
        found = torch.tensor(start[None].copy())
        shrink_columns(found, torch.tensor([by], dtype=torch.float64))

        def cost(w, by=by):
            w = w.reshape(start.shape)
            return by * np.linalg.norm(w, axis=0).sum() + 0.5 * np.square(w - start).sum()

        best = minimize(cost, 0.5 * start.ravel(), tol=1e-12)
        assert cost(found[0].numpy().ravel()) <= best.fun + 1e-9
        np.testing.assert_allclose(found[0].numpy().ravel(), best.x, atol=2e-3)


def test_only_members_in_the_span_are_touched():
    weights = torch.ones(4, 2, 3, dtype=torch.float64)
    shrink = group_shrinkage([0.0, 0.5, 0.0, 0.0], weights)
    shrink({"hidden": weights})
    assert (weights[[0, 2, 3]] == 1).all()
    torch.testing.assert_close(weights[1].norm(dim=0), torch.full((3,), 2**0.5 - 0.5, dtype=torch.float64))
    assert group_shrinkage([0.0, 0.0], weights) is None
    assert span([0.0]) == slice(0, 0)
