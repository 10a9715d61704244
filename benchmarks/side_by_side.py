"""Ways of computing the same thing, measured in turn in one process: the harness and its command line.

A case names the ways; the first is ours. Before anything is measured all must give the same numbers.
Run it from the root of the repository; ``--help`` lists the options.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from measuring import HERE, Worker, markdown_table, provenance, span
from rich.console import Console
from rich.progress import track
from worker import Seconds, peak_memory

CASES = (
    "case_global_attention",
    "case_global_attention_digits",
    "case_global_attention_hessian",
    "case_multi_head",
    "case_multi_head_groups",
    "case_mirror_descent",
    "case_mirror_descent_optimizer",
    "case_mirror_descent_paper",
    "case_softmax_ntk",
    "case_softmax_ntk_kernel",
    "case_preconditioning",
    "case_preconditioning_in_sample",
    "case_contract",
    "case_lab",
)
STORED = HERE / "side_by_side.json"
COLUMNS = ("variant", "wall, ms", "CPU, ms", "wall / ours", "CPU / ours", "memory, MiB")
console = Console()


@dataclass(frozen=True)
class InJax:
    """A variant that runs in a process of its own, with the Python of ``--jax-python``.

    Attributes:
        variant: Module and class; see ``worker.py``.
        arrays: What the class is built from.
        steps: What it is asked for, in float64.
        answer: The name of the array in which it returns its numbers.
        compared_steps: What it is asked for where its numbers are compared; default ``steps``.
        needs: Module that the other Python must have; where it has not, the variant counts as missing.
    """

    variant: tuple[str, str]
    arrays: Mapping[str, np.ndarray]
    steps: int
    answer: str
    compared_steps: int | None = None
    needs: str = "jax"


@dataclass(frozen=True)
class Case:
    """Several ways to the same numbers.

    Attributes:
        title: Heading of its table.
        what: What one run computes, for the reader of the table, in a sentence or two.
        variants: Label to a function without arguments that returns an array; the first is ours.
        tolerance: Largest relative difference to ours that counts as the same, in the largest entry.
        aim: Smallest acceptable ratio of each label's wall time to ours; below one, ours may take longer.
        repeat: Runs that are timed together.
        once: Labels of variants that take minutes: they run in the first round only.
        remark: What else to say, outside the timing: a function of each label's median time.
        clock: The time that the remark is told: ``wall_ms`` or, for what a busy machine should not change, ``cpu_ms``.
        yardsticks: Labels of variants that compute something else, and are there for their time.
        in_jax: Label to a variant that needs JAX, measured where there is one.
        compared: What is compared in place of the variants, such as shorter runs; default the variants.
    """

    title: str
    what: str
    variants: Mapping[str, Callable[[], np.ndarray]]
    tolerance: float
    aim: Mapping[str, float]
    repeat: int = 1
    once: Collection[str] = ()
    remark: Callable[[Mapping[str, float]], str] | None = None
    clock: str = "wall_ms"
    yardsticks: Collection[str] = ()
    in_jax: Mapping[str, InJax] = field(default_factory=dict)
    compared: Mapping[str, Callable[[], np.ndarray]] | None = None


def check(case: Case) -> dict[str, float]:
    """Compare what all variants compute.

    Returns:
        The largest relative difference to ours for each label.

    Raises:
        RuntimeError: If a variant computes something else.
    """
    (_, ours), *others = (case.compared or case.variants).items()
    expected, errors = np.asarray(ours()), {}
    for label, run in others:
        if label in case.yardsticks:
            continue
        error = float(np.abs(np.asarray(run()) - expected).max() / np.abs(expected).max())
        if not error <= case.tolerance:
            raise RuntimeError(f"{case.title}: {label} differs from ours by {error:.1e}")
        errors[label] = error
    return errors


def memory(run: Callable[[], np.ndarray]) -> float | None:
    """Return by how much one run raises the peak memory of a process of its own, in MiB; None where none can fork."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(
            0
        )  # what earlier runs have left with the allocator would hide what this one takes

    def child() -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at the present size
        before = peak_memory()
        run()
        send.send(peak_memory() - before)

    process = context.Process(target=child)
    process.start()
    process.join()
    return round(receive.recv(), 1)


