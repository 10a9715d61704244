r"""How near gradient descent comes to the attention margin, an open question of the paper's Section 7; our design.

Plain gradient descent on the logistic loss races against *loss-normalised* gradient descent, which follows the gradient
of :func:`~attnbook.multi_head.objectives.log_sum_exp`. What counts is the margin per norm of the value matrices,
$\min_iy_i\tilde\Phi(X_i)/\|\tilde U\|$, as a share of $\gamma_{attn}=S\sqrt{T/2}$.

All start at zero, where heads stay equal for ever, but for the normalised networks with more than one head: they start
after the first phase with balanced signs, so that there are two kinds of heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate, share
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import head_groups, layer, measures, objectives, oracle, starts, tangent_kernel
from attnbook.multi_head.data import draw_patterns
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.race_settings import Runner, Settings

__all__ = ["MarginRace", "Settings", "run"]


@dataclass(frozen=True)
class MarginRace(Result):
    r"""The race; all but the last two are ``(seeds, runners, records)``, runners as in the settings.

    Attributes:
        fraction: Margin per norm of the value matrices, as a share of $\gamma_{attn}$.
        value_norm: $\|\tilde U\|$.
        key_query_norm: $\|\tilde W\|$.
        plus_mass: Attention of heads of coefficient 1 on relevant tokens; from zero, of all heads.
        minus_mass: The same of heads of coefficient -1.
        cosine: Cosine of $W$ and $W_\star$, mean over heads.
        tried: Share of $\gamma_{attn}$ after the trials of step sizes, ``(seeds, trials)`` as in the settings.
        floor: The largest share that uniform attention can have, by an exact solver; 0 if it cannot separate the
            samples; ``(seeds,)``.
    """

    experiment: ClassVar[str] = "multi_head.margin_race"
    settings_type: ClassVar[type] = Settings

    fraction: Float[np.ndarray, "seeds runners records"]
    value_norm: Float[np.ndarray, "seeds runners records"]
    key_query_norm: Float[np.ndarray, "seeds runners records"]
    plus_mass: Float[np.ndarray, "seeds runners records"]
    minus_mass: Float[np.ndarray, "seeds runners records"]
    cosine: Float[np.ndarray, "seeds runners records"]
    tried: Float[np.ndarray, "seeds trials"]
    floor: Float[np.ndarray, " seeds"]

    @property
    def mass(self) -> Float[np.ndarray, "seeds runners records"]:
        """Attention on relevant tokens, mean over all heads."""
        return (self.plus_mass + self.minus_mass) / 2

    def runner(self, rule: str, n_heads: int) -> int:
        """Return where in the arrays the network with this rule and number of heads stands."""
        return [(one.rule, one.n_heads) for one in self.settings.runners].index((rule, n_heads))

    def tried_with(self, rule: str, n_heads: int) -> Float[np.ndarray, "seeds sizes"]:
        """Return what each step size gave with this rule and number of heads."""
        return self.tried[:, [(one.rule, one.n_heads) == (rule, n_heads) for one in self.settings.tried]]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found on the open question, by claim id."""
        ends = self.fraction[..., -1]
        plain, plain_many = (self.runner("plain", n_heads) for n_heads in self.settings.heads)
        one, many = (self.runner("normalised", n_heads) for n_heads in self.settings.heads)
        early = self.settings.record_at.index(self.settings.early_step)
        return {
            "MH-X.1": over_seeds(fraction_1=ends[:, plain], fraction_16=ends[:, plain_many]),
            "MH-X.1-tuned": over_seeds(**self._best_tried()),
            "MH-X.1-time": self._gains([plain, plain_many]),
            "MH-X.1-equal-norm": over_seeds(
                lead_of_plain_1=self.lead_at_equal_norm(plain, one),
                lead_of_plain_16=self.lead_at_equal_norm(plain_many, many),
            ),
            "MH-X.1-order": self._order(),
            "MH-X.2": extremes_over_seeds(smallest_fraction_1=ends[:, one], smallest_fraction_16=ends[:, many]),
            "MH-X.2-fast": extremes_over_seeds(smallest_fraction_early=self.fraction[:, one, early]),
            "MH-X.2-limit": extremes_over_seeds(
                largest_fraction=np.maximum(self.fraction.max((1, 2)), self.tried.max(1))
            ),
            "MH-X.2-mass": extremes_over_seeds(
                smallest_mass_1=self.mass[:, one, -1], smallest_mass_16=self.mass[:, many, -1]
            ),
            "MH-X.2-norms": over_seeds(
                norm_key_query=self.key_query_norm[:, one, -1], norm_value=self.value_norm[:, one, -1]
            ),
            "MH-X.2-signs": extremes_over_seeds(
                smallest_lead=(self.plus_mass - self.minus_mass)[:, many].max(1),
                smallest_minus_mass=self.minus_mass[:, many, -1],
            ),
            "MH-X.3": over_seeds(
                cosine=self.cosine[:, one, -1], late_change=np.ptp(self.cosine[:, one, early:], axis=1)
            ),
        }

    def lead_at_equal_norm(self, runner: int, other: int) -> Float[np.ndarray, " seeds"]:
        r"""Return the share of a runner at its end minus that of another at the step with the same $\|\tilde U\|$.

        Args:
            runner: Where it stands in the arrays.
            other: Where the other stands; its norms grow, and between records its share is read off a straight line
                over the logarithm of the norm.

        Returns:
            The lead.
        """
        norms, shares = np.log(self.value_norm), self.fraction
        there = [
            np.interp(end, x, y)
            for end, x, y in zip(norms[:, runner, -1], norms[:, other], shares[:, other], strict=True)
        ]
        return shares[:, runner, -1] - np.array(there)

    def _order(self) -> Measurement:
        """Shares of plain descent with few and with many heads at its own step size, and at the largest tried."""
        few, many = (self.tried_with("plain", n_heads) for n_heads in self.settings.heads)
        at = self.settings.tried_plain.index(self.settings.plain_step_size)
        return over_seeds(
            few_here=few[:, at], many_here=many[:, at], few_at_largest=few[:, -1], many_at_largest=many[:, -1]
        )

    def _gains(self, runners: list[int]) -> Measurement:
        """The smallest gain between records from a fortieth of the steps on, and of all before."""
        shares, at = self.fraction[:, runners], np.array(self.settings.record_at)
        late, gains = at[:-1] >= self.settings.steps / 40, np.diff(shares, axis=2)
        after, before = (np.where(chosen, gains, np.inf).min((1, 2)) for chosen in (late, ~late))
        return extremes_over_seeds(smallest_margin_gain=after, smallest_gain_before=before)

    def _best_tried(self) -> dict[str, np.ndarray]:
        """Shares at the step size whose median is largest, for each rule and number of heads."""
        found = {}
        for rule in ("plain", "normalised"):
            for n_heads in self.settings.heads:
                shares = self.tried_with(rule, n_heads)
                found[f"best_{rule}_{n_heads}"] = shares[:, np.median(shares, axis=0).argmax()]
        return found


