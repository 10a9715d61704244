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
from attnbook.multi_head.checks import at_least, containing, increasing
from attnbook.multi_head.data import Drawn, draw_patterns
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

    def samples(self, seeds: Sequence[int], device: torch.device) -> tuple[Drawn, Drawn]:
        """Draw training samples, and those of the first phase."""
        return self.draw(seeds, self.n_samples, "samples", device), self.first(seeds, device)


@dataclass(frozen=True, kw_only=True)
class MarginRace(OnFewSamples):
    r"""Plain gradient descent on the logistic loss against descent normalised by the loss; the design is ours."""

    id = "multi_head.margin_race"
    summary = "Section 7: does gradient descent, plain or normalised by the loss, reach the attention margin?"
    needs = "float64"
    smoke = {
        "n_samples": 7, "first_phase_samples": 50, "steps": 50, "early_step": 20, "records": 5, "seeds": (0, 1),
    }  # fmt: skip
    axes = {"heads": "heads", "plain_size": "tried_plain", "normalised_size": "tried_normalised"}
    labels = {"rule": RULES}

    heads: tuple[int, int] = (1, 16)  # few and many
    plain_step_size: float = 10.0  # the best for one head among those tried
    large_step_size: float = 100.0  # of plain descent, where the two are compared at equal norm once more
    normalised_step_size: float = 0.05  # not tuned
    steps: int = 4000  # the same for all
    tried_plain: tuple[float, ...] = (1.0, 10.0, 30.0, 100.0, 300.0)  # step sizes, increasing; from zero
    tried_normalised: tuple[float, ...] = (0.05, 0.2, 0.8)
    early_step: int = 1000  # a step to look at besides the logarithmically spaced ones
    records: int = 48  # how many of these there are, about

    def __post_init__(self) -> None:
        super().__post_init__()
        containing([self.plain_step_size, self.large_step_size], tried_plain=self.tried_plain)
        containing([self.normalised_step_size], tried_normalised=self.tried_normalised)
        increasing(1e-9, tried_plain=self.tried_plain, tried_normalised=self.tried_normalised)
        at_least(1, early_step=self.early_step)
        if self.early_step > self.steps:
            raise ValueError(f"early_step: expected at most {self.steps}, got {self.early_step}")

    def coordinates(self) -> dict[str, Any]:
        """Name the recorded steps, too; at step 0 there is no margin per norm."""
        return super().coordinates() | {"step": list(log_spaced(self.steps, self.records, also=(self.early_step,))[1:])}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks of a seed on the same samples: all but one from zero, at every step size."""
        drawn, first = self.samples(seeds, device)
        few, many = self.heads
        plain, normalised = self.plain_step_size, self.normalised_step_size
        tried = {"plain": self.tried_plain, "normalised": self.tried_normalised}
        trials = [(rule, n, size) for rule, sizes in tried.items() for size in sizes for n in self.heads]
        zero = starts.zero(len(seeds), self.n_tokens, self.dimension, device=drawn.tokens.device)
        later, signs = starts.first_phase(first.tokens, first.labels), starts.even_sign_counts(many).tolist()
        parts = [
            self._train(seeds, drawn, [one for one in trials if one[0] == rule], zero, share(progress, number, 3))
            for number, rule in enumerate(RULES)
        ]
        from_zero = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
        after_first = self._train(seeds, drawn, [("normalised", many, normalised)], later, share(progress, 2, 3), signs)
        raced = [("plain", few, plain), ("plain", many, plain), ("normalised", few, normalised)]
        at = [trials.index(one) for one in raced]
        found: Arrays = {}
        for name, array in from_zero.items():
            networks = np.concatenate([array[:, at], after_first[name]], axis=1)
            found[name] = ("step", "rule", "heads", "seed"), networks.reshape(len(array), 2, 2, -1)
        for rule in RULES:
            of_rule = [number for number, one in enumerate(trials) if one[0] == rule]
            for ending, name in (("", "fraction"), ("_norm", "value_norm")):
                ends = from_zero[name][-1, of_rule].reshape(-1, 2, len(seeds))
                found[f"tried_{rule}{ending}"] = (f"{rule}_size", "heads", "seed"), ends
        # the largest share that uniform attention can have, by an exact solver; 0 if it cannot separate
        floor = root_two.tangent_margins(zero, drawn.tokens, drawn.labels.cpu().numpy()) / np.sqrt(2)
        return found | {"floor": (("seed",), floor / oracle.attention_margin(self.mixture))}

    def _train(
        self, seeds: tuple[int, ...], drawn: Drawn, team: list[tuple[str, int, float]], start: Parameters,
        progress: Progress | None, signs: list[float] | None = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Train a team of (rule, heads, step size), all of one rule, as one program; ``(records, team, seeds)``."""
        n, n_seeds = len(team), len(seeds)
        objective = {"plain": objectives.logistic, "normalised": objectives.log_sum_exp}[team[0][0]]
        oracles = [oracle.key_query(draw_patterns(self.mixture, rng=stream(s, "patterns"))) for s in seeds]
        targets = torch.from_numpy(np.stack(oracles)).to(drawn.tokens).repeat(n, 1, 1)
        heads = drawn.tokens.new_tensor([signs or [float(heads)] for _, heads, _ in team])
        counts = heads.repeat_interleave(n_seeds, 0)
        repeated = Drawn(*(part.repeat(n, *[1] * (part.ndim - 1)) for part in drawn))
        records = head_groups.gradient_descent(
            {name: tensor.repeat(n, 1, 1, 1) for name, tensor in start.items()}, repeated.tokens,
            objective(repeated.labels), counts=counts,
            step_size=[size for *_, size in team for _ in seeds], steps=self.steps, progress=progress,
            record=lambda p: look(p, repeated, counts, targets), record_at=self.coordinates()["step"],
        ).records  # fmt: skip
        found = {name: array.reshape(-1, n, n_seeds) for name, array in records.items()}
        return found | {"fraction": found["fraction"] / oracle.attention_margin(self.mixture)}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the shares of the attention margin at the end, at equal norm, and what attention looks at."""
        names, normalised = dict(zip(("few", "many"), self.heads, strict=True)), data.sel(rule="normalised")
        end, late = normalised.isel(step=-1), normalised.cosine.sel(step=slice(self.early_step, None))
        mass, one = (end.plus_mass + end.minus_mass) / 2, {"heads": self.heads[0]}
        leads, plain = leads_at_equal_norm(data), data.tried_plain
        best = plain.isel(plain_size=plain.median("seed").argmax("plain_size"))  # of each number of heads
        sizes = {"lead_of_plain": self.plain_step_size, "lead_of_large": self.large_step_size}
        largest = [highest(part) for part in (data.fraction, data.tried_plain, data.tried_normalised)]
        return {
            "MH-X.2": {
                **{f"fraction_{name}": end.fraction.sel(heads=n) for name, n in names.items()},
                **{f"best_plain_{name}": best.sel(heads=n) for name, n in names.items()},
                "largest_fraction": highest(xr.concat(largest, "part")),
            },
            "MH-X.1-equal-norm": {
                f"{lead}_{name}": leads.sel(plain_size=size, heads=n)
                for lead, size in sizes.items() for name, n in names.items()
            },
            "MH-X.3": {
                "cosine": end.cosine.sel(one), "late_change": (late.max("step") - late.min("step")).sel(one),
                **{f"mass_{name}": mass.sel(heads=n) for name, n in names.items()},
                "norm_ratio": (end.key_query_norm / end.value_norm).sel(one),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RandomStarts(OnFewSamples):
    r"""Tangent-kernel margins at random starts, at zero and after the first phase, and the model's global margin.

    All for norm $\sqrt2$, as in the paper. The global margin is searched for from random networks, so what is found
    is a lower bound; heads are equal but for the last search.
    """

    id = "multi_head.random_starts"
    summary = "Section 7: tangent margins at random starts, and the largest margin of the model at norm root two"
    needs = "float64"
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


def shares_at(runs: xr.Dataset, norm: xr.DataArray | float) -> xr.DataArray:
    """Return the share of each run where its value matrices have a norm; NaN where they never have.

    By a straight line over the norm's logarithm, which must grow from record to record.
    """
    return xr.apply_ufunc(
        np.interp, np.log(norm), np.log(runs.value_norm), runs.fraction, vectorize=True,
        input_core_dims=[[], ["step"], ["step"]], kwargs={"left": np.nan, "right": np.nan},
    )  # fmt: skip


def leads_at_equal_norm(data: xr.Dataset) -> xr.DataArray:
    """Return each plain trial's share at its end minus that of normalised descent, raced, at the same norm.

    Where normalised descent does not get there, its nearest record counts.
    """
    other = data.sel(rule="normalised")
    first, last = (other.value_norm.isel(step=record) for record in (0, -1))
    return data.tried_plain - shares_at(other, data.tried_plain_norm.clip(first, last))
