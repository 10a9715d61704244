"""Many equal heads trained as one, networks that miss one sample, and the largest margin of a kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from side_by_side import Case
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.kernel_margin import kernel_margin
from attnbook.core.rng import stream
from attnbook.multi_head import head_groups, layer, network, starts, tangent_kernel
from attnbook.multi_head import leave_one_out as left_out
from attnbook.multi_head.data import Mixture, draw
from attnbook.multi_head.objectives import logistic

HEADS, STEPS, STEP_SIZE = 64, 100, 0.5
MIXTURE = Mixture(10, 50, 20, relevant_fraction=0.2, label_noise=0.1, other_noise=0.1, free_noise=0.5)
EVERY_HEAD = f"all {HEADS} heads, closed form (ours)"
PROBLEMS, PROBLEM_SIZE = 20, 50
SMALL = replace(MIXTURE, dimension=10, n_patterns=4)
FEW = replace(SMALL, n_tokens=5)


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [groups(SMALL, 50, aim={}), groups(MIXTURE, 100, aim={EVERY_HEAD: 20.0}), leave_one_out(), margin()]


def groups(mixture: Mixture, n_samples: int, *, aim: Mapping[str, float]) -> Case:
    """Compare training two groups of equal heads with training every head."""
    drawn = draw(mixture, n_samples, (0,))
    start = starts.first_phase(*draw(mixture, 400, (0,), purpose="first phase")[:2])

    def by_groups(n_heads: float) -> Parameters:
        counts = torch.from_numpy(starts.even_sign_counts(n_heads))[None]
        trained = head_groups.gradient_descent(
            start,
            drawn.tokens,
            logistic(drawn.labels),
            counts=counts,
            step_size=STEP_SIZE,
            steps=STEPS,
            record=lambda p: {"norm": head_groups.norm(p, counts=counts)},
        )
        return trained.parameters

    counts = torch.from_numpy(starts.even_sign_counts(HEADS))[None]
    whole = _every_head(start, counts)

    def remark(_: Mapping[str, float]) -> str:
        ratios = [_seconds(by_groups, 1e12) / _seconds(by_groups, 2) for _ in range(5)]
        return f"A million million heads take {statistics.median(ratios):.2f} times as long as two heads."

    return Case(
        title=f"Training {HEADS} heads from the first-phase start, {mixture.dimension} dimensions",
        what=f"{STEPS} steps of gradient descent on {n_samples} samples of 10 tokens, in float64.",
        variants={
            "two groups of equal heads (ours)": lambda: _flat(_every_head(by_groups(HEADS), counts)),
            EVERY_HEAD: lambda: _flat(
                network.gradient_descent(whole, drawn[:2], step_size=STEP_SIZE, steps=STEPS).parameters
            ),
            f"all {HEADS} heads, autograd and torch.optim": lambda: _by_autograd(whole, drawn.tokens, drawn.labels),
        },
        tolerance=1e-9,
        aim=aim,
        remark=remark,
    )


def _every_head(groups: Parameters, counts: Tensor) -> Parameters:
    """Repeat each group of the only member as often as it has heads."""
    return {name: tensor.repeat_interleave(counts[0].long(), dim=1) for name, tensor in groups.items()}


def leave_one_out() -> Case:
    """Compare training all networks that miss one sample at once with one after another."""
    n_samples, steps = 20, 60
    drawn = draw(FEW, n_samples, (0,))
    start = starts.first_phase(*draw(FEW, 200, (0,), purpose="first phase")[:2])
    counts = torch.from_numpy(starts.even_sign_counts(4))[None]

    def together() -> np.ndarray:
        found = left_out.train(
            start, drawn.tokens, drawn.labels, counts=counts, step_size=STEP_SIZE, steps=steps, record_at=(steps,)
        )
        return found.distance[-1, 0]

    def train(weights: Tensor) -> Parameters:
        return head_groups.gradient_descent(
            start,
            drawn.tokens,
            logistic(drawn.labels, weights[None]),
            counts=counts,
            step_size=STEP_SIZE,
            steps=steps,
            record=lambda p: {"norm": head_groups.norm(p, counts=counts)},
            record_at=(steps,),
        ).parameters

    def loop() -> np.ndarray:
        full, *reduced = [train(row) for row in left_out.leave_one_out_weights(n_samples)]
        gaps = [{name: one[name] - full[name] for name in full} for one in reduced]
        return torch.cat([head_groups.norm(gap, counts=counts) for gap in gaps]).numpy()

    return Case(
        title="All networks that miss one sample",
        what=f"Distances from the full network of {n_samples} networks, each without one sample, after {steps} steps, "
        "in float64.",
        variants={"one batch (ours)": together, "one after another (ours)": loop},
        tolerance=1e-9,
        aim={"one after another (ours)": 2.0},
    )


def margin() -> Case:
    """Compare the active-set method with a modelling language and with a support vector machine."""
    problems = [_tangent_problem(seed) for seed in range(PROBLEMS)]

    def ours() -> np.ndarray:
        return np.array([kernel_margin(gram, labels).margin for gram, labels in problems])

    def remark(_: Mapping[str, float]) -> str:
        gap = max(kernel_margin(gram, labels).gap for gram, labels in problems)
        found = ours()
        others = {"cvxpy": by_cvxpy(), "scikit-learn": by_machine()}
        short = ", ".join(f"{name} {np.abs(values / found - 1).max():.0e}" for name, values in others.items())
        return f"Largest relative duality gap of ours: {gap:.0e}. Relative difference of the margins to ours: {short}."

    by_cvxpy, by_machine = _cvxpy(problems), _support_vector_machine(problems)
    return Case(
        title="Largest margin of a tangent kernel",
        what=f"{PROBLEMS} problems of {PROBLEM_SIZE} samples, inner products given.",
        variants={"active set (ours)": ours, "cvxpy": by_cvxpy, "scikit-learn SVC, C = 1e8": by_machine},
        tolerance=1e-3,
        aim={"cvxpy": 20.0},
        remark=remark,
    )


def _tangent_problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = draw(SMALL, PROBLEM_SIZE, (seed,))
    parameters = network.draw_parameters(8, 10, 10, scale=0.3, rng=stream(seed, "benchmark"))
    stacked = {name: torch.from_numpy(array.copy())[None] for name, array in parameters.items()}
    features = tangent_kernel.tangent_features(stacked, drawn.tokens)[0]
    return (features @ features.mT).numpy(), drawn.labels[0].numpy()


def _cvxpy(problems: list[tuple[np.ndarray, np.ndarray]]) -> Callable[[], np.ndarray]:
    import cvxpy

    size = len(problems[0][1])
    # The dual problem: it has one variable for each sample, however many dimensions there are.
    weights, factor = cvxpy.Variable(size, nonneg=True), cvxpy.Parameter((size, size))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(factor.T @ weights, 2)), [cvxpy.sum(weights) == 1])

    def run() -> np.ndarray:
        found = []
        for gram, labels in problems:
            factor.value = np.linalg.cholesky(
                gram * np.outer(labels, labels)
            )  # the problem is compiled once; only the numbers change
            problem.solve()
            found.append(problem.value)
        return np.array(found)

    return run


def _support_vector_machine(problems: list[tuple[np.ndarray, np.ndarray]]) -> Callable[[], np.ndarray]:
    from sklearn.svm import SVC

    def run() -> np.ndarray:
        found = []
        for gram, labels in problems:
            # A second copy with the opposite label makes the bias zero: our rules pass through the origin.
            mirror = np.array([[1.0, -1.0], [-1.0, 1.0]])
            machine = SVC(C=1e8, kernel="precomputed", tol=1e-8).fit(np.kron(mirror, gram), np.append(labels, -labels))
            weights = np.zeros(2 * len(labels))
            weights[machine.support_] = machine.dual_coef_[0]
            rule = weights[: len(labels)] - weights[len(labels) :]
            found.append((labels * (gram @ rule)).min() / np.sqrt(rule @ gram @ rule))
        return np.array(found)

    return run


def _by_autograd(start: Parameters, tokens: Tensor, labels: Tensor) -> np.ndarray:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.SGD(leaves.values(), STEP_SIZE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.softplus(-labels * layer.outputs(leaves, tokens)).mean().backward()
        optimizer.step()
    return _flat({name: tensor.detach() for name, tensor in leaves.items()})


def _seconds(train: Callable[[float], Parameters], n_heads: float) -> float:
    start = time.perf_counter()
    train(n_heads)
    return time.perf_counter() - start


def _flat(parameters: Parameters) -> np.ndarray:
    return torch.cat([parameters[name].flatten() for name in sorted(parameters)]).numpy()
