"""`workload.nodes: all`: where it belongs, and what a job over several nodes costs."""

from decimal import Decimal

import pytest

from dlcloud.analysis.cost import RunCost, cost_of_nodes
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe

JOB = """
name: job
instances: {types: c5.large, count: 2}
workload: {nodes: all, command: torchrun train.py}
"""


def cost(usd: str | None, *, final: bool = True) -> RunCost:
    return RunCost(
        boot_s=1,
        setup_s=1,
        run_s=8,
        rest_s=0,
        instance_usd=None if usd is None else Decimal(usd),
        volume_usd=Decimal(1),
        final=final,
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("command: torchrun train.py", "benchmark: quantization", "belongs to a command"),
        ("train.py", "train.py, elastic: {}", "belongs to a command that is not elastic"),
        ("nodes: all, command: torchrun train.py}", "command: a}\nkeep: {all_nodes: true}", "keep.all_nodes"),
    ],
)
def test_a_job_over_all_nodes_is_a_command_that_is_not_elastic(old, new, message):
    with pytest.raises(RecipeError, match=message):
        read_recipe(JOB.replace(old, new), "r.yaml")


def test_one_job_may_be_spread_over_zones():
    text = JOB.replace("count: 2", "count: 2, spread_zones: true")
    assert read_recipe(text, "r.yaml").instances.spread_zones


def test_a_job_costs_what_its_nodes_cost_together():
    together = cost_of_nodes([cost("2"), cost("3", final=False)], 2)
    assert (together.instance_usd, together.volume_usd, together.final) == (5, 2, False)
    assert together.run_s == 8


def test_nodes_that_an_import_lacks_are_taken_to_cost_the_same():
    assert cost_of_nodes([cost("2")], 3).usd == 9
    assert cost_of_nodes([cost(None), cost("2")], 2).usd is None
