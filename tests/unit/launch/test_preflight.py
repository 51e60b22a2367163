"""Before a launch: quotas, subnets, scores, retired types, images that fit, and what dry runs refuse."""

from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.launch.preflight import check_launch, run_preflight
from dlcloud.model.account import AccountPlan
from dlcloud.model.errors import CapacityError, CloudError, CredentialsError, Denial, QuotaError
from dlcloud.model.instance import Image, Market
from dlcloud.planning.fit import successors
from dlcloud.planning.networks import Subnet
from dlcloud.planning.plan import make_plan
from dlcloud.planning.quotas import CODES, STANDARD, P, Usage, find_shortage, least_remedy, quota_key, quotas
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import CATALOG, EVERY_TYPE, IMAGE, Failure, FakeAccount, FakeCloud
from tests.fakes.samples import RECIPE, hardware, observed, price, recipe

ONE_TYPE = """\
name: sample
instances: {types: [c7i.xlarge], market: spot-then-on-demand, disk_gib: 40}
workload: {command: "true"}
"""
TWO_TYPES = ONE_TYPE.replace("[c7i.xlarge]", "[c7i.xlarge, c6i.xlarge]")
OF_75_GIB = Image(image_id="ami-0123", name="Ubuntu", root_device="/dev/sda1", snapshot_gib=75)


def denied(kind, action="ec2:RunInstances"):
    error = CredentialsError(f"{kind} is denied")
    error.denial = Denial(action=action, resource=f"arn:aws:ec2:us-east-1:1:{kind}/*")
    return error


def invalid():
    error = CloudError("expect size >= 75GB")
    error.is_final = True
    return error


def check(refusals, text=ONE_TYPE):
    account = FakeAccount(dry_runs=refusals)
    return check_launch(recipe(text), account, lambda: OF_75_GIB), account.asked_dry


def of_markets(error):
    return dict.fromkeys([("RunInstances", market) for market in Market], error)


def test_each_market_is_asked_for_as_it_would_be_launched():
    checks, asked = check({})
    assert sorted(action for action, _ in asked) == ["CreateSecurityGroup", "RunInstances", "RunInstances"]
    launches = [request for action, request in asked if action == "RunInstances"]
    assert {request.market for request in launches} == {Market.SPOT, Market.ON_DEMAND}
    assert {(request.machine.image, request.machine.disk_gib) for request in launches} == {(OF_75_GIB, 75)}
    assert (checks.errors, checks.refusal) == ([], None)


@pytest.mark.parametrize("assigns", [True, False])
@pytest.mark.parametrize(
    "keys",
    ["", "kms_key: alias/disks, profile: mine", "efa: true, placement_group: cluster", "tenancy: dedicated"],
)
def test_a_dry_run_asks_for_the_instances_of_the_plan(keys, assigns):
    text = ONE_TYPE.replace("disk_gib: 40", f"disk_gib: 40, {keys}".rstrip(", "))
    subnets = {"us-east-1a": Subnet(zone_id="use1-az1", assigns_addresses=assigns)}
    with_efa = replace(hardware(), efa_interfaces=4, placement_strategies=("cluster",))
    facts = replace(observed(known=[with_efa], zones=[*subnets]), image=OF_75_GIB, subnets=subnets)
    account = FakeAccount()
    check_launch(
        recipe(text), account, lambda: OF_75_GIB, subnets=lambda: subnets, hardware=lambda: facts.hardware
    )
    asked = [request.machine for action, request in account.asked_dry if action == "RunInstances"]
    assert asked == [make_plan(recipe(text), facts).machine] * 2


def test_an_image_that_is_another_one_now_is_asked_for_again():
    """What EC2 said of the earlier one does not count."""
    earlier = replace(OF_75_GIB, image_id="ami-gone")

    class Refusing(FakeAccount):
        def dry_run(self, action, request, *, fresh=False):
            super().dry_run(action, request, fresh=fresh)
            if request.machine.image == earlier:
                raise invalid()

    account = Refusing()
    checks = check_launch(recipe(ONE_TYPE), account, lambda: OF_75_GIB, last=earlier)
    images = [request.machine.image for action, request in account.asked_dry if action == "RunInstances"]
    assert checks.errors == []
    assert (images.count(earlier), images.count(OF_75_GIB)) == (2, 2)


