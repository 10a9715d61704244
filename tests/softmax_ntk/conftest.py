"""What the tests of the chapters share: a file names its chapter in `own`, the script."""

import json
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def cells(request):
    """The sources of the chapter's code cells."""
    page = Path(request.module.own.__file__).with_suffix(".ipynb").read_text(encoding="utf-8")
    return ["".join(cell["source"]) for cell in json.loads(page)["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def program(cells, request):
    """The names that the program of the page defines, which is short and calls nothing of the book."""
    (source,), names = [cell for cell in cells if "def train(" in cell], {}
    most = getattr(request.module, "MOST_LINES", 40)
    assert len([line for line in source.splitlines() if line.strip()]) <= most
    assert "attnbook" not in source
    before = torch.get_default_dtype()
    exec(source, names)
    yield names
    torch.set_default_dtype(before)
