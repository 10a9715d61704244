"""Where and at what size an experiment runs: device, size, threads, progress.

:func:`use` chooses both for the rest of the session; every chapter begins by calling it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch

from attnbook.core.settings import whole

__all__ = [
    "Progress", "Size", "chosen_device", "device", "double_device", "is_watched", "progress_bar", "say", "share",
    "size", "threads", "use",
]  # fmt: skip

Size: TypeAlias = Literal["smoke", "book", "full"]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (units of work done, units in all)."""

OLD_SIZES = ("paper", "large")  # what the full size was called before
MOMENT, BETWEEN = 1.5, 0.3
"""Seconds before the bar of a notebook appears, and between two of its states."""

_chosen: dict[str, Any] = {}  # what `use` was last called with, "auto" left out


def use(*, size: str = "auto", device: str | torch.device = "auto", **old: str) -> None:
    """Choose at what size and where experiments run from now on, in this process.

    Every chapter begins by calling it, with the size and the device that its first cell holds; an experiment without
    that size takes the book's and says so. Arguments that a call gives explicitly still come first. Python's collector
    is told to look for garbage after 50,000 new objects, not 700: what torch and Matplotlib load lives as long as the
    session.

    Args:
        size: ``smoke``, ``book`` or ``full``; default ``auto``: what ``ATTNBOOK_SIZE`` says, else ``book``.
        device: ``cuda``, ``cuda:1``, ``mps`` or ``cpu``; default ``auto``: the first of these that this machine has.
        **old: Names that are no longer known, for a message.

    Raises:
        ValueError: If the size is unknown, or this machine has no such device; nothing is chosen then.

    Example:
        >>> from attnbook.core import runtime
        >>> runtime.use(size="smoke", device="cpu")
        >>> runtime.size(), runtime.device()
        ('smoke', device(type='cpu'))
        >>> runtime.use()
    """
    for name in old:
        raise ValueError(f"{name}: expected size or device" + ", scale is now size" * (name == "scale"))
    chosen: dict[str, Any] = {}
    if size != "auto":
        chosen["size"] = known_size("size", size, "auto")
    if device != "auto":
        chosen["device"] = _available(device)
    _chosen.clear()
    _chosen.update(chosen)
    gc.set_threshold(50_000)