def test_several_types_are_launched_by_a_fleet():
    _, asked = check({}, TWO_TYPES)
    assert {action for action, _ in asked} >= {"CreateFleet", "CreateLaunchTemplate"}
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("refusals", "stops"),
    [
        (of_markets(denied("instance")), True),
        (of_markets(invalid()), True),
        ({("RunInstances", Market.SPOT): denied("spot-instances-request")}, False),
        (of_markets(denied("security-group")), False),
        (of_markets(denied("subnet")), False),
        (of_markets(CapacityError("none left")), False),
        (of_markets(CredentialsError("denied, for an unknown reason")), False),
        ({("CreateSecurityGroup", Market.SPOT): denied("vpc", "ec2:CreateSecurityGroup")}, True),
    ],
)
def test_only_what_the_launch_is_certain_to_meet_stops_it(refusals, stops):
    checks, _ = check(refusals)
    assert (checks.refusal is not None) is stops
    assert len(checks.errors) == len(refusals)


def test_another_type_may_be_allowed():
    checks, _ = check(of_markets(denied("instance")), TWO_TYPES)
    assert checks.refusal is None
    assert len(checks.errors) == 2


def test_an_image_that_is_refused_leaves_what_needs_none():
    account = FakeAccount()

    def image():
        raise CloudError("no such image")

    checks = check_launch(recipe(TWO_TYPES), account, image)
    assert {action for action, _ in account.asked_dry} == {"CreateFleet", "CreateSecurityGroup"}
    assert checks.refusal is None


def test_all_is_asked_for_and_handed_on():
    cloud = FakeCloud(FakeClock(), known_prices=[price()], known_hardware={"c7i.xlarge": hardware()})
    cloud.offered["c6i.xlarge"] = ()
    facts = run_preflight(recipe(), cloud=cloud).facts()
    assert facts.identity.account == "123456789012"
    assert facts.zones == {"c7i.xlarge": cloud.zones}
    assert facts.hardware == {"c7i.xlarge": hardware()}
    assert facts.prices == [price()]
    assert facts.cidrs == ("203.0.113.7/32",)
    assert not cloud.requests


def test_of_several_refusals_that_of_the_credentials_is_raised():
    cloud = FakeCloud(FakeClock())
    cloud.failures += [
        Failure("prices.find", CloudError("prices.find")),
        Failure("caller.identity", CredentialsError("who?")),
        Failure("images.resolve", CloudError("image")),
    ]
    with pytest.raises(CredentialsError, match="who"):
        run_preflight(recipe(RECIPE), cloud=cloud).facts()


STANDARD_CODE = CODES[STANDARD, Market.ON_DEMAND]


def cloud(**other):
    known = {name: hardware(name) for name in ("c7i.xlarge", "c6i.xlarge")}
    prices = [price(), price("c6i.xlarge", "0.17"), price(market=Market.SPOT)]
    return FakeCloud(FakeClock(), known_hardware=known, known_prices=prices, **other)


def planned(account, text=RECIPE, there=None):
    there = there or cloud()
    return make_plan(recipe(text), run_preflight(recipe(text), cloud=there, account=account).facts())


def test_running_instances_count_against_their_family_and_market():
    running = [
        Usage(instance_type="m5.xlarge", market=Market.ON_DEMAND, vcpus=4),
        Usage(instance_type="c5.large", market=Market.ON_DEMAND, vcpus=2),
        Usage(instance_type="c5.large", market=Market.SPOT, vcpus=2),
        Usage(instance_type="g5.xlarge", market=Market.ON_DEMAND, vcpus=4),
    ]
    quota = quotas({STANDARD_CODE: 10}, running)[STANDARD, Market.ON_DEMAND]
    assert (quota.used, quota.left) == (6, 4)
    assert quota.describe() == f"{STANDARD} on-demand: 6 of 10 vCPUs in use, 4 left"


@pytest.mark.parametrize(
    ("name", "market", "family"),
    [
        ("c7i.xlarge", Market.SPOT, STANDARD),
        ("p4d.24xlarge", Market.ON_DEMAND, P),
        ("p4d.24xlarge", Market.SPOT, P),
        ("p5.48xlarge", Market.SPOT, "P5"),
        ("g4dn.xlarge", Market.SPOT, "G and VT"),
        ("inf2.xlarge", Market.ON_DEMAND, "Inf"),
        ("trn1.2xlarge", Market.ON_DEMAND, "Trn"),
    ],
)
def test_every_type_has_its_limit(name, market, family):
    assert quota_key(name, market) == (family, market)


