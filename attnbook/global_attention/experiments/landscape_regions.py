"""The part of ``loss_landscape`` on Theorem 3 and Figure 1: bounds, exact counts, random and trained networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch

from attnbook.core.results import Measurement, ratio_over_seeds
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.global_attention.biased_networks import FirstLayers, train_with_biases
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, Model
from attnbook.global_attention.regions import (
    count_regions,
    count_regions_in_box,
    crossover_width,
    hinge_network,
    largest_region_count,
    log10_region_counts,
    pieces_on_segments,
    region_bound,
)

__all__ = ["BIASES", "MODELS", "exact_claims", "segment_counts", "trained_claims", "trained_counts"]

MODELS: tuple[Model, ...] = ("baseline", "attention", "l1_attention")

BIASES = ("none", "variance 1", "variance s₀")
"""Biases of random networks; with variance $s_0$ they are as large as what the $s_0$ kept inputs add up to."""

# Exact checks: sizes (width, relevant inputs) of the hinge networks, and widths of random networks on two inputs.
HINGE_SIZES = ((6, 2), (8, 2), (10, 2), (12, 2), (9, 3), (12, 3))
PLANE_WIDTHS = (8, 16, 32)
NO_BIAS_SIZE = (16, 2)
WIDEST = 5000
GRID_WIDTHS = (10, 30, 100, 300, 1000, 3000)
NARROW = 150


@cache
def exact_claims(n_inputs: int, sparsities: tuple[int, ...]) -> dict[str, Measurement]:
    """Return what closed forms and exact counts say about the claims on Theorem 3 and Figure 1.

    Args:
        n_inputs: Inputs of the baseline in Figure 1.
        sparsities: Inputs that the masks keep in Figure 1, increasing.

    Returns:
        Measurements by claim id.
    """
    fewer = [s for s in sparsities if s < n_inputs]
    return {
        "GA-F1-order": Measurement({"smallest_log10_gap": _smallest_gap((*fewer, n_inputs))}),
        "GA-T3-bound": Measurement({"smallest_log10_gap": _gap_to_maximum((*fewer, n_inputs))}),
        "GA-T3-count": _hinge_counts(),
        "GA-T3-pieces": _hinge_pieces(),
        "GA-T3-nobias": _without_biases(),
        "GA-T3-nobias-large": Measurement({"violations": float(_violations(range(8, n_inputs + 1)))}),
        "GA-T3-threshold": Measurement({"violations": float(_threshold_violations(n_inputs, fewer))}),
        "GA-T3-narrow": _narrow(n_inputs, [s for s in fewer if s <= NARROW // 2]),
        "GA-T3-maximum": Measurement({"mismatches": float(_plane_mismatches())}),
        "GA-T3-zeros": _tiny_entries(),
    }


def segment_counts(sparsities: Sequence[int], *, n_inputs: int, width: int, networks: int, segments: int) -> np.ndarray:
    """Count linear pieces of random networks along random segments, for masks that keep more and more inputs.

    Weights and the ends of the segments are standard normal; a mask does not rescale the weights it leaves. Where a
    unit switches depends on the size of its bias, so three sizes are tried.

    Args:
        sparsities: Inputs that the mask keeps.
        n_inputs: Inputs.
        width: Hidden units.
        networks: Number of random networks, the same for every sparsity.
        segments: Segments per network.

    Returns:
        Mean number of pieces, ``(networks, BIASES, sparsities)``.
    """
    counts = np.empty((networks, len(BIASES), len(sparsities)))
    for network in range(networks):
        rng = stream(network, "segments")
        normals, offsets = rng.standard_normal((width, n_inputs)), rng.standard_normal(width)
        starts, ends = rng.standard_normal((2, segments, n_inputs))
        for i, kept in enumerate(sparsities):
            masked = normals * (np.arange(n_inputs) < kept)
            for j, scale in enumerate((0.0, 1.0, np.sqrt(kept))):
                counts[network, j, i] = pieces_on_segments(masked, scale * offsets, starts, ends).mean()
    return counts


def trained_counts(
    setup: Setup,
    seeds: tuple[int, ...],
    *,
    n_samples: int,
    n_relevant: int,
    penalty: float,
    steps: int,
    segments: int,
    pattern_inputs: int,
    half_width: float,
    device: torch.device,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """Count linear pieces of trained networks with biases: along segments, around fresh inputs, and on a plane.

    A unit whose bias is near zero switches between two random inputs with probability near one half, whatever its
    weights. Counts that can differ are those along segments that move only inputs the teacher ignores, and the number
    of different activation patterns (which units are on) of many fresh inputs.

    Args:
        setup: Sizes and noise of teacher and networks.
        seeds: Seeds.
        n_samples: Training samples.
        n_relevant: Inputs the teacher looks at.
        penalty: L1 weight of ``l1_attention``.
        steps: Steps of Adam.
        segments: Segments of either kind, per network.
        pattern_inputs: Fresh inputs whose activation patterns are counted.
        half_width: Half the side of the square on the plane.
        device: Where to train.
        progress: Told (steps done, steps in all).

    Returns:
        ``pieces``, ``ignored_pieces`` (mean over segments) and ``patterns``, each also with ``_before`` for the
        untrained networks, and ``plane_regions``, all ``(seeds, models)``; ``plane_lines`` ``(models, width, 3)``, the
        hinge lines on the plane of the first seed.
    """
    members = [Member(model, seed, n_samples, n_relevant, penalty) for seed in seeds for model in MODELS]
    before, after = train_with_biases(
        members, setup, steps=steps, batch_size=64, step_size=5e-3, device=device, progress=progress
    )
    relevant = [setup.teacher(m.seed, n_relevant).mask > 0 for m in members]
    lines = np.stack([_on_plane(after, i, m.seed, relevant[i]) for i, m in enumerate(members)])
    shape = (len(seeds), len(MODELS))
    regions = [count_regions_in_box(each[:, :2], each[:, 2], half_width) for each in lines]
    counts = {
        name + suffix: np.reshape(values, shape).astype(float)
        for suffix, layers in {"": after, "_before": before}.items()
        for name, values in _counts(layers, members, relevant, segments, pattern_inputs).items()
    }
    return {
        **counts,
        "plane_regions": np.reshape(regions, shape).astype(float),
        "plane_lines": lines[: len(MODELS)],
    }


def trained_claims(arrays: dict[str, np.ndarray]) -> dict[str, Measurement]:
    """Return the measurements of what :func:`trained_counts` returned, by claim id."""
    pieces, patterns = arrays["pieces"], arrays["patterns"]
    bends = arrays["ignored_pieces"] - 1
    l1 = MODELS.index("l1_attention")
    return {
        "GA-T3-trained": ratio_over_seeds("attention_over_baseline", pieces[:, 1], pieces[:, 0]),
        "GA-T3-ignored": ratio_over_seeds("bends_l1_over_baseline", bends[:, l1], bends[:, 0]),
        "GA-T3-patterns": ratio_over_seeds("patterns_l1_over_baseline", patterns[:, l1], patterns[:, 0]),
    }


def _counts(
    layers: FirstLayers, members: list[Member], relevant: list[np.ndarray], segments: int, pattern_inputs: int
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"pieces": [], "ignored_pieces": [], "patterns": []}
    for normals, offsets, member, looked_at in zip(layers.normals, layers.offsets, members, relevant, strict=True):
        starts, ends = stream(member.seed, "segment ends").standard_normal((2, segments, normals.shape[1]))
        found["pieces"].append(pieces_on_segments(normals, offsets, starts, ends).mean())
        ignored = np.where(looked_at, starts, ends)  # inputs that the teacher looks at stay where they are
        found["ignored_pieces"].append(pieces_on_segments(normals, offsets, starts, ignored).mean())
        fresh = stream(member.seed, "pattern inputs").standard_normal((pattern_inputs, normals.shape[1]))
        on = np.packbits(fresh @ normals.T + offsets > 0, axis=1)
        found["patterns"].append(len(np.unique(on, axis=0)))
    return found


def _on_plane(layers: FirstLayers, member: int, seed: int, relevant: np.ndarray) -> np.ndarray:
    """The hinge lines on a plane through the origin, the same for all models of a seed."""
    # One axis moves the inputs that the teacher looks at, the other the rest; typical inputs have coordinates near one.
    direction = stream(seed, "plane").standard_normal(len(relevant))
    axes = [np.where(kind, direction, 0.0) for kind in (relevant, ~relevant)]
    plane = np.stack([axis * np.sqrt(np.count_nonzero(axis)) / np.linalg.norm(axis) for axis in axes], axis=1)
    return np.column_stack([layers.normals[member] @ plane, layers.offsets[member]])


def _log10_bound(width: int, n_relevant: int) -> float:
    return n_relevant * float(np.log10(width // n_relevant)) if width >= n_relevant else -np.inf


def _smallest_gap(sizes: tuple[int, ...]) -> float:
    bounds = [_log10_bound(WIDEST, s) for s in sizes]
    return float(min(b - a for a, b in pairwise(bounds)))


def _gap_to_maximum(sizes: tuple[int, ...]) -> float:
    gaps = [log10_region_counts([n], s)[0, -1] - _log10_bound(n, s) for n in GRID_WIDTHS for s in sizes if n > s]
    return float(min(gaps))


def _hinge_counts() -> Measurement:
    counts, bounds, expected = [], [], []
    for width, kept in HINGE_SIZES:
        normals, offsets, _ = hinge_network(width, kept)
        counts.append(count_regions(normals, offsets))
        bounds.append(region_bound(width, kept))
        expected.append((width // kept + 1) ** kept)
    mismatches = sum(a != b for a, b in zip(counts, expected, strict=True))
    ratio = min(a / b for a, b in zip(counts, bounds, strict=True))
    return Measurement({"mismatches": float(mismatches), "smallest_count_over_bound": ratio})


def _hinge_pieces() -> Measurement:
    errors, more = [], []
    for units in range(2, 12):
        normals, offsets, decoder = hinge_network(units, 1)
        bends = -offsets / normals[:, 0]
        errors.append(np.abs(bends - np.arange(units) / 2).max())
        # The slope of the function changes at each bend, by the weight of the unit there.
        changes = decoder * normals[:, 0]
        more.append(count_regions(normals[changes != 0], offsets[changes != 0]) - units)
    return Measurement({"max_breakpoint_error": float(max(errors)), "smallest_pieces_minus_units": float(min(more))})


def _without_biases() -> Measurement:
    width, kept = NO_BIAS_SIZE
    normals = stream(0, "no biases").standard_normal((width, kept))
    values = {
        "counted_regions": count_regions(normals, np.zeros(width)),
        "central_maximum": largest_region_count(width, kept, biases=False),
        "bound": region_bound(width, kept),
    }
    return Measurement({name: float(value) for name, value in values.items()})


def _violations(sparsities: range) -> int:
    """Pairs of a width up to the widest and a sparsity for which the bound exceeds the maximum without biases."""
    widths = np.arange(2, WIDEST + 1)
    most = log10_region_counts(widths, sparsities[-1], biases=False)
    found = 0
    for kept in sparsities:
        wide = widths > kept
        gaps = most[wide, kept - 1] - kept * np.log10(widths[wide] // kept)
        doubtful = widths[wide][np.abs(gaps) < 1e-6]  # settled by whole numbers
        exact = [largest_region_count(int(n), kept, biases=False) < region_bound(int(n), kept) for n in doubtful]
        found += int((gaps <= -1e-6).sum()) + sum(exact)
    return found


def _threshold_violations(n_inputs: int, sparsities: Sequence[int]) -> int:
    wrong = 0
    for s in sparsities:
        threshold = crossover_width(n_inputs, s)
        for width in (0.9 * threshold, 1.1 * threshold):
            attention_is_smaller = s * np.log(width / s) <= n_inputs * np.log(width / n_inputs)
            wrong += attention_is_smaller != (width > threshold)
    return int(wrong)


def _narrow(n_inputs: int, sparsities: Sequence[int]) -> Measurement:
    baseline = _log10_bound(NARROW, n_inputs)
    smallest = min(_log10_bound(NARROW, s) - baseline for s in sparsities)
    return Measurement({"smallest_log10_attention_minus_baseline": float(smallest)})


def _tiny_entries() -> Measurement:
    """Regions of a random network on four inputs when the mask keeps two, and makes the others tiny or zero."""
    rng = stream(0, "tiny entries")
    normals, offsets = rng.standard_normal((8, 4)), rng.standard_normal(8)
    masks = {"no_mask": (1, 1, 1, 1), "tiny_entries": (1, 1, 1e-6, 1e-6), "zero_entries": (1, 1, 0, 0)}
    counts = {name: float(count_regions(normals * np.array(mask, float), offsets)) for name, mask in masks.items()}
    return Measurement(counts)


def _plane_mismatches() -> int:
    wrong = 0
    for width in PLANE_WIDTHS:
        rng = stream(width, "plane arrangement")
        normals, offsets = rng.standard_normal((width, 2)), rng.standard_normal(width)
        wrong += count_regions(normals, offsets) != largest_region_count(width, 2)
        wrong += count_regions(normals, 0 * offsets) != largest_region_count(width, 2, biases=False)
    return int(wrong)
