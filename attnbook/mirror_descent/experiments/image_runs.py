"""The common part of the comparisons on images: a small vision transformer in all arms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.mirror_descent.experiments.arms import ArmResult, ArmSettings, by_arm, looked_at, sparsity, train_arms
from attnbook.mirror_descent.models.transformer import Inputs, Shape, forward
from attnbook.mirror_descent.patches import ImageSource, PatchedImages, load_patches, mirror_image

__all__ = ["PICTURES", "ImageResult", "ImageSettings", "train_images"]

# Test images whose attention is kept for the figure: the first ones.
PICTURES = 3


@dataclass(frozen=True)
class ImageSettings(ArmSettings):
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
class ImageResult(ArmResult):
    """Accuracies, sparsity and attention of vision transformers.

    Attributes:
        mean_attention: Of the class token on the patches in the last layer, mean over heads and test images; the rest
            to one is attention on itself, ``(seeds, arms, patches)``.
        attention: Of the first test images, mean over heads, ``(seeds, arms, pictures, patches)``.
        pictures: Brightness of these images, ``(pictures, side, side)``.
        shown: What they show.
        source: Where the images came from.
    """

    mean_attention: Float[np.ndarray, "seeds arms patches"]
    attention: Float[np.ndarray, "seeds arms pictures patches"]
    pictures: Float[np.ndarray, "pictures side side"]
    shown: tuple[str, ...]
    source: str


def train_images(
    settings: ImageSettings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> dict[str, Any]:
    """Train vision transformers in all arms and look at them.

    Args:
        settings: Images, network and step sizes.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all), every group of seeds counted the same.
        workdir: Folder that keeps finished groups of seeds; default none.

    Returns:
        The fields of an :class:`ImageResult`.

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
        "pictures": images.grey[:PICTURES].round(2),
        "shown": tuple(images.classes[label] for label in images.test_labels[:PICTURES]),
        "source": images.source,
    } | concatenate(parts)


class _Bench:
    """Trains some seeds and measures them."""

    def __init__(self, settings: ImageSettings, images: PatchedImages, device: torch.device) -> None:
        self.settings, self.images, self.device = settings, images, device
        self.shape = settings.shape(images)

    def measure(self, seeds: tuple[int, ...], progress: Progress | None) -> dict[str, np.ndarray]:
        found = self.images
        parameters = train_arms(
            self.settings, self.shape, seeds, self._batches(seeds), device=self.device, progress=progress
        )
        kept = min(PICTURES, len(found.test))
        tests = looked_at(parameters, self.shape, self._inputs(found.test, found.test_labels), _patches)
        with torch.no_grad():
            first = forward(parameters, self.shape, self._inputs(found.test[:kept], found.test_labels[:kept]))
        arrays = sparsity(parameters, self.settings.n_layers) | {
            "test_accuracy": tests["accuracy"],
            "entropy": tests["entropy"],
            "mean_attention": tests["seen"],
            "attention": _patches(first.attention.double(), slice(kept)).cpu().numpy(),
        }
        others = {
            "validation_accuracy": (found.validation, found.validation_labels),
            "train_accuracy": (found.train[: len(found.test)], found.train_labels[: len(found.test)]),
        }
        for name, (tokens, labels) in others.items():
            arrays[name] = looked_at(parameters, self.shape, self._inputs(tokens, labels))["accuracy"]
        return by_arm(arrays, len(self.settings.arms()))

    def _batches(self, seeds: tuple[int, ...]) -> Any:
        train, labels = self.images.train, self.images.train_labels
        copies = 2 if self.settings.mirrored else 1

        def batch(step: int) -> Inputs:
            drawn = [
                stream(seed, "image batch", step).choice(copies * len(train), self.settings.batch_size, replace=False)
                for seed in seeds
            ]
            chosen, turned = np.concatenate(drawn) % len(train), np.concatenate(drawn) >= len(train)
            tokens = train[chosen]
            tokens[turned] = mirror_image(tokens[turned], self.settings.patch)
            size = len(seeds), self.settings.batch_size
            return Inputs(
                torch.tensor(tokens).unflatten(0, size).to(self.device),
                torch.tensor(labels[chosen]).unflatten(0, size).to(self.device),
            )

        return batch

    def _inputs(self, tokens: np.ndarray, labels: np.ndarray) -> Inputs:
        return Inputs(torch.tensor(tokens)[None].to(self.device), torch.tensor(labels)[None].to(self.device))


def _patches(attention: Tensor, part: slice) -> Tensor:
    """Attention on the patches, mean over heads."""
    return attention.mean(2)[..., :-1]
