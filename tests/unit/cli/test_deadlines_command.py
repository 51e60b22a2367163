"""`dlcloud deadlines`: traces in, a table and a curve of cost against deadline out."""

import json

import pytest
from click.testing import CliRunner

from dlcloud.cli.deadlines import deadlines as command
from dlcloud.model.errors import RecipeError

RECIPE = """\
name: train
instances:
  types: [p3.2xlarge]
  count: {min: 1, max: 4}
  market: spot-then-on-demand
  on_demand_base: 1
workload:
  command: python3 train.py
  elastic: {}
budget: {max_hours: 60}
deadline:
  finish: 12h
  work: {steps: 1000, per_hour: 50}
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    recipe = tmp_path / "recipe.yaml"
    for zone, counts in (("zone-a", [4] * 10 + [0] * 10), ("zone-b", [0] * 10 + [4] * 10)):
        file = tmp_path / "traces" / zone / "0.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"metadata": {"gap_seconds": 3600}, "data": counts, "prices": [1.0] * 20}))

    def run(*arguments, text=RECIPE):
        recipe.write_text(text)
        words = [str(recipe), "--traces", str(tmp_path / "traces"), "--pooled", *arguments]
        done = CliRunner().invoke(command, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done

    run.folder = tmp_path
    return run


def test_each_deadline_and_choice_of_pools_is_a_row(plan):
    done = plan("--deadline", "6h", "--deadline", "1d", "--output", "json")
    rows = json.loads(done.stdout)["result"]["records"]
    assert [(row["hours"], row["pools"]) for row in rows] == [
        (hours, pools) for hours in (6, 24) for pools in ("all 2 pools", "zone-a", "zone-b")
    ]
    assert all(row["usd"] <= row["on_demand_usd"] * 1.01 and row["missed"] == 0 for row in rows)
    assert rows[2]["usd"] > rows[0]["usd"]  # zone-b has nothing in the first hours
    assert rows[5]["usd"] < rows[2]["usd"]


def test_the_recipe_s_deadline_and_a_ladder_are_the_default(plan):
    rows = json.loads(plan("--output", "json").stdout)["result"]["records"]
    hours = sorted({row["hours"] for row in rows})
    assert 12 in hours
    assert len(hours) == 7
    assert hours[0] > 5  # 20 worker-hours on 4 workers


def test_the_curve_is_drawn(plan):
    path = plan.folder / "curve.svg"
    assert "written" in plan("--plot", str(path)).stderr
    assert "all on-demand" in path.read_text() or path.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["--deadline", "1h"], RECIPE, "is too early: 4 workers on-demand take 5.0 h"),
        (["--plot", "curve.gif"], RECIPE, "which format"),
        ([], RECIPE.replace(", per_hour: 50", ""), "how much work is it"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_hint(plan, arguments, text, message):
    with pytest.raises(RecipeError, match=message) as caught:
        plan(*arguments, text=text)
    assert caught.value.hint
