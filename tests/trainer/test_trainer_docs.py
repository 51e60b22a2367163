"""The whole script of docs/elastic.md, and the data of a bundled recipe, as they stand there."""

import pytest

from dlcloud.elastic.agents import ALIAS
from tests.environments import ROOT


@pytest.mark.long
def test_the_script_of_the_page_trains(run_program, alone):
    (alone / "dlcloud").mkdir()
    (alone / "dlcloud" / "__init__.py").write_bytes(ALIAS)
    page = (ROOT / "docs" / "elastic.md").read_text("utf-8")
    script = alone / "train.py"
    script.write_text(page.partition("```python\n")[2].partition("```")[0], "utf-8")
    output = run_program(script.name)
    losses = [float(line.rpartition(" ")[2]) for line in output.splitlines() if " steps, loss " in line]
    assert len(losses) == 160 // 20
    assert losses[-1] < losses[0] / 10
    assert (alone / "model.pt").stat().st_size > 0


def test_the_data_of_the_bundled_recipe_are_enough_to_train_on(run_program):
    data = ROOT / "recipes" / "data" / "digits"
    assert "steps 6, accuracy" in run_program(
        "-m", "trainer.examples.digits", "--data", str(data), "--epochs", "2"
    )
