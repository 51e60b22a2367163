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


def rankings_by_passmark(
    passmark: Mapping[str, float], hourly_usd: Mapping[str, float], predicted: Mapping[str, float]
) -> list[list[str]]:
    """Return the types by what they do per USD, by the mean of prediction and PassMark and by PassMark alone.

    Args:
        passmark: The logarithm of each type's PassMark.
        hourly_usd: Prices of the types that may be named.
        predicted: The throughput of each.
    """
    prices = {name: log(usd) for name, usd in hourly_usd.items()}
    return [
        sorted(prices, key=lambda name: 2 * prices[name] - passmark[name] - log(predicted[name])),
        sorted(prices, key=lambda name: prices[name] - passmark[name]),
    ]
