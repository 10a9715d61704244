"""Write requirements.lock: the exact versions of the tested environment, with hashes for all but torch.

torch is left out because its builds differ by platform and accelerator; requirements.txt pins its version.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# Exact versions of the tested environment (Linux, Python {version}), hashes for all but torch.
# Made by `make lock`. To install:
#   pip install {torch}
#   pip install --no-deps --require-hashes -r requirements.lock
#   pip install --no-deps -e .
"""
OPTIONS = [
    "--quiet", "--generate-hashes", "--allow-unsafe", "--strip-extras", "--no-annotate", "--no-header",
    "--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links",
]  # fmt: skip


def main() -> None:
    """Resolve requirements.txt and the package's own dependencies, and write the lock file."""
    wanted = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==\S+", wanted, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        others, lock = Path(folder, "requirements.in"), Path(folder, "requirements.lock")
        others.write_text(wanted.replace("\n-e .\n", "\n"), encoding="utf-8")
        compiler = [sys.executable, "-m", "piptools", "compile", *OPTIONS]
        subprocess.run([*compiler, "-o", str(lock), "pyproject.toml", str(others)], cwd=ROOT, check=True)
        # One block per package: its line and the hashes behind it.
        blocks = re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip())
    kept = [block for block in blocks if not block.startswith(("torch==", "#"))]
    head = HEAD.format(version=".".join(map(str, sys.version_info[:2])), torch=torch.group() if torch else "torch")
    (ROOT / "requirements.lock").write_text(head + "\n".join(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
