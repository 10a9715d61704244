"""What the ensembles of this room share: initial weights, and batches that are drawn with replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream

__all__ = ["BLOCK", "Batches", "initial_network", "own_errors", "rows_of"]

BLOCK = 100  # batches whose rows are drawn at a time


class Batches:
    """Rows of a table for each step: batches drawn with replacement from sets of samples that lie in the table.

    Args:
        purposes: For each set its seed and what else its numbers are for; equal purposes and sizes give equal batches.
        sizes: Samples of each set.
        starts: Row of the first sample of each set.
        batch_size: Samples per step.
        device: Where the rows are wanted.
    """

    def __init__(
        self,
        purposes: Sequence[tuple[int, ...]],
        sizes: Sequence[int],
        starts: Sequence[int],
        batch_size: int,
        device: torch.device,
    ) -> None:
        self.sets, self.starts = list(zip(purposes, sizes, strict=True)), np.array(starts)[:, None]
        self.batch_size, self.device = batch_size, device
        self.block: tuple[int, Tensor] = (-1, torch.empty(0, device=device, dtype=torch.int64))

    def __call__(self, step: int) -> Int[Tensor, "sets batch"]:
        """Return the rows of a step."""
        number, within = divmod(step, BLOCK)
        if number != self.block[0]:
            drawn = {one: self._draw(*one, number) for one in dict.fromkeys(self.sets)}
            rows = np.stack([drawn[one] for one in self.sets], axis=1) + self.starts
            self.block = number, torch.as_tensor(rows, device=self.device)
        return self.block[1][within]

    def _draw(self, purpose: tuple[int, ...], size: int, number: int) -> np.ndarray:
        seed, *rest = purpose
        return (stream(seed, "batches", *rest, number).random((BLOCK, self.batch_size)) * size).astype(np.int64)


def own_errors(
    predict: Callable[[Parameters, Tensor], Tensor], parameters: Parameters, samples: Iterable[tuple[Tensor, Tensor]]
) -> Float[Tensor, " members"]:
    """Return the mean squared error of each member on inputs and labels of its own, which may differ in number."""
    found = []
    for member, (inputs, labels) in enumerate(samples):
        own = {name: tensor[member : member + 1] for name, tensor in parameters.items()}
        found.append((predict(own, inputs[None])[0] - labels).square().mean())
    return torch.stack(found)


def rows_of(table: Tensor, rows: Int[Tensor, "sets batch"]) -> Tensor:
    """Return ``table[rows]``; index_select copies whole rows and takes a third of the time."""
    return table.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def initial_network(seeds: Sequence[int], n_inputs: int, width: int, outputs: int) -> dict[str, np.ndarray]:
    """Draw where two-layer networks of a seed start: variance one over the fan-in, a mask of ones, no biases."""
    drawn = {}
    for seed in dict.fromkeys(seeds):
        rng, fans = stream(seed, "initial weights"), pairwise((n_inputs, width, outputs))
        drawn[seed] = [rng.standard_normal((above, below)) / np.sqrt(below) for below, above in fans]
    hidden, decoder = (np.stack(layers) for layers in zip(*(drawn[seed] for seed in seeds), strict=True))
    biases = {"hidden_bias": np.zeros_like(hidden[:, :, 0]), "decoder_bias": np.zeros_like(decoder[:, :, 0])}
    return {"mask": np.ones_like(hidden[:, 0]), "hidden": hidden, "decoder": decoder, **biases}