def measure(case: Case, rounds: int, jax_python: Path | None = None) -> dict[str, Any]:
    """Check a case, then run its variants in turn for some rounds."""
    errors = check(case)
    grown = {label: memory(run) for label, run in case.variants.items()}
    in_jax = {label: v for label, v in case.in_jax.items() if jax_python and _has(jax_python, v.needs)}
    labels = [*case.variants, *in_jax]
    rows: dict[str, dict[str, Any]] = {label: {"wall_ms": [], "cpu_ms": []} for label in labels}
    with ExitStack() as stack:
        workers = _workers(stack, replace(case, in_jax=in_jax), jax_python, errors)
        for number in track(range(rounds), case.title, console=Console(stderr=True), transient=True):
            for label in labels:
                if number and label in case.once:
                    continue
                spent = _time(case, label, workers)
                rows[label]["wall_ms"].append(round(1e3 * spent.wall / case.repeat, 4))
                rows[label]["cpu_ms"].append(round(1e3 * spent.cpu / case.repeat, 4))
        grown |= {label: round(worker.memory, 1) for label, worker in workers.items()}
    for label, row in rows.items():
        row |= {"memory_mib": grown[label], "error": errors.get(label, 0.0), "aim": case.aim.get(label)}
    medians = {label: statistics.median(row[case.clock]) for label, row in rows.items()}
    remark = {"remark": case.remark(medians)} if case.remark else {}
    left_out = [label for label in case.in_jax if label not in in_jax]
    missing = {"missing": left_out} if left_out else {}
    return {
        "what": case.what,
        "rounds": rounds,
        "rows": rows,
        **remark,
        **missing,
        "provenance": provenance(jax_python),
    }


def _has(python: Path, module: str) -> bool:
    """Whether another Python finds a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def _time(case: Case, label: str, workers: Mapping[str, Worker]) -> Seconds:
    start = Seconds.now()
    if label in case.variants:
        for _ in range(case.repeat):
            case.variants[label]()
        return Seconds.since(start)
    answers = [workers[label].train(case.in_jax[label].steps, "float64") for _ in range(case.repeat)]
    workers[label].memory = max(workers[label].memory, *(answer["memory"] for answer in answers), 0.0)
    return Seconds(sum(answer["wall"] for answer in answers), sum(answer["cpu"] for answer in answers))


def _workers(stack: ExitStack, case: Case, jax_python: Path | None, errors: dict[str, float]) -> dict[str, Worker]:
    """Start the variants in JAX, compile them, and compare what they compute."""
    if jax_python is None or not case.in_jax:
        return {}
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    expected = np.asarray(next(iter((case.compared or case.variants).values()))())
    workers = {}
    for number, (label, variant) in enumerate(case.in_jax.items()):
        np.savez(folder / f"{number}.npz", **variant.arrays)
        worker = stack.enter_context(Worker(label, variant.variant, folder / f"{number}.npz", 1, jax_python))
        worker.train(variant.compared_steps or variant.steps, "float64", folder / "answer.npz")
        with np.load(folder / "answer.npz") as stored:
            error = float(np.abs(stored[variant.answer] - expected).max() / np.abs(expected).max())
        if not error <= case.tolerance:
            raise RuntimeError(f"{case.title}: {label} differs from ours by {error:.1e}")
        errors[label], workers[label] = error, worker
    return workers


def three_digits(value: float) -> str:
    """Return a number as text with three digits that count, and never with an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{float(f'{value:.3g}'):,.0f}"


