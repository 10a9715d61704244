"""Long runs in a real kernel: a bar that goes, an interrupt in one line, and the same numbers after it."""

import os
import time
from pathlib import Path
from queue import Empty

import pytest
from jupyter_client.manager import start_new_kernel

BEGIN = """
from toy_experiment import Toy
Toy.__module__ = "attnbook.toy"  # only the package's own are kept
toy = Toy(seeds=(0, 1, 2, 3, 4), chunk=1, seconds=0.7, log={log!r})
"""
RUN = "data = toy.run(device='cpu'); print('drawn', float(data.drawn.sum()))"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel in which the tiny experiment takes 0.7 seconds a seed; a folder gets a file for each that is trained."""
    log = tmp_path_factory.mktemp("log")
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    environment = os.environ | {"PYTHONPATH": path, "ATTNBOOK_CACHE": str(tmp_path_factory.mktemp("cache"))}
    manager, client = start_new_kernel(kernel_name="python3", env=environment)
    assert execute(client, BEGIN.format(log=str(log))) == []
    yield client, manager, log
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def execute(client, code, *, watched=True, act=None):
    """What a cell shows, as (kind, content); something is done again and again until it succeeds."""
    asked, begun, shown = client.execute(code, allow_stdin=watched), time.monotonic(), []
    while True:
        try:
            message = client.get_iopub_msg(timeout=0.1)
        except Empty:
            assert time.monotonic() < begun + 60
            message = None
        if act and act():
            act = None
        if message is None or message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return shown
        if kind not in ("status", "execute_input"):
            shown.append((kind, content))


def printed(shown):
    """The lines on stdout; there is nothing else."""
    assert {kind for kind, _ in shown} == {"stream"}
    assert {content["name"] for _, content in shown} == {"stdout"}
    return "".join(content["text"] for _, content in shown).splitlines()


def test_an_interrupted_run_is_one_line_and_continues_to_the_same_numbers(kernel):
    client, manager, log = kernel

    def interrupt():
        if third := len(list(log.iterdir())) == 3:  # seeds have begun
            manager.interrupt_kernel()
        return third

    shown = execute(client, RUN, act=interrupt)
    (error,) = (content for kind, content in shown if kind == "error")
    (line,) = error["traceback"]
    assert line == "stopped after 2 of 5 seeds; run again to continue"
    assert [kind for kind, _ in shown if kind == "stream"] == []
    continued, drawn = printed(execute(client, RUN, watched=False))
    assert len(list(log.iterdir())) == 6  # the one that was interrupted began twice
    assert continued == "toy.draws: 2 of 5 seeds were kept by a run that was stopped; it continues"
    assert printed(execute(client, RUN.replace("toy.run", "Toy(seeds=toy.seeds).run"), watched=False)) == [drawn]


def test_a_bar_appears_in_a_long_run_and_goes(kernel):
    client, *_ = kernel
    shown = execute(client, RUN)
    (first, *later) = (content for kind, content in shown if kind.endswith("display_data"))
    assert [kind for kind, _ in shown].count("display_data") == 1
    assert first["data"]["text/html"].startswith('<progress value="0.')
    assert first["data"]["text/plain"].startswith("toy.draws: ")
    assert len(later) > 1
    assert later[-1]["data"] == {}
    assert {content["name"] for kind, content in shown if kind == "stream"} == {"stdout"}


@pytest.mark.parametrize(("code", "watched"), [(RUN, False), (RUN.replace("toy.run", "Toy().run"), True)])
def test_a_notebook_that_a_program_executes_and_a_short_run_show_no_bar(code, watched, kernel):
    """What is stored is then the same on every machine."""
    assert len(printed(execute(kernel[0], code, watched=watched))) == 1
