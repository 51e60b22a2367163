"""What EC2 says to the dry runs of a launch, and which of its refusals stop an `up`."""

from dataclasses import replace

import pytest

from dlcloud.launch.preflight import check_launch
from dlcloud.model.errors import CapacityError, CloudError, CredentialsError, Denial
from dlcloud.model.instance import Image, Market
from dlcloud.planning.networks import Subnet
from dlcloud.planning.plan import make_plan
from tests.fakes.cloud import FakeAccount
from tests.fakes.samples import hardware, observed, recipe

ONE_TYPE = """\
name: sample
instances: {types: [c7i.xlarge], market: spot-then-on-demand, disk_gib: 40}
workload: {command: "true"}
"""
TWO_TYPES = ONE_TYPE.replace("[c7i.xlarge]", "[c7i.xlarge, c6i.xlarge]")
IMAGE = Image(image_id="ami-0123", name="Ubuntu", root_device="/dev/sda1", snapshot_gib=75)


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
    return check_launch(recipe(text), account, lambda: IMAGE), account.asked_dry


def of_markets(error):
    return dict.fromkeys([("RunInstances", market) for market in Market], error)


def test_each_market_is_asked_for_as_it_would_be_launched():
    checks, asked = check({})
    assert sorted(action for action, _ in asked) == ["CreateSecurityGroup", "RunInstances", "RunInstances"]
    launches = [request for action, request in asked if action == "RunInstances"]
    assert {request.market for request in launches} == {Market.SPOT, Market.ON_DEMAND}
    assert {(request.machine.image, request.machine.disk_gib) for request in launches} == {(IMAGE, 75)}
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
    facts = replace(observed(known=[with_efa], zones=[*subnets]), image=IMAGE, subnets=subnets)
    account = FakeAccount()
    check_launch(
        recipe(text), account, lambda: IMAGE, subnets=lambda: subnets, hardware=lambda: facts.hardware
    )
    asked = [request.machine for action, request in account.asked_dry if action == "RunInstances"]
    assert asked == [make_plan(recipe(text), facts).machine] * 2


def test_an_image_that_is_another_one_now_is_asked_for_again():
    """What EC2 said of the earlier one does not count."""
    earlier = replace(IMAGE, image_id="ami-gone")

    class Refusing(FakeAccount):
        def dry_run(self, action, request, *, fresh=False):
            super().dry_run(action, request, fresh=fresh)
            if request.machine.image == earlier:
                raise invalid()

    account = Refusing()
    checks = check_launch(recipe(ONE_TYPE), account, lambda: IMAGE, last=earlier)
    images = [request.machine.image for action, request in account.asked_dry if action == "RunInstances"]
    assert checks.errors == []
    assert (images.count(earlier), images.count(IMAGE)) == (2, 2)


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
