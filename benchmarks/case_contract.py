"""What the generic run of an experiment costs over its training, and what a second process saves."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side_by_side import Case

from attnbook.core.ensemble import log_spaced
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.results import Clock
from attnbook.core.resuming import by_seeds
from attnbook.core.runtime import Progress
from attnbook.global_attention.masks import Training, train_members
from attnbook.global_attention.sample_complexity.experiments import SampleComplexity
from attnbook.preconditioning.structure_aware_descent.experiments import Ablation


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [
        plumbing("the ablation of part 5", Ablation(), "weak"),
        plumbing("Table 1", Table1(), "test_loss"),
        two_processes(),
    ]


@dataclass(frozen=True, kw_only=True)
class Table1(Experiment):
    """Table 1 on the contract, with fewer steps: what the plumbing costs weighs more."""

    id = "benchmark.table_1"
    summary = "Table 1"

    steps: int = 300

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks of these seeds."""
        s = SampleComplexity.at("book")
        training = Training(self.steps, s.batch_size, s.step_size, log_spaced(self.steps, 12))
        members = s.members(seeds, (s.n_relevant,))
        history = train_members(members, s.setup(noise=0.0), training, device=device, progress=progress)
        loss = history.records["test_loss"].reshape(-1, len(seeds), len(s.sizes), len(s.models))
        return {"test_loss": (("record", "seed", "size", "model"), loss)}


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
