"""The command line: ``attnbook list | show | run | verify | data | doctor``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import attnbook
from attnbook import datasets, doctor, ledger
from attnbook.core import results, runtime
from attnbook.core.runtime import Scale
from attnbook.registry import experiment, experiments

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Look up, run and verify the claims of the book.",
    pretty_exceptions_enable=False,
)  # fmt: skip
data = typer.Typer(help="Where the data sets are: list, fetch, train word vectors.")
app.add_typer(data, name="data")
console = Console()

Json = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
AtScale = Annotated[
    Literal["smoke", "book", "paper"] | None,
    typer.Option(help="Size of the run; default ATTNBOOK_SCALE, else book."),
]
OnDevice = Annotated[str | None, typer.Option(help="cuda, mps or cpu; default the first of these.")]


@app.command("list")
def list_claims(
    paper: Annotated[str | None, typer.Option(help="Only this paper, for example global_attention.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only this outcome, for example pending.")] = None,
    only_experiments: Annotated[bool, typer.Option("--experiments", help="The ids of experiments instead.")] = False,
    as_json: Json = False,
) -> None:
    """List the claims with their recorded outcome."""
    if only_experiments:
        summaries = {name: e.summary for name, e in experiments().items()}
        return _print_json(summaries) if as_json else typer.echo("\n".join(summaries))
    with _clear_errors():
        _one_of("paper", paper, [p.name for p in ledger.papers()])
        _one_of("outcome", outcome, ledger.OUTCOMES)
        verdicts = [ledger.standing(c) for c in ledger.claims() if paper in (None, c.paper)]
        chosen = [v for v in verdicts if outcome in (None, v.outcome)]
    if as_json:
        return _print_json([_as_data(v) for v in chosen])
    table = Table("claim", "where", "outcome", "measured", box=None)
    for v in chosen:
        table.add_row(*map(escape, (v.claim.id, v.claim.where, v.outcome, ledger.render_values(v))))
    console.print(table)
    console.print(f"{len(chosen)} claims; experiments: {', '.join(experiments())}")
    return None


@app.command()
def show(
    claim_id: Annotated[str, typer.Argument(help="A claim id, for example GA-TAB1-20000.")], as_json: Json = False
) -> None:
    """Show one claim: statement, rule, the paper's numbers and ours."""
    with _clear_errors():
        claim = ledger.claim(claim_id)
        verdicts = [ledger.recorded(claim, scale) for scale in ("book", "paper")]
    if as_json:
        return _print_json({**asdict(claim), "recorded": [_as_data(v) for v in verdicts]})
    for name, value in asdict(claim).items():
        if value:
            console.print(f"[bold]{name}[/]: {escape(str(value))}")
    for v in verdicts:
        console.print(f"[bold]{v.scale}[/]: {v.outcome}  {escape(ledger.render_values(v))}")
    return None


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment, for example global_attention.sample_complexity.")],
    scale: AtScale = None,
    device: OnDevice = None,
    output: Annotated[Path | None, typer.Option(help="Where to write; default the book's results folder.")] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment and store its result. Interrupted, the same command continues."""
    with _clear_errors():
        chosen, size = experiment(name), scale or runtime.scale()
        path = output or results.stored_path(name, size)
        _check_writable(path)
        workdir = _folder_of_parts(chosen, size, path, runtime.device(device))
        result = _run(chosen, size, device, workdir)
        result.save(path)
        shutil.rmtree(workdir, ignore_errors=True)
        with suppress(OSError):  # parts of other runs may wait beside them
            workdir.parent.rmdir()
    if as_json:
        return _print_json({claim: asdict(m) for claim, m in result.measurements().items()})
    for claim, m in result.measurements().items():
        console.print(f"{claim}: " + ", ".join(f"{k} {v:.3g}" for k, v in m.values.items()), highlight=False)
    console.print(f"{result.provenance.wall_seconds:.1f} s on {result.provenance.device}; stored {path.name}")
    return None


@app.command()
def verify(
    paper: Annotated[str | None, typer.Option(help="Only experiments of this paper.")] = None,
    scale: AtScale = None,
    device: OnDevice = None,
    as_json: Json = False,
) -> None:
    """Run the experiments again and compare each verdict with the recorded one; exit 1 if one differs.

    An experiment whose data are not on this machine is left out, and named.

    Raises:
        typer.Exit: With code 1 if a verdict differs or nothing was verified.
    """
    with _clear_errors():
        _one_of("paper", paper, [p.name for p in ledger.papers()])
        size = scale or runtime.scale()
        rows, left_out = [], []
        for chosen in experiments().values():
            if paper in (None, chosen.id.split(".")[0]):
                try:
                    rows += _compare(_run(chosen, size, device), size)
                except datasets.DataError as error:
                    left_out.append(f"left out {chosen.id}: {error}")
    differing = [row for row in rows if not row["as_recorded"]]
    if as_json:
        _print_json(rows)
    else:
        for row in rows:
            sign = "ok " if row["as_recorded"] else "DIFFERS"
            console.print(f"{sign} {row['claim']}: {row['outcome']} (recorded: {row['recorded']})", highlight=False)
        for line in left_out:
            console.print(line, highlight=False, soft_wrap=True)
        console.print(f"{len(rows) - len(differing)} of {len(rows)} claims hold as recorded")
    if differing or not rows:
        raise typer.Exit(1)


@data.callback(invoke_without_command=True)
def list_data(context: typer.Context, as_json: Json = False) -> None:
    """List the files of data sets: where each is, how large, and whether its checksum is right."""
    if context.invoked_subcommand is not None:
        return None
    with _clear_errors():
        entries, cache, offline = datasets.available(), datasets.cache_folder(), datasets.offline()
    if as_json:
        return _print_json([asdict(entry) for entry in entries])
    table = Table(Column("file", overflow="fold"), "where", "MB", "state", box=None)
    for e in entries:
        table.add_row(*map(escape, (e.path, e.place, f"{e.size / 1e6:.3g}", e.state)))
    console.print(table)
    console.print(f"cache: {cache}; downloads: {'off' if offline else 'on'}", highlight=False, soft_wrap=True)
    console.print("fetch: `attnbook data fetch NAME`; until then an embedded stand-in takes its place and says so")
    return None


@data.command()
def fetch(name: Annotated[str, typer.Argument(help=f"One of {', '.join(datasets.DOWNLOADS)}.")]) -> None:
    """Download a data set into the cache and verify its checksums."""
    with _clear_errors():
        for file in datasets.fetch(name):
            console.print(f"verified {file}", highlight=False, soft_wrap=True)


@data.command("embeddings")
def train_embeddings(
    dimension: Annotated[int, typer.Option(help="Components of a word vector.", min=1)] = 100,
) -> None:
    """Train word vectors on the IMDB reviews without the test split and keep them in the cache (about a minute)."""
    with _clear_errors():
        reviews = datasets.imdb(("train", "unsup"), stand_in=False)
        texts = [text for split in reviews.values() for text in split.texts]
        made = datasets.train_embeddings(texts, dimension)
        path = datasets.store_embeddings(made, f"imdb_ppmi_svd_{dimension}d")
    console.print(f"{len(made.words)} words, {dimension} components; stored {path}", highlight=False, soft_wrap=True)


@app.command("doctor")
def examine(as_json: Json = False) -> None:
    """Say what is wrong with this installation and what mends it; exit 1 if something needed is broken.

    Raises:
        typer.Exit: With the exit code.
    """
    raise typer.Exit(doctor.main(["--json"] if as_json else []))


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn expected errors into one line on stderr and exit code 2."""
    try:
        yield
    except (ValueError, FloatingPointError) as error:
        typer.echo(f"attnbook: {error}", err=True)
        raise typer.Exit(2) from error


