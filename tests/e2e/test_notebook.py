"""The notebook of the documentation: every cell runs, and its tables and charts show themselves."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: the notebook is not executed")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel", reason="ipykernel is missing: the notebook is not executed")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "python.ipynb"


@pytest.mark.long
def test_every_cell_of_the_notebook_runs_and_shows_itself(user):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert len(notebook.cells) == 10
    client = nbclient.NotebookClient(
        notebook, timeout=user.timeout_s, resources={"metadata": {"path": str(user.home)}}
    )
    client.execute(env=user.environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    plan, trials, chart = pages
    assert "plan of notebook on local" in plan
    assert "4 of 4 trials have a result" in trials
    assert "<svg" in chart
    assert "0.3" in str(outputs[3])
    assert "name: must be lower-case letters" in str(outputs[-1])
    assert user.alive() == []
