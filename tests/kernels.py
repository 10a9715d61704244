"""Cells run in a real kernel, whose figures are shown by the backend for notebooks."""

import os

from jupyter_client.manager import start_new_kernel


def in_a_kernel(*cells, rc=None):
    """Run cells in a kernel of their own; return for each what it shows, kind of output to content, the last of each.

    ``rc`` is the path of the settings of Matplotlib that it reads.
    """
    own = {name: value for name, value in os.environ.items() if name not in {"MPLBACKEND", "MATPLOTLIBRC"}}
    manager, client = start_new_kernel(env=own | ({"MATPLOTLIBRC": str(rc)} if rc else {}))
    shown = []

    def keep(message):
        content = message["content"]
        assert message["msg_type"] != "error", "\n".join(content["traceback"])
        shown[-1].update(content.get("data", {}))

    try:
        for cell in cells:
            shown.append({})
            client.execute_interactive(cell, output_hook=keep, timeout=120)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return shown
