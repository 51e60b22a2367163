"""What is launched and what ends when a cluster is to have another size."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcloud.model.errors import BudgetError, QuotaError, RecipeError
from dlcloud.model.instance import Market
from dlcloud.model.money import ADDRESS_USD_PER_HOUR, committed_usd, price_of
from dlcloud.planning.plan import ExistingCapacity, make_plan
from dlcloud.planning.quotas import Usage, quotas
from dlcloud.planning.resize import coordinator, decide_size, refuse_size
from tests.fakes.samples import RECIPE, THEN, hardware, instance, member, observed, price, recipe

ON_DEMAND, SPOT = Market.ON_DEMAND, Market.SPOT
RANGE = RECIPE.replace("count: 2", "count: {min: 2, max: 4}")


def ended(decision):
    return [member.instance.instance_id for member in decision.end]


def test_the_newest_end_first_and_the_oldest_on_demand_one_never():
    members = [member(3, ON_DEMAND), member(1, ON_DEMAND), member(2, ON_DEMAND)]
    assert ended(decide_size(members, 1)) == ["i-3", "i-2"]
    assert decide_size(members, 1).coordinator == member(1, ON_DEMAND)
    assert ended(decide_size(members, 2)) == ["i-3"]


def test_on_demand_beyond_the_base_ends_first_then_spot_then_the_base():
    members = [
        member(1, ON_DEMAND),
        member(2, ON_DEMAND),
        member(3, ON_DEMAND),
        member(4, SPOT),
        member(5, SPOT),
    ]
    rounds = (SPOT, ON_DEMAND)
    assert ended(decide_size(members, 1, base=2, rounds=rounds)) == ["i-3", "i-5", "i-4", "i-2"]
    assert ended(decide_size(members, 4, base=3, rounds=rounds)) == ["i-5"]


def test_of_spot_alone_the_oldest_stays():
    members = [member(number, SPOT) for number in (2, 1, 3)]
    decision = decide_size(members, 1, rounds=(SPOT,))
    assert ended(decision) == ["i-3", "i-2"]
    assert decision.coordinator is None


def test_what_is_missing_is_launched_with_the_base_made_whole():
    decision = decide_size([member(1, SPOT)], 4, base=2, rounds=(SPOT,))
    assert (decision.launch, decision.on_demand, decision.end) == (3, 2, ())
    assert decide_size([member(1, ON_DEMAND)], 4).on_demand == 3
    assert decide_size([member(1, ON_DEMAND), member(2, ON_DEMAND)], 4, base=1, rounds=(SPOT,)).on_demand == 0
    assert decide_size([member(1, ON_DEMAND)], 1).nothing


@given(
    markets=st.lists(st.sampled_from([ON_DEMAND, SPOT]), max_size=12),
    target=st.integers(1, 12),
    base=st.integers(0, 4),
)
def test_it_ends_in_just_that_size_and_never_without_its_coordinator(markets, target, base):
    members = [member(number, market) for number, market in enumerate(markets)]
    decision = decide_size(members, target, base=base, rounds=(SPOT, ON_DEMAND))
    assert len(members) + decision.launch - len(decision.end) == target
    assert not (decision.launch and decision.end)
    assert coordinator(members) not in decision.end


@pytest.mark.parametrize(("text", "size"), [(RANGE, 1), (RANGE, 5), (RECIPE, 0), (RECIPE, 1001)])
def test_a_size_out_of_the_recipes_bounds_is_refused(text, size):
    with pytest.raises(RecipeError, match=f"not {size}"):
        refuse_size(recipe(text), size)


@pytest.mark.parametrize(("text", "size"), [(RANGE, 2), (RANGE, 4), (RECIPE, 1), (RECIPE, 9)])
def test_a_size_within_them_is_not_and_a_plain_count_is_only_a_beginning(text, size):
    refuse_size(recipe(text), size)
    made = recipe(text).resized(size).instances
    assert made.maximum == size
    assert made.minimum <= min(2, size)


def test_what_is_committed_ends_at_the_end_or_at_the_timer():
    life_minutes = {"i-1": 120}
    gone = member(2, ON_DEMAND, "0.6", ended_at=THEN + timedelta(minutes=32))
    total = committed_usd(
        [member(1, ON_DEMAND, "0.6"), gone, member(3, ON_DEMAND, "0.6")],
        life_minutes=life_minutes,
        longest_minutes=60,
        disk_gib=0,
    )
    assert total == (Decimal("0.6") + ADDRESS_USD_PER_HOUR) * (2 + Decimal("0.5") + 1)
    unknown = replace(gone, hourly_usd=None)
    assert committed_usd([unknown], life_minutes={}, longest_minutes=60, disk_gib=0) is None


def test_the_price_of_a_zone_goes_before_that_of_all():
    everywhere, here = price(usd="0.1"), price(usd="0.2", zone="us-east-1a")
    elsewhere = price(usd="0.3", zone="us-east-1b")
    assert price_of(instance(), [everywhere, elsewhere, here]) == here
    assert price_of(instance(), [everywhere, elsewhere]) == everywhere
    assert price_of(instance(), [elsewhere]) is None


def with_budget(usd):
    return recipe(RECIPE.replace("count: 2", "count: 4") + f"budget: {{max_usd: {usd}, max_hours: 10}}\n")


def test_newcomers_live_as_long_as_the_rest_of_the_budget_lasts():
    there = ExistingCapacity(count=2, on_demand=2, committed_usd=Decimal(3))
    plan = make_plan(with_budget(4), observed(), there)
    alone = make_plan(with_budget(1).resized(2), observed())
    assert plan.life_minutes == alone.life_minutes
    assert plan.worst_case_usd <= 4
    assert any("3.00 of it taken" in reason for reason in plan.reasons)


def test_a_used_up_budget_allows_no_launch_but_keeps_the_instances():
    spent = ExistingCapacity(count=2, on_demand=2, committed_usd=Decimal(4))
    with pytest.raises(BudgetError, match="buys 0 minutes of 2 instance"):
        make_plan(with_budget(4), observed(), spent)
    whole = make_plan(with_budget(4), observed(), replace(spent, count=4))
    assert whole.worst_case_usd == 4


def test_what_cannot_be_known_to_be_held_is_refused():
    with pytest.raises(BudgetError, match="a price is unknown"):
        make_plan(with_budget(4), observed(), ExistingCapacity(count=1, committed_usd=None))


def limited(used):
    usage = [Usage(instance_type="c7i.xlarge", market=ON_DEMAND, vcpus=used)]
    facts = replace(observed(), quotas=quotas({"L-1216C47A": 16}, usage))
    return replace(facts, hardware={name: hardware(name) for name in ("c7i.xlarge", "c6i.xlarge")})


def test_the_quota_need_only_hold_what_is_missing():
    four = recipe(RECIPE.replace("count: 2", "count: 4"))
    with pytest.raises(QuotaError):
        make_plan(four, limited(8))
    assert make_plan(four, limited(8), ExistingCapacity(count=2, on_demand=2)).pools
    with pytest.raises(QuotaError, match="16 of 16 vCPUs in use"):
        make_plan(four, limited(16), ExistingCapacity(count=3, on_demand=3))
    assert make_plan(four, limited(16), ExistingCapacity(count=4, on_demand=4)).pools


def test_a_training_with_a_deadline_is_not_resized():
    text = RECIPE.replace(
        "count: 2", "count: {min: 1, max: 4}\n  market: spot-then-on-demand\n  on_demand_base: 1"
    ).replace("benchmark: quantization", "command: ./train\n  elastic: {}")
    text += "deadline:\n  finish: 52h\n  work: {steps: 100}\n"
    with pytest.raises(RecipeError, match="the deadline of sample chooses") as caught:
        refuse_size(recipe(text), 3)
    assert "status" in caught.value.hint
