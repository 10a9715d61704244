"""Cells run in a real kernel, whose figures are shown by the backend for notebooks."""

import os
from pathlib import Path

from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parent.parent


def in_a_kernel(*cells, folder=ROOT):
    """Run cells in a kernel of their own, in a folder; return what each shows, kind to content, the last of a kind."""
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), own.get("PYTHONPATH")]))
    manager, client = start_new_kernel(env=own, cwd=str(folder))
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
