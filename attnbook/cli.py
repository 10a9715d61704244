"""The command line: ``attnbook list | show | run | verify | data | doctor | new``."""

from __future__ import annotations

import errno
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from attnbook import ledger, registry
from attnbook.core import results, runtime
from attnbook.core.places import NoCheckout, cache_folder
from attnbook.core.runtime import Size
from attnbook.core.unfinished import Stopped
from attnbook.ledger import rendering

if TYPE_CHECKING:  # help and claims are printed without torch: what needs it is imported where it is used
    from attnbook.core.experiment import Experiment

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Look up, run and verify the claims of the book.",
    pretty_exceptions_enable=False,
)  # fmt: skip
data_commands = typer.Typer(help="Where the data sets are: list, fetch, train word vectors.")
app.add_typer(data_commands, name="data")
new = typer.Typer(help="Begin something new: the skeleton of a paper, in a checkout.")
app.add_typer(new, name="new")
console = Console()

Json = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
AtSize = Annotated[
    str | None, typer.Option(metavar="[smoke|book|full]", help="Size of the run; default ATTNBOOK_SIZE, else book.")
]
OnDevice = Annotated[str | None, typer.Option(help="cuda, mps or cpu; default the first of these.")]


@app.command("list")
def list_claims(
    paper: Annotated[str | None, typer.Option(help="Only this paper, for example global_attention.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only this outcome, for example pending.")] = None,
    source: Annotated[str | None, typer.Option(help="Only what the paper states, or what this book found.")] = None,
    only_experiments: Annotated[bool, typer.Option("--experiments", help="The ids of experiments instead.")] = False,
    as_json: Json = False,
) -> None:
    """List the claims with the verdict that counts, and count them: the papers' statements, this book's findings."""
    if only_experiments:
        with _clear_errors():
            summaries = {name: e.summary for name, e in registry.experiments().items()}
        return _print_json(summaries) if as_json else typer.echo("\n".join(summaries))
    with _clear_errors():
        _one_of("paper", paper, [p.name for p in ledger.papers()])
        _one_of("outcome", outcome, ledger.OUTCOMES)
        _one_of("source", source, tuple(ledger.SOURCES))
        wanted = [c for c in ledger.claims() if paper in (None, c.paper) and source in (None, c.source)]
        chosen = [v for v in map(ledger.standing, wanted) if outcome in (None, v.outcome)]
        rows = [(v.claim.id, v.claim.where, v.outcome, rendering.held(v), ledger.render_values(v)) for v in chosen]
    if as_json:
        return _print_json([_as_data(v) for v in chosen])
    table = Table(Column("claim", no_wrap=True), "where", "outcome", "fresh seeds", "measured", box=None)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    for board, counts in rendering.scoreboards(chosen).items():
        parts = ", ".join(f"{counts[name]} {name}" for name in ledger.OUTCOMES if counts[name])
        console.print(f"{rendering.BOARDS[board]}: {counts.total()} claims: {parts}", highlight=False)
    console.print(rendering.rules(chosen), highlight=False)
    return None


