"""Run one experiment in float64 where it trains in float32, and compare its verdicts with the stored ones.

``python tools/in_float64.py NAME`` prints JSON: whether the experiment computes in float32 at all, that is, whether its
numbers at smoke size change with the type, and, if so, the claims whose verdicts at the book's size are the stored ones
and those whose verdicts differ. ``tools/matrix.py`` asks it.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

import torch

from attnbook import ledger
from attnbook.registry import experiment

DEVICE = "cpu"


def main(name: str) -> None:
    """Print what was found."""
    chosen = experiment(name)
    before = chosen.at("smoke").run(device=DEVICE)
    widen()
    if chosen.at("smoke").run(device=DEVICE).equals(before):
        print(json.dumps({"float32": False}))
        return
    ready = chosen.at("book")
    found = ready.measurements(ready.run(device=DEVICE))
    same = {claim: outcome(claim, measured) for claim, measured in found.items()}
    print(json.dumps({"float32": True, **{word: [c for c in same if same[c] is to] for word, to in SORTED.items()}}))


SORTED = {"holding": True, "other": False}


def outcome(claim: str, measured: Any) -> bool:
    """Tell whether what was measured gives the verdict that is stored."""
    known = ledger.claim(claim)
    return ledger.judge(known, measured, "book").outcome == ledger.recorded(known, "book").outcome


def widen() -> None:
    """Let every loaded function of the package whose default type is float32 take float64."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "attnbook"]
    for function in {one for module in modules for one in vars(module).values() if inspect.isfunction(one)}:
        defaults = function.__kwdefaults__ or {}
        if defaults.get("dtype") is torch.float32:
            function.__kwdefaults__ = defaults | {"dtype": torch.float64}


if __name__ == "__main__":
    main(sys.argv[1])
