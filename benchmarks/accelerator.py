"""What an accelerator is worth for tiny networks, beside one core and two, and from which size on.

    python benchmarks/accelerator.py --store        # on a machine with an accelerator

The networks of Table 1, more and more of them and wider and wider, each size trained on the accelerator, on one core,
and half of them on each of two cores. Times are those of a step, from the record before the first to that after the
last; the median of a few rounds, in which the three take turns.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Any

import torch
import typer
from measuring import HERE, markdown_table, provenance
from problem import BOOK

from attnbook.core import runtime
from attnbook.global_attention.masks import Member, Setup, Training, train_members

STORED = HERE / "accelerator.json"
SIZES = ((1, 1), (5, 1), (20, 1), (100, 1), (5, 4), (5, 16))  # seeds of 18 networks, times the book's width
PRODUCTS = 3e9  # operations of matrix products, about, after which a core has been measured long enough


def seconds_per_step(seeds: tuple[int, ...], wider: int, steps: int, device: str) -> float:
    """Train the networks of these seeds and return the time of a step."""
    s, clock = BOOK, list[float]()
    members = [Member(model, seed, n, s.n_relevant, s.penalty) for seed in seeds for n in s.sizes for model in s.models]
    train_members(
        members,
        Setup(s.n_inputs, s.outputs, s.teacher_width, wider * s.width, noise=0.0, n_test=1),
        Training(steps, s.batch_size, s.step_size, record_at=(0, steps)),
        device=torch.device(device),
        progress=lambda done, total: clock.append(time.perf_counter()) if done in (0, total) else None,
    )
    return (clock[-1] - clock[0]) / steps


def measure(n_seeds: int, wider: int, device: str, rounds: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Time one size on the accelerator, on one core and on two."""
    s, seeds = BOOK, tuple(range(n_seeds))
    networks = n_seeds * len(s.sizes) * len(s.models)
    products = networks * s.batch_size * wider * s.width * (4 * s.n_inputs + 6 * s.outputs)
    steps = max(3, min(200, round(PRODUCTS / products)))
    halves = (seeds[::2], seeds[1::2] or seeds)

    def two_cores() -> float:
        if n_seeds == 1:
            return float("nan")  # a seed is not divided
        return max(pool.map(seconds_per_step, halves, (wider,) * 2, (steps,) * 2, ("cpu",) * 2))

    seconds_per_step(seeds, wider, 3, device)  # the first call loads kernels
    rows = [
        (seconds_per_step(seeds, wider, 200, device), seconds_per_step(seeds, wider, steps, "cpu"), two_cores())
        for _ in range(rounds)
    ]
    there, one, two = (statistics.median(column) for column in zip(*rows, strict=True))
    return {"networks": networks, "width": wider * s.width, "accelerator": there, "one": one, "two": two}


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def as_markdown(stored: dict[str, Any]) -> str:
    """Return the table with what it was measured on."""
    rows = [
        [f"{r['networks']:,}", str(r["width"]), *(f"{1e3 * r[k]:.3g}" if r[k] == r[k] else "" for k in KEYS),
         *(f"{r[k] / r['accelerator']:,.3g}" if r[k] == r[k] else "" for k in ("one", "two"))]
        for r in stored["rows"]
    ]  # fmt: skip
    head = ["networks", "width", "accelerator, ms", "one core, ms", "two cores, ms", "one / acc.", "two / acc."]
    where = ", ".join(f"{name} {value}" for name, value in stored["provenance"].items())
    return (
        "## What an accelerator is worth for tiny networks\n\nTime of one training step of the networks of Table 1 "
        "(`masks.train_members`, float32), more of them and wider ones. Above 1 in the last columns the accelerator is "
        f"ahead.\n\n{markdown_table(head, rows)}\n\nMeasured with {where}.\n"
    )


KEYS = ("accelerator", "one", "two")


def main(
    device: Annotated[str | None, typer.Option(help="Default the accelerator of this machine.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    store: Annotated[bool, typer.Option(help="Write benchmarks/accelerator.json and .md.")] = False,
) -> None:
    """Measure all sizes."""
    where = runtime.device(device)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, torch.set_num_threads, (1,)) as pool:
        rows = [measure(seeds, wider, str(where), rounds, pool) for seeds, wider in SIZES]
    stored = {"rows": rows, "provenance": provenance(None) | {"accelerator": _name(where)}}
    text = as_markdown(stored)
    print(text)
    if store:
        STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        STORED.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
