"""The verdicts on other Pythons, with the oldest and the newest versions of what attnbook needs, on one thread and two.

``make matrix`` makes an environment in ``_build/matrix`` for each Python that is here, once with the newest versions of
all packages and, where they have builds for it, once with the lowest that are allowed. There the experiments whose
stored run took at most ``--seconds`` are run again at the book's size; each verdict is compared with the stored one.
Experiments that train in float32 are run in float64 as well, those of at most ``--float64-seconds``. What is finished
is kept in ``tools/matrix.json``, so that a run that was cut off goes on; ``--again`` starts anew. The table goes to
``tools/matrix.md``, and from there into the book.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch_index

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "_build" / "matrix"
STORED = ROOT / "tools" / "matrix.json"
TABLE = ROOT / "tools" / "matrix.md"
PYTHONS = ("3.11", "3.12", "3.13")
WITH_LOWEST = ("3.11", "3.12")  # NumPy 2.0 has no build for later ones
SHOWN = ("numpy", "torch", "pandas", "xarray", "scipy")
VERSIONS = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {SHOWN!r}}}))"


def main() -> int:
    """Install, run, compare, write the table.

    Returns:
        1 if a verdict differs somewhere, or something failed, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="longest stored run, processor time; default 10")
    parser.add_argument("--float64-seconds", type=float, default=20.0, help="likewise, in float64; default 20, 0: none")
    parser.add_argument("--torch", default="", help="another version of torch than the one of requirements.txt")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, help="default 3.11 3.12 3.13, those that are here")
    parser.add_argument("--again", action="store_true", help="run also what is finished")
    asked = parser.parse_args()
    if STORED.exists() and not asked.again:
        stored = json.loads(STORED.read_text(encoding="utf-8"))
    else:
        stored = {"rows": {}, "float64": {}}
    python = None
    for version in asked.pythons:
        interpreter = shutil.which(f"python{version}")
        if interpreter is None:
            print(f"Python {version}: not here")
            continue
        for lowest in (True, False) if version in WITH_LOWEST else (False,):
            python = environment(interpreter, version, lowest, asked.torch)
            for threads in (1,) if lowest else (1, 2):
                add_row(stored, python, version, threads, chosen(asked.seconds))
    for name in chosen(asked.float64_seconds) if python else ():
        add_float64(stored, python, name)
    return int(any(row.get("other") or "failure" in row for part in stored.values() for row in part.values()))


def add_row(stored: dict[str, Any], python: Path, version: str, threads: int, names: list[str]) -> None:
    """Run the experiments with an interpreter, unless that is done."""
    key = f"{python.parent.parent.name}, {threads}"
    old = stored["rows"].get(key, {})
    if old.get("experiments") != names or "failure" in old:
        origin = {"python": version, "threads": threads, "date": str(datetime.date.today()), "experiments": names}
        found = answer(python, "-c", VERSIONS) | verdicts(python, names, threads)
        stored["rows"][key] = origin | found
        write(stored)
    print(" ".join(cells(stored["rows"][key])), flush=True)


def add_float64(stored: dict[str, Any], python: Path, name: str) -> None:
    """Run an experiment in float64, unless that is done."""
    if "failure" in stored["float64"].get(name, {"failure": "never tried"}):
        stored["float64"][name] = answer(python, "tools/in_float64.py", name)
        write(stored)
        print(f"{name} in float64: {stored['float64'][name]}", flush=True)


def chosen(seconds: float) -> list[str]:
    """Return the experiments whose stored run at the book's size took at most this long."""
    stored = (
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "results" / "book").glob("*.json"))
    )
    return [one["experiment"] for one in stored if one["provenance"]["cpu_seconds"] <= seconds]


def environment(interpreter: str, version: str, lowest: bool, torch: str) -> Path:
    """Make an environment, or take the one that is there, and return its Python."""
    # The newest torch comes with gigabytes of GPU libraries: without a wish it is the tested build.
    place = PLACE / f"{version}-{'lowest' if lowest else 'newest'}{torch and f'-torch-{torch}'}"
    python, index = place / "bin" / "python", torch_index.wanted()
    if not (place / "installed").exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", place], check=True)
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        pip += ["--extra-index-url", index] if index else []
        lines = (ROOT / ("binder/colab.txt" if lowest else "requirements.txt")).read_text().splitlines()
        bounds = [line.split("#")[0].strip() for line in lines]
        kept = [line for line in bounds if "==" in line and not (torch and line.startswith("torch"))]
        constraints = place / "constraints.txt"
        constraints.write_text("\n".join([*kept, *([f"torch=={torch}"] if torch else [])]) + "\n")
        pip += ["--constraint", str(constraints)]
        subprocess.run([*pip, "-e", ROOT], check=True)
        (place / "installed").touch()
    return python


def verdicts(python: Path, names: list[str], threads: int) -> dict[str, Any]:
    """Run experiments again and return the claims whose verdict is the stored one, and those where it differs."""
    command = ("-m", "attnbook", "verify", *names, "--size", "book", "--device", "cpu", "--json")
    found = answer(python, *command, threads=threads)
    if isinstance(found, dict):  # a failure
        return found
    return {
        "holding": [row["claim"] for row in found if row["holds"]],
        "other": [row["claim"] for row in found if not row["holds"]],
    }


def answer(python: Path, *command: str, threads: int = 1) -> Any:
    """Return what a command of this checkout's code prints in JSON, or why it printed nothing."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([python, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        print(done.stderr, file=sys.stderr)
        return {"failure": done.stderr.strip().rpartition("\n")[2] or f"ended with {done.returncode}"}
    return json.loads(done.stdout)


def write(stored: dict[str, Any]) -> None:
    """Keep what is finished, and its table."""
    STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    TABLE.write_text(table(stored), encoding="utf-8")


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    result = f"failed: {row['failure']}" if "failure" in row else counted([row])
    return [row["python"], *(row.get(name, "") for name in SHOWN), str(row["threads"]), result]


def counted(rows: list[dict[str, Any]]) -> str:
    """Return how many verdicts are the stored ones, and which are not."""
    holding, other = ([claim for row in rows for claim in row[word]] for word in ("holding", "other"))
    return f"{len(holding)} of {len(holding) + len(other)}" + (f" (not {', '.join(other)})" if other else "")


def table(stored: dict[str, Any]) -> str:
    """Return the table in Markdown, and what was found in float64."""
    rows = [row for _, row in sorted(stored["rows"].items())]
    head = ["Python", *SHOWN, "threads", "verdicts as stored"]
    lines = ["| " + " | ".join(one) + " |" for one in (head, ["---"] * len(head), *map(cells, rows))]
    counts = sorted({len(row["experiments"]) for row in rows})
    said = f"Each row: {' or '.join(map(str, counts))} experiments at the book's size, those that are the quickest."
    wide = ["", in_float64(stored["float64"])] if stored["float64"] else []
    return "\n".join([*lines, "", said, *wide]) + "\n"


def in_float64(found: dict[str, dict[str, Any]]) -> str:
    """Return what became of the verdicts in float64."""
    narrow = {name: row for name, row in found.items() if row.get("float32", True)}
    failed = {name: row["failure"] for name, row in narrow.items() if "failure" in row}
    ran = [row for row in narrow.values() if "failure" not in row]
    said = f"Of {len(found)} experiments {len(narrow)} train in float32, the others in float64 anyway."
    said += f" With float64 in its place, on one thread, {counted(ran)} of their verdicts are as stored."
    return said + "".join(f" Not in float64: {name} ({why})." for name, why in failed.items())


if __name__ == "__main__":
    sys.exit(main())
