"""The plan: pools in order, what is left out and why, and what it can cost, in numbers computed by hand."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.model.errors import BudgetError, CapacityError
from dlcloud.model.instance import Market
from dlcloud.model.money import rounded
from dlcloud.planning.plan import make_plan
from dlcloud.planning.quotas import Quota, quota_key
from tests.fakes.samples import RECIPE, THEN, hardware, observed, price, recipe

BOTH = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot-then-on-demand\n")
SPOT = Market.SPOT


def with_lines(lines, text=RECIPE):
    return recipe(text + lines)


def where(pools):
    return [(pool.instance_type, str(pool.market), pool.zone) for pool in pools]


def test_a_type_not_offered_in_the_zones_is_left_out_with_those_that_do():
    text = RECIPE.replace("  count: 2\n", "  zones: [us-east-1c]\n")
    offered = {"c7i.xlarge": ("us-east-1a",), "c6i.xlarge": ("us-east-1c",)}
    plan = make_plan(recipe(text), observed(offered=offered))
    assert where(plan.pools) == [("c6i.xlarge", "on-demand", "us-east-1c")]
    assert plan.reasons == ("c7i.xlarge is left out: none of us-east-1c offers it (us-east-1a do)",)


def test_a_type_that_is_not_offered_is_left_out_of_the_plan():
    plan = make_plan(recipe(), observed(offered={"c6i.xlarge": ("us-east-1a",)}))
    assert where(plan.pools) == [("c6i.xlarge", "on-demand", "")]
    assert plan.reasons == ("c7i.xlarge is left out: us-east-1 does not offer it",)


def test_a_retired_type_is_refused_as_retired_before_launch():
    retired = hardware("p3.2xlarge", "retired")
    text = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[p3.2xlarge]")
    with pytest.raises(CapacityError) as caught:
        make_plan(recipe(text), observed(offered={}, known=[retired]))
    assert caught.value.message == "p3.2xlarge is left out: AWS has retired it"
    assert caught.value.hint


def test_a_retired_type_that_is_offered_is_planned_for_a_rehearsal():
    text = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[p3.2xlarge]").replace(
        "name: sample", "name: sample\ncloud: local"
    )
    plan = make_plan(
        recipe(text),
        observed(
            price("p3.2xlarge", "3.06"),
            offered={"p3.2xlarge": ("us-east-1a",)},
            known=[hardware("p3.2xlarge", "retired")],
        ),
    )
    assert plan.rehearsal
    assert plan.hourly_usd == Decimal("6.12")


def test_worst_case_is_the_dearest_pool_for_the_whole_life_with_disks():
    plan = make_plan(with_lines("budget: {max_hours: 1.5}\n"), observed())
    # 2 x 0.1785 (the dearer of two types) = 0.357 USD/h; 90 minutes of it: 0.5355 USD.
    # Disks: 2 x 50 GiB x 0.08 USD / 730 h x 1.5 h = 0.01643836 USD; addresses: 2 x 0.005 x 1.5 = 0.015 USD.
    assert plan.hourly_usd == Decimal("0.357")
    assert plan.life_minutes == 90
    assert rounded(plan.worst_case_usd, 8) == Decimal("0.56693836")


def test_an_unknown_price_makes_the_cost_unknown_and_is_reported():
    plan = make_plan(recipe(), observed(price()))
    assert [pool.price is None for pool in plan.pools] == [False, True]
    assert plan.hourly_usd is None
    assert plan.worst_case_usd is None
    assert plan.reasons == ("no price is known for c6i.xlarge on-demand in us-east-1: costs stay unknown",)


def test_a_spot_price_is_not_taken_for_an_on_demand_one():
    plan = make_plan(recipe(), observed(price(market=SPOT), price("c6i.xlarge", market=SPOT)))
    assert all(pool.price is None for pool in plan.pools)


def test_dollars_shorten_the_life():
    plan = make_plan(with_lines("budget: {max_usd: 0.1}\n"), observed())
    # (0.357 + 2 x 50 x 0.08 / 730 + 2 x 0.005) USD/h = 0.37795890; 0.1 USD buys 15.9 minutes.
    assert plan.life_minutes == 15
    assert plan.worst_case_usd <= Decimal("0.1")
    assert plan.reasons == ("instances terminate after 15 minutes: budget.max_usd is 0.1",)


def test_hours_shorten_the_life_where_the_dollars_would_buy_more():
    plan = make_plan(with_lines("budget: {max_usd: 100, max_hours: 0.5}\n"), observed())
    assert plan.life_minutes == 30
    assert plan.reasons == ()


def test_dollars_cannot_be_held_with_an_unknown_price():
    with pytest.raises(BudgetError, match="a price is unknown"):
        make_plan(with_lines("budget: {max_usd: 5}\n"), observed(price()))


def test_a_command_is_named_by_its_recipe():
    text = RECIPE.replace("benchmark: quantization", "command: ./run")
    assert make_plan(recipe(text), observed()).workload == "runs the command of sample once on each instance"
    settings = text + "  repeats: 2\n  settings: [{name: a}, {name: b}]\n"
    compared = make_plan(recipe(settings), observed()).workload
    assert "6 times: 2 measurements and a warm-up of each of 2 settings on each instance" in compared
    script = text.replace("./run", "python src/train.py --epochs 3")
    assert make_plan(recipe(script), observed()).workload == "runs train.py once on each instance"
    measured = make_plan(recipe(script + "  repeats: 6\n"), observed()).workload
    assert measured == "runs train.py 7 times: 6 measurements and a warm-up on each instance"
    unsaid = make_plan(recipe(text + "  settings: [{name: a}, {name: b}]\n"), observed()).workload
    assert "14 times: 6 measurements" in unsaid
    one_job = make_plan(recipe(text.replace("./run", "torchrun train.py")), observed()).workload
    assert one_job == "runs train.py once, as one job over all 2 instances"


def test_disks_are_no_smaller_than_the_snapshot_of_the_image():
    facts = observed()
    large = make_plan(recipe(), replace(facts, image=replace(facts.image, snapshot_gib=75)))
    small = make_plan(recipe(), replace(facts, image=replace(facts.image, snapshot_gib=8)))
    assert (large.machine.disk_gib, small.machine.disk_gib) == (75, 50)
    assert large.worst_case_usd > small.worst_case_usd
    reason = "disks have 75 GiB instead of 50: image ami-0123 has a root snapshot of that size"
    assert set(large.reasons) - set(small.reasons) == {reason}


def test_on_aws_instances_live_longer_than_boot_and_set_up_take():
    budget = "budget: {max_hours: 0.2, idle_minutes: 6}\n"
    with pytest.raises(BudgetError, match=r"4 minutes of 2 instance\(s\); at least 15 are needed"):
        make_plan(with_lines("budget: {max_usd: 0.03}\n"), observed())
    with pytest.raises(BudgetError, match=r"12 minutes of 2 instance\(s\); at least 15 are needed"):
        make_plan(with_lines("budget: {max_hours: 0.2}\n"), observed())
    with pytest.raises(BudgetError, match=r"budget\.idle_minutes is 14; at least 15 are needed") as caught:
        make_plan(with_lines("budget: {idle_minutes: 14}\n"), observed())
    assert caught.value.hint == "set budget.idle_minutes to 15 or more"
    make_plan(with_lines("budget: {max_hours: 0.25, idle_minutes: 15}\n"), observed())
    local = make_plan(with_lines(f"cloud: local\n{budget}"), observed())
    assert (local.life_minutes, local.idle_minutes) == (12, 6)


def test_a_deadline_states_what_all_on_demand_would_cost():
    text = RECIPE.replace(
        "count: 2", "count: {min: 1, max: 4}\n  market: spot-then-on-demand\n  on_demand_base: 1"
    )
    text = text.replace("benchmark: quantization", "command: ./train\n  elastic: {}")
    text += "deadline:\n  finish: 52h\n  work: {steps: 1000, per_hour: 100}\n"
    reasons = "\n".join(make_plan(recipe(text), observed()).reasons)
    assert "deadline 52h: 1000 steps on up to 4 instances" in reasons
    # 10 h of one instance at 0.17 USD, with its disk and address.
    assert "all on-demand from the start would cost about 1.80 USD and take 2.5 h" in reasons
    unknown = make_plan(recipe(text.replace(", per_hour: 100", "")), observed()).reasons
    assert "once the speed is measured" in unknown[-1]


def test_a_plan_for_dedicated_hardware_says_that_it_costs_more():
    dedicated = make_plan(
        recipe(RECIPE.replace("instances:", "instances:\n  tenancy: dedicated", 1)), observed()
    )
    assert dedicated.machine.tenancy == "dedicated"
    assert [reason for reason in dedicated.reasons if "EC2 bills more than the prices shown" in reason]


@pytest.mark.parametrize(("minutes", "is_short"), [(59, True), (239, True), (240, False), (None, False)])
def test_a_login_that_ends_before_the_instances_is_stated(minutes, is_short):
    ends_at = None if minutes is None else THEN + timedelta(minutes=minutes)
    facts = replace(observed(), asked_at=THEN, session_ends_at=ends_at)
    lines = [line for line in make_plan(recipe(), facts).reasons if "login" in line]
    assert bool(lines) is is_short
    assert all(f"ends in {minutes} minutes" in line and "--detach" in line for line in lines)


def test_a_plan_says_how_much_of_each_quota_it_may_take():
    quota = Quota(family="Standard", market=Market.ON_DEMAND, code="L-1216C47A", limit=96, used=4)
    facts = replace(
        observed(known=[hardware(), hardware("c6i.xlarge")]),
        quotas={quota_key("c7i.xlarge", Market.ON_DEMAND): quota},
    )
    assert make_plan(recipe(BOTH), facts).quota_needs == {"L-1216C47A": (quota, 8)}


def test_the_most_that_an_instance_may_cost_an_hour_leaves_pools_out_and_is_held_on_spot():
    capped = BOTH.replace("  count: 2\n", "  count: 2\n  max_usd_per_hour: 0.10\n")
    dear, cheap = price("c6i.xlarge", "0.2", SPOT), price("c7i.xlarge", "0.05", SPOT)
    plan = make_plan(recipe(capped), observed(price(), price("c6i.xlarge", "0.09"), dear, cheap))
    assert where(plan.pools) == [("c7i.xlarge", "spot", ""), ("c6i.xlarge", "on-demand", "")]
    assert plan.pools[0].ceiling_usd == Decimal("0.1")
    assert plan.holds_spot_price
    assert plan.reasons == (
        "c6i.xlarge spot is left out: 0.2 USD an hour, and max_usd_per_hour is 0.1",
        "c7i.xlarge on-demand is left out: 0.1785 USD an hour, and max_usd_per_hour is 0.1",
    )
    with pytest.raises(CapacityError, match="an unknown price"):
        make_plan(recipe(capped.replace("[c7i.xlarge, c6i.xlarge]", "[t3.xlarge]")), observed(price()))
