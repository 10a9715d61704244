"""The toy experiment of the paper's predecessor: a hundred runs of two thousand normalised steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from plain_loop import Loss, train_each
from side_by_side import Case, InJax
from torch import Tensor

from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.data import Problems, draw_problems

RUNS, STEPS, STEP_SIZE = 100, 2000, 0.1
COMPARED = 400
OURS = "one batch (ours)"
LOOP, JAX = "one after another, autograd and torch.optim.SGD", "JAX: jit(scan(vmap(grad)))"
# Operations of the matrix products: W z, X (W z), X'c and (X'c) z' for 6 samples of 8 tokens in 10 dimensions.
OPERATIONS = 2 * RUNS * (2 * 6 * 10 * 10 + 2 * 6 * 8 * 10)
# All tokens are read twice.
BYTES = 2 * RUNS * 6 * 8 * 10 * 8


def cases() -> list[Case]:
    """Return the comparison."""
    return [toy()]


def toy() -> Case:
    """Compare one batch with the loop of the usual notebook, and with JAX."""
    problems = draw_problems(range(RUNS))
    arrays = {"tokens": problems.tokens, "queries": problems.queries, "labels": problems.labels}
    arrays |= {"decoder": problems.decoder, "step_size": np.array(STEP_SIZE)}

    def remark(wall: Mapping[str, float]) -> str:
        ours, usual = _together(problems, STEPS)[:3], _loop(arrays, 3, STEPS)
        apart = np.linalg.norm(ours - usual, axis=(1, 2)) / np.linalg.norm(ours, axis=(1, 2))
        return (
            f"{_floor(wall)} Compared after {COMPARED} steps: later, attention saturates to the last digit, and the "
            f"usual formulas of the gradient return rounding errors. At the end they are {apart.min():.0%} to "
            f"{apart.max():.0%} of the norm away in three problems; ours keeps the digits, and is timed doing so."
        )

    return Case(
        title="The predecessor's toy experiment",
        what=f"{STEPS} normalised gradient steps for {RUNS} problems with 6 samples of 8 tokens in 10 dimensions, "
        "tokens, queries and the head on the unit sphere, in float64.",
        variants={OURS: lambda: _together(problems, STEPS), LOOP: lambda: _loop(arrays, RUNS, STEPS)},
        tolerance=1e-9,
        aim={LOOP: 60.0, JAX: 1.0},
        once=(LOOP,),
        remark=remark,
        in_jax={JAX: InJax(("variants_jax_selection", "Selection"), arrays, STEPS, "key_query", COMPARED)},
        compared={OURS: lambda: _together(problems, COMPARED), LOOP: lambda: _loop(arrays, RUNS, COMPARED)},
    )


def _together(problems: Problems, steps: int) -> np.ndarray:
    p = np.full(len(problems.labels), 2.0)
    history = descend(problems, p, steps=steps, step_size=STEP_SIZE, normalized=True, record_at=(steps,))
    return history.parameters["key_query"].numpy()


def _loop(arrays: Mapping[str, np.ndarray], runs: int, steps: int) -> np.ndarray:
    def loss_of(i: int) -> Loss:
        x, z, y, v = (torch.from_numpy(arrays[name][i]) for name in ("tokens", "queries", "labels", "decoder"))

        def loss(parameters: dict[str, Tensor], _: int) -> Tensor:
            attention = torch.softmax(torch.einsum("ntd,de,ne->nt", x, parameters["w"], z), dim=1)
            return F.softplus(-y * torch.einsum("nt,ntd,d->n", attention, x, v)).mean()

        return loss

    starts = [{"w": torch.zeros(10, 10, dtype=torch.float64)} for _ in range(runs)]
    trained = train_each(starts, map(loss_of, range(runs)), lambda ps, _: _NormalizedSGD(ps), steps)
    return torch.stack([parameters["w"] for parameters in trained]).numpy()


class _NormalizedSGD(torch.optim.SGD):
    """torch's SGD after a division of the gradient by its norm, the usual way to write it."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, STEP_SIZE)

    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad /= parameter.grad.norm()
        super().step(closure)


def _floor(wall: Mapping[str, float]) -> str:
    """How far from the speed of memory and of large products, measured here and now."""
    ours = wall[OURS] / STEPS * 1e-3
    beside = f", a whole step of JAX {1e3 * wall[JAX] / STEPS:.0f} µs" if JAX in wall else ""
    matrix, tokens = torch.rand(512, 512, dtype=torch.float64), torch.rand(BYTES // 16, dtype=torch.float64)
    samples = RUNS * 6
    shapes = [(RUNS, 6, 10, 10), (samples, 8, 10, 1), (samples, 1, 8, 10), (RUNS, 10, 6, 10)]
    pairs = [(torch.rand(n, i, j).double(), torch.rand(n, j, k).double()) for n, i, j, k in shapes]
    calls = sum(min(_seconds(partial(torch.bmm, *pair)) for _ in range(200)) for pair in pairs)
    product = min(_seconds(lambda: matrix @ matrix) for _ in range(5)) * OPERATIONS / (2 * 512**3)
    reading = 2 * min(_seconds(tokens.sum) for _ in range(50))
    return (
        f"The floor: a step multiplies and adds {OPERATIONS / 1e6:.2f} million times and reads {BYTES / 1e6:.1f} MB of "
        f"tokens. At the speed of a large product that is {1e6 * product:.0f} µs, at the speed of a sum over as many "
        f"numbers {1e6 * reading:.0f} µs; ours takes {1e6 * ours:.0f} µs. The four products by themselves, a call of "
        f"torch each, take {1e6 * calls:.0f} µs{beside}: such small matrices have no fast products, and the rest is "
        "spent on some fifty calls a step, which JAX fuses into a compiled program."
    )


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
