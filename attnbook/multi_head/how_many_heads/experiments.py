"""The experiments of the chapter: what more heads do, at which step size, and on which data they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, share
from attnbook.multi_head import head_groups, layer, measures, network, oracle, teacher
from attnbook.multi_head.data import draw_patterns
from attnbook.multi_head.how_many_heads.training import Case, OnMixture, descend, double, train_all
from attnbook.multi_head.objectives import logistic

ROOT_CELLS = ((16, 128.0), (256, 512.0), (4096, 2048.0))  # heads and step sizes on the line eta = 32 sqrt(H)
SMALL_STEP, LARGE_STEPS = 0.5, {256: 128.0, 4096: 512.0}  # one that does not grow, and eta = 8 sqrt(H)
EARLY = 100  # step at which the two kinds of heads are compared
KINDS = ("plus", "minus")
SOLVED = 1e-6  # margin from which on a linear program counts as solved; its own tolerance is 1e-9


@dataclass(frozen=True, kw_only=True)
class StepSizeMap(OnMixture):
    r"""Number of heads and step size together, from zero: there $H$ heads are one head with two step sizes."""

    id = "multi_head.step_size_map"
    summary = "Mixture data: the number of heads and the step size together"
    budget_seconds = 50
    smoke = {"n_samples": 8, "n_first_phase": 20, "n_test": 20, "steps": 5, "seeds": (0, 1)}

    heads: tuple[int, ...] = (1, 16, 256, 4096)  # increasing
    step_sizes: tuple[float, ...] = (0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0)  # each with every number of heads
    steps: int = 600

    def __post_init__(self) -> None:
        super().__post_init__()
        for n_heads, step_size in ((1, SMALL_STEP), *ROOT_CELLS, *LARGE_STEPS.items()):
            if n_heads not in self.heads or step_size not in self.step_sizes:
                raise ValueError(f"heads, step_sizes: the claim needs {n_heads} heads with step size {step_size}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of heads and step sizes."""
        return {"heads": list(self.heads), "step_size": list(self.step_sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every number of heads with every step size."""
        cases = [Case(h, step) for h in self.heads for step in self.step_sizes]
        found = train_all(self.draw(seeds, device), "zero", cases, self.steps, progress)
        shape = len(self.heads), len(self.step_sizes), len(seeds)
        return {name: (("heads", "step_size", "seed"), array.reshape(shape)) for name, array in found.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off errors at small and large steps, and how far attention differs along the root of H."""
        error = data.test_error
        large = {f"error_{h}_large_step": error.sel(heads=h, step_size=step) for h, step in LARGE_STEPS.items()}
        small = {f"error_{h}_small_step": error.sel(heads=h, step_size=SMALL_STEP) for h in (1, 256)}
        root = xr.concat([data.mass.sel(heads=h, step_size=step, drop=True) for h, step in ROOT_CELLS], "cell")
        return {"MH-H.9-root": {**small, **large, "mass_gap": root.max("cell") - root.min("cell")}}


@dataclass(frozen=True, kw_only=True)
class OutputScaling(OnMixture):
    r"""Heads summed with $H^{-c}$ and the step size $\eta H^{2c-1}$: decoders then train alike for all $H$ and $c$."""

    id = "multi_head.output_scaling"
    summary = "Mixture data: heads summed with one scaling or another"
    budget_seconds = 20
    smoke = {"n_samples": 8, "n_first_phase": 20, "n_test": 20, "steps": 10, "seeds": (0, 1)}

    heads: tuple[int, ...] = (2, 16, 256, 4096)  # even, so that signs sum to zero; increasing
    exponents: tuple[float, ...] = (0.5, 0.75, 1.0)  # c, the paper's first
    step_size: float = 0.5  # eta; not tuned
    steps: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(h % 2 for h in self.heads):
            raise ValueError(f"heads: expected even numbers, so that signs sum to zero, got {self.heads}")
        if not {0.5, 1.0} <= set(self.exponents):
            raise ValueError(f"exponents: expected 0.5 and 1 among them, got {self.exponents}")

    def coordinates(self) -> dict[str, Any]:
        """Name exponents and numbers of heads."""
        return {"exponent": list(self.exponents), "heads": list(self.heads)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every number of heads with every scaling, from the first-phase start."""
        cases = [Case(h, self.step_size * float(h) ** (2 * c - 1), c) for c in self.exponents for h in self.heads]
        found = train_all(self.draw(seeds, device), "first phase", cases, self.steps, progress)
        shape = len(self.exponents), len(self.heads), len(seeds)
        return {name: (("exponent", "heads", "seed"), array.reshape(shape)) for name, array in found.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold the scaling under which attention moves against the one under which it does not."""
        one, most = data.sel(exponent=1.0), data.sel(exponent=0.5).isel(heads=-1)
        return {
            "MH-H.6-features": {
                "smallest_mass_one": one.mass.min("heads"), "largest_error_one": one.test_error.max("heads"),
                "mass_half_most": most.mass, "error_half_most": most.test_error,
            }
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HeadTypes(OnMixture):
    """What becomes of plus and minus heads: longer patterns and more relevant tokens, so that attention moves early."""

    id = "multi_head.head_types"
    summary = "Plus and minus heads after the first phase: where each looks"
    budget_seconds = 10
    smoke = {"n_samples": 6, "n_first_phase": 20, "n_test": 1, "steps": 100, "look_every": 50, "seeds": (0, 1)}

    dimension: int = 10  # of a token
    pattern_norm: float = 2.0  # norm S of every pattern
    relevant_fraction: float = 0.2  # share zeta of tokens that carry the label
    noise: float = 0.5  # bound on the noise along patterns
    heads: tuple[int, ...] = (2, 8, 64)  # half of them plus heads
    step_size: float = 0.05  # not tuned; smaller because patterns are longer
    steps: int = 600
    look_every: int = 10  # steps between two records

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {2, 8} <= set(self.heads) or any(h % 2 for h in self.heads):
            raise ValueError(f"heads: expected even numbers, 2 and 8 among them, got {self.heads}")
        if EARLY % self.look_every or self.steps % self.look_every or self.steps < EARLY:
            raise ValueError(f"look_every: expected to divide {EARLY} and steps >= {EARLY}, got {self.look_every}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of heads, recorded steps and kinds of heads."""
        return {"heads": list(self.heads), "step": range(0, self.steps + 1, self.look_every), "kind": list(KINDS)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Follow attention and decoders of both kinds, on training samples."""
        data = self.draw(seeds, device)
        tokens, _, relevant = data.train
        patterns = [draw_patterns(self.mixture, rng=stream(seed, "patterns")) for seed in seeds]
        right = tokens.new_tensor(np.array([oracle.decoder(one, self.n_tokens) for one in patterns]))[:, None]

        def record(now: Parameters) -> dict[str, Tensor]:
            norms = now["decoder"].norm(dim=(2, 3)) * right.norm(dim=(2, 3))
            cosine = (now["decoder"] * right).sum((2, 3)) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
            return {"mass": measures.relevant_mass(now, tokens, relevant), "alignment": cosine}

        parts = []
        for number, n_heads in enumerate(self.heads):
            case, told = Case(n_heads, self.step_size), share(progress, number, len(self.heads))
            looks = self.coordinates()["step"]
            parts.append(descend(data, "first phase", case, self.steps, record, looks, told).records)
        return {name: (("heads", "step", "seed", "kind"), [part[name] for part in parts]) for name in parts[0]}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off attention early on, and when the decoders of minus heads turn to the right side."""
        early, flips = data.mass.sel(heads=2, step=EARLY), flip_steps(data)
        return {
            "MH-X.4": {
                **{f"mass_{kind}": early.sel(kind=kind) for kind in KINDS},
                **{f"flip_step_{h}": flips.sel(heads=h) for h in (2, 8)},
                "last_mass_minus": data.mass.sel(heads=2, kind="minus").isel(step=-1),
            }
        }


def flip_steps(data: xr.Dataset) -> xr.DataArray:
    """Return the first recorded step at which minus heads read on the right side; infinity where they never do."""
    right = data.alignment.sel(kind="minus") > 0
    return data.step.where(right).min("step").fillna(np.inf)


@dataclass(frozen=True, kw_only=True)
class PlantedTeacher(Experiment):
    """Labels of one random attention head: what more heads do where one has to find the weights of one."""

    id = "multi_head.planted_teacher"
    summary = "A planted teacher: loss and error against the number of heads"
    budget_seconds = 40
    smoke = {"n_samples": 8, "n_test": 20, "steps": 10, "seeds": (0, 1)}

    n_tokens: int = 5  # tokens T of a sample
    dimension: int = 5  # of a token
    n_samples: int = 100  # training samples
    n_test: int = 1000  # test samples
    heads: tuple[int, ...] = (1, 2, 4, 8, 32)  # of the students, increasing
    scale: float = 0.5  # standard deviation of the entries where training starts
    step_sizes: tuple[float, ...] = (0.3, 3.0, 10.0)  # increasing
    steps: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {1, 8, 32} <= set(self.heads):
            raise ValueError(f"heads: expected 1, 8 and 32 among them, got {self.heads}")
        for name in ("n_samples", "n_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of heads and step sizes."""
        return {"heads": list(self.heads), "step_size": list(self.step_sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train students with every number of heads and every step size, all from the same draws."""
        sizes = {"samples": self.n_samples, "test": self.n_test}
        train, test = (self._samples(seeds, purpose, n, device) for purpose, n in sizes.items())
        cells = [(h, step) for h in self.heads for step in self.step_sizes]
        found = []
        for number, (n_heads, step_size) in enumerate(cells):
            told = share(progress, number, len(cells))
            rngs = [stream(seed, "start") for seed in seeds]
            start = _random_start(rngs, (n_heads, self.n_tokens, self.dimension), self.scale, train[0])
            last = _descend(start, train, step_size, self.steps, told)
            error = measures.error_rate(layer.outputs(last, test[0]), test[1])
            found.append(torch.stack([network.losses(last, train), error]).cpu().numpy())
        arrays = np.array(found).reshape(len(self.heads), len(self.step_sizes), 2, len(seeds))
        axes = ("heads", "step_size", "seed")
        return {name: (axes, arrays[:, :, i]) for i, name in enumerate(("train_loss", "test_error"))}

    def _samples(self, seeds: tuple[int, ...], purpose: str, n: int, device: torch.device) -> network.Batch:
        drawn = []
        for seed in seeds:
            planted = teacher.draw_teacher(self.n_tokens, self.dimension, rng=stream(seed, "teacher"))
            drawn.append(teacher.draw_labelled(planted, n, rng=stream(seed, purpose)))
        tokens, labels = (torch.as_tensor(np.stack(part), device=double(device)) for part in zip(*drawn, strict=True))
        return tokens, labels

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off means over seeds: one head is slow on some seeds, which a median would hide."""
        loss = data.train_loss.mean("seed")
        slow = loss.isel(step_size=0)
        return {
            "MH-H.7": {
                **{f"mean_loss_{h}": slow.sel(heads=h) for h in (1, 8, 32)},
                "mean_loss_1_best_step": loss.sel(heads=1).min("step_size"),
            }
        }


@dataclass(frozen=True, kw_only=True)
class AlternatingLabels(Experiment):
    r"""Data that need many heads: one token $z$ beside a zero token, and labels that alternate as $z$ grows.

    On whole networks by gradient descent; and, for drawn attention, decoders by a linear program.
    """

    id = "multi_head.alternating_labels"
    summary = "Labels that alternate along a line: how many heads can fit them"
    budget_seconds = 20
    smoke = {"starts": 3, "steps": 20, "draws": 2, "seeds": (0, 1)}

    heads: tuple[int, ...] = (1, 2, 4, 16)  # of the networks that are trained on three samples
    starts: int = 40  # random starts of each seed
    scale: float = 1.0  # standard deviation of their entries
    step_size: float = 0.5
    steps: int = 3000
    spacing: float = 0.7  # z = 0.7, 1.4, 2.1
    samples: tuple[int, ...] = (3, 4, 5, 6)  # numbers of samples for the linear program
    draws: int = 20  # of attention and samples for each of them and each number of heads

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {1, 2} <= set(self.heads):
            raise ValueError(f"heads: expected 1 and 2 among them, got {self.heads}")
        if len(self.samples) == 0 or min(self.samples) < 3:
            raise ValueError(f"samples: expected numbers of at least 3, got {self.samples}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of heads and samples, and which heads are drawn: too few by one, or just enough."""
        return {"heads": list(self.heads), "samples": list(self.samples), "lacking": [1, 0]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train on three samples; solve linear programs with n - 2 and n - 1 heads on n samples."""
        z = self.spacing * torch.arange(1, 4, device=double(device)).double()
        batch = on_a_line(z.repeat(len(seeds) * self.starts, 1))
        fitted, jobs = [], len(self.heads) + 1
        for number, n_heads in enumerate(self.heads):
            rngs = [stream(seed, "start", i) for seed in seeds for i in range(self.starts)]
            start = _random_start(rngs, (n_heads, 2, 1), self.scale, batch[0])
            last = _descend(start, batch, self.step_size, self.steps, share(progress, number, jobs))
            right = (layer.outputs(last, batch[0]) * batch[1] > 0).all(1)
            fitted.append(right.view(len(seeds), -1).double().mean(1).cpu().numpy())
        solved = [[[self._solved(seed, n, n - 1 - k) for seed in seeds] for k in (1, 0)] for n in self.samples]
        if progress:
            progress(1, 1)
        return {"fitted": (("heads", "seed"), fitted), "solved": (("samples", "lacking", "seed"), solved)}

    def _solved(self, seed: int, n: int, n_heads: int) -> float:
        """Share of draws of attention and samples for which some decoders get all alternating labels right."""
        rng, right = stream(seed, "alternating", n, n_heads), 0
        for _ in range(self.draws):
            # Logits w z^2 from far below one to far above it: log-uniform z^2 and w.
            z = np.sqrt(np.sort(10 ** rng.uniform(-1, 1, n)))
            key_query = torch.tensor(10 ** rng.uniform(-1.5, 1.5, (1, n_heads, 1, 1)))
            right += best_margin(key_query, *on_a_line(torch.tensor(z)[None])) > SOLVED
        return right / self.draws

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off shares of networks that fit, and of solved linear programs."""
        few, enough = (data.solved.sel(lacking=k) for k in (1, 0))
        return {
            "MH-OPEN-heads": {
                **{f"fitted_{h}": data.fitted.sel(heads=h) for h in (1, 2)}, "fitted_most": data.fitted.isel(heads=-1),
                "solved_lacking_one": few.max("samples"), "solved_enough": enough.min("samples"),
            }
        }  # fmt: skip


def on_a_line(z: Tensor) -> network.Batch:
    """Return samples of two tokens of dimension one, zero and z > 0, increasing, with labels that alternate."""
    tokens = torch.stack([torch.zeros_like(z), z], dim=-1)[..., None]
    labels = (-1.0) ** torch.arange(z.shape[1], dtype=z.dtype, device=z.device)
    return tokens, labels.expand(len(z), -1)


def best_margin(key_query: Tensor, tokens: Tensor, labels: Tensor) -> float:
    """Return the largest margin of decoders with entries up to one, for given attention; zero where labels do not fit.

    Attention first: what decoders see is linear in them, so that this is a linear program.
    """
    from scipy.optimize import linprog  # only here: a machine that trains does not load it

    shape = (*key_query.shape[:2], *tokens.shape[2:])
    weights = layer.attention_weights({"decoder": tokens.new_zeros(shape), "key_query": key_query}, tokens)
    seen = (weights @ tokens[:, :, None])[0].flatten(1).numpy()
    gains = -labels[0].numpy()[:, None] * seen / np.abs(seen).max(0)
    rows = np.column_stack([gains, np.ones(len(gains))])
    costs = np.append(np.zeros(gains.shape[1]), -1.0)
    bounds = [(-1.0, 1.0)] * gains.shape[1] + [(0.0, None)]
    return float(-linprog(costs, A_ub=rows, b_ub=np.zeros(len(rows)), bounds=bounds, method="highs").fun)


def _random_start(
    rngs: list[np.random.Generator], sizes: tuple[int, int, int], scale: float, like: Tensor
) -> Parameters:
    """Draw independent normal entries for each member; the first heads are the same whatever their number is."""
    drawn = [network.draw_parameters(*sizes, scale=scale, rng=rng) for rng in rngs]
    return {name: like.new_tensor(np.stack([one[name] for one in drawn])) for name in drawn[0]}


def _descend(
    start: Parameters, batch: network.Batch, step_size: float, steps: int, progress: Progress | None
) -> Parameters:
    """Train all heads of every member by plain gradient descent; return where they end."""
    return head_groups.gradient_descent(
        start,
        batch[0],
        logistic(batch[1]),
        counts=batch[0].new_ones(start["decoder"].shape[:2]),
        step_size=step_size,
        steps=steps,
        record=lambda now: {"loss": network.losses(now, batch)},
        record_at=(steps,),
        progress=progress,
    ).parameters
