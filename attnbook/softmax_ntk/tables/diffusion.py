"""The tables of the chapter on score estimation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.softmax_ntk.experiments import (
    diffusion_identities,
    score_digits,
    score_learning,
    score_plane,
    score_sampling,
    score_sizes,
    score_stopping,
)
from attnbook.softmax_ntk.experiments.score_tasks import BINS, GAP, ON_A_LINE
from attnbook.softmax_ntk.mixtures import mixture_log_density
from attnbook.softmax_ntk.reverse_sde import reverse_times

__all__ = [
    "assumption",
    "baselines",
    "by_step",
    "by_weight",
    "costs",
    "denoiser_text",
    "digits",
    "eigenvalues",
    "million",
    "plane",
    "quality",
    "rises",
    "sizes",
    "terms",
    "time_text",
]  # fmt: skip

Row = list[str | Measured]


def assumption(result: diffusion_identities.DiffusionIdentities) -> Table:
    """Return which inputs and labels Assumption 6.1 excludes, in shares."""
    rows: list[Row] = [
        ["largest norm of an input, clipped and scaled", Measured(f"{result.input_norm.max():.4f}")],
        ["inputs that the clip touches", Measured(_percent(result.share_clipped))],
        ["labels of norm above one, left as they are", Measured(_percent(result.share_long_labels))],
    ]
    caption = f"Median [least, most] over {len(result.share_clipped)} seeds of {result.settings.n_inputs} points."
    return Table(["Assumption 6.1", ""], rows, caption)


def terms(result: score_learning.ScoreLearning) -> Table:
    """Return the four terms, their sum times four and the error, by seed."""
    rows: list[Row] = []
    for seed, parts, error in zip(result.settings.seeds, result.terms, result.network_error[:, -1], strict=True):
        numbers = (*parts, 4 * parts.sum(), error)
        rows.append([str(seed), *(Measured(f"{number:.1e}") for number in numbers)])
    head = ["seed", "coupling", "label mismatch", "early stopping", "approximation", "four times the sum", "error"]
    caption = f"Mean squares on {result.settings.n_test} fresh points after {result.settings.checkpoints[-1]} steps."
    return Table(head, rows, caption)


def by_step(result: score_learning.ScoreLearning) -> Table:
    """Return best step, errors and training losses, by seed."""
    s, rows = result.settings, []
    for k, seed in enumerate(s.seeds):
        best = int(result.error[k].argmin())
        errors = (result.error[k, best], result.network_error[k, -1], result.error[k, -1])
        losses = (result.train_loss[k, best], result.train_loss[k, -1])
        row: Row = [str(seed), Measured(f"{result.best_step()[k]:g}")]
        row += [Measured(f"{value:.4f}") for value in errors] + [Measured(f"{value:.3f}") for value in losses]
        rows.append(row)
    head = [
        "seed", "best step", "error there", f"of the network at {s.checkpoints[-1]}", f"at {s.last:.0e}",
        "loss at best step", "at the end",
    ]  # fmt: skip
    caption = Measured(
        f"{np.median(result.signal):.3f}.",
        before="Kernel machine unless stated. Always answering zero has error ",
    )
    return Table(head, rows, caption)


def baselines(result: score_learning.ScoreLearning) -> Table:
    """Return errors relative to the signal, of network and kernel machine and of two straight lines."""
    kinds = (
        (f"network, {result.settings.checkpoints[-1]} steps", result.network_error[:, -1]),
        ("kernel machine, best step", result.error.min(axis=1)),
        ("linear in x and tx, fitted to the same labels", result.linear_error[:, 1]),
        ("best denoiser linear in x, knows mean and variance", result.linear_error[:, 0]),
    )
    rows: list[Row] = [[name, Measured(_range(error / result.signal, ".3f"))] for name, error in kinds]
    caption = f"Always answering zero has 1. Median [least, most] over {len(result.signal)} seeds."
    return Table(["denoiser", "error over signal"], rows, caption)


def million(learning: score_learning.ScoreLearning, stopping: score_stopping.ScoreStopping) -> Table:
    """Return what the late number of steps does to error and samples: each seed, and the seeds of both experiments."""
    s, t, late = learning.settings, stopping.settings, learning.settings.late
    w = learning.wasserstein
    first = np.stack([learning.error.min(axis=1), learning.error[:, s.steps.index(late)], w[:, 1], w[:, 2]])
    error, distance = stopping.error, stopping.wasserstein[:, t.sampled.index(late)]
    second = np.stack([error.min(axis=1), error[:, t.steps.index(late)], stopping.wasserstein_best, distance])
    longer = np.stack([second[0], stopping.error_longer, second[2], stopping.wasserstein_longer])
    groups = [(f"seed {seed}", first[:, [k]]) for k, seed in enumerate(s.seeds)] + [
        (f"seeds {s.seeds[0]} to {s.seeds[-1]}, medians", first),
        (f"seeds {t.seeds[0]} to {t.seeds[-1]}, medians", second),
        ("all of these, medians", np.concatenate([first, second], axis=1)),
        (f"seeds {t.seeds[0]} to {t.seeds[-1]}, best step times {t.longer}", longer),
    ]
    rows: list[Row] = []
    for name, values in groups:
        a, b, c, d = np.median(values, axis=1)
        hurt = f"{np.sum(values[3] > 1.05 * values[2])} of {values.shape[1]}"
        if values.shape[1] == 1:
            hurt = "yes" if d > 1.05 * c else "no"
        rows.append([name, *map(Measured, (f"{a:.3f} to {b:.3f}", f"{c:.3f} to {d:.3f}", hurt))])
    caption = f"From the best step to {late:.0e} steps unless stated. Hurt: distance larger by more than 5 %."
    return Table(["", "error", "distance of samples", "hurt"], rows, caption)


def sizes(result: score_sizes.ScoreSizes) -> Table:
    """Return errors, best steps and eigenvalues, by number of samples."""
    rows: list[Row] = []
    for k, n in enumerate(result.settings.sizes):
        each = (result.best_error[:, k], result.end_error[:, k])
        row: Row = [str(n), *(Measured(_range(values, ".2g")) for values in each)]
        row += [Measured(_range(result.best_step[:, k], ".0f")), Measured(f"{result.rises[:, k].sum():.0f}")]
        rows.append(row)
    n_seeds = len(result.best_error)
    caption = f"Median [least, most] over {n_seeds} seeds. Rises: seeds whose last error is above 1.5 times the best."
    return Table(["samples", "best error", "last error", "best step", f"rises, of {n_seeds}"], rows, caption)


def eigenvalues(result: score_sizes.ScoreSizes) -> Table:
    """Return the size of the smallest eigenvalue, and what the theorem's condition asks for if it is no larger."""
    rows: list[Row] = []
    for k, n in enumerate(result.settings.sizes):
        power = int(np.ceil(np.log10(np.abs(result.smallest_eigenvalue[:, k]).max())))
        width = int(np.floor(3 * np.log10(n))) - 2 * power
        rows.append([str(n), Measured(f"below 1e{power}"), Measured(f"above 1e{width}")])
    caption = (
        f"Size of the computed eigenvalue, largest over {len(result.best_error)} seeds: an upper bound. Condition "
        f"without constants, logarithms and powers of e; these machines have {result.settings.width} neurons."
    )
    return Table(["samples", "smallest eigenvalue", "neurons asked for"], rows, caption)


