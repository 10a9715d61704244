"""Perform faults and write down what happened, for the book's page about them: ``make faults``.

``python tools/faults.py``                everything, about 20 minutes on two idle cores
``python tools/faults.py disk inputs``    some of the parts: kills, disk, results, archives, together, inputs
``python tools/faults.py inputs --show``  the same, and nothing is stored

What a part gave is kept in ``tools/faults.json``, of which ``tools/faults.md`` is written. Exit 1 if a fault did harm.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import bad_inputs  # noqa: E402  (its folder is on the path only now)
from faults_in_files import Row, archives, results  # noqa: E402  (it needs the folder of the tests)

STORE, PAGE = ROOT / "tools" / "faults.json", ROOT / "tools" / "faults.md"
TRIALS = ROOT / "_build" / "faults_trials.json"
FULL, SMALL = "mirror_descent.cone", "multi_head.segments"
# The command line with the full size in ten groups of two seeds, in place of four, so that kills find some kept.
IN_TWOS = f"""
from attnbook import cli, registry
registry.experiment("{FULL}").full["chunk"] = 2
cli.app()
"""
VICTIMS = ("the run", "one worker", "the run and its workers", "one worker")  # in turn
KILLS, INPUTS = 20, 200
ROOM, ELSEWHERE = "make room and run again, what is finished is kept", "choose another place with --output"
EARLIER = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *t) {
  int (*honest)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int code = honest(id, t);
  if (id == CLOCK_REALTIME) t->tv_sec -= 9999L * 86400;
  return code;
}
"""


def run(output: Path, name: str = SMALL, size: str = "book", on: str = "here") -> list[str]:
    """The command that is disturbed."""
    options = ["--size", size, "--device", "cpu", "--on", on, "--output", str(output)]
    command = ["-c", IN_TWOS] if name == FULL else ["-m", "attnbook"]
    return [sys.executable, *command, "run", name, *options]


