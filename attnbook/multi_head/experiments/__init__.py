"""The experiments of this paper: settings, runs, results.

On :mod:`eigenvalues` no claim rests, so it is not registered: a notebook calls it for its slider.
"""

from attnbook.core.results import Experiment
from attnbook.multi_head.experiments import (
    certificates,
    curvature,
    eigenvalues,
    equal_heads,
    large_weights,
    segments,
    single_head,
    training_bounds,
)

__all__ = [
    "EXPERIMENTS",
    "certificates",
    "curvature",
    "eigenvalues",
    "equal_heads",
    "large_weights",
    "segments",
    "single_head",
    "training_bounds",
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
        id="multi_head.training_bounds",
        summary="Theorem 1 and Corollary 2: training loss beside its bounds, from four to a million million heads",
        settings=training_bounds.Settings,
        result=training_bounds.TrainingBounds,
        run=training_bounds.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.certificates",
        summary="Theorem 1 with every hypothesis met: heads tracked one by one",
        settings=certificates.Settings,
        result=certificates.Certificates,
        run=certificates.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.equal_heads",
        summary="Equal heads stay equal: groups against whole networks",
        settings=equal_heads.Settings,
        result=equal_heads.EqualHeads,
        run=equal_heads.run,
        budget_seconds=5,
    ),
    Experiment(
        id="multi_head.segments",
        summary="Proposition 4: the loss between two networks",
        settings=segments.Settings,
        result=segments.Segments,
        run=segments.run,
        budget_seconds=10,
    ),
)
