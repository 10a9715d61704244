"""What the generic run of an experiment costs over its training, and what a second process saves."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from side_by_side import Case

from attnbook.core.experiment import Experiment
from attnbook.global_attention.sample_complexity.experiments import SampleComplexity
from attnbook.preconditioning.structure_aware_descent.experiments import Ablation

CPU = torch.device("cpu")


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    short = SampleComplexity.at("book", steps=300, snapshot=300)  # with fewer steps the plumbing weighs more
    return [
        plumbing("the ablation of part 5", Ablation(), "spectral"),
        plumbing("Table 1", short, "test_loss"),
        two_processes(),
    ]


def plumbing(name: str, experiment: Experiment, array: str) -> Case:
    """Compare the generic run with a loop written for this one experiment; both keep parts."""
    by_hand = "a loop by hand"
    return Case(
        title=f"The generic run of an experiment: {name}",
        what=f"All seeds of {name} in one group, kept on disk as a finished part.",
        variants={
            "generic run (ours)": _in_new_folder(
                lambda folder: experiment.run(device=CPU, workdir=folder)[array].values
            ),
            by_hand: _in_new_folder(lambda folder: _loop(experiment, folder)[array]),
        },
        tolerance=0.0,
        aim={by_hand: 1 / 1.02},
    )


def _loop(experiment: Experiment, folder: Path) -> dict[str, np.ndarray]:
    """What a script without the contract would do: train group by group, and keep each in a file that appears whole."""
    for seeds in experiment.groups():
        start = time.perf_counter()
        found = {n: np.asarray(v, dtype=np.float64) for n, (_, v) in experiment.simulate(seeds, CPU, None).items()}
        kept = {"settings": asdict(experiment), "seconds": time.perf_counter() - start}
        (folder / "part").write_text(json.dumps(kept | {"arrays": {n: v.tolist() for n, v in found.items()}}))
        (folder / "part").replace(folder / f"{seeds[0]}.json")
    return found  # of the last group, which is the only one here


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
