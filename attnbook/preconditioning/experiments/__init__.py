"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.preconditioning.experiments import (
    ablation,
    landscape,
    minima,
    optimizer_race,
    population_loss,
    structure_aware_descent,
)

__all__ = [
    "EXPERIMENTS",
    "ablation",
    "landscape",
    "minima",
    "optimizer_race",
    "population_loss",
    "structure_aware_descent",
]

EXPERIMENTS = (
    Experiment(
        id="preconditioning.population_loss",
        summary="Softmax attention on Gaussian keys by simulation: tilted mean, loss and moments",
        settings=population_loss.Settings,
        result=population_loss.PopulationLoss,
        run=population_loss.run,
        budget_seconds=25,
    ),
    Experiment(
        id="preconditioning.minima",
        summary="The set of minima: projection, Hessian, saddle, and the weight of the regulariser",
        settings=minima.Settings,
        result=minima.Minima,
        run=minima.run,
        budget_seconds=15,
    ),
    Experiment(
        id="preconditioning.landscape",
        summary="Theorem 1: one-point convexity and smoothness, at random and at worst",
        settings=landscape.Settings,
        result=landscape.Landscape,
        run=landscape.run,
        budget_seconds=25,
    ),
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
