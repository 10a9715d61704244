"""JSON files that appear whole or not at all, and say what is wrong with them when read."""

from __future__ import annotations

import errno
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FORMAT", "ResultError", "plain", "read_json", "tuples", "write_json"]

FORMAT = 1


class ResultError(ValueError):
    """A result file is missing, damaged, of another experiment or of another format."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file; it appears whole or not at all.

    Args:
        path: Name of the file; its folder is made when missing.
        content: JSON values.

    Raises:
        ResultError: If the folder or file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
        try:
            part.write_text(_layout(content), encoding="utf-8")
            part.chmod(0o644)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        mend = "; make room and run again, what is finished is kept" if error.errno == errno.ENOSPC else ""
        raise ResultError(f"path: cannot write {path.name} in {path.parent}: {error.strerror}{mend}") from error


def _layout(content: Mapping[str, Any], indent: str = "  ") -> str:
    """One line per top-level entry, and per variable of a data set: short files, readable differences."""
    lines = []
    for key, value in content.items():
        nested = key in ("coords", "data_vars") and value
        text = _layout(value, indent + "  ").strip() if nested else json.dumps(value, allow_nan=False)
        lines.append(f"{indent}{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{indent[2:]}}}\n"


def read_json(path: Path, experiment: str) -> dict[str, Any]:
    """Read a file of :func:`write_json` that holds this experiment, or this part of one.

    Args:
        path: The file.
        experiment: What its entry ``experiment`` must be.

    Returns:
        Its content.

    Raises:
        ResultError: If the file is missing, damaged, of another experiment or of another format.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError(f"path: no result file {path.name}; make it with `attnbook run {experiment}`") from None
    except (OSError, ValueError) as error:
        raise ResultError(f"{path.name}: damaged or unreadable: {error}; delete it and run again") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else None
        raise ResultError(f"{path.name}: written in format {found!r}, this version reads {FORMAT}; run it again")
    if raw.get("experiment") != experiment:
        raise ResultError(f"{path.name}: holds {raw.get('experiment')!r}, expected {experiment!r}")
    return raw


def plain(value: Any, digits: int | None = 9) -> Any:
    """Turn settings and arrays into JSON values, floats rounded to significant digits, infinity and NaN as texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), None) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), digits)
    if isinstance(value, Mapping):
        return {str(k): plain(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, digits) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item(), digits)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has neither infinity nor NaN; float() and NumPy read the texts
    if isinstance(value, float) and digits is not None:
        return float(f"{value:.{digits}g}")
    return value


def tuples(value: Any) -> Any:
    """Turn the lists of a JSON value into tuples, as settings hold them."""
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value
