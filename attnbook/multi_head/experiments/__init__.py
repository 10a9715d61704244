"""The experiments of this paper: settings, runs, results.

On :mod:`eigenvalues` no claim rests, so it is not registered: a notebook calls it for its slider.
"""

from attnbook.core.results import Experiment
from attnbook.multi_head.experiments import (
    after_start,
    curvature,
    eigenvalues,
    first_phase,
    good_start,
    large_weights,
    single_head,
    start_margin,
)

__all__ = [
    "EXPERIMENTS",
    "after_start",
    "curvature",
    "eigenvalues",
    "first_phase",
    "good_start",
    "large_weights",
    "single_head",
    "start_margin",
]

EXPERIMENTS = (
    Experiment(
        id="multi_head.single_head",
        summary="Lemma 1 and Proposition 1: derivatives of one head and bounds on them",
        settings=single_head.Settings,
        result=single_head.SingleHead,
        run=single_head.run,
        budget_seconds=10,
    ),
    Experiment(
        id="multi_head.curvature",
        summary="Corollary 1: extreme curvature of the loss against the number of heads",
        settings=curvature.Settings,
        result=curvature.Curvature,
        run=curvature.run,
        budget_seconds=30,
    ),
    Experiment(
        id="multi_head.large_weights",
        summary="Corollary 1 at larger weights: the bound holds, the law in the number of heads fails",
        settings=large_weights.Settings,
        result=large_weights.LargeWeights,
        run=large_weights.run,
        budget_seconds=30,
    ),
    Experiment(
        id="multi_head.first_phase",
        summary="Lemma 2: what one step from zero writes, and what of it is not signal",
        settings=first_phase.Settings,
        result=first_phase.FirstPhase,
        run=first_phase.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.good_start",
        summary="Definition 1 and Proposition 2: norms, outputs and margins at the start, by number of heads",
        settings=good_start.Settings,
        result=good_start.GoodStart,
        run=good_start.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.start_margin",
        summary="Eq. (7): the tangent-kernel margin at the start without noise, with noise and with a residual",
        settings=start_margin.Settings,
        result=start_margin.StartMargin,
        run=start_margin.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.after_start",
        summary="Training from zero and from first-phase starts with lucky and unlucky signs",
        settings=after_start.Settings,
        result=after_start.AfterStart,
        run=after_start.run,
        budget_seconds=15,
    ),
)
