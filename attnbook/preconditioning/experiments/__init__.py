"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.preconditioning.experiments import (
    ablation,
    optimizer_race,
    structure_aware_descent,
)

__all__ = [
    "EXPERIMENTS",
    "ablation",
    "optimizer_race",
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
)