def quality(learning: score_learning.ScoreLearning, sampling: score_sampling.ScoreSampling) -> Table:
    """Return how good the samples of every score are, and its error."""
    e, z, a, straight = (score_sampling.SAMPLERS.index(name) for name in ("exact", "zero", "adam", "linear"))
    n, b, late = range(3)
    best = learning.error.min(axis=1)
    long = learning.error[:, learning.settings.steps.index(learning.settings.late)]
    w, g = learning.wasserstein, learning.gap
    of = (
        ("exact", sampling.wasserstein[:, e], sampling.gap[:, e], None),
        ("always zero", sampling.wasserstein[:, z], sampling.gap[:, z], sampling.signal),
        (
            "best linear denoiser",
            sampling.wasserstein[:, straight],
            sampling.gap[:, straight],
            sampling.linear_error,
        ),
        (f"network, {learning.settings.checkpoints[-1]} steps", w[:, n], g[:, n], learning.network_error[:, -1]),
        ("kernel machine, best step", w[:, b], g[:, b], best),
        (f"kernel machine, {learning.settings.late:.0e} steps", w[:, late], g[:, late], long),
        (
            f"half the width, Adam, {sampling.settings.batch * sampling.settings.iterations} fresh points",
            sampling.wasserstein[:, a],
            sampling.gap[:, a],
            sampling.error,
        ),
    )
    rows: list[Row] = [
        [
            name,
            Measured(_range(d, ".3f")),
            Measured(_percent(between)),
            Measured(_range(error, ".4f")) if error is not None else "0",
        ]
        for name, d, between, error in of
    ]
    caption = Measured(
        f"{100 * np.median(sampling.ideal_gap):.1f} %.",
        before=f"Median [least, most] over {len(w)} or {len(sampling.error)} seeds. In the gap: nearer to 0 than "
        f"{GAP:g}; of the data itself at the first time, ",
    )
    return Table(["score", "distance of samples", "in the gap", "error against the truth"], rows, caption)


def by_weight(result: score_stopping.ScoreStopping) -> Table:
    """Return the best step by each of three measures."""
    s, steps = result.settings, np.array(result.settings.steps, dtype=float)
    rows: list[Row] = []
    for name, values, at in (
        ("error, all times", result.error, steps),
        (f"error, times below {s.early[1]:g}", result.early_error, steps),
        ("distance of samples", result.wasserstein, np.array(s.sampled, dtype=float)),
    ):
        best = at[values.argmin(axis=1)]
        rows.append([name, Measured(_range(best, ".0f")), Measured(_range(values.min(axis=1), ".3f"))])
    caption = f"Median [least, most] over {len(result.error)} seeds."
    return Table(["measure", "best number of steps", "its value there"], rows, caption)


