"""Equal heads stay equal: whole networks against groups, and how many different heads each start leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, highest
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import head_groups, layer, network, starts
from attnbook.multi_head.data import Drawn, double_device, draw
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.training_bounds import wide

# Coefficients of the first phase of six heads; those of "uniform" lie evenly in [-1, 1].
STARTS = {"zero": [0.0] * 6, "signs": [1.0, -1.0, 1.0, 1.0, -1.0, 1.0], "uniform": [-1.0, -0.6, -0.2, 0.2, 0.6, 1.0]}
NEAR = 1e-9  # heads nearer to each other than this, relative to their norm, count as one


@dataclass(frozen=True, kw_only=True)
class EqualHeads(wide.WideNetworks):
    r"""Whole networks beside their groups of equal heads, and beside one head for each group with two step sizes.

    The one head has the decoder $V_g=m_gU_g/\sqrt H$, which takes steps of size $\eta m_g/H$, and a key-query matrix
    that takes steps of size $\eta/m_g$.
    """

    id = "multi_head.equal_heads"
    summary = "Equal heads stay equal: many heads are one head with two step sizes"
    budget_seconds = 5
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 10, "seeds": (0, 1)}

    heads: tuple[float, ...] = (4, 16)  # trained as groups and as a whole
    steps: int = 100
    step_size: float = 0.5

    def coordinates(self) -> dict[str, Any]:
        """Name widths and starts."""
        return {"heads": list(self.heads), "start": list(STARTS)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train whole networks, groups and single heads side by side."""
        where = double_device(device)
        batch = draw(self.mixture, self.n_samples, seeds, device=where)
        first = draw(self.mixture, self.first_phase_samples, seeds, purpose="first phase", device=where)
        with threads(1):
            apart = [_differences(self, batch, first, int(n_heads)) for n_heads in self.heads]
            distinct = [_distinct(self, batch, first, each) for each in STARTS.values()]
        if progress:
            progress(1, 1)
        found = {name: (("heads", "seed"), [one[name] for one in apart]) for name in apart[0]}
        return {**found, "distinct": (("start", "seed"), distinct)}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the largest differences and count."""
        counts = {f"distinct_heads_{kind}": data.distinct.sel(start=kind) for kind in STARTS}
        found = {"largest_difference_groups": highest(data.groups), "largest_difference_one": highest(data.one_head)}
        return {"MH-COLLAPSE": {**found, **counts}}


def _differences(settings: EqualHeads, batch: Drawn, first: Drawn, n_heads: int) -> dict[str, np.ndarray]:
    """Largest difference of a parameter between the whole network and its groups, or one head for each of them."""
    start = starts.first_phase(first.tokens, first.labels)
    counts = to_tensor(starts.even_sign_counts(n_heads), device=batch.tokens.device, dtype=torch.float64)
    counts = counts.repeat(len(batch.tokens), 1)
    groups = head_groups.gradient_descent(
        start,
        batch.tokens,
        logistic(batch.labels),
        counts=counts,
        step_size=settings.step_size,
        steps=settings.steps,
        record=lambda parameters: {"norm": head_groups.norm(parameters, counts=counts)},
    ).parameters
    whole = _train(head_groups.expand(start, counts=counts), batch, settings)
    one = _one_head_each(settings, batch, start, counts)
    return {"groups": _apart(whole, groups, counts), "one_head": _apart(whole, one, counts)}


def _one_head_each(settings: EqualHeads, batch: Drawn, start: Parameters, counts: Tensor) -> Parameters:
    """Train one head for each group with its own two step sizes, and return one head of the group."""
    root = counts.sum(1, keepdim=True).sqrt()
    share = (counts / root)[:, :, None, None]
    rates = {"decoder": settings.step_size * (share / root[:, :, None, None]),
             "key_query": settings.step_size / counts[:, :, None, None]}  # fmt: skip
    now = {"decoder": share * start["decoder"], "key_query": start["key_query"]}
    for _ in range(settings.steps):
        # Outputs are sums over the heads: the scaling has the exponent 0.
        gradient = layer.value_and_gradient(now, batch.tokens, logistic(batch.labels), exponent=0.0)[1]
        now = {name: now[name] - rates[name] * gradient[name] for name in now}
    return {"decoder": now["decoder"] / share, "key_query": now["key_query"]}


def _apart(whole: Parameters, groups: Parameters, counts: Tensor) -> np.ndarray:
    expanded = head_groups.expand(groups, counts=counts)
    differences = [(tensor - whole[name]).abs().amax((1, 2, 3)) for name, tensor in expanded.items()]
    return torch.stack(differences).amax(0).cpu().numpy()


def _distinct(settings: EqualHeads, batch: Drawn, first: Drawn, coefficients: list[float]) -> np.ndarray:
    """Different heads of each seed after training a whole network."""
    start = starts.first_phase(first.tokens, first.labels, coefficients=torch.tensor(coefficients))
    heads = torch.cat([tensor.flatten(2) for tensor in _train(start, batch, settings).values()], dim=2)
    near = NEAR * heads.norm(dim=2).amax(1)[:, None, None]
    same = torch.cdist(heads, heads, compute_mode="donot_use_mm_for_euclid_dist") <= near
    # A head is counted unless an earlier one equals it.
    return (~torch.tril(same, -1).any(2)).sum(1).cpu().numpy()


def _train(start: Parameters, batch: Drawn, settings: EqualHeads) -> Parameters:
    pair = batch.tokens, batch.labels
    return network.gradient_descent(start, pair, step_size=settings.step_size, steps=settings.steps).parameters