def call(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def interrupted(output: Path, by: Callable[[Any], Any]) -> subprocess.CompletedProcess[str]:
    """Run until a group of seeds is kept, then do something to it."""
    process = subprocess.Popen(run(output), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while process.poll() is None and not list(output.parent.glob(".parts/*/*.json")):
        time.sleep(0.01)
    by(process)
    said = process.communicate()[1]
    return subprocess.CompletedProcess([], process.returncode, "", said)


def numbers(file: Path) -> dict[str, Any]:
    """All that a result holds but when and how it was obtained."""
    raw = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: value for name, value in raw.items() if name not in ("provenance", "sha256")}


def fingerprint(file: Path) -> str:
    """A checksum of the numbers of a result."""
    return hashlib.sha256(json.dumps(numbers(file)).encode()).hexdigest()


def ends(command: list[str], file: Path, expected: dict[str, Any], **environment: str) -> bool:
    """Whether a command ends with these numbers and leaves nothing else."""
    done = call(command, **environment)
    return done.returncode == 0 and numbers(file) == expected != {} and os.listdir(file.parent) == [file.name]


def one_line(done: subprocess.CompletedProcess[str], *parts: str) -> bool:
    """Whether a command failed with a single line that says all of this."""
    lines = done.stderr.splitlines()
    return done.returncode == 2 and len(lines) == 1 and all(part in lines[0] for part in parts)


def workers(process: int) -> list[int]:
    """The worker processes of a run."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{process}/task").iterdir():  # any thread of the run may have begun them
            for child in (thread / "children").read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def lives(process: int) -> bool:
    """Whether a process is still there after a while."""
    for _ in range(200):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.1)
    return True


def spent(process: int) -> float:
    """Processor time of a run and its workers so far, in seconds; 0 once it has ended."""
    ticks = 0
    with suppress(FileNotFoundError, ProcessLookupError):
        for one, fields in (process, slice(11, 15)), *((worker, slice(11, 13)) for worker in workers(process)):
            ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[fields]))
    return ticks / os.sysconf("SC_CLK_TCK")


def kept(file: Path) -> dict[str, Any]:
    """The groups of seeds that a run has kept so far, by name: what each cost, as a result tells it."""
    found = {}
    for part in file.parent.glob(".parts/*/*.json"):
        with suppress(FileNotFoundError):  # a run that ends takes them away
            raw = json.loads(part.read_text(encoding="utf-8"))
            cost = {name: raw["provenance"][name] for name in ("device", "wall_seconds", "cpu_seconds")}
            found[part.name] = {"seeds": raw["coords"]["seed"]["data"], **cost}
    return found


def kills(work: Path) -> list[Row]:
    """Kill a large run on two workers, go on, and compare with one that was left alone; interrupted, it continues."""
    known = json.loads(TRIALS.read_text(encoding="utf-8")) if TRIALS.is_file() else {}
    if known.get("experiment") != FULL or len(known["trials"]) == KILLS:
        known = {"experiment": FULL, "seconds": float("inf"), "drawn": 0, "trials": []}
        known["numbers"] = kill(work, known)["numbers"]
    with suppress(KeyboardInterrupt):  # what has been performed is told
        while len(known["trials"]) < KILLS:
            trial = kill(work, known)
            known["trials"] += [trial] if "same" in trial else []
            known["drawn"] += 1
            TRIALS.parent.mkdir(exist_ok=True)
            TRIALS.write_text(json.dumps(known), encoding="utf-8")
            print(f"{len(known['trials'])}: {trial if 'same' in trial else 'too late'}", flush=True)
    return kill_rows(known["trials"])


def kill_rows(trials: list[dict[str, Any]]) -> list[Row]:
    """What the kills have in common."""
    how = f"`{FULL}`, full size, in groups of two seeds, on two workers"

    def row(fault: str, expected: str, what: str, *who: str) -> Row:
        chosen = [trial[what] for trial in trials if trial["who"] in who]
        return Row(f"SIGKILL of {fault}, at a random moment", expected, sum(chosen), len(chosen), how)

    same = "the same command continues to the same numbers and leaves nothing else"
    return [
        *(row(who, same, "same", who) for who in dict.fromkeys(VICTIMS)),
        row("one worker", "exit code 2, one line names the fault and the remedy", "told", "one worker"),
        row("any of these", "what was kept is there and is not computed again", "resumed", *VICTIMS),
        row("any of these", "no worker lives on", "alone", *VICTIMS),
    ]


def kill(work: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Kill a run, a worker of it (the first moment that there is one) or all; only its numbers if it ended before."""
    rng, who = random.Random(f"kill {known['drawn']}"), VICTIMS[len(known["trials"]) % len(VICTIMS)]
    moment, now, there = rng.random(), 0.0, list[int]()
    file = Path(tempfile.mkdtemp(dir=work)) / "result.json"
    with (work / "said").open("w") as said:  # no pipe, which the workers would keep open
        first = subprocess.Popen(run(file, FULL, "full", "processes:2"), stderr=said, stdout=said)
        # processor time, not time of day: other work on the machine then moves no moment beyond the end
        while first.poll() is None and not file.exists():
            now, there = spent(first.pid), workers(first.pid)
            if now >= moment * known["seconds"] and (there or who == "the run"):
                break
            time.sleep(0.05)
        then, one = kept(file), rng.sample(there, min(1, len(there)))
        victims = {"the run": [first.pid], "one worker": one, "the run and its workers": [first.pid, *there]}[who]
        for process in [] if file.exists() else victims:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        code = first.wait()
    if file.exists():
        known["seconds"] = min(now, known["seconds"])  # of the shortest run that ended
        return {"numbers": fingerprint(file)}
    alone, left = not any(map(lives, there)), kept(file)
    message = (work / "said").read_text(encoding="utf-8").splitlines()
    told = code == 2 and len(message) == 1 and "worker process was killed" in message[0] and "run again" in message[0]
    done = call(run(file, FULL, "full", "processes:2"))
    same = done.returncode == 0 and fingerprint(file) == known["numbers"] and os.listdir(file.parent) == [file.name]
    groups = json.loads(file.read_text(encoding="utf-8"))["provenance"]["groups"] if same else []
    computed = sum(group not in left.values() for group in groups)
    resumed = then.items() <= left.items() and computed == len(groups) - len(left)
    return {
        "moment": round(min(1, now / known["seconds"]), 3), "who": who,
        "groups": len(groups), "kept": len(then), "left": len(left), "computed": computed,
        "told": told, "alone": alone, "resumed": resumed, "same": same,
    }  # fmt: skip


def mounted(work: Path, options: str) -> Path | None:
    """A new folder that is a file system of its own; None where that is not allowed."""
    folder = Path(tempfile.mkdtemp(dir=work))
    return None if call(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]).returncode else folder


