"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.mirror_descent.experiments import (
    cone,
    direction,
    geometry,
    inequalities,
    rates,
    staying,
    steps,
    trajectories,
)

__all__ = [
    "EXPERIMENTS",
    "cone",
    "direction",
    "geometry",
    "inequalities",
    "rates",
    "staying",
    "steps",
    "trajectories",
]

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        id="mirror_descent.geometry",
        summary="The attention SVM by norm: solution, attention and sparsity as p falls to 1",
        settings=geometry.Settings,
        result=geometry.Geometry,
        run=geometry.run,
        budget_seconds=10,
    ),
    Experiment(
        id="mirror_descent.trajectories",
        summary="Paths in the plane that turn to their max-margin ray; one constraint is exact",
        settings=trajectories.Settings,
        result=trajectories.Trajectories,
        run=trajectories.run,
        budget_seconds=15,
    ),
    Experiment(
        id="mirror_descent.direction",
        summary="Direction, selected tokens, cross table and sparsity of runs with several p",
        settings=direction.Settings,
        result=direction.Direction,
        run=direction.run,
        budget_seconds=30,
    ),
    Experiment(
        id="mirror_descent.inequalities",
        summary="Lemmas 12 to 15 and 26 on random and worst-case matrices",
        settings=inequalities.Settings,
        result=inequalities.Inequalities,
        run=inequalities.run,
        budget_seconds=15,
    ),
    Experiment(
        id="mirror_descent.cone",
        summary="Lemmas 19 to 21 in cones around max-margin solutions, and how wide these cones are",
        settings=cone.Settings,
        result=cone.Cone,
        run=cone.run,
        budget_seconds=15,
    ),
    Experiment(
        id="mirror_descent.steps",
        summary="Lemmas 4 and 22 to 25 at every step of plain runs, and the growth of the norm",
        settings=steps.Settings,
        result=steps.Steps,
        run=steps.run,
        budget_seconds=20,
    ),
    Experiment(
        id="mirror_descent.staying",
        summary="Lemmas 27 and 28: runs that start in a cone, by depth and norm of the start",
        settings=staying.Settings,
        result=staying.Staying,
        run=staying.run,
        budget_seconds=20,
    ),
    Experiment(
        id="mirror_descent.rates",
        summary="Lemmas 29 and 30 far out: divergence and norm against the log of time",
        settings=rates.Settings,
        result=rates.Rates,
        run=rates.run,
        budget_seconds=25,
    ),
)
