"""Where groups of seeds run: here, in processes of this machine, or on the workers of a dask scheduler."""

from __future__ import annotations

import asyncio
import importlib.metadata
import multiprocessing
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

import attnbook
from attnbook.core import runtime

__all__ = ["call_off", "connected", "executor_on", "parse_where"]

WAIT_SECONDS = 10  # for a scheduler to answer


def parse_where(where: str) -> int | str | None:
    """Read the option ``--on``.

    Args:
        where: ``here``, ``processes:N``, or the address of a scheduler such as ``tcp://host:8786``.

    Returns:
        None for here, the number of processes, or the address.

    Raises:
        ValueError: If it is none of these.
    """
    where = str(where)
    if where == "here":
        return None
    if match := re.fullmatch(r"processes:([1-9]\d*)", where):
        return int(match[1])
    if re.fullmatch(r"(tcp|tls|ucx|ws|wss)://.+:\d+", where):
        return where
    raise ValueError(f"on: got {where!r}, expected here, processes:N or the address of a scheduler, tcp://host:port")


@contextmanager
def executor_on(where: str) -> Iterator[Executor | None]:
    """Open the executor that ``--on`` names; what still waits when the block is left by an error is called off.

    Args:
        where: As for :func:`parse_where`.

    Yields:
        The executor; None for here.

    Raises:
        ValueError: If a scheduler does not answer, or a worker has another version of this package.
    """
    wanted = parse_where(where)
    if wanted is None:
        yield None
    elif isinstance(wanted, int):
        threads = max(1, (os.cpu_count() or 1) // wanted)
        # spawned, not forked: a copy of a process in which torch has threads may hang
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(wanted, context, _begin, (threads,)) as pool:
            yield pool
    else:
        with connected(wanted) as client:
            yield client.get_executor()


def call_off(executor: Executor) -> None:
    """Wait for nothing any more: what is submitted and has not begun never will."""
    if isinstance(executor, ProcessPoolExecutor):
        executor.shutdown(wait=False, cancel_futures=True)
    else:  # dask's calls off whatever it does not wait for
        executor.shutdown(wait=False)


def _begin(threads: int) -> None:
    """Set up a worker; it ends with the process that began it, which tells nobody when it is killed."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a scheduler.

    Args:
        address: For example ``tcp://host:8786``.

    Yields:
        Its client.

    Raises:
        ValueError: If it does not answer, or a worker has another version of this package.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(f"on: {address} needs dask; install it with pip install 'attnbook[cluster]'") from error
    try:
        with ThreadPoolExecutor(1) as apart:  # a notebook's own thread has an event loop
            apart.submit(asyncio.run, _answer(address)).result()
        client = Client(address, timeout=WAIT_SECONDS)
    except Exception as error:  # of whatever listens there instead
        raise ValueError(
            f"on: no scheduler answers at {address} within {WAIT_SECONDS} s; start one with `dask scheduler`"
        ) from error
    with client:
        _check_versions(client.run(importlib.metadata.version, "attnbook", on_error="return"))
        if not client.scheduler_info()["workers"]:  # they may come later
            runtime.say(f"on: waiting for a worker at {address}; start one with `dask worker {address}`")
        yield client


async def _answer(address: str) -> None:
    """Wait for a scheduler's first words; ``Client`` would wait for ever where something else listens."""
    from distributed.comm import connect

    comm = await asyncio.wait_for(connect(address, timeout=WAIT_SECONDS), WAIT_SECONDS)
    await comm.close()


def _check_versions(found: dict[str, Any]) -> None:
    """Refuse workers that would compute something else."""
    expected = attnbook.__version__
    wrong = {worker: version for worker, version in found.items() if version != expected}
    if wrong:
        worker, version = next(iter(wrong.items()))
        has = f"attnbook {version}" if isinstance(version, str) else "no attnbook"
        others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(f"on: worker {worker}{others} has {has}; install {expected} there and start it again")