def disk(work: Path) -> list[Row]:
    """A full disk, a limit on files, a folder that may not be written, a clock that is set back."""
    call(run(whole := work / "whole" / "result.json"))
    expected, rows = numbers(whole), []

    def disturb(fault: str, how: str, says: str, begin: Callable[[Path], Any], end: Callable[[Path], Any]) -> None:
        """Disturb a run once it has kept a group; look at what it says and leaves; end that and go on."""
        if (folder := mounted(work, "size=9m")) is None:
            rows.append(Row(fault, "", 0, 0, "not tried: no mount is allowed here"))
            return
        first = interrupted(folder / "result.json", lambda _: begin(folder))
        said = one_line(first, says, SMALL) and not list(folder.rglob("*.part"))
        end(folder)
        same = ends(run(folder / "result.json"), folder / "result.json", expected)
        call(["umount", str(folder)])
        rows.append(Row(fault, f"one line, “{says}”, nothing half-written", said, 1, how))
        rows.append(Row(f"{fault}, mended", "the same command continues to the same numbers", same, 1, how))

    def fill(folder: Path) -> None:
        (folder / "full").write_bytes(bytes(shutil.disk_usage(folder).free))

    def remount(mode: str) -> Callable[[Path], Any]:
        return lambda folder: call(["mount", "-o", f"remount,{mode}", str(folder)])

    disturb("disk full during a run", "a tmpfs, filled", ROOM, fill, lambda folder: (folder / "full").unlink())
    disturb("folder read-only from the middle of a run", "a tmpfs, remounted", ELSEWHERE, remount("ro"), remount("rw"))
    if folder := mounted(work, "ro"):
        said = one_line(call(run(folder / "result.json")), "result.json", ELSEWHERE)
        rows.append(Row("folder read-only from the start", f"one line, “{ELSEWHERE}”", said, 1, "a tmpfs, for root"))
        call(["umount", str(folder)])
    limited = work / "limited" / "result.json"
    done = call(["sh", "-c", 'ulimit -f 2; exec "$@"', "sh", *run(limited)])
    said = one_line(done, ROOM) and not [path for path in limited.parent.rglob("*") if path.is_file()]
    rows.append(Row("files may not grow beyond 1 KiB", f"one line, “{ROOM}”, nothing half-written", said, 1, "ulimit"))
    interrupted(file := work / "earlier" / "result.json", lambda process: process.kill())
    how, library = "between two halves of a run, by a library loaded before libc", work / "earlier.so"
    (work / "earlier.c").write_text(EARLIER)
    if call(["cc", "-shared", "-fPIC", "-o", str(library), str(work / "earlier.c"), "-ldl"]).returncode:
        return [*rows, Row("clock set back by 27 years", "", 0, 0, "not tried: no compiler is here")]
    same = ends(run(file), file, expected, LD_PRELOAD=str(library))
    origin = json.loads(file.read_text(encoding="utf-8"))["provenance"] if same else {}
    same = same and origin["wall_seconds"] > 0 and origin["date"] < "2010"
    return [*rows, Row("clock set back by 27 years", "the same numbers, no negative time", same, 1, how)]


def together(work: Path) -> list[Row]:
    """Two runs of one experiment at once, in one folder."""
    call(run(whole := work / "whole" / "result.json"))
    rng, good, rounds = random.Random(0), 0, 3
    for _ in range(rounds):
        file = Path(tempfile.mkdtemp(dir=work)) / "result.json"
        first = subprocess.Popen(run(file), stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 3))
        second = call(run(file))
        good += (first.wait(), second.returncode) == (0, 0) and numbers(file) == numbers(whole)
        good -= os.listdir(file.parent) != [file.name]
    expected = "both end with the same numbers and leave nothing else"
    return [Row("two runs of one experiment at once", expected, good, rounds)]


