"""Copy the chapters to ``play/``, where a reader may change them; git knows nothing of that folder.

A copy that is as it was made follows its chapter. One that was changed stays as it is: whoever wants it fresh deletes
or renames it and calls this again. ``make lab`` does it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER, MADE = "play", ".made.json"  # the second holds the fingerprint of each copy when it was made
# A notebook imports the script beside it, and links between pages work among the copies.
COPIED = ("chapters/**/*.ipynb", "chapters/**/*.py", "chapters/**/*.md", "reference/*.md")


def main(root: Path = ROOT) -> int:
    """Copy, and name the copies that a reader has changed.

    Args:
        root: Folder of the book.

    Returns:
        0.
    """
    kept = copy(root)
    if kept:
        print(f"yours, kept as they are: {', '.join(f'{FOLDER}/{name}' for name in kept)}")
        print("to get one fresh, delete or rename it and call `make lab` again")
    return 0


def copy(root: Path) -> list[str]:
    """Write what is missing in the folder, and what has changed in the book but not there.

    Args:
        root: Folder of the book.

    Returns:
        Copies that were changed since they were made and that differ from the book.
    """
    notes = root / FOLDER / MADE
    made = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    kept = []
    files = {file for pattern in COPIED for file in root.glob(pattern) if ".ipynb_checkpoints" not in file.parts}
    for file in sorted(files):
        name, there = file.relative_to(root).as_posix(), root / FOLDER / file.relative_to(root)
        text = file.read_bytes()
        before = fingerprint(there.read_bytes()) if there.exists() else None
        if before not in (None, made.get(name), fingerprint(text)):
            kept.append(name)
            continue
        if before != fingerprint(text):
            write(there, text)
        made[name] = fingerprint(text)
    write(notes, json.dumps(made, indent=1).encode())
    return kept


def fingerprint(text: bytes) -> str:
    """Return a SHA-256 in hexadecimal digits."""
    return hashlib.sha256(text).hexdigest()


def write(file: Path, text: bytes) -> None:
    """Write a file that appears whole or not at all: half a copy would be taken for a changed one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_bytes(text)
    os.replace(part, file)


if __name__ == "__main__":
    sys.exit(main())
