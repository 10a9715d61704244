"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.preconditioning.experiments import (
    ablation,
    compute_split,
    finite_keys,
    gradient_oracle,
    heavy_tails,
    minibatch_floor,
    optimizer_race,
    scaling_law,
    structure_aware_descent,
)

__all__ = [
    "EXPERIMENTS",
    "ablation",
    "compute_split",
    "finite_keys",
    "gradient_oracle",
    "heavy_tails",
    "minibatch_floor",
    "optimizer_race",
    "scaling_law",
    "structure_aware_descent",
]

EXPERIMENTS = (
    Experiment(
        id="preconditioning.structure_aware_descent",
        summary="Figures 1 and 2: Algorithm 1 from two starts, beside gradient descent",
        settings=structure_aware_descent.Settings,
        result=structure_aware_descent.StructureAwareDescent,
        run=structure_aware_descent.run,
        budget_seconds=25,
    ),
    Experiment(
        id="preconditioning.ablation",
        summary="Which part of Algorithm 1 does what: start, preconditioner, regulariser; six problems",
        settings=ablation.Settings,
        result=ablation.Ablation,
        run=ablation.run,
        budget_seconds=60,
    ),
    Experiment(
        id="preconditioning.optimizer_race",
        summary="A fair race with tuned SGD, Adam, Muon-like and Shampoo-like updates; two problems",
        settings=optimizer_race.Settings,
        result=optimizer_race.OptimizerRace,
        run=optimizer_race.run,
        budget_seconds=60,
    ),
    Experiment(
        id="preconditioning.finite_keys",
        summary="Lemmas 8 to 14 and the coefficient of 1/n, with exact expectations over keys",
        settings=finite_keys.Settings,
        result=finite_keys.FiniteKeys,
        run=finite_keys.run,
        budget_seconds=15,
    ),
    Experiment(
        id="preconditioning.scaling_law",
        summary="Theorem 2 on one data set: start, training and steps against the number of samples",
        settings=scaling_law.Settings,
        result=scaling_law.ScalingLaw,
        run=scaling_law.run,
        budget_seconds=25,
    ),
    Experiment(
        id="preconditioning.gradient_oracle",
        summary="Theorem 2 with expected gradients: the bias of the fixed point, predicted and run",
        settings=gradient_oracle.Settings,
        result=gradient_oracle.GradientOracle,
        run=gradient_oracle.run,
        budget_seconds=20,
    ),
    Experiment(
        id="preconditioning.minibatch_floor",
        summary="What minibatches do to a spectral start, by batch size",
        settings=minibatch_floor.Settings,
        result=minibatch_floor.MinibatchFloor,
        run=minibatch_floor.run,
        budget_seconds=15,
    ),
    Experiment(
        id="preconditioning.heavy_tails",
        summary="The bias of the loss across the heavy-tail threshold, exactly",
        settings=heavy_tails.Settings,
        result=heavy_tails.HeavyTails,
        run=heavy_tails.run,
        budget_seconds=15,
    ),
)
