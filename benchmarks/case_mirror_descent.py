"""Max-margin token selection in a p-norm, and training with mirror descent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from timeit import repeat

import numpy as np
import torch
import torch.nn.functional as F
from plain_loop import Loss, train_each
from scipy.linalg.lapack import dposv
from scipy.optimize import nnls
from side_by_side import Case
from torch import Tensor

from attnbook.core.kernel_margin import factors
from attnbook.core.max_margin import max_margin
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.attention_svm import attention_constraints, attention_svm
from attnbook.mirror_descent.data import Problems, draw_problems, joined
from attnbook.mirror_descent.optimizer import MirrorDescent

EXPONENTS, SEEDS, STEPS = (1.5, 2.0, 3.0), 10, 200


@dataclass(frozen=True)
class Size:
    """Sizes of the problems of a comparison, their number, and how much faster ours should be."""

    samples: int
    tokens: int
    dimension: int
    problems: int
    aim: float
    compiled_once: bool

    def __str__(self) -> str:
        return f"{self.samples * (self.tokens - 1)} constraints in {self.dimension**2} dimensions"


SMALL = Size(6, 8, 10, problems=20, aim=10.0, compiled_once=True)
# Compiling these once, with the constraints as parameters, takes cvxpy more memory than most machines have.
LARGE = Size(20, 16, 32, problems=2, aim=50.0, compiled_once=False)


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [*(separator(size, p) for size in (SMALL, LARGE) for p in (1.25, 2.0, 3.0)), training()]


def separator(size: Size, p: float) -> Case:
    """Compare our solver with a modelling language: the smallest norms, with weights scaled to feasibility."""
    drawn = draw_problems(range(size.problems), n_samples=size.samples, n_tokens=size.tokens, dimension=size.dimension)
    tokens, queries, best = drawn.tokens, drawn.queries, drawn.best_tokens
    ours = "active set" if p == 2 else "interior point"
    rows = attention_constraints(tokens, queries, best)
    others = {"cvxpy with Clarabel": _cvxpy(rows, p)}
    if size.compiled_once:
        others["cvxpy with Clarabel, compiled once"] = _cvxpy_compiled(rows, p)
    together, alone = f"{ours}, all at once (ours)", f"{ours}, one after another (ours)"

    def remark(cpu: Mapping[str, float]) -> str:
        ratios = " and ".join(f"{cpu[label] / cpu[alone]:.1f} times as long for {label}" for label in others)
        steps = max_margin(rows, p).steps.sum()
        if not steps:
            return (
                f"One problem at a time the processor works {ratios} as for ours. The limit: SciPy's nnls, which "
                f"solves each problem, alone takes {100 * _nnls(rows) / cpu[together]:.0f}% of the time of ours."
            )
        system = 1e3 * cpu[alone] / steps
        return (
            f"One problem at a time the processor works {ratios} as for ours. Ours takes {system:.0f} µs a Newton "
            f"step; to solve its system of {rows.shape[1]} equations takes {_solving(rows.shape[1]):.0f} µs, the rest "
            "are calls of NumPy on arrays of about a hundred numbers."
        )

    return Case(
        title=f"Attention SVM, {size}, p = {p:g}",
        what=f"The smallest norms of key-query matrices that select given tokens, {size.problems} problems. Ours "
        "starts from tokens and proves each norm to a relative gap of 1e-12; cvxpy gets the constraints, and runs at "
        "Clarabel's own tolerances of 1e-8.",
        variants={
            together: lambda: attention_svm(tokens, queries, best, p).norm,
            alone: lambda: np.concatenate(
                [
                    attention_svm(tokens[i : i + 1], queries[i : i + 1], best[i : i + 1], p).norm
                    for i in range(size.problems)
                ]
            ),
        }
        | others,
        tolerance=2e-8,
        aim=dict.fromkeys(others, 50.0 if p == 2 else size.aim),
        remark=remark,
        clock="cpu_ms",
    )


def _nnls(rows: np.ndarray) -> float:
    """Return the processor time of non-negative least squares for all problems, in ms."""
    systems = np.concatenate([factors(rows @ rows.swapaxes(1, 2)), np.ones((len(rows), 1, rows.shape[1]))], axis=1)
    last, spent = np.append(np.zeros(rows.shape[1]), 1.0), []
    for _ in range(9):
        start = time.process_time()
        for system in systems:
            nnls(system, last)
        spent.append(time.process_time() - start)
    return 1e3 * statistics.median(spent)


def _solving(count: int) -> float:
    """Return what a positive definite system of so many equations takes, in µs."""
    matrix, right = np.eye(count) + 1.0, np.ones(count)
    return 1e6 * min(repeat(lambda: dposv(matrix, right), number=50, repeat=7)) / 50


def _cvxpy(rows: np.ndarray, p: float) -> Callable[[], np.ndarray]:
    """One problem after another, written down anew: what a notebook does."""
    import cvxpy

    def solved(one: np.ndarray) -> float:
        weights = cvxpy.Variable(one.shape[1])
        cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(weights, p)), [one @ weights >= 1]).solve(
            solver=cvxpy.CLARABEL, max_threads=1
        )
        return _norm_of_feasible(weights.value, one, p)

    return lambda: np.array([solved(one) for one in rows])


def _cvxpy_compiled(rows: np.ndarray, p: float) -> Callable[[], np.ndarray]:
    """The problem is compiled once; only the numbers change."""
    import cvxpy

    weights, constraints = cvxpy.Variable(rows.shape[2]), cvxpy.Parameter(rows.shape[1:])
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(weights, p)), [constraints @ weights >= 1])

    def solved(one: np.ndarray) -> float:
        constraints.value = one
        problem.solve(solver=cvxpy.CLARABEL, max_threads=1)
        return _norm_of_feasible(weights.value, one, p)

    return lambda: np.array([solved(one) for one in rows])


def _norm_of_feasible(weights: np.ndarray, rows: np.ndarray, p: float) -> float:
    return float((np.abs(weights) ** p).sum() ** (1 / p) / (rows @ weights).min())


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
