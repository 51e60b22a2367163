"""`dlcloud deadlines` and `dlcloud simulate`: recipes and traces in, tables and pictures out."""

import json

import pytest
from click.testing import CliRunner

from dlcloud.cli.deadlines import deadlines
from dlcloud.cli.deadlines import simulate as simulate_command
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import SLOW_BOOT_S

RECIPE = """\
name: train
instances:
  types: [p3.2xlarge]
  count: {min: 1, max: 4}
  market: spot-then-on-demand
  on_demand_base: 0
workload:
  command: python3 train.py
"""
TRAINS = (
    RECIPE.replace("on_demand_base: 0", "on_demand_base: 1")
    + """\
  elastic: {}
budget: {max_hours: 60}
deadline:
  finish: 12h
  work: {steps: 1000, per_hour: 50}
"""
)


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Return what runs a command with a recipe."""
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))

    def run(command, text, *arguments):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(text)
        done = CliRunner().invoke(command, [str(recipe), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done

    return run


def write_window(path, counts, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"metadata": {"gap_seconds": 3600, "meaning": "obtainable"}, "data": counts} | more)
    )


@pytest.fixture
def plan(tmp_path, invoke):
    for zone, counts in (("zone-a", [4] * 10 + [0] * 10), ("zone-b", [0] * 10 + [4] * 10)):
        write_window(tmp_path / "traces" / zone / "0.json", counts, prices=[1.0] * 20)

    def run(*arguments, text=TRAINS):
        return invoke(deadlines, text, "--traces", str(tmp_path / "traces"), "--pooled", *arguments)

    run.folder = tmp_path
    return run


@pytest.fixture
def simulate(tmp_path, invoke):
    def run(*arguments, text=RECIPE):
        return invoke(simulate_command, text, *arguments).stdout

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
        (["--deadline", "1h"], TRAINS, "is too early: 4 workers on-demand take 5.0 h"),
        (["--plot", "curve.gif"], TRAINS, "which format"),
        ([], TRAINS.replace(", per_hour: 50", ""), "how much work is it"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_hint(plan, arguments, text, message):
    with pytest.raises(RecipeError, match=message) as caught:
        plan(*arguments, text=text)
    assert caught.value.hint


def records(output):
    return json.loads(output)["result"]["records"]


def test_each_file_is_a_window_and_each_deadline_a_table(simulate):
    write_window(simulate.folder / "traces" / "zone-a" / "0.json", [1, 0, 1, 1, 0, 1, 1, 1])
    write_window(simulate.folder / "traces" / "zone-a" / "1.json", [0] * 8)
    traces = str(simulate.folder / "traces")
    rows = records(
        simulate("--traces", traces, "--work", "4", "--deadline", "6", "--deadline", "8", "-o", "json")
    )
    assert {row["deadline_hours"] for row in rows} == {6, 8}
    elastic = [row for row in rows if row["policy"] == "elastic"]
    assert [row["windows"] for row in elastic] == [2, 2]
    assert [row["missed"] for row in elastic] == [0, 0]
    assert elastic[1]["cost_over_on_demand"] < elastic[0]["cost_over_on_demand"] < 1.001


def test_a_boot_takes_as_long_as_measured_unless_said_otherwise(simulate):
    arguments = ("--generate", "1", "--work", "4", "--deadline", "6", "--policy", "elastic", "-o", "json")
    assert {row["boot_seconds"] for row in records(simulate(*arguments))} == {SLOW_BOOT_S}
    assert {row["boot_seconds"] for row in records(simulate(*arguments, "--boot", "0"))} == {0}


def test_folders_can_be_pools_of_the_same_windows(simulate):
    write_window(simulate.folder / "traces" / "zone-a" / "0.json", [1, 0] * 6)
    write_window(simulate.folder / "traces" / "zone-b" / "0.json", [0, 1] * 6)
    arguments = ("--traces", str(simulate.folder / "traces"), "--pooled", "--work", "4", "--deadline", "6")
    (row,) = [row for row in records(simulate(*arguments, "-o", "json")) if row["policy"] == "elastic"]
    assert row["windows"] == 1
    assert row["on_demand_share"] == 0


def test_generated_windows_and_the_worst_ones_need_no_files(simulate):
    common = ("--work", "4", "--deadline", "6", "--policy", "elastic")
    assert "elastic" in simulate("--generate", "1", "--windows", "3", *common)
    worst = ("--adversary", "--refuse-first", "3600", "--refusal", "3600")
    rows = records(simulate(*worst, *common, "-o", "json"))
    assert rows[0]["missed"] == 0


def test_the_recipes_on_demand_base_is_never_left(simulate):
    text = RECIPE.replace("on_demand_base: 0", "on_demand_base: 1")
    arguments = ("--generate", "1", "--up-hours", "900", "--down-hours", "0.01", "--policy", "elastic")
    (row, _) = records(simulate(*arguments, "--work", "4", "--deadline", "6", "-o", "json", text=text))
    assert row["on_demand_share"] == pytest.approx(1 / 4, abs=0.02)


def test_work_and_deadline_come_from_the_recipe(simulate):
    (row, _) = records(simulate("--generate", "1", "--policy", "greedy", "-o", "json", text=TRAINS))
    assert (row["work_worker_hours"], row["deadline_hours"], row["workers"]) == (20, 12, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--work", "4", "--deadline", "6"], "which traces?"),
        (["--generate", "1", "--deadline", "6"], "how much work is it?"),
        (["--generate", "1", "--work", "4"], "what is the deadline?"),
        (["--generate", "1", "--work", "7", "--deadline", "6"], "too early"),
        (["--traces", "nowhere", "--work", "4", "--deadline", "6"], "no such folder"),
        (["--generate", "1", "--work", "4", "--deadline", "6", "--plot", "a.gif"], "which format?"),
        (
            ["--generate", "1", "--work", "4", "--deadline", "6", "--plot", "a.svg", "--window", "x"],
            "no such",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(simulate, arguments, message):
    with pytest.raises(RecipeError, match=message.replace("?", r"\?")):
        simulate(*arguments)


def test_a_damaged_trace_is_named_with_its_line(simulate):
    folder = simulate.folder / "traces"
    folder.mkdir()
    (folder / "a.csv").write_text("0,add,n1\n5,explode,n1\n")
    with pytest.raises(RecipeError, match=r"a\.csv:2: 'explode' is not an event"):
        simulate("--traces", str(folder), "--work", "4", "--deadline", "6")


def test_a_window_is_drawn_as_svg(simulate):
    pytest.importorskip("vl_convert")
    picture = simulate.folder / "window.svg"
    simulate("--generate", "1", "--windows", "1", "--work", "4", "--deadline", "6", "--plot", str(picture))
    text = picture.read_text()
    assert "on-demand" in text
    assert "work done" in text