@app.command()
def show(
    claim_id: Annotated[str, typer.Argument(help="A claim id, for example GA-TAB1-headline.")],
    full: Annotated[bool, typer.Option("--full", help="All that is known: rule, reason, notes, all numbers.")] = False,
    as_json: Json = False,
) -> None:
    """Show one claim: statement, place, verdicts with the numbers that decide; of a former one what became of it."""
    with _clear_errors():
        if not as_json:
            return typer.echo(ledger.answer(claim_id, full=full, width=console.width))
        claim = ledger.claim(claim_id)
        counts = ledger.standing(claim)
        found = [ledger.recorded(claim, size) for size in ("book", "full")]
        verdicts = [v for v in found if v.measurement]
    recorded = {"standing": _as_data(counts), "recorded": [_as_data(v) for v in verdicts]}
    return _print_json({**asdict(claim), **recorded})


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, such as preconditioning.ablation.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All experiments of the book.")] = False,
    paper: Annotated[str | None, typer.Option(help="All experiments of this paper.")] = None,
    size: AtSize = None,
    device: OnDevice = None,
    on: Annotated[str, typer.Option(help="here, processes:N or a dask scheduler, tcp://host:port.")] = "here",
    output: Annotated[Path | None, typer.Option(help="Where to write; default `results` in the checkout.")] = None,
    as_json: Json = False,
) -> None:
    """Run experiments and store their results. Interrupted, the same command continues.

    Raises:
        typer.Exit: With code 1 if one of several failed; the others finish.
    """
    from attnbook import running
    from attnbook.core.executors import executor_on

    with _clear_errors():
        at = _size(size)
        chosen = _chosen(names or [], every, paper)
        jobs, without = running.prepare(chosen, at, device=device, on=on, output=output, strict=bool(names))
        with executor_on(on) as executor:
            done = running.run_jobs(jobs, executor, device)
        if len(done) == 1 and done[0].error:
            _fail(done[0].error)
    for name in without:
        typer.echo(f"left out {name}: no size {at}", err=True)
    failed = [job for job in done if job.error]
    for job in failed:
        typer.echo(f"failed {job.name}: {job.error}", err=True)
    found = {job.name: {claim: asdict(m) for claim, m in job.measured.items()} for job in done if not job.error}
    if as_json:
        _print_json(found[done[0].name] if len(done) == 1 else found)
    elif len(done) == 1:
        for claim, m in done[0].measured.items():
            console.print(f"{claim}: " + ", ".join(f"{k} {v:.3g}" for k, v in m.values.items()), highlight=False)
        console.print(done[0].summary, highlight=False, markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; default all.", show_default=False)] = None,
    paper: Annotated[str | None, typer.Option(help="Only experiments of this paper.")] = None,
    size: AtSize = None,
    device: OnDevice = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="On seeds that were used nowhere before.")] = False,
    sets: Annotated[int, typer.Option(help="With --fresh: how many sets of seeds.", min=1)] = 5,
    as_json: Json = False,
) -> None:
    """Run experiments again and compare each verdict with the recorded one; exit 1 if one differs.

    With --fresh at the book's size on sets of new seeds; what was measured is stored, and sets that are stored are not
    run again; exit 1 if a verdict holds in fewer than four sets of five. An experiment that is named, and whose claims
    are measured at a larger size only, runs at that size. One whose data are not on this machine is left out, and said.

    Raises:
        typer.Exit: With code 1 if a verdict differs or is unstable, or nothing was verified.
    """
    from attnbook import data

    with _clear_errors():
        _one_of("paper", paper, [p.name for p in ledger.papers()])
        if fresh and size:
            _one_of("size", size, ["book"])
        at, rows, left_out = "book" if fresh else _size(size), [], []
        for chosen in _chosen(names or [], every=not names, paper=None):
            if paper in (None, chosen.id.split(".")[0]) and at in chosen.has():
                try:
                    rows += _again(chosen, device, sets, bool(names)) if fresh else _compare(chosen, at, device)
                except data.DataError as error:
                    left_out.append(f"left out {chosen.id}: {error}")
    holding = [row for row in rows if row["holds"]]
    if as_json:
        _print_json(rows)
    else:
        for row in rows:
            beside = row["fresh"] if fresh else f"recorded: {row['recorded']}"
            sign = "ok " if row["holds"] else "UNSTABLE" if fresh else "DIFFERS"
            console.print(f"{sign} {row['claim']}: {row['outcome']} ({beside})", highlight=False)
        for line in left_out:
            console.print(line, highlight=False, soft_wrap=True)
        console.print(f"{len(holding)} of {len(rows)} claims hold {'on fresh seeds' if fresh else 'as recorded'}")
    if len(holding) < len(rows) or not rows:
        raise typer.Exit(1)