def test_the_image_is_that_of_the_type_as_ec2_describes_it():
    """It is looked up beside the types, for what the bundled table says of them."""
    there = cloud()
    there.images.asked = []

    def resolve(image, *, gpu, architecture):
        there.images.asked.append((gpu, architecture))
        return replace(IMAGE, name=f"{image} of {architecture}", architecture=architecture)

    there.images.resolve = resolve
    there.known_hardware = {
        name: replace(known, architectures=("arm64",)) for name, known in there.known_hardware.items()
    }
    assert run_preflight(recipe(RECIPE), cloud=there).answers["image"].architecture == "arm64"
    assert there.images.asked == [(False, "arm64")]
    there.types.listed = lambda names: {name: hardware(name) for name in names}
    assert run_preflight(recipe(RECIPE), cloud=there).answers["image"].architecture == "arm64"
    assert there.images.asked[1:] == [(False, "x86_64"), (False, "arm64")]


def test_a_small_quota_is_refused_before_launch_with_the_request_text_but_not_a_kept_one():
    account = FakeAccount(kept_limit=4, true_limit=64)
    assert len(planned(account).pools) == 2
    assert account.asked_anew == [[STANDARD_CODE]]
    used = Usage(instance_type="m5.large", market=Market.ON_DEMAND, vcpus=2)
    there = cloud()
    with pytest.raises(QuotaError) as caught:
        planned(FakeAccount(kept_limit=8, true_limit=8, running=[used]), there=there)
    # Two instances of 4 vCPUs, 2 of 8 in use.
    assert "2 of 4 vCPUs are needed" in caught.value.message
    assert "2 of 8 vCPUs in use, 6 left" in caught.value.message
    assert f"--quota-code {STANDARD_CODE} --desired-value 10" in caught.value.hint
    assert not there.requests


def test_a_market_without_quota_is_left_out_and_the_other_one_used():
    text = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot-then-on-demand\n")
    account = FakeAccount(kept_limit=8, true_limit=8)
    account.running = [Usage(instance_type="c5.large", market=Market.SPOT, vcpus=2)]
    plan = planned(account, text)
    assert {pool.market for pool in plan.pools} == {Market.ON_DEMAND}
    assert any("spot is left out" in reason for reason in plan.reasons)


def test_an_account_without_a_default_vpc_is_refused_and_one_that_does_not_say_is_not():
    with pytest.raises(CloudError) as caught:
        planned(FakeAccount(zones={}))
    assert caught.value.hint == "aws ec2 create-default-vpc --region us-east-1"
    plan = planned(FakeAccount(refuses=CredentialsError("not allowed to ask for limits")))
    assert plan.pools
    assert "not checked: not allowed to ask for limits" in plan.reasons


def test_zones_without_a_default_subnet_are_not_tried_and_scores_named():
    text = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot\n")
    plan = planned(FakeAccount(zones={"us-east-1b": "use1-az2"}), text)
    assert not any("placement score" in reason for reason in plan.reasons)  # of two types it is always low
    text = text.replace("c6i.xlarge]", "c6i.xlarge, c5.xlarge]")
    plan = planned(FakeAccount(zones={"us-east-1b": "use1-az2"}), text)
    assert {pool.zones for pool in plan.pools} == {("us-east-1b",)}
    assert "spot placement score (10 is best): us-east-1b 9, use1-az1 3" in plan.reasons


A, B = "us-east-1a", "us-east-1b"
IN_A = RECIPE.replace("  count: 2\n", f"  count: 2\n  zones: [{A}]\n")


@pytest.mark.parametrize("fault", ["private", "isolated"])
def test_zones_with_unfit_subnets_are_avoided_and_named(fault):
    plan = planned(FakeAccount(**{fault: {A}}))
    assert {(pool.zone, pool.zones) for pool in plan.pools} == {(B, (B,))}
    assert plan.machine.network.public_ip is None
    assert any(reason.startswith(f"the default subnet of {A} ") for reason in plan.reasons)


@pytest.mark.parametrize(("private", "text", "zone"), [({A, B}, RECIPE, ""), ({A}, IN_A, A)])
def test_where_no_subnet_that_may_be_used_assigns_addresses_instances_ask_for_one(private, text, zone):
    plan = planned(FakeAccount(private=private), text)
    assert {pool.zone for pool in plan.pools} == {zone}
    assert plan.machine.network.public_ip


def test_subnets_without_a_route_to_the_internet_are_refused():
    with pytest.raises(CloudError, match=f"no default subnet of {A}, {B} has a route") as caught:
        planned(FakeAccount(isolated={A, B}))
    assert "aws ec2 create-route --region us-east-1" in caught.value.hint
    with pytest.raises(CloudError, match=f"no default subnet of {A} has a route"):
        planned(FakeAccount(isolated={A}), IN_A)


