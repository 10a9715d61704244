"""Runs the formulas of a training panel's script: in Node where there is one, else in a headless Chromium."""

import json
import shutil
import subprocess
from pathlib import Path

STYLE = Path(__file__).parent.parent / "style"


def run(script, code, request):
    """Return what an expression over a script's formulas gives.

    Args:
        script: Name of the script's file in ``style``; without a document it only defines its formulas.
        code: Body of a function whose result can be written as JSON.
        request: The test's; asks for the browser where there is no Node.

    Returns:
        The result.
    """
    source = (STYLE / script).read_text(encoding="utf-8")
    if node := shutil.which("node"):
        whole = f"{source}\nconsole.log(JSON.stringify((() => {{{code}}})()));"
        done = subprocess.run([node, "-"], input=whole, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    page = request.getfixturevalue("browser").new_page()
    try:  # shadowing the document's name, so that the script stops at its formulas here, too
        return page.evaluate(f"() => {{ {{ let document; {source} }} {code} }}")
    finally:
        page.close()
