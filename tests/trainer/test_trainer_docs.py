"""The whole script of docs/elastic.md, as it stands there."""

from dlcloud.elastic.agents import ALIAS
from tests.environments import ROOT


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
