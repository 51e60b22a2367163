"""Simple rules next to the model: a type's speed by cores and clock, or by its PassMark.

Evaluations print their errors next to the model's. The first choice is by the mean of model and PassMark,
which names the cheapest more often than either where few types were measured.
"""

from collections.abc import Mapping
from math import log

from dlcloud.prediction.measured_types import TypeTable

PASSMARK = "passmark-summ_cpu"
CORES_BY_CLOCK, BY_PASSMARK = "cores x clock", "PassMark"
FEW_MEASURED = 4
"""With more measured types the model alone names the cheapest more often.

Source: with eight measured types, 63 against 57 % of the tests in a sketch of this model in NumPy.
"""


def rule_levels(table: TypeTable) -> dict[str, dict[str, float]]:
    """Return the logarithm of each type's speed by each rule, up to a constant."""
    traits = {name: row.traits for name, row in table.rows.items()}
    rules = {
        CORES_BY_CLOCK: {name: log(one.cores * one.processor.ghz) for name, one in traits.items()},
    }
    place = next((j for j, one in enumerate(table.references) if one.name == PASSMARK), None)
    if place is not None:
        rules[BY_PASSMARK] = {name: row.levels[place] for name, row in table.rows.items()}
    return rules


def first_choice(
    table: TypeTable, hourly_usd: Mapping[str, float], predicted: Mapping[str, float], measured: int
) -> str:
    """Return the type with the most per USD by the mean of prediction and PassMark; empty without a ground.

    Args:
        table: Of the types.
        hourly_usd: Prices of the types that may be named.
        predicted: The throughput of each.
        measured: How many types the job was measured on.
    """
    levels = rule_levels(table).get(BY_PASSMARK)
    if levels is None or not hourly_usd or measured > FEW_MEASURED:
        return ""
    return max(hourly_usd, key=lambda name: levels[name] + log(predicted[name]) - 2 * log(hourly_usd[name]))
