"""The common part of the comparisons on images: a small vision transformer, all optimisers, step sizes and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.mirror_descent import comparison
from attnbook.mirror_descent.experiments.optimizer_runs import OptimizerRuns, OptimizerSettings
from attnbook.mirror_descent.patches import ImageSource, PatchedImages, load_patches, mirror_image
from attnbook.mirror_descent.transformer import Inputs, Shape, forward

__all__ = ["PICTURES", "ImageRuns", "ImageSettings", "train_images"]

# Test images whose attention is kept for the figure: the first ones.
PICTURES = 3
EVALUATED = 250


@dataclass(frozen=True)
class ImageSettings(OptimizerSettings):
    """Images, network and step sizes.

    Attributes:
        images: ``cifar10``, or ``digits``, which need no files.
        patch: Side of a patch in pixels.
        n_train: Training images.
        n_validation: Images to choose step sizes on.
        n_test: Test images.
        mirrored: Whether the mirror image of every training image is a training image, too.
        width: Entries of the stream.
        n_layers: Layers.
        n_heads: Heads of each layer.
    """

    images: ImageSource
    patch: int
    n_train: int
    n_validation: int
    n_test: int
    mirrored: bool
    width: int
    n_layers: int
    n_heads: int

    def load(self) -> PatchedImages:
        """Return the images.

        Raises:
            DataError: If they are not on this machine.
            ValueError: If there are too few.
        """
        return load_patches(
            self.images, patch=self.patch, n_train=self.n_train, n_validation=self.n_validation, n_test=self.n_test
        )

    def shape(self, images: PatchedImages) -> Shape:
        """Return the sizes of the network for these images."""
        _, n_tokens, pixels = images.train.shape
        return Shape("projected", pixels, n_tokens, len(images.classes), self.width, self.n_heads, self.n_layers)


@dataclass(frozen=True)
class ImageRuns(OptimizerRuns):
    """Accuracy, sparsity and attention of vision transformers.

    Attributes:
        effective_dimension: Of all attention matrices together, each divided by its largest entry,
            ``(configurations, seeds)``.
        near_zero: Share of their entries of at most one per cent of the largest, likewise.
        mean_attention: Of the class token on the patches in the last layer, mean over heads and test images; the rest
            to one is attention on itself, ``(configurations, seeds, patches)``.
        attention: Of the first test images, mean over heads, ``(configurations, seeds, pictures, patches)``.
        shown: What these images show; the images themselves are not kept.
        source: Where the images came from.
    """

    effective_dimension: Float[np.ndarray, "configurations seeds"]
    near_zero: Float[np.ndarray, "configurations seeds"]
    mean_attention: Float[np.ndarray, "configurations seeds patches"]
    attention: Float[np.ndarray, "configurations seeds pictures patches"]
    shown: tuple[str, ...]
    source: str

    def one_seed_leads(self, *, picks: bool = True) -> Float[np.ndarray, " seeds"]:
        """Return mean leads of Adam over p = 1.1 on all seeds but one.

        Args:
            picks: Whether the validation accuracy of the seed left out picks both step sizes; if not, that of all
                seeds does, so that only the seeds in the mean differ.

        Returns:
            For each seed left out, the mean paired lead on the others.
        """
        seeds, found = range(len(self.settings.seeds)), []
        for seed in seeds:
            picked = self.chosen([seed] if picks else slice(None))
            lead = self.test_accuracy[picked["adam"]] - self.test_accuracy[picked["p1_1"]]
            found.append(np.delete(lead, seed).mean())
        return np.array(found)

    def map_correlations(self) -> tuple[Float[np.ndarray, " pairs"], Float[np.ndarray, " other_pairs"]]:
        """Return correlations of maps of attention on the same picture, each optimiser at its chosen step size.

        Returns:
            Those of two optimisers with equal seeds, and those of two seeds with one optimiser.
        """
        maps = self.attention[list(self.chosen().values())]
        centred = maps - maps.mean(axis=-1, keepdims=True)
        unit = centred / np.linalg.norm(centred, axis=-1, keepdims=True)
        found = []
        for kind in (unit, unit.swapaxes(0, 1)):
            first, second = np.triu_indices(len(kind), 1)
            found.append((kind[first] * kind[second]).sum(axis=-1).ravel())
        return found[0], found[1]


def train_images(
    settings: ImageSettings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> dict[str, Any]:
    """Train vision transformers in all configurations and look at them.

    Args:
        settings: Images, network and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every group of seeds counted the same.
        workdir: Folder that keeps finished groups of seeds; default none.

    Returns:
        The fields of an :class:`ImageRuns`.

    Raises:
        ValueError: If the device or the images are not available.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)
    images = settings.load()
    bench = _Bench(settings, images, where)
    with threads(1):
        parts = by_seeds(settings, bench.measure, clock=clock, workdir=workdir, progress=progress)
    return {
        "settings": settings,
        "provenance": clock.provenance(where),
        "shown": tuple(images.classes[label] for label in images.test_labels[:PICTURES]),
        "source": images.source,
    } | concatenate(parts, axis=1)


