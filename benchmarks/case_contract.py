"""What the generic run of an experiment costs over its training, and what a second process saves."""

from __future__ import annotations

import functools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from side_by_side import Case

from attnbook.core.experiment import Arrays, Experiment
from attnbook.preconditioning.structure_aware_descent.experiments import Ablation

CPU = torch.device("cpu")
ALLOWED = 0.02  # of the training time, for what surrounds it


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [plumbing("the ablation of part 5", Ablation(), "spectral"), two_processes()]


def plumbing(name: str, experiment: Experiment, array: str) -> Case:
    """Compare what surrounds the training: the generic run, and a loop written for this one experiment.

    Whole runs differ by more from one to the next than the surroundings take; so the training is run once, its time
    kept, and what it returned stands in for it.

    Returns:
        The case.
    """
    training = functools.cache(functools.partial(_trained, experiment))
    ours, by_hand = "generic run (ours)", "a loop by hand"

    def around(run: Callable[[Path], Mapping[str, Any]]) -> np.ndarray:
        arrays, _ = training()
        with (
            mock.patch.object(type(experiment), "simulate", return_value=arrays),
            tempfile.TemporaryDirectory() as folder,
        ):
            return np.asarray(run(Path(folder))[array])

    def share(times: Mapping[str, float]) -> str:
        _, seconds = training()
        added = (times[ours] - times[by_hand]) / 1e3 / seconds
        outcome = "reached" if added <= ALLOWED else "missed"
        return (
            f"The training takes {seconds:.1f} s; the generic run adds {100 * added:.2g} per cent of it to a loop by "
            f"hand. Aim, at most {100 * ALLOWED:g} per cent: {outcome}."
        )

    return Case(
        title=f"The generic run of an experiment: {name}",
        what=f"What surrounds the training of {name}, all seeds in one group, kept on disk as a finished part. "
        "The training itself is left out.",
        variants={
            ours: lambda: around(lambda folder: experiment.run(device=CPU, workdir=folder)),
            by_hand: lambda: around(functools.partial(_loop, experiment)),
        },
        tolerance=0.0,
        aim={},
        repeat=5,
        remark=share,
    )


def _trained(experiment: Experiment) -> tuple[Arrays, float]:
    """What the training of all seeds returns, and its seconds."""
    start = time.perf_counter()
    arrays = experiment.simulate(experiment.seeds, CPU, None)
    return arrays, time.perf_counter() - start


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
    large = Ablation.at("full", chunk=2, weak_steps=300, strong_steps=120, records=20)  # a fifth of its steps

    def on(processes: int) -> np.ndarray:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
            return large.run(device="cpu", executor=pool)["spectral"].values

    return Case(
        title="The larger ablation on two processes",
        what="20 seeds in groups of two at a fifth of the steps, the start of the processes included (it weighs more "
        "than at all steps). Processor time: this process only.",
        variants={"two processes (ours)": lambda: on(2), "one process": lambda: on(1)},
        tolerance=0.0,
        aim={"one process": 1 / 0.6},
    )