@data_commands.callback(invoke_without_command=True)
def list_data(context: typer.Context, as_json: Json = False) -> None:
    """List the files of data sets: where each is, how large, and whether its checksum is right."""
    if context.invoked_subcommand is not None:
        return None
    from attnbook import data

    with _clear_errors():
        entries, cache, offline = data.available(), cache_folder(), data.offline()
    if as_json:
        return _print_json([asdict(entry) for entry in entries])
    table = Table(Column("file", overflow="fold"), "where", "MB", "state", box=None)
    for e in entries:
        table.add_row(*map(escape, (e.path, e.place, f"{e.size / 1e6:.3g}", e.state)))
    console.print(table)
    console.print(f"cache: {cache}; downloads: {'off' if offline else 'on'}", highlight=False, soft_wrap=True)
    console.print("fetch: `attnbook data fetch NAME`; until then an embedded stand-in takes its place and says so")
    return None


@data_commands.command()
def fetch(name: Annotated[str, typer.Argument(help="Of a data set, such as mnist or imdb.")]) -> None:
    """Download a data set into the cache and verify its checksums."""
    from attnbook import data

    with _clear_errors():
        for file in data.fetch(name):
            console.print(f"verified {file}", highlight=False, soft_wrap=True)


@data_commands.command("train-vectors")
def train_vectors(dimension: Annotated[int, typer.Option(help="Components of a word vector.", min=1)] = 100) -> None:
    """Train word vectors on the IMDB reviews without the test split and keep them in the cache (about a minute)."""
    from attnbook import data

    with _clear_errors():
        reviews = data.imdb(("train", "unsup"), stand_in=False)
        texts = [text for split in reviews.values() for text in split.texts]
        made = data.train_embeddings(texts, dimension)
        path = data.store_embeddings(made, f"imdb_ppmi_svd_{dimension}d")
    console.print(f"{len(made.words)} words, {dimension} components; stored {path}", highlight=False, soft_wrap=True)


@new.callback()
def begin() -> None:
    """Begin something new: the skeleton of a paper, in a checkout."""


@new.command("paper")
def begin_paper(
    name: Annotated[str, typer.Argument(help="Of its folders, for example implicit_bias.")],
    chapter: Annotated[str, typer.Option(help="Of its first chapter.")] = "first_chapter",
    prefix: Annotated[str | None, typer.Option(help="Of its claims; default from the name.")] = None,
    title: Annotated[str | None, typer.Option(help="Of the paper; default from the name.")] = None,
) -> None:
    """Write a paper's library, a chapter with one small experiment and its claim, and tests; all tests then pass.

    To be called in the first folder of a checkout with the book's environment. Writes nothing if something is in the
    way; if a later step fails, what was written is removed. What to replace, and by what, says the page "Add a paper
    in an afternoon".
    """
    from attnbook import new_paper

    with _clear_errors():
        files = new_paper.planned(Path.cwd(), name, chapter=chapter, prefix=prefix, title=title)
        made, notebook = [str(path) for path in files], f"chapters/{name}/{chapter}.ipynb"
        with new_paper.written(Path.cwd(), name, files):
            for path in made:
                typer.echo(f"written {path}")
            code = [path for path in made if path.endswith((".py", ".ipynb"))]
            _tool("-m", "ruff", "check", "--quiet", "--select", "I", "--fix", *code)  # their order is the name's
            _tool("-m", "ruff", "format", "--quiet", *code)
            _tool("tools/address.py")
            importlib.invalidate_caches()
            run([f"{name}.first"], size="book")
            verify([f"{name}.first"], fresh=True)
            _tool("tools/run_chapters.py", notebook)


@app.command("doctor")
def examine(as_json: Json = False) -> None:
    """Say what is wrong with this installation and what mends it; exit 1 if something needed is broken.

    Raises:
        typer.Exit: With the exit code.
    """
    from attnbook import doctor

    raise typer.Exit(doctor.main(["--json"] if as_json else []))


