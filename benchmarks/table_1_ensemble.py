"""Training the 18 configurations x 5 seeds of Table 1: as one ensemble, one after another, with vmap, with JAX.

Run it from the root of the repository; ``--help`` lists the options and ``benchmarks/README.md`` says what is measured.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from timeit import repeat
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import problem
import torch
import typer
from measuring import HERE, Worker, markdown_table, peak_gflops, provenance, span
from rich.console import Console
from rich.progress import track
from rich.table import Table

from attnbook.core import runtime

VARIANTS = {
    "one ensemble (ours)": ("variants_torch", "Ours"),
    "one after another": ("variants_torch", "Loop"),
    "torch.func: vmap(grad)": ("variants_torch", "Vmap"),
}
JAX = "JAX: jit(scan(vmap(grad)))"
NO_JAX = (
    "JAX was not measured; `python -m venv .venv-jax && .venv-jax/bin/pip install -r benchmarks/requirements-jax.txt` "
    "makes an environment for `--jax-python .venv-jax/bin/python`."
)
COLUMNS = ("variant", "threads", "wall, ms", "CPU, ms", "wall / ours", "CPU / ours", "memory, MiB", "compiling, s")
OURS = next(iter(VARIANTS))
CHECKED_STEPS = 20
console = Console()
if not console.is_terminal:
    console.width = 120


def main(
    jax_python: Annotated[Path | None, typer.Option(exists=True, help="Python that has JAX; default: no JAX.")] = None,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds in which every variant trains once.")] = 7,
    quick: Annotated[bool, typer.Option(help="Two shorter rounds, to try it.")] = False,
    store: Annotated[bool, typer.Option(help="Write benchmarks/results.json and results.md.")] = False,
) -> None:
    """Measure what a step of all 90 networks of Table 1 costs.

    Raises:
        typer.BadParameter: If a quick try is to be stored.
    """
    if quick and store:
        raise typer.BadParameter("--quick is too short to be stored", param_hint="--store")
    results = measure(jax_python, rounds=2 if quick else rounds, steps=100 if quick else 200)
    show(results)
    if store:
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in results.items()]
        (HERE / "results.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        (HERE / "results.md").write_text(as_markdown(results), encoding="utf-8")


def measure(jax_python: Path | None, rounds: int, steps: int) -> dict[str, Any]:
    """Check that all variants train the same networks, then measure them in interleaved rounds."""
    settings, facts = problem.BOOK, provenance(jax_python)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arrays = folder / "problem.npz"
        np.savez(arrays, **problem.draw(settings, steps))
        workers = [stack.enter_context(worker) for worker in start(arrays, jax_python)]
        for worker in workers:
            worker.memory = worker.train(steps)["memory"]
        errors = check(settings, workers, folder)
        peaks, alone = [], []
        for _ in track(range(rounds), "measuring", console=Console(stderr=True), transient=True):
            peaks.append(peak_gflops())
            alone.append(calls_alone(settings))
            for worker in workers:
                worker.measured.append(worker.train(steps))
    flops, formula = problem.flops_per_step(settings)
    return {
        "networks": len(problem.members_of(settings)),
        "steps": steps,
        "rounds": rounds,
        "flops_per_step": flops,
        "formula": formula,
        "peak_gflops": max(peaks),
        "alone_ms": [round(min(times), 4) for times in zip(*alone, strict=True)],
        "largest_error": errors,
        "rows": [row(worker, steps) for worker in workers],
        "provenance": facts,
    }


def calls_alone(settings: SimpleNamespace) -> tuple[float, float]:
    """Return what the products of a step, in its shapes, and the passes over its large tensors take alone, in ms."""
    members, width, inputs = len(problem.members_of(settings)), settings.width, settings.n_inputs
    groups, batch = members // len(settings.models), settings.batch_size
    weights, samples = torch.rand(members, width, inputs), torch.rand(groups, batch, inputs)
    mask, decoder = torch.rand(members, 1, inputs), torch.rand(members, settings.outputs, width)
    residual, hidden = torch.rand(members, settings.outputs, batch), torch.rand(members, width, batch)
    weights.grad, decoder.grad = torch.rand_like(weights), torch.rand_like(decoder)
    adam = torch.optim.Adam([weights, decoder], 1e-9, fused=True)

    def products() -> None:
        torch.bmm(weights.view(groups, -1, inputs), samples.mT)
        torch.bmm(decoder, hidden)
        torch.bmm(residual, hidden.mT)
        torch.bmm(decoder.mT, residual)
        torch.bmm(hidden.view(groups, -1, batch), samples)

    def passes() -> None:  # the mask, forward and back; ReLU and its derivative; Adam
        (weights.grad * weights).sum(1)
        (weights * mask).mul_(mask)
        hidden.relu_().mul_(hidden.sign())
        adam.step()

    with runtime.threads(1):
        in_products, in_passes = (min(repeat(calls, number=20, repeat=5)) / 20 for calls in (products, passes))
    return 1e3 * in_products, 1e3 * in_passes


def start(arrays: Path, jax_python: Path | None) -> list[Worker]:
    """Start a process for each variant and number of threads, in the order in which they are measured."""
    workers = []
    for threads in (1, 2):
        workers += [Worker(label, variant, arrays, threads) for label, variant in VARIANTS.items()]
        if jax_python is not None:
            workers.append(Worker(JAX, ("variants_jax", "Jax"), arrays, threads, jax_python))
    return workers


def check(settings: SimpleNamespace, workers: Sequence[Worker], folder: Path) -> dict[str, float]:
    """Compare the held-out losses of all networks after a few steps.

    Returns:
        The largest relative difference to ours for each label.

    Raises:
        RuntimeError: If a variant does not train the same networks.
    """
    errors: dict[str, float] = {}
    expected = None
    for worker in workers:
        file = folder / "parameters.npz"
        worker.train(CHECKED_STEPS, "float32" if worker.is_jax else "float64", file)
        with np.load(file) as parameters:
            losses = problem.held_out_losses(settings, dict(parameters))
        expected = losses if expected is None else expected
        error = float(np.max(np.abs(losses - expected) / expected))
        if not error <= (1e-4 if worker.is_jax else 1e-10):
            raise RuntimeError(f"{worker.label}: its losses differ from ours by {error:.1e}")
        errors[worker.label] = max(error, errors.get(worker.label, 0.0))
    return errors


def row(worker: Worker, steps: int) -> dict[str, Any]:
    """Return what was measured of one variant, times in milliseconds per step of all networks."""
    return {
        "variant": worker.label,
        "threads": worker.threads,
        "wall_ms": [round(1e3 * m["wall"] / steps, 4) for m in worker.measured],
        "cpu_ms": [round(1e3 * m["cpu"] / steps, 4) for m in worker.measured],
        "memory_mib": round(worker.memory),
        "compile_s": round(worker.measured[-1]["compile"], 2) if worker.is_jax else None,
    }


def cells(results: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table; ratios are taken within a round, to ours on the same number of threads."""
    ours = {r["threads"]: r for r in results["rows"] if r["variant"] == OURS}
    table = []
    for r in results["rows"]:
        medians = [f"{statistics.median(r[clock]):.2f}" for clock in ("wall_ms", "cpu_ms")]
        ratios = [
            span([mine / base for mine, base in zip(r[clock], ours[r["threads"]][clock], strict=True)], 2)
            for clock in ("wall_ms", "cpu_ms")
        ]
        compiling = "" if r["compile_s"] is None else f"{r['compile_s']:.1f}"
        ratios = ["1", "1"] if r["variant"] == OURS else ratios
        table.append([r["variant"], str(r["threads"]), *medians, *ratios, str(r["memory_mib"]), compiling])
    return table


