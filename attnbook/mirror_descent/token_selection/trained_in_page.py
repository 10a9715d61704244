"""Six tokens that the reader moves, and a layer that trains on them: ``style/train_tokens.js`` and its live form."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from attnbook.core.figures import INK, style
from attnbook.core.training_panel import TrainingPanel
from attnbook.mirror_descent.attention import Batch, attention_weights, descend, train_loss
from attnbook.mirror_descent.attention_svm import TokenConflictError, attention_svm
from attnbook.mirror_descent.data import Problems, plane_tokens
from attnbook.mirror_descent.token_selection.experiments import TokenSelection
from attnbook.mirror_descent.token_selection.figures import MARK, NAMES

__all__ = ["Trained", "as_script", "moved", "panel", "setup", "trained"]

STARTS = (0, 5, 20, 80)  # relative norm on the ray of the token's solution; 0 is the zero matrix
STEPS = (0, 3, 10, 30, 100, 300, 1000)
MOVES = (-0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8)
"""How far one token is moved along an axis."""
PS = (1.5, 2.0, 3.0)


class Trained(NamedTuple):
    """What came out of training."""

    steps: np.ndarray  #: Number of each recorded step
    weights: np.ndarray  #: Key-query matrices, ``(records, 2, 2)``
    attention: np.ndarray  #: On each token, ``(records, tokens)``
    losses: np.ndarray  #: Training losses, ``(records,)``


def moved(token: str, right: float, up: float) -> Problems:
    """Return the six tokens of the plane with one of them moved."""
    plane = plane_tokens()
    tokens = plane.tokens.copy()
    tokens[0, 0, NAMES.index(token)] += (right, up)
    return replace(plane, tokens=tokens)


def start(problem: Problems, p: float, token: str, far: float) -> np.ndarray:
    """Return a matrix on the ray of a token's solution, or zero where there is none; ``(1, 2, 2)``."""
    try:
        solution = attention_svm(problem.tokens, problem.queries, np.array([[NAMES.index(token)]]), p)
    except TokenConflictError:  # the token lies inside the others
        return np.zeros((1, 2, 2))
    return far * solution.weight


def trained(problem: Problems, p: float, begin: np.ndarray, steps: int, *, normalized: bool = True) -> Trained:
    """Return at most 100 records of training on one problem in the plane from a matrix ``(1, 2, 2)``."""
    at, weights = np.array([0]), begin
    if steps:
        at = np.unique(np.linspace(0, steps, min(steps + 1, 100)).astype(int))
        options = {"start": begin, "record_at": at.tolist(), "normalized": normalized}
        run = descend(problem, np.array([p]), steps=steps, step_size=TokenSelection.step_size, **options)
        weights = np.asarray(run.records["key_query"])[:, 0]
    batch = Batch.of(problem.repeated(len(weights)))
    matrices = batch.tokens.new_tensor(weights)
    attention = attention_weights(matrices, batch)[:, 0].numpy()
    return Trained(at, weights, attention, train_loss({"key_query": matrices}, batch).numpy())


def as_script(problem: Problems) -> dict[str, object]:
    """Return a problem in the plane as the script has it."""
    parts = (problem.tokens[0, 0], problem.queries[0, 0], problem.labels[0, 0], problem.decoder[0])
    return {name: part.tolist() for name, part in zip(("tokens", "query", "label", "decoder"), parts, strict=True)}


def setup() -> dict[str, object]:
    """Return what the script starts from."""
    state = {"p": 2.0, "far": 0, "chosen": NAMES.index("B")}
    sizes = {"ps": PS, "starts": STARTS, "stepSize": TokenSelection.step_size}
    return {"problem": as_script(plane_tokens())} | sizes | state


def panel() -> TrainingPanel:
    """Return what the notebook shows."""
    labels = {"p": "p of the norm", "far": "start: times the token's solution", "token": "token",
              "right": "token moved right by", "up": "token moved up by", "steps": "steps"}  # fmt: skip
    begin = {"p": 2.0, "far": 0, "token": "B", "right": 0.0, "up": 0.0, "steps": 100}
    return TrainingPanel("tokens", setup(), draw, text=text, start=begin, labels=labels, p=PS, far=STARTS,
                         token=tuple(NAMES), right=MOVES, up=MOVES, steps=STEPS)  # fmt: skip


