"""The key `deadline` of a recipe: what it accepts, its faults with their lines, and its units."""

from datetime import UTC, datetime, timedelta

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.deadline import Work, check_deadline
from dlcloud.recipe.recipe import read_recipe

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
TEXT = """\
name: friday
instances:
  types: [c7i.large]
  count: {min: 1, max: 16}
  market: spot-then-on-demand
  on_demand_base: 1
workload:
  command: python3 train.py
  elastic: {}
budget:
  max_hours: 60
deadline:
  finish: 52h
  work: {steps: 12000, per_hour: 500}
"""


def fault(old, new):
    assert old in TEXT
    with pytest.raises(RecipeError) as caught:
        read_recipe(TEXT.replace(old, new), "r.yaml")
    return caught.value.message


def test_a_duration_counts_from_the_start_of_up():
    deadline = read_recipe(TEXT, "r.yaml").deadline
    assert deadline.at(NOW) == NOW + timedelta(hours=52)
    assert deadline.work.worker_hours == 24


def test_a_date_time_keeps_its_time_zone():
    text = TEXT.replace("52h", "2026-11-24T18:00+01:00")
    assert read_recipe(text, "r.yaml").deadline.at(NOW) == datetime(2026, 11, 24, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("52h", "tomorrow", "r.yaml:13: deadline.finish: write a duration"),
        ("52h", "2026-11-24T18:00", "r.yaml:13: deadline.finish: write a duration"),
        ("52h", "90d", "r.yaml:13: deadline.finish: a deadline is between"),
        ("52h", "999999999999w", "r.yaml:13: deadline.finish: a deadline is between"),
        ("  work: {steps: 12000, per_hour: 500}\n", "", "r.yaml:12: deadline.work: is missing"),
        ("steps: 12000, ", "", "r.yaml:14: deadline.work: name one of steps, samples, epochs"),
        ("steps: 12000", "steps: 0", "r.yaml:14: deadline.work.steps: "),
        ("  elastic: {}\n", "", "r.yaml:11: deadline: a deadline belongs to an elastic workload"),
        ("spot-then-on-demand", "spot", "r.yaml:12: deadline: a deadline needs instances.market"),
        ("{min: 1, max: 16}", "4", "r.yaml:12: deadline: a deadline changes the number of instances"),
    ],
)
def test_a_fault_of_the_deadline_has_its_line(old, new, message):
    assert fault(old, new).startswith(message)


def test_a_deadline_in_the_past_is_refused_with_its_line():
    text = TEXT.replace("52h", "2026-11-20T18:00Z")
    with pytest.raises(RecipeError, match=r"r.yaml:13: deadline.finish: .* is in the past") as caught:
        check_deadline(read_recipe(text, "r.yaml").deadline, max_hours=60, now=NOW, text=text, file="r.yaml")
    assert "later date-time" in caught.value.hint


def test_a_deadline_after_the_end_of_the_instances_is_refused():
    with pytest.raises(RecipeError, match="terminate themselves 4 h after") as caught:
        check_deadline(read_recipe(TEXT, "r.yaml").deadline, max_hours=4, now=NOW)
    assert caught.value.hint == "set budget.max_hours to 52 or more"


def test_work_converts_to_steps_once_the_batch_is_known():
    assert Work(steps=7).steps_of(None, None) == 7
    assert Work(samples=2000).steps_of(None, None) is None
    assert Work(samples=2000).steps_of(96, 1000) == 22  # the last step of an epoch has the rest
    assert Work(epochs=3).steps_of(96, 1000) == 33


def test_recipes_without_a_deadline_keep_their_hash():
    text = TEXT.partition("deadline:")[0]
    assert read_recipe(text, "r.yaml").hash == "01da2cb0ce36a974"