def method(results: dict[str, Any]) -> list[str]:
    """Return what a reader must know about the numbers, in paragraphs."""
    paragraphs = [_what_is_shown(results), _what_was_checked(results), _how_far_from_the_floor(results)]
    facts = ", ".join(f"{name} {value}" for name, value in results["provenance"].items())
    paragraphs.append(f"Measured with {facts}.")
    return paragraphs if "jax" in results["provenance"] else [*paragraphs, NO_JAX]


def _what_is_shown(results: dict[str, Any]) -> str:
    return (
        f"Elapsed (wall) and processor (CPU) time of one step of all {results['networks']} networks in float32, with "
        f"batches and Adam: median of {results['rounds']} rounds, in each of which every variant in turn trains for "
        f"{results['steps']} steps. Ratios are taken within a round: median (smallest to largest). Memory is what the "
        "process grew by, after its imports, in a first run of as many steps. Ours uses one thread by its own choice, "
        "and it alone draws the numbers of its samples while the clock runs; the others are handed them."
    )


def _what_was_checked(results: dict[str, Any]) -> str:
    errors = ", ".join(
        f"{f'{error:.0e}' if error else 'none'} for {name}"
        for name, error in results["largest_error"].items()
        if name != OURS
    )
    precision = ", JAX in float32" if JAX in results["largest_error"] else ""
    return (
        f"Checked before: from the same weights and batches, after {CHECKED_STEPS} steps, the held-out loss of every "
        f"network agrees with ours. Largest relative difference: {errors} (in float64{precision})."
    )


def _how_far_from_the_floor(results: dict[str, Any]) -> str:
    floor = results["flops_per_step"] / results["peak_gflops"] * 1e-6
    ours = statistics.median(results["rows"][0]["wall_ms"])
    return (
        f"The floor: the matrix products of a step take {results['flops_per_step'] / 1e6:.1f} million operations, "
        f"{results['formula']}. At {results['peak_gflops']:.0f} GFLOP/s, the fastest large square float32 product in "
        f"the same run on one thread, that is {floor:.2f} ms. Ours runs at {floor / ours:.0%} of that speed."
        f"{_what_calls_take(results)}"
    )


def _what_calls_take(results: dict[str, Any]) -> str:
    if "alone_ms" not in results:  # measured before this was
        return ""
    products, passes = results["alone_ms"]
    jax = [statistics.median(r["wall_ms"]) for r in results["rows"] if r["variant"] == JAX and r["threads"] == 1]
    beside = f"; a step of JAX takes {jax[0]:.2f} ms in all" if jax else ""
    return (
        f" In the shapes of a step the same products, one call of torch each and all in the processor's cache, take "
        f"{products:.2f} ms, and the passes over weights and hidden units {passes:.2f} ms: with these calls a step "
        f"cannot take less than {products + passes:.2f} ms{beside}."
    )


def show(results: dict[str, Any]) -> None:
    """Print the table and the sentences."""
    table = Table(*COLUMNS, title="One step of all networks of Table 1")
    for line in cells(results):
        table.add_row(*line)
    console.print(table)
    for sentence in method(results):
        console.print(sentence, markup=False, highlight=False)


def as_markdown(results: dict[str, Any]) -> str:
    """Return the section of the performance page."""
    head = "<!-- Written by benchmarks/table_1_ensemble.py from results.json. -->\n\n## The networks of Table 1"
    return "\n\n".join([head, markdown_table(COLUMNS, cells(results)), *method(results)]) + "\n"


if __name__ == "__main__":
    typer.run(main)
