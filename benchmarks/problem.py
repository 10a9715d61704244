"""The 90 networks of Table 1 as plain arrays, the same for every variant that is measured.

Drawn with the package's named streams of random numbers, so that they are the very data, batches and initial weights
that ``attnbook.global_attention.masks.train_members`` draws for itself; the check before the measurement would tell.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np

from attnbook.core.rng import stream
from attnbook.global_attention.masks import Member, Setup
from attnbook.lab import checkout, load_script

Arrays = dict[str, np.ndarray]

BLOCK = 100
TABLE_1 = load_script(checkout() / "chapters/global_attention/sample_complexity.py").table_1
BOOK = SimpleNamespace(**TABLE_1.settings("book"), models=("baseline", "attention", "l1_attention"))
"""The settings of Table 1 at the book's size, and the three students by their names in the library."""


def members_of(settings: SimpleNamespace) -> list[Member]:
    """Return all networks of the table."""
    s = settings
    return [Member(m, seed, n, s.n_relevant, s.penalty) for seed, n, m in product(s.seeds, s.sizes, s.models)]


def setup_of(settings: SimpleNamespace, n_test: int) -> Setup:
    """Return the sizes of teacher and network."""
    s = settings
    return Setup(s.n_inputs, s.outputs, s.teacher_width, s.width, noise=0.0, n_test=n_test)


def draw(settings: SimpleNamespace, steps: int) -> Arrays:
    """Draw everything a variant needs to train all networks for this many steps.

    Returns:
        ``inputs (samples, inputs)`` and ``labels (samples, outputs)`` of all seeds, one below the other;
        ``rows (steps, members, batch)``, the samples in the batches; ``hidden (members, width, inputs)`` and
        ``decoder (members, outputs, width)``, the initial weights; ``mask_trained (members,)``; ``penalty
        (members,)`` and ``step_size``.
    """
    members = members_of(settings)
    pools = [_pool(settings, seed) for seed in settings.seeds]
    batches = {(m.seed, m.n_samples): _batches(settings, m.seed, m.n_samples, steps) for m in members}
    weights = {seed: _initial_weights(settings, seed) for seed in settings.seeds}
    return {
        "inputs": np.concatenate([inputs for inputs, _ in pools]),
        "labels": np.concatenate([labels for _, labels in pools]),
        "rows": np.stack([batches[m.seed, m.n_samples] for m in members], axis=1),
        "hidden": np.stack([weights[m.seed][0] for m in members]),
        "decoder": np.stack([weights[m.seed][1] for m in members]),
        "mask_trained": np.array([m.model != "baseline" for m in members], dtype=np.float64),
        "penalty": np.array([m.penalty * (m.model == "l1_attention") for m in members]),
        "step_size": np.array(settings.step_size),
    }


def held_out_losses(settings: SimpleNamespace, parameters: Arrays) -> np.ndarray:
    """Return the mean squared error ``(members,)`` of trained networks on samples that none has seen."""
    losses = []
    for number, member in enumerate(members_of(settings)):
        inputs = stream(member.seed, "benchmark").standard_normal((512, settings.n_inputs))
        mask, hidden, decoder = (parameters[name][number].astype(np.float64) for name in ("mask", "hidden", "decoder"))
        predicted = np.maximum((inputs * mask) @ hidden.T, 0.0) @ decoder.T
        labels = setup_of(settings, 1).teacher(member.seed, settings.n_relevant)(inputs)
        losses.append(np.square(predicted - labels).mean())
    return np.array(losses)


def flops_per_step(settings: SimpleNamespace) -> tuple[int, str]:
    """Return the floating point operations of all matrix products of a step, and the formula."""
    networks = len(members_of(settings))
    p, w, o, b = settings.n_inputs, settings.width, settings.outputs, settings.batch_size
    formula = (
        "networks x batch x (4 width inputs + 6 width outputs): forward through both layers, back through the second, "
        f"and both weight gradients = {networks} x {b} x (4 x {w} x {p} + 6 x {w} x {o})"
    )
    return networks * b * (4 * w * p + 6 * w * o), formula


def _pool(settings: SimpleNamespace, seed: int) -> tuple[np.ndarray, np.ndarray]:
    inputs = stream(seed, "inputs").standard_normal((max(settings.sizes), settings.n_inputs))
    return inputs, setup_of(settings, 1).teacher(seed, settings.n_relevant)(inputs)


def _batches(settings: SimpleNamespace, seed: int, size: int, steps: int) -> np.ndarray:
    shape, first_row = (BLOCK, settings.batch_size), settings.seeds.index(seed) * max(settings.sizes)
    blocks = [(stream(seed, "batches", size, n).random(shape) * size) for n in range(-(-steps // BLOCK))]
    return first_row + np.concatenate(blocks).astype(np.int64)[:steps]


def _initial_weights(settings: SimpleNamespace, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(seed, "initial weights")
    hidden = rng.standard_normal((settings.width, settings.n_inputs)) / np.sqrt(settings.n_inputs)
    return hidden, rng.standard_normal((settings.outputs, settings.width)) / np.sqrt(settings.width)
