"""Print the package index from which pip should take torch, or nothing: ``make`` asks it before it installs.

On Linux, PyPI's torch brings gigabytes of CUDA libraries. Without an NVIDIA GPU the CPU build of the same version is as
good, and PyTorch's own index has it. It is named only where it answers at once: behind a mirror, or without a network,
this prints nothing, and pip looks where it always looks. It also keeps out of the way where pip was told where to look.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import urllib.request

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PATIENCE = 2.0  # seconds
TOLD = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX")


def wanted() -> str:
    """Return the index, or an empty text: pip's own ways are right."""
    if sys.platform != "linux" or shutil.which("nvidia-smi") or any(os.environ.get(name) for name in TOLD):
        return ""
    return CPU_INDEX if answers(f"{CPU_INDEX}/torch/") else ""


def answers(address: str, patience: float = PATIENCE) -> bool:
    """Tell whether an address answers, and wait no longer: to look up a name can take far more than a timeout.

    Args:
        address: What to ask for.
        patience: Seconds.

    Returns:
        Whether it answered with success in time.
    """
    success = threading.Event()

    def ask() -> None:
        try:
            request = urllib.request.Request(address, method="HEAD")
            with urllib.request.urlopen(request, timeout=patience) as answer:
                if answer.status == 200:
                    success.set()
        except (OSError, ValueError):  # no network, no such name, refused, a strange proxy
            pass
        ended.set()

    ended = threading.Event()
    threading.Thread(target=ask, daemon=True).start()  # a daemon: the process does not wait for it
    ended.wait(patience)
    return success.is_set()


if __name__ == "__main__":
    print(wanted())
