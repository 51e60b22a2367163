"""`instances.reservations`, `placement_group` and `efa` in a recipe, and what a plan makes of them."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.model.errors import CloudError, RecipeError
from dlcloud.planning.attempts import LaunchAttempt, reserved_attempt
from dlcloud.planning.plan import make_plan
from dlcloud.planning.reservations import CapacityReservation
from dlcloud.recipe.profile import apply_profile, read_configuration
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.plan_tables import plan_report
from dlcloud.report.table import Format, render
from tests.fakes.samples import RECIPE, THEN, hardware, observed, recipe

ONE, TWO = "cr-0000000000000000a", "cr-0000000000000000b"


def with_key(text, count=2):
    return RECIPE.replace("  count: 2\n", f"  count: {count}\n  {text}\n")


def reservation(name=ONE, **other):
    values = {"instance_type": "c7i.xlarge", "zone": "us-east-1a", "total": 4, "available": 1, **other}
    return CapacityReservation(reservation_id=name, **values)


def plan(text, *reservations, count=2, **other):
    facts = replace(observed(**other), reservations=reservations, asked_at=THEN)
    return make_plan(recipe(with_key(text, count)), facts)


def taken(made):
    return [(one.reservation_id, one.count) for one in made.reserved]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reservations: web", "'web' is neither cr-… nor tag:KEY=VALUE, open or none"),
        ("reservations: []", "names no reservation"),
        ("reservations: [none, open]", "none stands alone"),
        ("reservations: {use: none, keep_free: 1}", "none stands alone"),
        ("reservations: [open, open]", "named twice"),
        ("reservations: {use: open, keep_free: -1}", "instances.reservations.keep_free"),
        ("reservations: open\n  placement_group: cluster", "no reservation is in a new placement group"),
        ("efa: perhaps", "instances.efa"),
    ],
)
def test_keys_that_make_no_sense_are_faults(text, message):
    with pytest.raises(RecipeError) as refused:
        recipe(with_key(text))
    assert message in refused.value.message


def test_recipe_without_the_keys_keeps_its_hash_and_its_plan():
    unset = recipe(with_key("reservations:\n  placement_group: ''\n  efa: false"))
    assert unset.hash == recipe().hash
    made = plan("disk_gib: 50", reservation(is_open=True))
    assert (made.reserved, made.machine.outside_reservations) == ((), False)


def test_idle_reserved_instances_come_first_at_a_price_of_zero():
    made = plan("reservations: open", reservation(is_open=True), count=3)
    assert taken(made) == [(ONE, 1)]
    assert made.machine.outside_reservations
    assert made.hourly_usd == Decimal("0.1785") * 2
    text = " ".join(render(plan_report(made), Format.TABLE).split())
    assert f"1 of {ONE} at 0 USD marginal" in text
    assert "billed, used or not: 0.1785 USD/h each on-demand" in text
    assert text.index("reserved") < text.index("on-demand")
    assert make_plan(recipe(with_key("disk_gib: 50", 3)), observed()).worst_case_usd > made.worst_case_usd


def test_budget_counts_what_the_reservation_does_not_give():
    budget = "budget: {max_usd: 0.6, max_hours: 24}\n"
    free = replace(observed(), reservations=[reservation(is_open=True, available=2)], asked_at=THEN)
    short = make_plan(recipe(RECIPE + budget), free)
    long = make_plan(recipe(with_key("reservations: open") + budget), free)
    assert (long.life_minutes, long.hourly_usd) == (24 * 60, 0)
    assert short.life_minutes < 120


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "scheduled", "starts_at": THEN}, "it is scheduled from 2026-09-01 12:00 UTC on"),
        ({"platform": "Windows"}, "it is for Windows with default tenancy"),
        ({"group": "near"}, "it is in the placement group near"),
        ({"is_interruptible": True}, "it is interruptible: EC2 takes its instances back"),
        ({"ends_at": THEN + timedelta(hours=1)}, "it may end before the instances do"),
    ],
)
def test_reservation_that_does_not_suit_is_left_out_with_the_reason(changes, reason):
    made = plan(f"reservations: {ONE}", reservation(**changes))
    assert made.reserved == ()
    assert any(f"{ONE} is left out: {reason}" in text for text in made.reasons)


def test_reservations_by_tag_and_in_the_zones_of_the_recipe():
    reservations = [
        reservation(tags={"team": "ml"}),
        reservation(TWO, tags={"team": "ml"}, zone="us-east-1b"),
    ]
    text = "zones: [us-east-1b]\n  reservations: ['tag:team=ml', 'tag:team=none']"
    made = plan(text, *reservations)
    assert taken(made) == [(TWO, 1)]
    assert "tag:team=none: no reservation has this tag" in made.reasons


@pytest.mark.parametrize(
    ("reservations", "message"),
    [([], "is not there"), ([reservation(instance_type="p5.48xlarge")], "holds p5.48xlarge")],
)
def test_reservation_by_id_that_is_missing_or_unlike_is_refused(reservations, message):
    with pytest.raises(CloudError, match=message) as refused:
        plan(f"reservations: {ONE}", *reservations)
    assert refused.value.hint


def test_capacity_block_is_used_until_shortly_before_it_ends():
    block = {"is_block": True, "available": 2}
    made = plan(f"reservations: {ONE}", reservation(ends_at=THEN + timedelta(hours=3), **block))
    assert taken(made) == [(ONE, 2)]
    assert any("EC2 ends them from 2026-09-01 14:30 UTC on" in text for text in made.reasons)
    attempt = reserved_attempt(made, made.reserved[0], missing=1, attempt=0)
    assert (attempt.in_block, attempt.count) == (True, 1)
    assert LaunchAttempt.from_text(attempt.to_text()) == attempt
    assert (
        plan(f"reservations: {ONE}", reservation(ends_at=THEN + timedelta(minutes=35), **block)).reserved
        == ()
    )


def test_reservations_are_of_default_tenancy():
    with pytest.raises(RecipeError, match="leave tenancy or reservations out"):
        plan(f"reservations: {ONE}\n  tenancy: dedicated")


def test_types_without_efa_or_cluster_placement_are_refused():
    plain = replace(hardware(), efa_interfaces=0, placement_strategies=("spread",))
    able = replace(hardware(), efa_interfaces=4, placement_strategies=("cluster",))
    for text in ("efa: true", "placement_group: cluster"):
        with pytest.raises(CloudError, match=r"c7i\.xlarge"):
            plan(text, known=[plain])
        assert plan(text, known=[able]).pools
    made = plan("efa: true", known=[able])
    assert made.machine.efa_interfaces == 1
    assert any("a public address has one network interface" in reason for reason in made.reasons)
    assert plan("placement_group: near", known=[plain]).one_zone


def test_profile_names_reservations_of_recipes_that_say_nothing():
    text = "profiles: {a: {reservations: {use: [open], keep_free: 2}}}\n"
    profile = read_configuration(text, "c").profiles["a"]
    completed, completed_text = apply_profile(RECIPE, recipe(), profile, "r")
    assert completed.instances.reservations.keep_free == 2
    assert read_recipe(completed_text, "r") == completed
    own = with_key("reservations: none")
    assert apply_profile(own, recipe(own), profile, "r")[0].instances.reservations.use == ["none"]
