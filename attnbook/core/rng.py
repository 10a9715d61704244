"""Random numbers that are the same on every device, operating system and torch version.

Everything random (inputs, labels, initial weights, batches) is drawn by a NumPy generator in
float64 on the CPU, then cast and moved. A generator belongs to a seed and to names that say what
it is for; so one more network, or one more use, changes no other number.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from numpy.typing import ArrayLike

from attnbook.core.settings import whole

__all__ = ["stream", "to_tensor"]


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the generator that belongs to a seed and a purpose.

    Args:
        seed: Whole number, 0 or larger.
        *names: What the numbers are for, for example ``"batches", 10_000``.

    Returns:
        A fresh generator; the same arguments give the same numbers.

    Raises:
        ValueError: If the seed is negative or not a whole number.

    Example:
        >>> bool(stream(0, "inputs").random() == stream(0, "inputs").random())
        True
    """
    seed, purpose = whole("seed", seed, least=0), tuple(zlib.crc32(str(name).encode()) for name in names)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=purpose)))


def to_tensor(
    values: ArrayLike, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Cast float64 draws to the dtype of a computation and move them to its device.

    Args:
        values: Array of numbers.
        device: Where the tensor is wanted.
        dtype: Its type; float32 is what the experiments train in.

    Returns:
        A tensor that shares no memory with ``values``.

    Raises:
        ValueError: If a value is NaN or infinite, or too large for the type.
    """
    array = np.asarray(values, dtype=np.float64)
    tensor = torch.tensor(array, dtype=dtype)
    finite = np.isfinite(array) & torch.isfinite(tensor).numpy()
    if not finite.all():
        raise ValueError(f"values: {int((~finite).sum())} of {array.size} entries are NaN or infinite as {dtype}")
    return tensor.to(device)
