"""What the generic run of an experiment costs over its training, and what a second process saves."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side_by_side import Case

from attnbook.core.experiment import Experiment
from attnbook.core.results import Clock
from attnbook.core.resuming import by_seeds
from attnbook.core.runtime import Progress
from attnbook.global_attention.sample_complexity.experiments import SampleComplexity
from attnbook.preconditioning.structure_aware_descent.experiments import Ablation


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    short = SampleComplexity.at("book", steps=300, snapshot=300)  # with fewer steps the plumbing weighs more
    return [
        plumbing("the ablation of part 5", Ablation(), "spectral"),
        plumbing("Table 1", short, "test_loss"),
        two_processes(),
    ]


def plumbing(name: str, experiment: Experiment, array: str) -> Case:
    """Compare the generic run with the plumbing of the first edition around the same training; both keep parts."""
    cpu = torch.device("cpu")

    def generic(workdir: Path) -> np.ndarray:
        return experiment.run(device=cpu, workdir=workdir)[array].values

    def by_hand(workdir: Path) -> np.ndarray:
        def train(seeds: tuple[int, ...], progress: Progress | None) -> dict[str, Any]:
            return {name: values for name, (_, values) in experiment.simulate(seeds, cpu, progress).items()}

        (part,) = by_seeds(experiment, train, clock=Clock(), workdir=workdir)
        return part[array]

    old = "plumbing of the first edition"
    return Case(
        title=f"The generic run of an experiment: {name}",
        what=f"All seeds of {name} in one group, kept on disk as a finished part.",
        variants={"generic run (ours)": _in_new_folder(generic), old: _in_new_folder(by_hand)},
        tolerance=0.0,
        aim={old: 1 / 1.02},
    )


def two_processes() -> Case:
    """Compare the larger ablation on two processes and on one."""
    large = Ablation.at("large", chunk=2)

    def on(processes: int) -> np.ndarray:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
            return large.run(device="cpu", executor=pool)["spectral"].values

    return Case(
        title="The larger ablation on two processes",
        what="20 seeds in groups of two, the start of the processes included. Processor time: this process only.",
        variants={"two processes (ours)": lambda: on(2), "one process": lambda: on(1)},
        tolerance=0.0,
        aim={"one process": 1 / 0.6},
    )


def _in_new_folder(run: Callable[[Path], np.ndarray]) -> Callable[[], np.ndarray]:
    def inside() -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            return run(Path(folder))

    return inside