def rises(learning: score_learning.ScoreLearning, plane: score_plane.ScorePlane) -> Table:
    """Return how far long training raises the error on the line and in the plane."""
    rows: list[Row] = []
    for name, result in (("line", learning), ("plane", plane)):
        last, best = result.error[:, -1], result.error.min(axis=1)
        each = last / best
        ratio = f"{np.median(last) / np.median(best):.1f} [{each.min():.1f}, {each.max():.1f}]"
        rows.append([name, str(result.settings.n_samples), Measured(ratio)])
    caption = (
        f"Ratio of medians [least, most] over {len(learning.error)} and {len(plane.error)} seeds, kernel machines."
    )
    return Table(["data", "samples", "last error over best"], rows, caption)


def plane(result: score_plane.ScorePlane) -> Table:
    """Return shares of the modes and errors in the plane."""
    rows: list[Row] = []
    for k, name in enumerate(("data at the first time", "samples of the network")):
        shares = ", ".join(f"{100 * share:.0f} %" for share in np.median(result.shares[:, k], axis=0))
        rows.append([name, Measured(shares), Measured(_range(result.spread[:, k], ".3f"))])
    error = np.median(result.adam_error / result.signal)
    caption = Measured(
        f"{100 * error:.1f} % of the signal.",
        before=f"Medians over {len(result.error)} seeds. Error of the network trained by Adam on fresh noise: ",
    )
    return Table(["points", "share of each mode", "distance from the nearest mode (rms)"], rows, caption)


def digits(result: score_digits.ScoreDigits) -> Table:
    """Return errors on held-out digits, and how near generated images are to training images."""
    names = {
        "network": "softmax network",
        "linear": "best linear denoiser",
        "training_set": "exact for the training set",
    }
    rows: list[Row] = [
        [names[name], Measured(_range(result.error[:, k], ".3f"))] for k, name in enumerate(score_digits.DENOISERS)
    ]
    rows += [["mean training image", Measured(_range(result.signal, ".3f"))]]
    caption = Measured(
        f"{np.median(result.nearest):.2f}, of a held-out image {np.median(result.nearest_real):.2f}.",
        before=f"Mean square per pixel, pixels from -1 to 1, median [least, most] over {len(result.signal)} seeds. "
        "Distance of a generated image from the nearest training image (rms): ",
    )
    return Table(["denoiser", "error on held-out digits"], rows, caption)


def time_text(learning: score_learning.ScoreLearning, sampling: score_sampling.ScoreSampling, time: float) -> str:
    """Return the numbers behind one picture of the slider."""
    s, schedule = sampling.settings, ON_A_LINE.schedule
    times = reverse_times(s.n_sde_steps, schedule=schedule)[list(s.frames)]
    k, middle = int(np.abs(times - time).argmin()), (BINS[1:] + BINS[:-1]) / 2
    between = np.abs(middle) < GAP
    log = mixture_log_density(ON_A_LINE.mixture, np.full(len(middle), times[k]), middle[:, None], schedule=schedule)
    shares = [
        100 * float(heights[between].sum() * (BINS[1] - BINS[0]))
        for heights in (np.exp(log), learning.history[k], sampling.history[2, k])
    ]
    return (
        f"Time {times[k]:.2f}: {100 * float(schedule.signal(times[k])):.0f} % of the signal is left. "
        f"Between the modes, nearer to 0 than {GAP:g}: {shares[0]:.0f} % of the true distribution, "
        f"{shares[1]:.0f} % of the particles of the network stopped early, "
        f"{shares[2]:.0f} % of those of the network trained on fresh noise."
    )


def denoiser_text(time: float, missed: float, noise: float) -> str:
    """Return by how much the best line misses the true label at one time, beside the noise of the labels."""
    line = f"{missed:.4f}" if missed >= 1e-4 else "less than 0.0001"
    share = f", {missed / noise:.0%} of that" if missed >= 0.01 * noise else ", less than 1% of that"
    return (
        f"Time {time:g}. Mean squares: the noisy labels scatter around the true one by {noise:.4f}; the best line "
        f"misses it by {line}{share}."
    )


def costs(results: Mapping[str, Result]) -> Table:
    """Return where and in what time each experiment ran."""
    rows: list[Row] = []
    for name, result in results.items():
        p = result.provenance
        facts = (f"{p.wall_seconds:.1f} s", f"{p.cpu_seconds:.1f} s", f"{p.peak_memory_mib:.0f} MiB", p.device)
        rows.append([name, *map(Measured, facts)])
    head = ["experiment", "time", "of the processor", "peak memory of the process", "device"]
    return Table(
        head,
        rows,
        "One thread each. The time of the processor is the cost; the other one includes waiting for other programs.",
    )


def _range(values: np.ndarray, form: str) -> str:
    return f"{np.median(values):{form}} [{values.min():{form}}, {values.max():{form}}]"


def _percent(shares: np.ndarray) -> str:
    low, middle, high = (100 * float(f(shares)) for f in (np.min, np.median, np.max))
    return f"{middle:.2g} % [{low:.2g}, {high:.2g}]"
