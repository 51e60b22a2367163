"""Which requests a plan means: pools, markets, the on-demand base, limits; and a request as text."""

from dataclasses import replace
from decimal import Decimal

from dlcloud.core.attempts import MOST_POOLS, LaunchAttempt, next_attempt
from dlcloud.core.instance import Market
from dlcloud.core.plan import make_plan
from tests.fakes.samples import RECIPE, observed, plan, price, recipe

ONE = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[c7i.xlarge]")
SPOT = ONE.replace("  count: 2\n", "  count: 4\n  market: spot\n")
PRICES = (price(), price(usd="0.06", market=Market.SPOT))


def ask(text, market, *prices, missing=4, on_demand=0, **other):
    made = plan(text, *prices) if prices else plan(text)
    return next_attempt(made, market, missing=missing, on_demand=on_demand, attempt=0, **other)


def test_one_on_demand_type_is_one_request_without_a_zone():
    attempt = ask(ONE, Market.ON_DEMAND, missing=2)
    assert attempt.single
    assert attempt.pools == (("c7i.xlarge", ""),)
    assert (attempt.spot_count, attempt.on_demand_count) == (0, 2)


def test_what_it_gave_in_part_is_completed_zone_by_zone():
    attempt = ask(ONE, Market.ON_DEMAND, missing=1, spread=True)
    assert not attempt.single
    assert attempt.pools == (("c7i.xlarge", "us-east-1a"), ("c7i.xlarge", "us-east-1b"))


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
    assert ask(SPOT, Market.SPOT, *PRICES).max_usd == {}
    limited = ask(SPOT + "budget: {max_usd: 9}\n", Market.SPOT, *PRICES)
    assert limited.max_usd == {"c7i.xlarge": Decimal("0.06") * Decimal("1.2")}


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
