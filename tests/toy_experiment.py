"""A tiny experiment on the contract, for its own tests; in a file of its own so that other processes can import it."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnbook.core.experiment import Experiment
from attnbook.core.rng import stream


@dataclass(frozen=True, kw_only=True)
class Toy(Experiment):
    """Draws numbers; some are infinite, some undefined."""

    id = "toy.draws"
    summary = "Draws numbers"
    needs = "cpu"
    smoke = {"steps": 3, "seeds": (0, 1, 2), "chunk": 1}
    full = {"steps": 11}

    steps: int = 5  # numbers drawn
    factor: float = 1.0
    kind: str = "normal"
    sizes: tuple[tuple[float, tuple[int, ...]], ...] = ((0.1, (1, 2)),)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    chunk: int = 3
    seconds: float = 0.0  # that a group takes
    log: str = ""  # folder that gets a file for every group that is trained
    fails_at: int | None = None  # seed that diverges
    kills_itself: bool = False

    def coordinates(self):
        return {"step": list(range(self.steps)), "bound": [0.5, np.inf], "word": ["two words", "inf"]}

    def simulate(self, seeds, device, progress):
        if self.log:
            (Path(self.log) / f"{seeds[0]}-{os.getpid()}-{time.time_ns()}").touch()
        if self.kills_itself:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        if self.fails_at in seeds:
            raise FloatingPointError(f"training diverged for seed {self.fails_at}: try a smaller step size")
        for number, _ in enumerate(seeds, 1):
            if progress:
                progress(number, len(seeds))
        drawn = self.factor * np.stack([stream(s, "toy").standard_normal(self.steps) for s in seeds], axis=1)
        lost = np.array([[np.inf] * len(seeds), [-np.inf] * len(seeds), [np.nan] * len(seeds)])
        return {
            "drawn": (("step", "seed"), drawn),
            "lost": (("way", "seed"), lost),
            "bounds": (("bound",), np.array([1.0, np.inf])),
        }

    def measure(self, data):
        return {
            "TY-1": {"last": data.drawn.isel(step=-1), "largest": data.drawn.max()},
            "TY-2": {"infinite": data.lost.isel(way=0)},
        }