def inputs(work: Path) -> list[Row]:
    """Bad inputs of public functions and of the command line."""
    warnings.simplefilter("ignore")
    functions = bad_inputs.of_functions(INPUTS)
    with chdir(work):  # where no paper can be begun
        commands = bad_inputs.of_commands(INPUTS, work)
    print("\n".join(filter(None, functions + commands)), flush=True)
    error = "ValueError or TypeError with the argument's name and what is expected"
    line, how = "exit code 2, a clear line or the usage, no traceback, no file", "drawn by hypothesis"
    return [
        Row("bad argument of a public function", error, functions.count(""), len(functions), how),
        Row("bad command line or variable", line, commands.count(""), len(commands), how),
    ]


PARTS = {part.__name__: part for part in (kills, disk, results, archives, together, inputs)}


def one_by_one(trials: list[dict[str, Any]]) -> list[str]:
    """The kills as a table, in the order of their moments."""
    lines = [
        "", f"The kills one by one, of `{FULL}` at its full size, on two workers; the moment is the share of an "
        "undisturbed run's processor time that had been spent:", "",
        "| moment | killed | groups of seeds kept then | computed after resuming | the same checksum |",
        "| ---: | --- | ---: | ---: | --- |",
    ]  # fmt: skip
    for trial in sorted(trials, key=lambda trial: trial["moment"]):
        later = f" ({trial['left']} when the run had ended)" if trial["left"] > trial["kept"] else ""
        then, after = f"{trial['kept']} of {trial['groups']}{later}", trial["computed"]
        lines.append(
            f"| {trial['moment']:.0%} | {trial['who']} | {then} | {after} | {'yes' if trial['same'] else 'NO'} |"
        )
    done = len(trials)
    return lines + (
        ["", f"*Performed so far: {done} of {KILLS}; `python tools/faults.py kills` goes on.*"] if done < KILLS else []
    )


def page(found: dict[str, list[dict[str, Any]]]) -> str:
    """The table as Markdown."""
    lines = ["| fault | what has to happen | happened | how |", "| --- | --- | ---: | --- |"]
    for row in (Row(**row) for part in PARTS for row in found.get(part, [])):
        lines.append(f"| {row.fault} | {row.expected} | {row.good} of {row.tried} | {row.how} |")
    missing = [part for part in PARTS if part not in found]
    lines += ["", f"*Not performed yet: {', '.join(missing)}.*"] if missing else []
    lines += one_by_one(found["trials"]) if "trials" in found else []
    return "<!-- Written by tools/faults.py from faults.json. -->\n\n" + "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Perform the parts that are named, store and show what happened.

    Returns:
        1 if a fault did harm.
    """
    if os.environ.get("ATTNBOOK_FAULTS") != "inside" and call(["unshare", "-m", "true"]).returncode == 0:
        again = ["unshare", "-m", sys.executable, __file__, *arguments]  # what is mounted then is seen by nobody else
        os.execvpe(again[0], again, os.environ | {"ATTNBOOK_FAULTS": "inside"})
    os.environ |= {"OMP_NUM_THREADS": "1", "ATTNBOOK_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    chosen = [part for part in arguments if part != "--show"] or list(PARTS)
    found = json.loads(STORE.read_text(encoding="utf-8")) if STORE.is_file() else {}
    for part in chosen:
        with tempfile.TemporaryDirectory() as work:
            found[part] = [asdict(row) | {"good": int(row.good)} for row in PARTS[part](Path(work))]
        if part == "kills":
            found["trials"] = json.loads(TRIALS.read_text(encoding="utf-8"))["trials"]
    print(page({part: found[part] for part in chosen}))
    if "--show" not in arguments:
        STORE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(found), encoding="utf-8")
    return int(any(row["good"] < row["tried"] for part in chosen for row in found[part]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
