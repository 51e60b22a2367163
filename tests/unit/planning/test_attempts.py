"""Which requests a plan means: pools, markets, the on-demand base, limits; and a request as text."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.model.errors import CapacityError, CloudError, QuotaError, StoreError
from dlcloud.model.instance import Market
from dlcloud.planning.attempts import (
    ANY_ZONE,
    EVERY_ZONE,
    MOST_POOLS,
    LaunchAttempt,
    next_attempt,
    next_zone,
)
from dlcloud.planning.launch_request import PoolRefusal
from dlcloud.planning.plan import make_plan
from tests.fakes.samples import RECIPE, observed, plan, price, recipe

ONE = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[c7i.xlarge]")
SPOT = ONE.replace("  count: 2\n", "  count: 4\n  market: spot\n")
A, B = "us-east-1a", "us-east-1b"
TRAINS = SPOT.replace("benchmark: quantization", "command: ./train\n  elastic: {}").replace(
    "  market: spot\n", "  market: spot\n  on_demand_base: 1\n"
)
PRICES = (price(), price(usd="0.06", market=Market.SPOT))


def ask(text, market, *prices, missing=4, on_demand=0, **other):
    made = plan(text, *prices) if prices else plan(text)
    return next_attempt(made, market, missing=missing, on_demand=on_demand, attempt=0, **other)


def test_several_types_are_asked_at_once_in_every_zone_the_first_first():
    attempt = ask(RECIPE, Market.ON_DEMAND)
    assert [name for name, _ in attempt.pools] == ["c7i.xlarge"] * 2 + ["c6i.xlarge"] * 2


def test_spot_is_asked_in_every_zone():
    attempt = ask(SPOT, Market.SPOT, *PRICES)
    assert not attempt.single
    assert (attempt.spot_count, attempt.on_demand_count) == (4, 0)


def test_a_base_is_on_demand_and_counts_what_is_there():
    text = SPOT.replace("  market: spot\n", "  market: spot\n  on_demand_base: 2\n")
    assert (ask(text, Market.SPOT, *PRICES).spot_count, ask(text, Market.SPOT, *PRICES).on_demand_count) == (
        2,
        2,
    )
    later = ask(text, Market.SPOT, *PRICES, missing=3, on_demand=1)
    assert (later.spot_count, later.on_demand_count) == (2, 1)


def test_spot_may_cost_no_more_than_the_budget_was_computed_with():
    assert ask(SPOT, Market.SPOT, *PRICES).max_hourly_usd == {}
    limited = ask(SPOT + "budget: {max_usd: 9}\n", Market.SPOT, *PRICES)
    assert limited.max_hourly_usd == {"c7i.xlarge": Decimal("0.06") * Decimal("1.2")}


def test_more_pools_than_a_fleet_takes_are_asked_without_zones():
    zones = tuple(f"us-east-1{letter}{number}" for letter in "abc" for number in range(60))
    made = make_plan(recipe(), observed(zones=zones))
    attempt = next_attempt(made, Market.ON_DEMAND, missing=1, on_demand=0, attempt=0)
    assert len(zones) * 2 > MOST_POOLS
    assert attempt.pools == (("c7i.xlarge", ""), ("c6i.xlarge", ""))


def test_a_request_comes_back_from_its_text_as_it_was():
    attempt = ask(SPOT + "budget: {max_usd: 9}\n", Market.SPOT, *PRICES)
    assert LaunchAttempt.from_text(attempt.to_text()) == attempt
    assert replace(attempt, attempt=1).to_text() != attempt.to_text()


def test_spot_instances_choose_the_zone_of_a_training():
    attempt = ask(TRAINS, Market.SPOT, *PRICES)
    assert (attempt.spot_count, attempt.on_demand_count) == (3, 0)
    assert attempt.single_zone
    assert [zone for _, zone in attempt.pools] == [A, B]


def refused(error):
    return [PoolRefusal(pool="c7i.xlarge spot", zone=A, error=error)]


def test_all_zones_are_asked_only_for_what_another_zone_could_give():
    spot = ask(TRAINS, Market.SPOT, *PRICES)
    rest = ask(TRAINS, Market.SPOT, *PRICES, missing=2, zone=A)
    denied = CloudError("denied")
    denied.is_final = True
    scarce, quota = refused(CapacityError("none")), refused(QuotaError("limit"))
    assert next_zone(ANY_ZONE, spot, [], missing=4, home=A) == A
    assert next_zone(ANY_ZONE, spot, scarce, missing=4, home="") == EVERY_ZONE
    assert next_zone(A, rest, scarce, missing=2, home=A) == EVERY_ZONE
    assert next_zone(A, rest, quota, missing=2, home=A) is None
    assert next_zone(A, rest, refused(denied), missing=2, home=A) is None
    assert next_zone(EVERY_ZONE, rest, scarce, missing=2, home=A) is None


READABLE = json.loads(ask(SPOT, Market.SPOT, *PRICES).to_text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[" * 100_000,
        json.dumps(READABLE[:3]),
        *(
            json.dumps([*READABLE[:place], wrong, *READABLE[place + 1 :]])
            for place, wrong in (
                (0, []),
                (0, [["c7i.xlarge"]]),
                (1, "x"),
                (1, -1),
                (2, 1e400),
                (3, None),
                (3, ["ami-0"]),
                (4, 10**30),
                (5, []),
                (5, {"c7i.xlarge": "x"}),
                (5, {"c7i.xlarge": "nan"}),
                (6, [1]),
            )
        ),
    ],
)
def test_a_stored_text_that_is_no_request_is_an_error_of_the_store(text):
    with pytest.raises(StoreError, match="launch request in the store"):
        LaunchAttempt.from_text(text)