def _run(chosen: results.Experiment, size: Scale, device: str | None, workdir: Path | None = None) -> results.Result:
    with runtime.progress_bar(chosen.id) as progress:
        return chosen.run(chosen.settings_for(size), device=device, progress=progress, workdir=workdir)


def _folder_of_parts(chosen: results.Experiment, size: Scale, path: Path, device: torch.device) -> Path:
    """Where an interrupted run left its finished parts; other settings, versions or devices have other folders."""
    label = hashlib.sha256(f"{attnbook.__version__} {device} {chosen.settings_for(size)!r}".encode()).hexdigest()[:12]
    return path.parent / ".parts" / f"{chosen.id}-{label}"


def _compare(result: results.Result, size: Scale) -> list[dict[str, Any]]:
    """Each verdict beside the recorded one; a recorded claim that is no longer measured differs too."""
    found = {v.claim.id: v.outcome for v in ledger.check(result, scale=size).verdicts}
    before = {claim: ledger.recorded(ledger.claim(claim), size).outcome for claim in found}
    for claim in results.stored_measurements(result.experiment, size):
        before.setdefault(claim, ledger.recorded(ledger.claim(claim), size).outcome)
    rows = []
    for claim, recorded in before.items():
        outcome = found.get(claim, "not measured")
        same = outcome == recorded
        rows.append({"claim": claim, "outcome": outcome, "recorded": recorded, "as_recorded": same})
    return rows


def _as_data(v: ledger.Verdict) -> dict[str, Any]:
    measured = asdict(v.measurement) if v.measurement else None
    return {"id": v.claim.id, "where": v.claim.where, "scale": v.scale, "outcome": v.outcome, "measured": measured}


def _check_writable(path: Path) -> None:
    """Fail before the run, not after it, when the result could not be stored."""
    if path.is_dir():
        raise ValueError(f"output: {path.name} is a folder, expected the name of a file")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"output: no permission to write {path.name} in {folder}")


def _one_of(name: str, value: str | None, allowed: list[str] | tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(allowed)}")


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2))
