"""A step size for each network of an ensemble, and what surrounds the training of an experiment."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import problem
import torch
import xarray as xr
from side_by_side import Case
from torch import Tensor

from attnbook import train
from attnbook.core import ensemble, update_rules
from attnbook.global_attention import masks
from attnbook.lab import Experiment, checkout, load_script

STEPS = 200
ALLOWED = 0.02  # of the training time, for what surrounds it
AIM = 1.5


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    how_many_heads = load_script(checkout() / "chapters/multi_head/how_many_heads.py")
    return [step_sizes("SGD"), step_sizes("Adam"), surroundings(how_many_heads.step_size_map)]


def step_sizes(rule: str) -> Case:
    """Compare broadcast step sizes with parameter groups and with a loop by hand.

    Returns:
        The case.
    """
    settings = problem.BOOK
    drawn = {n: torch.from_numpy(a).float() for n, a in problem.draw(settings, 1).items() if n != "rows"}
    parameters = {
        "mask": torch.ones_like(drawn["hidden"][:, 0]),
        "hidden": drawn["hidden"],
        "decoder": drawn["decoder"],
    }
    members = len(drawn["hidden"])
    batch = drawn["inputs"][None, : settings.batch_size], drawn["labels"][: settings.batch_size].T[None]
    sizes = np.geomspace(1e-4, 1e-2, members)

    def gradient(now: Mapping[str, Tensor], _: object) -> tuple[Tensor, dict[str, Tensor]]:
        return masks.loss_and_gradient(dict(now), batch)

    def last(module: object, rules: object) -> np.ndarray:
        found = module.train(  # type: ignore[attr-defined]
            gradient,
            parameters,
            lambda step: None,
            optimizer=getattr(rules, rule)(sizes.tolist()),
            steps=STEPS,
            record=lambda now: {"mask": now["mask"].mean(1)},
            record_at=[STEPS],
        )
        return _flat(found.parameters)

    return Case(
        title=f"A step size for each of {members} networks of Table 1: {rule}",
        what=f"{STEPS} steps on one batch, closed-form gradients in float32.",
        variants={
            "broadcast step sizes (ours)": lambda: last(train, train),
            "a parameter group for each network": lambda: last(ensemble, update_rules),
            "a loop by hand, without checks": lambda: _by_hand(rule, gradient, parameters, torch.from_numpy(sizes)),
        },
        tolerance=1e-3,  # float32
        aim={"a parameter group for each network": AIM, "a loop by hand, without checks": 0.9},
    )


def _by_hand(
    rule: str, gradient: Callable[..., tuple[Tensor, dict[str, Tensor]]], start: Mapping[str, Tensor], sizes: Tensor
) -> np.ndarray:
    now = {name: tensor.clone() for name, tensor in start.items()}
    first, second = ({name: torch.zeros_like(tensor) for name, tensor in now.items()} for _ in range(2))
    rates = {name: sizes.float().view(-1, *[1] * (tensor.ndim - 1)) for name, tensor in now.items()}
    for step in range(1, STEPS + 1):
        _, slopes = gradient(now, None)
        for name, tensor in now.items():
            if rule == "SGD":
                tensor -= rates[name] * slopes[name]
                continue
            first[name].lerp_(slopes[name], 0.1)
            second[name].mul_(0.999).addcmul_(slopes[name], slopes[name], value=0.001)
            scale = (second[name] / (1 - 0.999**step)).sqrt_().add_(1e-8)
            tensor -= rates[name] / (1 - 0.9**step) * first[name] / scale
    return _flat(now)


def _flat(parameters: Mapping[str, Tensor]) -> np.ndarray:
    return torch.cat([parameters[name].flatten() for name in ("mask", "hidden", "decoder")]).numpy()


def surroundings(experiment: Experiment) -> Case:
    """Compare what surrounds the training: the run of an experiment, and a loop written for it.

    Whole runs differ by more from one to the next than the surroundings take; so the training is run once, its time
    kept, and what it returned stands in for it.

    Returns:
        The case.
    """

    @functools.cache
    def trained() -> tuple[xr.Dataset, float]:
        start = time.perf_counter()
        return experiment.simulate(**experiment.settings()), time.perf_counter() - start

    ours, by_hand = "run of an experiment (ours)", "a loop by hand"

    def run() -> np.ndarray:
        found = replace(experiment, simulate=functools.wraps(experiment.simulate)(lambda **_: trained()[0].copy()))
        with (
            mock.patch.dict("attnbook.lab.EXPERIMENTS", {experiment.id: found}),
            tempfile.TemporaryDirectory() as folder,
        ):
            return found.run("book", keep=Path(folder)).test_error.values

    def loop() -> np.ndarray:
        settings, start = experiment.settings(), time.perf_counter()
        data = trained()[0].copy()
        kept = {"settings": settings, "seconds": time.perf_counter() - start}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "part").write_text(json.dumps(kept, default=str))
            data.to_netcdf(Path(folder) / "part.nc", engine="scipy")
        return data.test_error.values

    def share(times: Mapping[str, float]) -> str:
        added = (times[ours] - times[by_hand]) / 1e3 / trained()[1]
        outcome = "reached" if added <= ALLOWED else "missed"
        return (
            f"The training takes {trained()[1]:.1f} s; the run adds {100 * added:.2g} per cent of it to a loop by "
            f"hand. Aim, at most {100 * ALLOWED:g} per cent: {outcome}."
        )

    return Case(
        title=f"The run of an experiment: {experiment.id}",
        what=f"What surrounds the training of {experiment.id}, all seeds in one group, without the training itself.",
        variants={ours: run, by_hand: loop},
        tolerance=0.0,
        aim={},
        repeat=5,
        remark=share,
    )