def device(name: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on.

    Args:
        name: ``cuda``, ``cuda:1``, ``mps`` or ``cpu``. Default: the one chosen by :func:`use`, else the first of
            cuda, mps and cpu that this machine has.

    Returns:
        The device.

    Raises:
        ValueError: If the name is unknown or this machine has no such device.

    Example:
        >>> device("cpu")
        device(type='cpu')
    """
    return _chosen.get("device", _available(None)) if name is None else _available(name)


def double_device(name: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on in float64, which mps lacks: the CPU in its place, else as ``device``."""
    found = device(name)
    return torch.device("cpu") if found.type == "mps" else found


def chosen_device() -> torch.device | None:
    """Return the device chosen by :func:`use`, None where it is left to each machine."""
    return _chosen.get("device")


def _available(name: str | torch.device | None) -> torch.device:
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if name is None:
        return torch.device(available[0])
    try:
        wanted = torch.device(name)
    except RuntimeError:
        wanted = None
    beyond = wanted is not None and wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count()
    if wanted is None or wanted.type not in available or beyond:
        raise ValueError(f"device: {str(name)!r} is not available here; expected one of {', '.join(available)}")
    return wanted


def size() -> Size:
    """Return the size at which experiments run unless told otherwise.

    The last call of :func:`use` picks it, else the environment variable ``ATTNBOOK_SIZE``: ``smoke`` (a second, for
    tests), ``book`` (the default: any laptop) or ``full`` (the paper's own size, else the largest run of this book).

    Returns:
        The size.

    Raises:
        ValueError: If the variable holds anything else, or only ``ATTNBOOK_SCALE`` is set, its former name.
    """
    if "size" in _chosen:
        return _chosen["size"]
    if "ATTNBOOK_SCALE" in os.environ and "ATTNBOOK_SIZE" not in os.environ:
        raise ValueError("ATTNBOOK_SCALE: is now ATTNBOOK_SIZE, one of smoke, book, full")
    return known_size("ATTNBOOK_SIZE", os.environ.get("ATTNBOOK_SIZE", "book"))


def known_size(name: str, value: str, *others: str) -> Size:
    """Return a size, checked.

    Args:
        name: What a message calls it.
        value: The size.
        *others: What else the caller takes.

    Returns:
        The size.

    Raises:
        ValueError: If there is none of this name; for a former one the message says what it is called now.
    """
    if value in OLD_SIZES:
        raise ValueError(f"{name}: {value!r} is now 'full'")
    if value not in get_args(Size):
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join((*get_args(Size), *others))}")
    return value  # type: ignore[return-value]  # narrowed by the check above


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this many CPU threads inside the ``with`` block.

    Args:
        count: At least 1.

    Yields:
        Nothing.

    Raises:
        ValueError: If ``count`` is not a positive whole number.
    """
    count, before = whole("count", count), torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Show a progress bar on a terminal or in a notebook where somebody is, and nothing anywhere else.

    It goes when the block ends: logs stay readable, and notebooks that a program executes store no trace of it.

    Args:
        title: Text before the bar.

    Yields:
        A function to call with (done, total), or None where no bar is shown.
    """
    if is_watched():
        bar = _NotebookBar(title)
        try:
            yield bar.tell
        finally:
            bar.close()
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal or console.is_jupyter:
        yield None
        return
    with Bar(console=console, transient=True) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def is_watched() -> bool:
    """Return whether this is a notebook whose reader could be asked something, not one that a program executes."""
    kernel = _kernel()
    return kernel is not None and bool(getattr(kernel, "_allow_stdin", False))


def say(line: str) -> None:
    """Print a line for whoever is there: below the cell of a notebook, else on stderr."""
    print(line, file=sys.stderr if _kernel() is None else sys.stdout)


def _kernel() -> Any:
    """The kernel of the notebook that this process runs; None elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None)


class _NotebookBar:
    """A bar that appears when the work takes more than a moment; HTML, so that no saved notebook holds a widget."""

    def __init__(self, title: str) -> None:
        self.title, self.begun, self.drawn, self.share = title, time.monotonic(), 0.0, 0.0
        self.lock, self.place = threading.Lock(), None
        self.timer = threading.Timer(MOMENT, self.draw)  # some work says nothing for long
        self.timer.daemon = True
        self.timer.start()

    def tell(self, done: float, total: float) -> None:
        self.share = done / total
        if time.monotonic() > max(self.drawn + BETWEEN, self.begun + MOMENT):
            self.draw()

    def draw(self) -> None:
        from IPython.display import display

        with self.lock:
            if self.share < 0:  # closed
                return
            self.drawn = time.monotonic()
            seconds = self.drawn - self.begun
            left = f", about {seconds * (1 / self.share - 1):.0f} s left" if self.share > 0.02 else ""
            words = f"{self.title}: {100 * self.share:.0f} %, {seconds:.0f} s so far{left}"
            shown = {"text/html": f'<progress value="{self.share:.3f}"></progress> {words}', "text/plain": words}
            if self.place is None:
                self.place = display(shown, raw=True, display_id=True)
            else:
                self.place.update(shown, raw=True)

    def close(self) -> None:
        self.timer.cancel()
        with self.lock:
            self.share = -1.0
            if self.place is not None:
                self.place.update({}, raw=True)


def share(progress: Progress | None, number: int, parts: int) -> Progress | None:
    """Return what to tell the progress of one of several equal parts to.

    Args:
        progress: Told (work done, work in all) of the whole; may be None.
        number: Number of the part, from 0.
        parts: Number of parts.

    Returns:
        A function for the part, or None.
    """
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, parts * total)