class _Bench:
    """Trains some seeds and measures them."""

    def __init__(self, settings: ImageSettings, images: PatchedImages, device: torch.device) -> None:
        self.settings, self.images, self.device = settings, images, device
        self.shape = settings.shape(images)

    def measure(self, seeds: tuple[int, ...], progress: Progress | None) -> dict[str, np.ndarray]:
        found, shape = self.images, self.shape
        trained = comparison.train_configurations(
            shape,
            self.settings.rates,
            seeds,
            self._batches(seeds),
            steps=self.settings.steps,
            device=self.device,
            progress=progress,
        )
        samples = {
            "test": (found.test, found.test_labels),
            "validation": (found.validation, found.validation_labels),
            "train": (found.train[: len(found.test)], found.train_labels[: len(found.test)]),
        }
        arrays = {
            f"{name}_accuracy": comparison.accuracy(trained, shape, self._parts(*pair))
            for name, pair in samples.items()
        }
        arrays |= {name: values[:, -1] for name, values in comparison.sparsity(trained, shape).items()}
        arrays |= self._attention(trained)
        return {name: values.reshape(-1, len(seeds), *values.shape[1:]) for name, values in arrays.items()}

    def _batches(self, seeds: tuple[int, ...]) -> Callable[[int], Inputs]:
        train, labels = self.images.train, self.images.train_labels
        copies, size = 2 if self.settings.mirrored else 1, self.settings.batch_size

        def batch(step: int) -> Inputs:
            rows = np.stack(
                [stream(seed, "image batch", step).choice(copies * len(train), size, replace=False) for seed in seeds]
            )
            chosen, turned = rows % len(train), rows >= len(train)
            tokens = train[chosen]
            tokens[turned] = mirror_image(tokens[turned], self.settings.patch)
            return Inputs(torch.tensor(tokens, device=self.device), torch.tensor(labels[chosen], device=self.device))

        return batch

    def _parts(self, tokens: np.ndarray, labels: np.ndarray) -> Iterator[Inputs]:
        """The images a part at a time, one group for all members."""
        for start in range(0, len(tokens), EVALUATED):
            part = slice(start, start + EVALUATED)
            yield Inputs(
                torch.tensor(tokens[None, part], device=self.device),
                torch.tensor(labels[None, part], device=self.device),
            )

    @torch.no_grad()
    def _attention(self, trained: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        """Attention of the class token on patches, mean over heads: of all test images, and of the first ones."""
        weights = [
            forward(trained, self.shape, inputs).attention[..., :-1].double().mean(2)
            for inputs in self._parts(self.images.test, self.images.test_labels)
        ]
        every = torch.cat(weights, dim=1).cpu().numpy()
        return {"mean_attention": every.mean(axis=1), "attention": every[:, :PICTURES]}