def _tool(*arguments: str) -> None:
    """Call a tool of the checkout with this Python."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"python {' '.join(arguments)} failed: {done.stderr or done.stdout}")


def _fail(message: str) -> NoReturn:
    """Leave with what made the only experiment fail, for :func:`_clear_errors` to print."""
    raise ValueError(message)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn expected errors into one line on stderr and exit code 2, an interrupted run into 130, no checkout into 1."""
    try:
        yield
    except Stopped as stopped:
        typer.echo(f"attnbook: {stopped}", err=True)
        raise typer.Exit(130) from stopped
    except KeyboardInterrupt as stopped:  # while others trained
        typer.echo("attnbook: stopped; run again to continue after what was finished", err=True)
        raise typer.Exit(130) from stopped
    except (ValueError, FloatingPointError) as error:
        typer.echo(f"attnbook: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, NoCheckout) else 2) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever reads has seen enough
            raise
        typer.echo(f"attnbook: {error.filename}: {error.strerror}; choose another file or folder", err=True)
        raise typer.Exit(2) from error


def _chosen(names: list[str], every: bool, paper: str | None) -> list[type[Experiment]]:
    """The experiments that were asked for, each once."""
    if bool(names) + every + (paper is not None) != 1:
        raise ValueError("experiment: name one or several, or use --all, or --paper NAME")
    _one_of("paper", paper, [p.name for p in ledger.papers()])
    if names:
        return [registry.experiment(name) for name in dict.fromkeys(names)]
    return [kind for name, kind in registry.experiments().items() if every or name.split(".")[0] == paper]


def _again(chosen: type[Experiment], device: str | None, sets: int, named: bool) -> list[dict[str, Any]]:
    """Each verdict beside the number of sets of fresh seeds in which it held."""
    size = ledger.replicated_size(chosen.id) if named else "book"  # a larger run takes long: only if asked for

    def measure(ready: Experiment) -> tuple[Mapping[str, results.Measurement], Mapping[str, Any]]:
        with runtime.progress_bar(f"{chosen.id}, seeds from {ready.seeds[0]}") as progress:
            found = ready.run(device=device, progress=progress)
        return ready.measurements(found), found.attrs["provenance"]

    file = ledger.replicate(chosen.id, chosen.at(size), measure, sets=sets)
    rows = []
    for claim in results.stored_measurements(chosen.id, size):
        verdict, found = ledger.recorded(ledger.claim(claim), size), ledger.replicated(ledger.claim(claim), file)
        holds = found is not None and not found.unstable
        rows.append({"claim": claim, "outcome": verdict.outcome, "fresh": str(found), "holds": holds})
    return rows


def _compare(chosen: type[Experiment], size: Size, device: str | None) -> list[dict[str, Any]]:
    """Each verdict beside the recorded one; a recorded claim that is no longer measured differs too."""
    ready = chosen.at(size)
    with runtime.progress_bar(chosen.id) as progress:
        measured = ready.measurements(ready.run(device=device, progress=progress))
    found = {claim: ledger.judge(ledger.claim(claim), m, size).outcome for claim, m in measured.items()}
    before = {claim: ledger.recorded(ledger.claim(claim), size).outcome for claim in found}
    for claim in results.stored_measurements(chosen.id, size):
        before.setdefault(claim, ledger.recorded(ledger.claim(claim), size).outcome)
    rows = []
    for claim, recorded in before.items():
        outcome = found.get(claim, "not measured")
        same = outcome == recorded
        rows.append({"claim": claim, "outcome": outcome, "recorded": recorded, "holds": same})
    return rows


def _size(asked: str | None) -> Size:
    return runtime.size() if asked is None else runtime.known_size("size", asked)


def _as_data(v: ledger.Verdict) -> dict[str, Any]:
    measured = asdict(v.measurement) if v.measurement else None
    found = ledger.replicated(v.claim)
    return {
        "id": v.claim.id,
        "source": v.claim.source,
        "setting": v.claim.setting,
        "where": v.claim.where,
        "size": v.size,
        "outcome": v.outcome,
        "fresh_seeds": asdict(found) if found else None,
        "measured": measured,
    }


def _one_of(name: str, value: str | None, allowed: list[str] | tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(allowed)}")


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2))
