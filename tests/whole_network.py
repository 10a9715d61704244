"""Networks in which every head is written out, to hold groups of equal heads against."""

import torch


def expand(parameters, *, counts):
    """Repeat every group as often as it has heads, the same whole numbers for every member."""
    repeats = counts[0].round().to(torch.int64)
    assert (counts == repeats).all()
    assert (repeats >= 1).all()
    return {name: tensor.repeat_interleave(repeats, dim=1) for name, tensor in parameters.items()}
