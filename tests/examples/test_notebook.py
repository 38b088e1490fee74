"""The notebook among the examples runs, in a kernel of its own, and what it ends its cells with displays as HTML."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_look.ipynb"

SHOWN = {
    "explain(": r"<table>.*encoder\.layer\.\*\.output\.dense.*kept with a reason",
    "report(": r"<table>.*encoder\.layer\.\*\.output\.dense.*kept with a reason",
    "run.graph": r'<div style="[^"]*overflow:auto"><img alt="Sequential" src="data:image/svg\+xml;base64,',
    "run.profile(": r"us a call.*<table>.*k0_matmul_add_mul.*roofline:",
    "evaluate(": r'<td>%0</td><td>parameter</td>.*style="text-align:right".*\d+ values, ',
}
"""What the last line of a cell begins with -> a pattern of its HTML. A cell that is not here shows nothing."""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name))
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    return notebook


@pytest.mark.exhaustive
def test_every_cell_shows_what_it_ends_with_and_warns_of_nothing(executed: nbformat.NotebookNode) -> None:
    cells = [cell for cell in executed.cells if cell.cell_type == "code"]
    found = {}
    for cell in cells:
        assert all(output.output_type != "stream" for output in cell.outputs), cell.outputs
        (shown,) = cell.outputs
        found[cell.source.splitlines()[-1].partition("(")[0]] = shown.data
    assert found.keys() == {start.rstrip("(") for start in SHOWN}
    for start, pattern in SHOWN.items():
        html = found[start.rstrip("(")]["text/html"]
        assert re.search(pattern, html, re.DOTALL), html[:2000]
        assert "<script" not in html and "http" not in re.sub(r"base64,[\w+/=]*", "", html)
        assert found[start.rstrip("(")]["text/plain"]


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    kept = [cell for cell in cells if cell["cell_type"] == "code"]
    assert kept and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in kept)
