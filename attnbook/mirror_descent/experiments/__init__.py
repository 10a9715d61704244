"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.mirror_descent.experiments import (
    direction,
    geometry,
    inequalities,
    objective,
    regularisation_path,
    token_selection,
    trajectories,
)

__all__ = [
    "EXPERIMENTS",
    "direction",
    "geometry",
    "inequalities",
    "objective",
    "regularisation_path",
    "token_selection",
    "trajectories",
]

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        id="mirror_descent.token_selection",
        summary="Which tokens attention can select, which of them training keeps, and the attention SVM's certificates",
        settings=token_selection.Settings,
        result=token_selection.TokenSelection,
        run=token_selection.run,
        budget_seconds=20,
    ),
    Experiment(
        id="mirror_descent.objective",
        summary="Loss and gradient: bounds, closed form, covariance lemma, and what rounding does",
        settings=objective.Settings,
        result=objective.Objective,
        run=objective.run,
        budget_seconds=10,
    ),
    Experiment(
        id="mirror_descent.regularisation_path",
        summary="The regularisation path walked outwards and inwards, and where solvers get lost",
        settings=regularisation_path.Settings,
        result=regularisation_path.RegularisationPath,
        run=regularisation_path.run,
        budget_seconds=15,
    ),
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
)
