"""The experiments of this paper: settings, runs, results.

On :mod:`eigenvalues` and :mod:`leave_one_out_paths` no claim rests, so they are not registered: notebooks call them
for their sliders.
"""

from attnbook.core.results import Experiment
from attnbook.multi_head.experiments import (
    curvature,
    eigenvalues,
    generalisation_gap,
    large_weights,
    leave_one_out_paths,
    single_head,
    stability,
)

__all__ = [
    "EXPERIMENTS",
    "curvature",
    "eigenvalues",
    "generalisation_gap",
    "large_weights",
    "leave_one_out_paths",
    "single_head",
    "stability",
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
        id="multi_head.generalisation_gap",
        summary="Theorem 2 and Corollary 2: test minus training loss against the number of samples, and the bounds",
        settings=generalisation_gap.Settings,
        result=generalisation_gap.GeneralisationGap,
        run=generalisation_gap.run,
        budget_seconds=30,
    ),
    Experiment(
        id="multi_head.stability",
        summary="Leave-one-out stability: recursion (22), Lemma 3, and the left-out loss",
        settings=stability.Settings,
        result=stability.Stability,
        run=stability.run,
        budget_seconds=40,
    ),
)
