"""The experiments of this paper: settings, runs, results.

On :mod:`eigenvalues` no claim rests, so it is not registered: a notebook calls it for its slider.
"""

from attnbook.core.results import Experiment
from attnbook.multi_head.experiments import (
    curvature,
    eigenvalues,
    head_types,
    heads_on_mixture,
    large_weights,
    output_scaling,
    planted_teacher,
    single_head,
    starts_compared,
    step_size_map,
)

__all__ = [
    "EXPERIMENTS",
    "curvature",
    "eigenvalues",
    "head_types",
    "heads_on_mixture",
    "large_weights",
    "output_scaling",
    "planted_teacher",
    "single_head",
    "starts_compared",
    "step_size_map",
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
        id="multi_head.heads_on_mixture",
        summary="Mixture data: loss, error and attention against the number of heads at one step size",
        settings=heads_on_mixture.Settings,
        result=heads_on_mixture.HeadsOnMixture,
        run=heads_on_mixture.run,
        budget_seconds=25,
    ),
    Experiment(
        id="multi_head.step_size_map",
        summary="Mixture data: the number of heads and the step size together",
        settings=step_size_map.Settings,
        result=step_size_map.StepSizeMap,
        run=step_size_map.run,
        budget_seconds=50,
    ),
    Experiment(
        id="multi_head.output_scaling",
        summary="Mixture data: heads summed with one scaling or another",
        settings=output_scaling.Settings,
        result=output_scaling.OutputScaling,
        run=output_scaling.run,
        budget_seconds=20,
    ),
    Experiment(
        id="multi_head.starts_compared",
        summary="Mixture data: three starts, and many heads from zero as one head",
        settings=starts_compared.Settings,
        result=starts_compared.StartsCompared,
        run=starts_compared.run,
        budget_seconds=25,
    ),
    Experiment(
        id="multi_head.planted_teacher",
        summary="A planted teacher: loss and error against the number of heads",
        settings=planted_teacher.Settings,
        result=planted_teacher.PlantedTeacher,
        run=planted_teacher.run,
        budget_seconds=30,
    ),
    Experiment(
        id="multi_head.head_types",
        summary="Plus and minus heads after the first phase: where each looks",
        settings=head_types.Settings,
        result=head_types.HeadTypes,
        run=head_types.run,
        budget_seconds=25,
    ),
)