def test_a_retired_type_is_refused_with_the_nearest_current_ones():
    text = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[p3.2xlarge]")
    there = cloud(offered={"p3.2xlarge": ()})
    there.known_hardware["p3.2xlarge"] = CATALOG.hardware("p3.2xlarge")
    with pytest.raises(CapacityError) as caught:
        planned(FakeAccount(), text, there)
    assert "AWS has retired it; nearest: " in caught.value.message
    near = successors("p3.2xlarge", EVERY_TYPE)
    assert [each.hardware.gpu.count for each in near] == [1, 1, 1]
    assert all(
        each.hardware.status == "current" and each.hardware.name in caught.value.message for each in near
    )


def test_an_unknown_type_is_answered_with_names_like_it_or_the_cheapest_gpus():
    assert "c7i.xlarge" in [each.hardware.name for each in successors("c7i.xlage", EVERY_TYPE)]
    assert successors("p5.4xlage", EVERY_TYPE)[0].hardware.name == "p5.4xlarge"
    assert successors("p3.16xlarge", EVERY_TYPE)[0].hardware.gpu.count == 8
    near = successors("p2.xlarge", EVERY_TYPE)
    assert near[0].hardware.name.startswith("g")
    assert [each.hourly_usd for each in near] == sorted(each.hourly_usd for each in near)


def test_open_driver_is_refused_for_an_old_gpu_and_noted_in_rehearsals():
    text = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[p3.2xlarge]").replace("count: 2", "count: 1")
    there = cloud()
    there.known_hardware["p3.2xlarge"] = CATALOG.hardware("p3.2xlarge")
    image = Image(
        image_id="ami-1", name="Deep Learning Base OSS Nvidia Driver GPU AMI", root_device="/dev/sda1"
    )
    there.images.resolve = lambda *_, **__: image
    with pytest.raises(CloudError, match="too old for"):
        planned(FakeAccount(), text, there)
    plan = planned(FakeAccount(), text.replace("name: sample", "name: sample\ncloud: local"), there)
    assert any("too old for" in reason for reason in plan.reasons)


def test_the_worst_case_of_spot_is_the_most_ec2_may_charge():
    text = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot\n").replace(
        "[c7i.xlarge, c6i.xlarge]", "[c7i.xlarge]"
    )
    prices = [price(), replace(price(usd="0.06", market=Market.SPOT), zone="us-east-1a")]
    there = cloud()
    there.prices.find = lambda *_: prices
    assert planned(FakeAccount(), text, there).hourly_usd == 2 * Decimal("0.1785")
    limited = planned(FakeAccount(), text + "budget: {max_usd: 1}\n", there)
    # Under a budget the request itself limits the price: to 1.2 times the price now.
    assert limited.hourly_usd == 2 * Decimal("0.072")


def test_an_account_of_the_free_plan_launches_eligible_types_only():
    there = cloud()
    account = FakeAccount(plan=AccountPlan.FREE)
    for name, entry in there.known_hardware.items():
        there.known_hardware[name] = replace(entry, free_tier=name == "c6i.xlarge")
    assert {pool.instance_type for pool in planned(account, there=there).pools} == {"c6i.xlarge"}
    there.known_hardware["c6i.xlarge"] = replace(there.known_hardware["c6i.xlarge"], free_tier=False)
    with pytest.raises(QuotaError, match="Free plan may not launch it") as refused:
        planned(account, there=there)
    assert "upgrade-account-plan" in refused.value.hint
    for plan in (AccountPlan.PAID, None):
        assert planned(FakeAccount(plan=plan), there=there).pools
    unknown = cloud()
    assert planned(account, there=unknown).pools, "EC2 decides where it does not describe the type"


def test_the_least_remedy_is_that_of_the_type_with_the_fewest_vcpus():
    small, large = hardware("c7i.xlarge"), replace(hardware("c7i.xlarge"), vcpus=96)
    quota = quotas({STANDARD_CODE: 3}, ())[STANDARD, Market.ON_DEMAND]
    asked = {"account_plan": AccountPlan.FREE, "least": 1, "instances": 2}
    beyond = replace(small, free_tier=False)
    shortages = [find_shortage(entry, quota, **asked) for entry in (large, beyond, small)]
    assert least_remedy(shortages, "us-east-1").endswith("--desired-value 8")
    assert "upgrade" not in least_remedy(shortages, "us-east-1"), "the eligible type needs no upgrade"
    hint = least_remedy([shortages[1]], "us-east-1")
    assert hint.index("upgrade-account-plan") < hint.index("--desired-value 8")
