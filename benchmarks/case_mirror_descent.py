"""Max-margin token selection in a p-norm, and training with mirror descent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import torch
import torch.nn.functional as F
from plain_loop import Loss, train_each
from side_by_side import Case
from torch import Tensor

from attnbook.core.max_margin import max_margin
from attnbook.mirror_descent.data import Problems, draw_problems, joined
from attnbook.mirror_descent.models.attention import descend
from attnbook.mirror_descent.optimizer import MirrorDescent

PROBLEMS = 20
EXPONENTS, SEEDS, STEPS = (1.5, 2.0, 3.0), 10, 200


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [separator(1.5), separator(3.0), training()]


def separator(p: float) -> Case:
    """Compare our solver with a modelling language and with a general constrained minimiser."""
    rows = _constraints()
    variants = {"interior point, all at once (ours)": lambda: max_margin(rows, p, tolerance=1e-8).weights}
    variants["interior point, one after another (ours)"] = lambda: np.concatenate(
        [max_margin(one[None], p, tolerance=1e-8).weights for one in rows]
    )
    variants["cvxpy, one after another"] = _cvxpy(rows, p)
    return Case(
        title=f"Attention SVM, p = {p:g}",
        what=f"The smallest w in the {p:g}-norm that satisfies 42 constraints in 100 dimensions; {PROBLEMS} problems.",
        variants=variants,
        tolerance=1e-3,
        aim={"cvxpy, one after another": 10.0},
    )


def _constraints() -> np.ndarray:
    problems = draw_problems(range(PROBLEMS))
    best = problems.best_tokens
    chosen = np.take_along_axis(problems.tokens, best[..., None, None], axis=2)
    others = np.ones(problems.tokens.shape[:3], dtype=bool)
    np.put_along_axis(others, best[..., None], False, axis=2)
    differences = (chosen - problems.tokens)[others].reshape(PROBLEMS, 6, 7, 10)
    return np.einsum("pstd,pse->pstde", differences, problems.queries).reshape(PROBLEMS, 42, 100)


def _cvxpy(rows: np.ndarray, p: float) -> Callable[[], np.ndarray]:
    import cvxpy

    weights = cvxpy.Variable(rows.shape[2])
    constraints = cvxpy.Parameter(rows.shape[1:])
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(weights, p)), [constraints @ weights >= 1])

    def run() -> np.ndarray:
        solutions = []
        for one in rows:
            constraints.value = one  # the problem is compiled once; only the numbers change
            problem.solve()
            solutions.append(weights.value)
        return np.stack(solutions)

    return run


def training() -> Case:
    """Compare training all problems and exponents at once with training one after another."""
    problems = joined([draw_problems(range(SEEDS))] * len(EXPONENTS))
    p = np.repeat(EXPONENTS, SEEDS)

    def part(i: int) -> Problems:
        return Problems(*(getattr(problems, f.name)[i : i + 1] for f in fields(problems)))

    def together(chosen: Problems, exponents: np.ndarray) -> np.ndarray:
        history = descend(chosen, exponents, steps=STEPS, step_size=0.1, record_at=(STEPS,))
        return history.parameters["key_query"].numpy()

    def loss_of(i: int) -> Loss:
        x, z, y, v = (torch.from_numpy(getattr(problems, f.name)[i]) for f in fields(problems))

        def loss(parameters: dict[str, Tensor], _: int) -> Tensor:
            attention = torch.softmax(torch.einsum("ntd,de,ne->nt", x, parameters["w"], z), dim=1)
            return F.softplus(-y * torch.einsum("nt,ntd,d->n", attention, x, v)).mean()

        return loss

    def loop() -> np.ndarray:
        starts = [{"w": torch.zeros(10, 10, dtype=torch.float64)} for _ in p]
        each = train_each(
            starts, map(loss_of, range(len(p))), lambda ps, i: MirrorDescent(ps, lr=0.1, p=float(p[i])), STEPS
        )
        return torch.stack([trained["w"] for trained in each]).numpy()

    return Case(
        title="Training with mirror descent",
        what=f"{STEPS} plain steps of {len(p)} key-query matrices: {SEEDS} problems for each p of {EXPONENTS}.",
        variants={
            "one batch (ours)": lambda: together(problems, p),
            "one after another (ours)": lambda: np.concatenate(
                [together(part(i), p[i : i + 1]) for i in range(len(p))]
            ),
            "one after another, autograd and our optimiser": loop,
        },
        tolerance=1e-9,
        aim={},
    )