@lru_cache(maxsize=1)
def _run(p: float, far: float, token: str, right: float, up: float, steps: int) -> tuple[Problems, Trained]:
    """The picture and its words need the same run."""
    problem = moved(token, right, up)
    return problem, trained(problem, p, start(problem, p, token, far), steps)


def draw(p: float, far: float, token: str, right: float, up: float, steps: int) -> Figure:
    """Draw the tokens with the direction of attention, the attention on each, and the loss along training."""
    problem, run = _run(p, far, token, right, up, steps)
    tokens, scores = problem.tokens[0, 0], problem.token_scores[0, 0]
    aim, top = run.weights[-1] @ problem.queries[0, 0], int(run.attention[-1].argmax())
    with style():
        figure, axes = plt.subplot_mosaic("PB;PL", figsize=(7.6, 4.1), width_ratios=(1.6, 1))
        plane, bars, loss = (axes[name] for name in "PBL")
        x, y = tokens.T
        plane.scatter(x, y, c=scores, cmap="Greys", edgecolors=INK, s=90, vmin=-1.4, vmax=1.1, zorder=3)
        for name, at, score in zip(NAMES, tokens, scores, strict=True):
            plane.annotate(f"{name} {score:+.2f}", at, xytext=(10, 8), textcoords="offset points", fontsize=9)
        plane.plot(*tokens[NAMES.index(token)], "s", markersize=17, markerfacecolor="none", color=INK, linestyle="none")
        if aim.any():
            unit = aim / np.linalg.norm(aim)
            solution = start(problem, p, NAMES[top], 1)[0] @ problem.queries[0, 0]  # zero where attention has a tie
            for way, look in ((solution, {"color": INK, "linestyle": "--"}), (aim, {"color": MARK, "linewidth": 2.4})):
                arrow = {"arrowstyle": "-|>", "shrinkA": 0, **look}
                plane.annotate("", 1.05 * way / max(1e-9, np.linalg.norm(way)), (0, 0), arrowprops=arrow, zorder=4)
            across = np.array([[-5.0], [5.0]]) * [-unit[1], unit[0]]
            plane.plot(*(tokens[top] + across).T, color=MARK, linewidth=1.2)
        plane.set(xlim=(-2.2, 2.2), ylim=(-1.8, 1.8), aspect="equal", title=f"p = {p:g}, step {steps}")
        bars.bar(list(NAMES), run.attention[-1], color=[MARK if n == top else "#77736a" for n in range(len(NAMES))])
        bars.set(ylim=(0, 1.02), title="attention")
        bars.grid(visible=False)
        loss.plot(run.steps, run.losses, color=MARK)
        loss.axhline(np.log1p(np.exp(-scores.max())), color=INK, linewidth=1, linestyle="--")
        loss.set(title="loss (dashed: best token's)", xlabel="steps")
    return figure


def text(p: float, far: float, token: str, right: float, up: float, steps: int) -> str:
    """Return the numbers behind the picture."""
    problem, run = _run(p, far, token, right, up, steps)
    scores, attention = problem.token_scores[0, 0], run.attention[-1]
    x, y = problem.tokens[0, 0, NAMES.index(token)]
    where, top = f"{token} is at {x:.2f}, {y:.2f}.", int(attention.argmax())
    if not run.weights[-1].any():
        return f"Step {steps}, p = {p:g}, start {far:g}: W is zero, attention is even. {where}"
    best = NAMES[int(scores.argmax())]
    praise = "the highest" if best == NAMES[top] else f"not the highest, which is that of {best}"
    size = (np.abs(run.weights[-1]) ** p).sum() ** (1 / p)
    return (
        f"Step {steps}, p = {p:g}, start {far:g}: {attention[top]:.1%} of attention on {NAMES[top]}, of score "
        f"{scores[top]:+.2f}, {praise}. Loss {run.losses[-1]:.4f}, norm of W {size:.3g}. {where}"
    )
