"""The verdicts on other Pythons, with the oldest and the newest versions of what attnbook needs, on one thread and two.

``make matrix`` makes an environment in ``_build/matrix`` for each Python that is here, once with the newest versions of
all packages and, where they have builds for it, once with the lowest that are allowed. There the experiments whose
stored run took at most ``--seconds`` are run again at the book's size; each verdict is compared with the stored one.
The table goes to ``tools/matrix.md``, and from there into the book.
"""

from __future__ import annotations

import argparse
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
TABLE = ROOT / "tools" / "matrix.md"
PYTHONS = ("3.11", "3.12", "3.13")
WITH_LOWEST = ("3.11", "3.12")  # NumPy 2.0 has no build for later ones
SHOWN = ("numpy", "torch", "pandas", "xarray", "scipy")
VERSIONS = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {SHOWN!r}}}))"


def main() -> int:
    """Install, run, compare, write the table.

    Returns:
        1 if a verdict differs somewhere, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="longest stored run, processor time; default 10")
    parser.add_argument("--torch", default="", help="another version of torch than the one of requirements.txt")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, help="default 3.11 3.12 3.13, those that are here")
    asked = parser.parse_args()
    names = chosen(asked.seconds)
    rows, differing = [], 0
    for version in asked.pythons:
        interpreter = shutil.which(f"python{version}")
        if interpreter is None:
            print(f"Python {version}: not here")
            continue
        for lowest in (True, False) if version in WITH_LOWEST else (False,):
            python = environment(interpreter, version, lowest, asked.torch)
            for threads in (1,) if lowest else (1, 2):
                found = verdicts(python, names, threads)
                other = [row["claim"] for row in found if not row["holds"]]
                differing += len(other)
                versions = json.loads(subprocess.check_output([python, "-c", VERSIONS], text=True))
                same = f"{len(found) - len(other)} of {len(found)}" + (f", not {', '.join(other)}" if other else "")
                rows.append([version, *(versions[name] for name in SHOWN), str(threads), same])
                print(" ".join(rows[-1]), flush=True)
    TABLE.write_text(table(rows, len(names), asked.seconds), encoding="utf-8")
    return int(differing > 0)


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


def verdicts(python: Path, names: list[str], threads: int) -> list[dict[str, Any]]:
    """Run experiments again and return a row per claim: whether the verdict is the stored one."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONPATH", None)
    command = [python, "-m", "attnbook", "verify", *names, "--scale", "book", "--device", "cpu", "--json"]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        sys.exit(f"{python}: nothing was verified; the reason stands above")
    return json.loads(done.stdout)


def table(rows: list[list[str]], experiments: int, seconds: float) -> str:
    """Return the table in Markdown."""
    head = ["Python", *SHOWN, "threads", "verdicts as stored"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    said = f"{experiments} experiments, each of at most {seconds:g} seconds of processor time at the book's size."
    return "\n".join(lines) + f"\n\n{said}\n"


if __name__ == "__main__":
    sys.exit(main())