def cells(rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the rows of the table; ratios are taken within a round."""
    ours = next(iter(rows.values()))
    table = []
    for label, row in rows.items():
        medians = [three_digits(statistics.median(row[clock])) for clock in ("wall_ms", "cpu_ms")]
        ratios = ["1", "1"]
        if row is not ours:
            pairs = [zip(row[clock], ours[clock], strict=False) for clock in ("wall_ms", "cpu_ms")]
            ratios = [span([mine / base for mine, base in pair], 1) for pair in pairs]
        grown = "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}"
        table.append([label, *medians, *ratios, grown])
    return table


def aims(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say for each variant with an aim whether the median ratio reaches it."""
    base = next(iter(rows.values()))["wall_ms"]
    sentences = []
    for label, row in rows.items():
        if row["aim"] is not None:
            ratio = statistics.median(mine / ours for mine, ours in zip(row["wall_ms"], base, strict=False))
            outcome = "reached" if ratio >= row["aim"] else "missed"
            aim = f"at least {row['aim']:g} times faster than"
            if row["aim"] == 1:
                aim = "as fast as"
            elif 0 < row["aim"] < 1:
                aim = f"at most {1 / row['aim']:g} times the time of"
            sentences.append(f"Aim, {aim} {label}: {outcome}.")
    return sentences


def as_markdown(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the sections of the performance page."""
    parts = ["<!-- Written by benchmarks/side_by_side.py from side_by_side.json. -->"]
    for title, case in stored.items():
        rows = case["rows"]
        same = ", ".join(f"{row['error']:.0e} for {label}" for label, row in rows.items() if row["error"])
        short = [label for label, row in rows.items() if len(row["wall_ms"]) < case["rounds"]]
        once = f"In the first round only: {', '.join(short)}. " if short else ""
        if case.get("missing"):
            once += f"Not measured, for want of --jax-python: {', '.join(case['missing'])}. "
        facts = ", ".join(f"{name} {value}" for name, value in case["provenance"].items())
        parts += [
            f"## {title}",
            markdown_table(COLUMNS, cells(rows)),
            f"{case['what']} Median of {case['rounds']} rounds. {once}{' '.join(aims(rows))}".rstrip(),
            *([case["remark"]] if "remark" in case else []),
            f"Checked before: largest relative difference to ours {same or 'zero'}.",
            f"Measured with {facts}.",
        ]
    return "\n\n".join(parts) + "\n"


def main(
    only: Annotated[list[str] | None, typer.Argument(help="Words in the titles of the cases; default: all.")] = None,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds in which every variant runs once.")] = 7,
    quick: Annotated[bool, typer.Option(help="Two rounds, to try it.")] = False,
    store: Annotated[bool, typer.Option(help="Write benchmarks/side_by_side.json and .md.")] = False,
    jax_python: Annotated[Path | None, typer.Option(exists=True, help="Python that has JAX; default: no JAX.")] = None,
) -> None:
    """Measure the algorithms behind the chapters beside what a reader would use instead.

    Raises:
        typer.BadParameter: If a quick try is to be stored, or no case fits.
    """
    if quick and store:
        raise typer.BadParameter("--quick is too short to be stored", param_hint="--store")
    torch.set_num_threads(1)
    cases = [case for module in CASES for case in importlib.import_module(module).cases()]
    chosen = [case for case in cases if not only or any(word.lower() in case.title.lower() for word in only)]
    if not chosen:
        raise typer.BadParameter(f"no title holds {only}; there are {', '.join(case.title for case in cases)}")
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    measured = {case.title: measure(case, 2 if quick else rounds, jax_python) for case in chosen}
    console.print(as_markdown(measured), markup=False, highlight=False)
    if store:
        merged = {case.title: (stored | measured).get(case.title) for case in cases}
        lines = [f"  {json.dumps(title)}: {json.dumps(value)}" for title, value in merged.items() if value]
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        STORED.with_suffix(".md").write_text(as_markdown({t: v for t, v in merged.items() if v}), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
