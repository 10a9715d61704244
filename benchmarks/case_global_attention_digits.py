"""Figures 2 and 4: all step sizes, models and seeds as one program per seed, and what a reader would write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from timeit import repeat

import numpy as np
import torch
import torch.nn.functional as F
from side_by_side import Case
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from attnbook import lab
from attnbook.core.rng import stream, to_tensor
from attnbook.data import Images, digits
from attnbook.global_attention.digit_training import CLASSES, MODELS, N_TRAIN_RECORDED, Member, Training, train_members
from attnbook.global_attention.noisy_digits import NoisyDigits, draw_noisy_digits

CPU = torch.device("cpu")
CHAPTER = lab.load_script(Path(__file__).parents[1] / "chapters" / "global_attention" / "noisy_mnist.py")
BOOK = CHAPTER.noisy_mnist.settings()
OURS, LOOP = "one program per seed (ours)", "one after another, autograd and torch.optim.SGD"
# Losses are compared up to this step: with large step sizes, rounding errors grow exponentially.
COMPARED_TO = 50


def cases() -> list[Case]:
    """Return the comparisons of this part: images of 24 x 24, and of 48 x 48."""
    return [_case("figure_2", 2), _case("figure_4", 4)]


def _case(panel: str, figure: int) -> Case:
    side, training = CHAPTER.PANELS[panel][0].image_size, _training(panel)
    runs = {
        OURS: _ours,
        LOOP: _loop,
        "torch.func: vmap(grad) over stack_module_state, per seed": _vmapped,
    }
    n_networks = len(_members(panel, BOOK["seeds"]))
    n_compared = sum(step <= COMPARED_TO for step in training.record_at)

    def remark(wall: Mapping[str, float]) -> str:
        alone, whole = _floor(panel), _floor(panel, passes=True)
        return (
            "What limits the ratio: the products of first layers and images alone, in the shapes of ours, take "
            f"{100 * alone / wall[OURS]:.0f}% of the time of ours and {100 * alone / wall[LOOP]:.0f}% of that of the "
            f"loop, so nothing that forms them is more than {wall[LOOP] / alone:.1f} times faster than the loop; with "
            "the passes over weights that masks and momentum ask for, the floor is at "
            f"{100 * whole / wall[OURS]:.0f}% of ours and {wall[LOOP] / whole:.1f} times."
        )

    return Case(
        title=f"NoisyMNIST figure {figure}, {side} x {side}: all step sizes and seeds",
        what=(
            f"{training.steps} steps of {n_networks} networks with {training.width} hidden units, for "
            f"{len(BOOK['step_sizes'])} step sizes, 3 models and {len(BOOK['seeds'])} seeds, "
            f"{training.batch_size} images a step, in float32; images are drawn, and losses and accuracies recorded "
            f"{len(training.record_at)} times, "
            f"by all. Compared are test and training losses up to step {COMPARED_TO}: with large step sizes, rounding "
            "errors grow."
        ),
        variants={label: _bound(run, panel, n_compared) for label, run in runs.items()},
        tolerance=1e-4,
        aim={LOOP: 5.0},
        remark=remark,
    )


def _training(panel: str) -> Training:
    """Return how the networks of a figure are trained."""
    width = BOOK["width_large" if panel in CHAPTER.FIGURES else "width"]
    sizes = width, BOOK["n_train"], BOOK["n_test"], CHAPTER.looks(BOOK["steps"])
    return Training(BOOK["steps"], CHAPTER.BATCH, CHAPTER.PANELS[panel][1], *sizes)


def _members(panel: str, seeds: tuple[int, ...]) -> list[Member]:
    """Return the networks of a figure."""
    scene, weight = CHAPTER.PANELS[panel][0], BOOK["penalty_large" if panel in CHAPTER.FIGURES else "penalty"]
    return [Member(m, s, scene, size, weight) for s in seeds for size in BOOK["step_sizes"] for m in MODELS]


def _bound(
    run: Callable[[list[Member], Training], np.ndarray], panel: str, n_compared: int
) -> Callable[[], np.ndarray]:
    """Train a figure seed by seed: the networks of a seed see the same images."""
    training = _training(panel)

    def of_all_seeds() -> np.ndarray:
        curves = [run(_members(panel, (seed,)), training) for seed in BOOK["seeds"]]
        return np.concatenate(curves, axis=-1)[:, :n_compared]

    return of_all_seeds


def _floor(panel: str, *, passes: bool = False) -> float:
    """Return what the large matrix products of a figure take by themselves, or with passes over weights, in ms."""
    training, pixels = _training(panel), CHAPTER.PANELS[panel][0].n_pixels
    members = _members(panel, BOOK["seeds"][:1])
    side_by_side, plain = len(members) * training.width, sum(m.model == "baseline" for m in members) * training.width
    weights, batch = torch.rand(side_by_side, pixels), torch.rand(training.batch_size, pixels)
    recorded = torch.rand(training.n_test + N_TRAIN_RECORDED, pixels)
    gradient, velocity = torch.rand(side_by_side, pixels), torch.zeros(side_by_side, pixels)
    backward, mask = torch.rand(side_by_side, training.batch_size), torch.rand(1, pixels)

    def step() -> None:
        weights @ batch.T
        torch.mm(backward, batch, out=gradient)
        if passes:  # fold the mask in, velocity, the gradient of the mask; a network without one has the step only
            weights[plain:] * mask
            velocity[plain:].mul_(training.momentum).addcmul_(gradient[plain:], mask)
            (gradient[plain:] * weights[plain:]).sum(0)
            weights.sub_(velocity)

    in_steps = median(repeat(step, number=50, repeat=7)) / 50 * training.steps
    in_records = median(repeat(lambda: weights @ recorded.T, number=10, repeat=7)) / 10 * len(training.record_at)
    return 1e3 * len(BOOK["seeds"]) * (in_steps + in_records)


@cache
def _images() -> Images:
    return digits()


def _ours(members: list[Member], training: Training) -> np.ndarray:
    records = train_members(members, _images(), training, device=CPU).records
    return np.stack([records["test_loss"], records["train_loss"]])


class _Samples:
    """Images of a seed, its batches, and its first weights: those of ``train_members``."""

    def __init__(self, member: Member, training: Training) -> None:
        seed, pixels, width = member.seed, member.scene.n_pixels, training.width
        drawn = draw_noisy_digits(_images(), member.scene, n_train=training.n_train, n_test=training.n_test, seed=seed)
        self.train, self.train_labels = self._of(drawn, "train")
        self.test, self.test_labels = self._of(drawn, "test")
        shape = (training.steps, training.batch_size)
        self.rows = torch.from_numpy(stream(seed, "batches").integers(training.n_train, size=shape))
        rng = stream(seed, "initial weights")
        self.hidden = to_tensor(rng.standard_normal((width, pixels)) / np.sqrt(pixels), device=CPU)
        self.decoder = to_tensor(rng.standard_normal((CLASSES, width)) / np.sqrt(width), device=CPU)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((self.train[rows], self.train_labels[rows]) for rows in self.rows)

    def network(self, model: str) -> nn.Module:
        return _Network(self.hidden, self.decoder, masked=model != "baseline")

    @torch.no_grad()
    def record(self, scores: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return test and training loss of scores ``(..., samples, classes)``; the accuracy is found, and dropped."""
        test, seen = scores(self.test), scores(self.train[:N_TRAIN_RECORDED])
        (test.argmax(-1) == self.test_labels).float().mean(-1)
        return [_losses(test, self.test_labels), _losses(seen, self.train_labels[:N_TRAIN_RECORDED])]

    @staticmethod
    def _of(drawn: NoisyDigits, part: str) -> tuple[Tensor, Tensor]:
        return to_tensor(getattr(drawn, part), device=CPU), torch.from_numpy(getattr(drawn, f"{part}_labels"))