class _Team(NamedTuple):
    """Runners that are trained as one program: they have equally many kinds of heads."""

    runners: tuple[Runner, ...]
    start: Parameters
    counts: Float[Tensor, "members groups"]
    record_at: tuple[int, ...]


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> MarginRace:
    """Train all runners on the same samples.

    Args:
        settings: Sizes, runners and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        drawn = samples.draw(settings.mixture, settings.n_samples, seeds, device=where)
        teams = [*_race(settings, seeds, drawn), _trials(settings, drawn)]
        *race, trials = [
            _train(settings, seeds, drawn, team, share(inner, number, len(teams))) for number, team in enumerate(teams)
        ]
        return {
            **{name: np.concatenate([part[name] for part in race], axis=1) for name in race[0]},
            "tried": trials["fraction"][..., -1],
            "floor": _floor(drawn) / oracle.attention_margin(settings.mixture),
        }

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return MarginRace(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _race(settings: Settings, seeds: tuple[int, ...], drawn: samples.Drawn) -> list[_Team]:
    """Those that start at zero, with one kind of head, and those that start after the first phase, with two."""
    device = drawn.tokens.device
    later = tuple(one for one in settings.runners if not one.from_zero)
    first = samples.draw(settings.mixture, settings.first_phase_samples, seeds, purpose="first phase", device=device)
    start = starts.first_phase(first.tokens, first.labels)
    repeated = {name: tensor.repeat(len(later), 1, 1, 1) for name, tensor in start.items()}
    signs = drawn.tokens.new_tensor([starts.even_sign_counts(one.n_heads).tolist() for one in later])
    return [
        _from_zero(tuple(one for one in settings.runners if one.from_zero), drawn, settings.record_at),
        _Team(later, repeated, signs.repeat_interleave(len(seeds), 0), settings.record_at),
    ]


def _trials(settings: Settings, drawn: samples.Drawn) -> _Team:
    return _from_zero(settings.tried, drawn, (settings.tried_steps,))


def _from_zero(runners: tuple[Runner, ...], drawn: samples.Drawn, record_at: tuple[int, ...]) -> _Team:
    n_seeds, _, n_tokens, dimension = drawn.tokens.shape
    counts = drawn.tokens.new_tensor([[float(one.n_heads)] for one in runners]).repeat_interleave(n_seeds, 0)
    start = starts.zero(len(counts), n_tokens, dimension, device=drawn.tokens.device)
    return _Team(runners, start, counts, record_at)


def _train(
    settings: Settings, seeds: tuple[int, ...], drawn: samples.Drawn, team: _Team, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Train one team, runner by runner and in each seed by seed; returns ``(seeds, runners, records)`` by name."""
    runners, n_seeds = team.runners, len(seeds)
    tokens, labels = drawn.tokens.repeat(len(runners), 1, 1, 1), drawn.labels.repeat(len(runners), 1)
    rules = {"plain": objectives.logistic(drawn.labels), "normalised": objectives.log_sum_exp(drawn.labels)}
    patterns = [draw_patterns(settings.mixture, rng=stream(seed, "patterns")) for seed in seeds]
    targets = torch.as_tensor(np.stack([oracle.key_query(one) for one in patterns])).to(tokens)
    everything = samples.Drawn(tokens, labels, drawn.relevant.repeat(len(runners), 1, 1))
    history = head_groups.gradient_descent(
        team.start,
        tokens,
        objectives.side_by_side([(n_seeds, rules[one.rule]) for one in runners]),
        counts=team.counts,
        step_size=[one.step_size for one in runners for _ in seeds],
        steps=team.record_at[-1],
        record=lambda p: _look(p, everything, team.counts, targets.repeat(len(runners), 1, 1)),
        record_at=team.record_at,
        progress=progress,
    )
    limit = oracle.attention_margin(settings.mixture)
    found = {
        name: array.reshape(-1, len(runners), n_seeds).transpose(2, 1, 0) for name, array in history.records.items()
    }
    return found | {"fraction": found["fraction"] / limit}


def _look(
    parameters: Parameters, drawn: samples.Drawn, counts: Tensor, targets: Tensor
) -> Mapping[str, Float[Tensor, " members"]]:
    """What is recorded of every member; ``fraction`` not yet divided by the attention margin."""
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
        "plus_mass": mass[:, 0],
        "minus_mass": mass[:, -1],
        "cosine": along.mean(1),
    }


def _floor(drawn: samples.Drawn) -> Float[np.ndarray, " seeds"]:
    """The largest margin with uniform attention: at zero only the value matrix has a gradient, the attended tokens."""
    n_seeds, _, n_tokens, dimension = drawn.tokens.shape
    start = starts.zero(n_seeds, n_tokens, dimension, device=drawn.tokens.device)
    features = tangent_kernel.tangent_features(start, drawn.tokens)
    grams = (features @ features.mT).cpu().numpy()
    return np.array([_margin(gram, y) for gram, y in zip(grams, drawn.labels.cpu().numpy(), strict=True)])


def _margin(gram: np.ndarray, labels: np.ndarray) -> float:
    try:
        return kernel_margin(gram, labels).margin
    except NotSeparableError:
        return 0.0
