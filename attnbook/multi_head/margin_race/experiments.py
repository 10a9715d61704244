"""The experiments of the chapter: which margin descent reaches, and margins at random starts and at norm root two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, share
from attnbook.multi_head import head_groups, layer, measures, objectives, oracle, starts
from attnbook.multi_head.checks import at_least, containing, increasing, positive
from attnbook.multi_head.data import Drawn, double_device, draw_patterns
from attnbook.multi_head.margin_race import root_two
from attnbook.multi_head.on_mixture import AfterFirstPhase

RULES = ["plain", "normalised"]


@dataclass(frozen=True, kw_only=True)
class OnFewSamples(AfterFirstPhase):
    """Base of both experiments: the data."""

    n_tokens: int = 10  # T
    dimension: int = 8  # d
    n_patterns: int = 4  # M
    relevant_fraction: float = 0.1  # zeta
    noise: float = 0.125  # along patterns; the most that Proposition 3 allows
    free_noise: float = 0.3  # orthogonal to all patterns
    n_samples: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, n_samples=self.n_samples)

    def samples(self, seeds: Sequence[int], device: torch.device) -> tuple[Drawn, Drawn]:
        """Draw training samples, and those of the first phase."""
        where = double_device(device)
        return self.draw(seeds, self.n_samples, "samples", where), self.first(seeds, where)


@dataclass(frozen=True, kw_only=True)
class MarginRace(OnFewSamples):
    r"""Plain gradient descent on the logistic loss against descent normalised by the loss; the design is ours.

    Normalised descent follows the gradient of :func:`~attnbook.multi_head.objectives.log_sum_exp`. All start at zero,
    where heads stay equal for ever, but for the normalised network with more than one head: it starts after the first
    phase with balanced signs, so that there are two kinds of heads.
    """

    id = "multi_head.margin_race"
    summary = "Section 7: does gradient descent, plain or normalised by the loss, reach the attention margin?"
    smoke = {
        "n_samples": 7, "first_phase_samples": 50, "steps": 50, "tried_steps": 5, "early_step": 20, "records": 5,
        "seeds": (0, 1),
    }  # fmt: skip
    axes = {"heads": "heads", "plain_size": "tried_plain", "normalised_size": "tried_normalised"}
    labels = {"rule": RULES}

    heads: tuple[int, int] = (1, 16)  # few and many
    plain_step_size: float = 10.0  # the best for one head among those tried
    normalised_step_size: float = 0.05  # not tuned
    steps: int = 4000  # the same for all
    tried_plain: tuple[float, ...] = (1.0, 10.0, 30.0, 100.0, 300.0)  # step sizes, increasing; from zero
    tried_normalised: tuple[float, ...] = (0.05, 0.2, 0.8)
    tried_steps: int = 4000
    early_step: int = 1000  # a step to look at besides the logarithmically spaced ones
    records: int = 48  # how many of these there are, about

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(plain_step_size=self.plain_step_size, normalised_step_size=self.normalised_step_size)
        at_least(1, tried_steps=self.tried_steps, early_step=self.early_step)
        if self.early_step > self.steps:
            raise ValueError(f"early_step: expected at most {self.steps}, got {self.early_step}")

    def coordinates(self) -> dict[str, Any]:
        """Name the recorded steps, too; at step 0 there is no margin per norm."""
        return super().coordinates() | {"step": list(log_spaced(self.steps, self.records, also=(self.early_step,))[1:])}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks of a seed on the same samples, and try other step sizes."""
        drawn, first = self.samples(seeds, device)
        few, many = self.heads
        steps, plain, normalised = self.coordinates()["step"], self.plain_step_size, self.normalised_step_size
        at_zero = [("plain", few, plain), ("plain", many, plain), ("normalised", few, normalised)]
        trials = [("plain", n, size) for size in self.tried_plain for n in self.heads]
        trials += [("normalised", n, size) for size in self.tried_normalised for n in self.heads]
        zero = starts.zero(len(seeds), self.n_tokens, self.dimension, device=drawn.tokens.device)
        later, signs = starts.first_phase(first.tokens, first.labels), starts.even_sign_counts(many).tolist()
        told = [share(progress, number, 3) for number in range(3)]
        raced = [
            self._train(seeds, drawn, at_zero, zero, steps, told[0]),
            self._train(seeds, drawn, [("normalised", many, normalised)], later, steps, told[1], signs),
        ]
        tried = self._train(seeds, drawn, trials, zero, [self.tried_steps], told[2])["fraction"][0]
        tried, split = tried.reshape(-1, 2, len(seeds)), len(self.tried_plain)
        shape = len(steps), 2, 2, len(seeds)
        found: Arrays = {
            name: (("step", "rule", "heads", "seed"), np.concatenate([part[name] for part in raced], 1).reshape(shape))
            for name in raced[0]
        }
        floor = root_two.tangent_margins(zero, drawn.tokens, drawn.labels.cpu().numpy()) / np.sqrt(2)
        return found | {
            "tried_plain": (("plain_size", "heads", "seed"), tried[:split]),
            "tried_normalised": (("normalised_size", "heads", "seed"), tried[split:]),
            # the largest share that uniform attention can have, by an exact solver; 0 if it cannot separate
            "floor": (("seed",), floor / oracle.attention_margin(self.mixture)),
        }

    def _train(
        self, seeds: tuple[int, ...], drawn: Drawn, team: list[tuple[str, int, float]], start: Parameters,
        record_at: list[int], progress: Progress | None, signs: list[float] | None = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Train a team of (rule, heads, step size) as one program; return ``(records, team, seeds)`` by name."""
        n, n_seeds = len(team), len(seeds)
        rules = {"plain": objectives.logistic(drawn.labels), "normalised": objectives.log_sum_exp(drawn.labels)}
        oracles = [oracle.key_query(draw_patterns(self.mixture, rng=stream(s, "patterns"))) for s in seeds]
        targets = torch.as_tensor(np.stack(oracles)).to(drawn.tokens).repeat(n, 1, 1)
        heads = drawn.tokens.new_tensor([signs or [float(heads)] for _, heads, _ in team])
        counts = heads.repeat_interleave(n_seeds, 0)
        repeated = Drawn(*(part.repeat(n, *[1] * (part.ndim - 1)) for part in drawn))
        records = head_groups.gradient_descent(
            {name: tensor.repeat(n, 1, 1, 1) for name, tensor in start.items()},
            repeated.tokens,
            objectives.side_by_side([(n_seeds, rules[rule]) for rule, *_ in team]),
            counts=counts,
            step_size=[size for *_, size in team for _ in seeds],
            steps=record_at[-1],
            record=lambda p: look(p, repeated, counts, targets),
            record_at=record_at,
            progress=progress,
        ).records
        found = {name: array.reshape(-1, n, n_seeds) for name, array in records.items()}
        return found | {"fraction": found["fraction"] / oracle.attention_margin(self.mixture)}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the shares of the attention margin at the end, at equal norm, and what attention looks at."""
        few, many = self.heads
        ends = data.isel(step=-1).sel(rule="normalised")
        one = data.sel(rule="normalised", heads=few)
        late = one.cosine.sel(step=slice(self.early_step, None))
        mass = (data.plus_mass + data.minus_mass).isel(step=-1).sel(rule="normalised") / 2
        largest = [data.fraction, data.tried_plain, data.tried_normalised]
        return {
            "MH-X.2": {
                "fraction_few": ends.fraction.sel(heads=few), "fraction_many": ends.fraction.sel(heads=many),
                "best_plain_few": best_tried(data.tried_plain.sel(heads=few)),
                "best_plain_many": best_tried(data.tried_plain.sel(heads=many)),
                "largest_fraction": highest(xr.concat([highest(part) for part in largest], "part")),
            },
            "MH-X.1-equal-norm": {
                "lead_of_plain_few": lead_at_equal_norm(data, few),
                "lead_of_plain_many": lead_at_equal_norm(data, many),
            },
            "MH-X.3": {
                "cosine": one.cosine.isel(step=-1), "late_change": late.max("step") - late.min("step"),
                "mass_few": mass.sel(heads=few), "mass_many": mass.sel(heads=many),
                "norm_ratio": (one.key_query_norm / one.value_norm).isel(step=-1),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RandomStarts(OnFewSamples):
    r"""Tangent-kernel margins at random starts, at zero and after the first phase, and the model's global margin.

    All for norm $\sqrt2$, as in the paper: of the target in P3, of the whole network in Section 7. Where samples are
    not separable a tangent margin is 0. The global margin is searched for from random networks, so what is found is a
    lower bound; heads are equal but for the last search.
    """

    id = "multi_head.random_starts"
    summary = "Section 7: tangent margins at random starts, and the largest margin of the model at norm root two"
    smoke = {"n_samples": 11, "first_phase_samples": 100, "search_starts": 2, "search_steps": 5, "seeds": (0, 1)}
    axes = {
        "heads": "heads", "searched": "searched", "key_query_scale": "key_query_scales", "value_scale": "value_scales",
    }  # fmt: skip

    dimension: int = 12
    pattern_norm: float = 1.5
    relevant_fraction: float = 0.2
    noise: float = 0.1
    free_noise: float = 0.5
    n_samples: int = 40
    heads: tuple[int, ...] = (1, 8, 64)  # increasing; the heads of a smaller network are those of a larger one
    key_query_scales: tuple[float, ...] = (0.0, 0.3, 1.0)  # standard deviations of the entries of W_h, increasing
    value_scales: tuple[float, ...] = (0.1, 0.3, 1.0)  # the same of U_h, positive
    searched: tuple[int, ...] = (1, 4, 16, 64, 256)  # numbers of equal heads whose global margin is searched for
    free_heads: int = 4  # heads that need not be equal, one of the numbers searched
    bound_heads: int = 10_000_000  # heads at which the upper bound on the global margin is evaluated
    search_starts: int = 3  # random networks that each search starts from
    search_steps: int = 500
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(1e-9, value_scales=self.value_scales)
        at_least(1, bound_heads=self.bound_heads, search_starts=self.search_starts, search_steps=self.search_steps)
        containing([self.free_heads], searched=self.searched)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compute the margin at every start, and search for the global one."""
        drawn, first = self.samples(seeds, device)
        with runtime.threads(1):
            found = root_two.at_starts(self, seeds, drawn, first)
            return found | root_two.global_margins(self, seeds, drawn, progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off margins at random starts, without signal, and beside the global margin; means as the text says."""
        most, one = self.heads[-1], self.searched[0]
        with_attention = {"heads": most, "key_query_scale": 0.3}
        equal, first = data.matched.sel(heads=most), data.first_phase
        best = data.global_margin.max("start")
        alone = best.sel(searched=one)
        return {
            "MH-X.5": {
                "smallest_margin": lowest(data.random), "mean_first_phase": first.mean("seed"),
                "mean_random": data.random.sel(with_attention).isel(value_scale=0).mean("seed"),
                "mean_matched": equal.sel(key_query_scale=0.3).mean("seed"),
                "mean_matched_blind": equal.sel(key_query_scale=0).mean("seed"),
            },
            "MH-X.5-labels": {
                "smallest_coin_flips_many": lowest(data.coin_flips.sel(with_attention)),
                "smallest_coin_flips_one": lowest(data.coin_flips.sel(with_attention | {"heads": self.heads[0]})),
                "smallest_coin_flips_first_phase": lowest(data.first_phase_coin_flips),
                "largest_coin_flips_zero": highest(data.zero_coin_flips),
            },
            "MH-X.6": {
                "zero_over_global_one": data.zero / alone, "first_phase_over_global_one": first / alone,
                "free_over_equal": data.free_margin.max("start") / best.sel(searched=self.free_heads),
                "global_many_over_one": best.isel(searched=-1) / alone,
                "first_phase_over_bound": first / data.bound,
                "disagreement": (best - data.global_margin.min("start")).max("searched"),
            },
        }  # fmt: skip


def look(parameters: Parameters, drawn: Drawn, counts: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
    """Return what is recorded of every member; ``fraction`` is not yet divided by the attention margin."""
    margins = drawn.labels * layer.outputs(parameters, drawn.tokens, counts=counts)
    value_norm = head_groups.norm({"decoder": parameters["decoder"]}, counts=counts)
    key_query = parameters["key_query"]
    mass = measures.relevant_mass(parameters, drawn.tokens, drawn.relevant)
    lengths = key_query.flatten(2).norm(dim=2) * targets.flatten(1).norm(dim=1)[:, None]
    along = (key_query * targets[:, None]).sum((2, 3)) / lengths.clamp(min=1e-300)
    return {
        "fraction": margins.amin(1) / value_norm,
        "value_norm": value_norm,
        "key_query_norm": head_groups.norm({"key_query": key_query}, counts=counts),
        "plus_mass": mass[:, 0],  # attention on relevant tokens of heads of coefficient 1; from zero, of all heads
        "minus_mass": mass[:, -1],
        "cosine": along.mean(1),  # of W and the oracle's, over heads
    }


def best_tried(shares: xr.DataArray) -> xr.DataArray:
    """Return the shares at the step size whose median over seeds is largest."""
    size = str(next(name for name in shares.dims if name != "seed"))
    return shares.isel({size: int(shares.median("seed").argmax(size))})


def lead_at_equal_norm(data: xr.Dataset, heads: int) -> xr.DataArray:
    r"""Return plain descent's share at its end minus that of normalised descent at the same $\|\tilde U\|$."""
    runs, found = data.sel(heads=heads), []
    for seed in data.seed:
        plain, other = (runs.sel(rule=rule, seed=seed) for rule in RULES)
        end = plain.isel(step=-1)
        found.append(float(end.fraction) - share_at_norm(other, float(end.value_norm)))
    return xr.DataArray(found, {"seed": data.seed})


def share_at_norm(run: xr.Dataset, norm: float) -> float:
    """Return the share of one run at a norm of its value matrices, by a straight line over the norm's logarithm."""
    return float(np.interp(np.log(norm), np.log(run.value_norm), run.fraction))
