"""The example notebook runs from top to bottom and ends with a figure."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "evaluate.ipynb"


def test_the_example_notebook_runs_and_shows_progress_and_table(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=120, resources=place).execute()
    assert (tmp_path / "accuracy.svg").stat().st_size > 1000
    evaluated = next(cell for cell in notebook.cells if "prb.evaluate(" in cell.source)
    assert any("mine" in output.get("text", "") for output in evaluated.outputs), "progress"
    assert "<table>" in evaluated.outputs[-1]["data"]["text/html"]