def _losses(scores: Tensor, labels: Tensor) -> Tensor:
    return -scores.log_softmax(-1)[..., torch.arange(len(labels)), labels].mean(-1)


class _Network(nn.Module):
    """A mask and two layers, as one writes them."""

    def __init__(self, hidden: Tensor, decoder: Tensor, *, masked: bool) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.ones(hidden.shape[1])) if masked else None
        self.hidden, self.decoder = (nn.Linear(*weight.mT.shape) for weight in (hidden, decoder))
        with torch.no_grad():
            for layer, weight in ((self.hidden, hidden), (self.decoder, decoder)):
                layer.weight.copy_(weight)
                layer.bias.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        seen = inputs if self.mask is None else inputs * self.mask
        return self.decoder(torch.relu(self.hidden(seen)))


def _loop(members: list[Member], training: Training) -> np.ndarray:
    samples = _Samples(members[0], training)
    return np.stack([_train_one(member, samples, training) for member in members], axis=-1)


def _train_one(member: Member, samples: _Samples, training: Training) -> np.ndarray:
    network = samples.network(member.model)
    optimizer = torch.optim.SGD(network.parameters(), member.step_size, momentum=training.momentum)
    curves = []
    for step, (inputs, labels) in enumerate(samples.batches()):
        if step in training.record_at:
            curves.append(samples.record(network))
        optimizer.zero_grad()
        loss = F.cross_entropy(network(inputs), labels)
        if member.model == "l1_attention":
            loss = loss + member.penalty * network.mask.abs().sum()
        loss.backward()
        optimizer.step()
    return np.array([*curves, samples.record(network)], dtype=np.float64).T


def _vmapped(members: list[Member], training: Training) -> np.ndarray:
    samples = _Samples(members[0], training)
    base = samples.network("attention")
    parameters, _ = stack_module_state([samples.network("attention") for _ in members])
    parameters = {name: tensor.detach() for name, tensor in parameters.items()}
    penalty = torch.tensor([m.penalty * (m.model == "l1_attention") for m in members])
    trained = torch.tensor([[float(m.model != "baseline")] for m in members])
    step_size = torch.tensor([m.step_size for m in members])

    def scores(one: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(base, one, (inputs,))

    def loss(one: dict[str, Tensor], penalty: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores(one, inputs), labels) + penalty * one["mask"].abs().sum()

    gradients_of, scores_of = vmap(grad(loss), in_dims=(0, 0, None, None)), vmap(scores, in_dims=(0, None))
    velocity = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    curves = []
    for step, (inputs, labels) in enumerate(samples.batches()):
        if step in training.record_at:
            curves.append(samples.record(lambda x: scores_of(parameters, x)))
        gradients = gradients_of(parameters, penalty, inputs, labels)
        gradients["mask"].mul_(trained)
        for name, tensor in parameters.items():
            velocity[name].mul_(training.momentum).add_(gradients[name])
            tensor.addcmul_(velocity[name], step_size.view(-1, *[1] * (tensor.dim() - 1)), value=-1.0)
    curves.append(samples.record(lambda x: scores_of(parameters, x)))
    return torch.stack([torch.stack(both) for both in curves]).double().numpy().swapaxes(0, 1)
