"""Capacity of the local EC2: pools and quotas, fleets that choose of pools, and traces of spot capacity."""

import base64
import threading
from decimal import Decimal

import pytest

from dlcloud.local.api.call import Call, limit_refusal
from dlcloud.local.capacity.pools import UNLIMITED, Capacity, Offer, Pool, Strategy, VcpuQuotas, allocate
from dlcloud.local.capacity.spot_market import SpotMarket, SpotTrace
from dlcloud.model.errors import LocalCloudError
from dlcloud.model.instance import Market
from tests.fakes.local_ec2 import UBUNTU, refused, wait_for

ZONE = "us-east-1a"


def offer(name, left, price, zone="a", **more):
    return Offer(pool=Pool(instance_type=name, zone=zone), left=left, price=Decimal(price), **more)


@pytest.mark.parametrize(
    ("offers", "options", "granted", "refusing"),
    [
        ([offer("dear", 9, 3), offer("cheap", 2, 1)], {}, {"cheap": 2, "dear": 3}, ["cheap"]),
        ([offer("dear", 9, 3), offer("cheap", 2, 1)], {"strategy": Strategy.PRICE_CAPACITY}, {"dear": 5}, []),
        ([offer("empty", 0, 1)], {}, {}, ["empty"]),
        ([offer("x", 3, 1, override=0), offer("x", 3, 1, override=1)], {}, {"x": 3}, ["x", "x"]),
        (
            [offer("x", 1, 1), offer("x", 5, 2, zone="b"), offer("y", 5, 3, zone="b")],
            {"one_zone": True},
            {"x": 5},
            [],
        ),
        ([], {}, {}, []),
    ],
    ids=["cheapest first", "one that holds all", "empty", "two overrides of one pool", "one zone", "none"],
)
def test_a_target_is_spread_over_pools(offers, options, granted, refusing):
    allocation = allocate(offers, target=5, **{"strategy": Strategy.LOWEST_PRICE, **options})
    assert {grant.offer.pool.instance_type: grant.count for grant in allocation.grants} == granted
    assert [refused.pool.instance_type for refused in allocation.refused] == refusing
    assert allocation.fulfilled == sum(granted.values())


def test_capacity_and_quotas_are_of_a_type_in_a_region_or_a_zone():
    zones, name = ["us-east-1a", "us-east-1b", "us-west-2a"], "c7i.large"
    capacity = Capacity(lambda: [Pool(instance_type=name, zone=zone) for zone in zones])
    assert capacity.left(name, "us-east-1a") == UNLIMITED
    capacity.set_limit(name, None, 4)
    capacity.set_limit(name, "us-east-1a", 5)
    assert capacity.left(name, "us-east-1a") == capacity.left(name) == 1
    capacity.remove_limits(name, "us-east-1b")
    assert capacity.left(name, "us-east-1a") == 1
    capacity.remove_limits(name, None)  # "capacity of x: unlimited" was shown while zone a had its limit
    assert capacity.left(name, "us-east-1a") == UNLIMITED
    capacity.set_limit(name, "us-east-1", 3)
    assert capacity.left(name, "us-east-1a") == capacity.left(name, "us-east-1") == 1
    assert capacity.left(name, "us-west-2a") == capacity.left(name) == UNLIMITED
    capacity.set_limit(name, "us-east-1a", 1)
    capacity.remove_limits(name, "us-east-1")
    assert capacity.left(name, "us-east-1a") == UNLIMITED
    running = [(name, Market.ON_DEMAND, zone) for zone in zones]
    quotas = VcpuQuotas(running=lambda: running, vcpus={name: 2})
    quotas.set_limit(name, Market.ON_DEMAND, 6)
    assert quotas.instances_left(name, Market.ON_DEMAND, "us-east-1") == 1
    assert quotas.instances_left(name, Market.ON_DEMAND, "us-west-2") == 2


def call(action, parameters):
    pairs = tuple((name, str(value)) for name, value in parameters.items())
    return Call(service="ec2", region="us-east-1", action=action, body=b"", parameters=pairs, is_json=False)


POOLS = {f"LaunchTemplateConfigs.1.Overrides.{number}.InstanceType": "c5.large" for number in range(300)}
TARGET = "TargetCapacitySpecification.TotalTargetCapacity"


def ids(kind, count):
    return {f"{kind}Id.{number}": f"x-{number}" for number in range(count)}


@pytest.mark.parametrize(
    ("action", "most", "more", "code"),
    [
        ("TerminateInstances", ids("Instance", 1000), ids("Instance", 1001), "InvalidRequest"),
        ("DescribeInstances", ids("Instance", 1000), ids("Instance", 1001), "InvalidRequest"),
        ("DescribeInstanceStatus", ids("Instance", 100), ids("Instance", 101), "InvalidRequest"),
        ("CreateTags", ids("Resource", 1000), ids("Resource", 1001), "InvalidRequest"),
        ("DeleteFleets", ids("Fleet", 25), ids("Fleet", 26), "InvalidRequest"),
        ("RunInstances", {"MaxCount": 1000}, {"MaxCount": 1001}, "RequestLimitExceeded"),
        ("CreateFleet", {TARGET: 10_000}, {TARGET: 10_001}, "InvalidParameterValue"),
        (
            "CreateFleet",
            POOLS,
            {**POOLS, "LaunchTemplateConfigs.2.InstanceType": "x"},
            "InvalidParameterValue",
        ),
    ],
)
def test_a_request_that_names_more_than_it_may_is_refused(action, most, more, code):
    assert limit_refusal(call(action, most)) is None
    refusal = limit_refusal(call(action, more))
    assert (refusal.code, code != "InvalidRequest" or str(len(most)) in refusal.message) == (code, True)


@pytest.fixture(scope="module")
def template(rig):
    data = {
        "ImageId": UBUNTU,
        "InstanceType": "c7i.large",
        "UserData": base64.b64encode(rig.user_data().encode()).decode(),
        "MetadataOptions": {"HttpTokens": "required"},
        "InstanceInitiatedShutdownBehavior": "terminate",
    }
    rig.ec2.create_launch_template(LaunchTemplateName="fleet", LaunchTemplateData=data)
    return "fleet"


@pytest.fixture
def fleet(rig, template):
    """Ask for fleets of spot instances by the template; their instances end with the test."""
    made = []

    def ask(overrides, target=1, *, market="spot", data=template, **more):
        reply = rig.fleet(data, overrides, target, market=market, **more)
        made.extend(name for part in reply["Instances"] for name in part["InstanceIds"])
        return reply

    yield ask
    if made:
        rig.end(*made)


def pool(name, zone=ZONE, **more):
    return {"InstanceType": name, "AvailabilityZone": zone, **more}


def count(reply):
    return {entry["InstanceType"]: len(entry["InstanceIds"]) for entry in reply["Instances"]}


def errors(reply):
    """Return the codes of a fleet's errors by the type that they are about."""
    return {
        error["LaunchTemplateAndOverrides"]["Overrides"].get("InstanceType", ""): error["ErrorCode"]
        for error in reply["Errors"]
    }


def test_one_call_reaches_the_target_and_names_the_pool_that_refused(rig, fleet):
    rig.control.set_capacity("c6i.large", 2)
    pools = [pool("c6i.large", Priority=1), pool("c7i.large", Priority=2)]
    reply = fleet(pools, 5, SpotOptions={"AllocationStrategy": "price-capacity-optimized"})
    assert sum(count(reply).values()) == 5
    options = {"AllocationStrategy": "prioritized"}
    reply = fleet(pools, 3, market="on-demand", OnDemandOptions=options)
    assert errors(reply) == {"c6i.large": "InsufficientInstanceCapacity"}
    assert reply["Errors"][0]["Lifecycle"] == "on-demand"
    assert sum(count(reply).values()) == 3
    assert count(reply)["c7i.large"] >= 1


def test_the_cheapest_pool_with_capacity_is_used(fleet):
    options = {"AllocationStrategy": "price-capacity-optimized"}
    reply = fleet([pool("c7i.24xlarge"), pool("c7i.xlarge")], 2, SpotOptions=options)
    assert (count(reply), reply["Errors"]) == ({"c7i.xlarge": 2}, [])


def test_fleet_instances_carry_tags_market_and_user_data_and_end_with_it(rig, fleet):
    bystander = rig.up()
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "dlcloud:cluster", "Value": "f"}]}]
    reply = fleet([pool("c7i.large")], TagSpecifications=tags)
    instance = rig.await_state(reply["Instances"][0]["InstanceIds"][0], "running")
    shown = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert (shown["dlcloud:cluster"], shown["aws:ec2:fleet-id"]) == ("f", reply["FleetId"])
    assert (instance["InstanceLifecycle"], instance["MetadataOptions"]["HttpTokens"]) == ("spot", "required")
    assert instance["Placement"]["AvailabilityZone"] == ZONE
    assert rig.on(instance, "echo in")[1] == "in\n"
    rig.ec2.delete_fleets(FleetIds=[reply["FleetId"]], TerminateInstances=True)
    rig.await_state(instance["InstanceId"], "terminated")
    assert rig.state(bystander["InstanceId"]) == "running"


def test_one_zone_for_all_goes_where_there_is_room(rig, fleet):
    rig.control.set_capacity("g4dn.xlarge", 1, zone=ZONE)
    pools = [pool("g4dn.xlarge"), pool("g4dn.xlarge", "us-east-1b")]
    reply = fleet(pools, 3, SpotOptions={"SingleAvailabilityZone": True})
    parts = [entry["LaunchTemplateAndOverrides"]["Overrides"] for entry in reply["Instances"]]
    assert {part["AvailabilityZone"] for part in parts} == {"us-east-1b"}


def test_a_limit_of_a_type_holds_over_all_its_zones_together(rig, fleet):
    rig.control.set_capacity("r7i.large", 2)
    reply = fleet([pool("r7i.large"), pool("r7i.large", "us-east-1b")], 3)
    rig.control.set_capacity("r7i.large", None)
    assert sum(count(reply).values()) == 2


def test_a_fleet_is_idempotent_by_its_token(fleet):
    first, again = (fleet([pool("c7i.large")], 2, ClientToken="fleet-token") for _ in range(2))
    assert (again["FleetId"], again["Instances"]) == (first["FleetId"], first["Instances"])
    with refused("IdempotentParameterMismatch"):
        fleet([pool("c7i.large")], 3, ClientToken="fleet-token")


@pytest.mark.parametrize("code", ["VcpuLimitExceeded", "UnauthorizedOperation", "InvalidBlockDeviceMapping"])
def test_a_refused_launch_is_an_error_of_every_pool(rig, fleet, code):
    rig.control.add_fault("CreateFleet", code, times=1)
    reply = fleet([pool("c7i.large"), pool("c6i.xlarge")])
    assert (reply["Instances"], errors(reply)) == ([], {"c7i.large": code, "c6i.xlarge": code})


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}]},
            "InvalidBlockDeviceMapping",
        ),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"CreditSpecification": {"CpuCredits": "standard"}}, "InstanceCreditSpecification.NotSupported"),
    ],
)
def test_what_a_template_has_wrong_is_an_error_of_the_pool(fleet, data, code):
    reply = fleet([pool("c7i.large")], data={"ImageId": UBUNTU, **data})
    assert (reply["Instances"], errors(reply)) == ([], {"c7i.large": code})


def test_a_pool_that_cannot_be_launched_leaves_the_others(rig, fleet):
    unknown = fleet([pool("c99.huge"), pool("c7i.large")])
    assert (count(unknown), errors(unknown)) == ({"c7i.large": 1}, {"c99.huge": "InvalidFleetConfiguration"})
    credit = {"ImageId": UBUNTU, "CreditSpecification": {"CpuCredits": "standard"}}
    assert count(fleet([pool("c7i.large"), pool("t3.micro")], data=credit)) == {"t3.micro": 1}
    running = len(rig.control.status()["instances"])
    cheap = fleet([pool("c7i.large", MaxPrice="0.0001")], 2)
    assert (cheap["Instances"], errors(cheap)) == ([], {"c7i.large": "SpotMaxPriceTooLow"})
    assert len(rig.control.status()["instances"]) == running


def test_a_fleet_that_cannot_be_is_refused(rig, fleet):
    with refused("InvalidLaunchTemplateName.*"):
        fleet([pool("c7i.large")], data="missing")
    for gap, options in {
        "diversified": {"SpotOptions": {"AllocationStrategy": "diversified"}},
        "MinTargetCapacity": {"SpotOptions": {"MinTargetCapacity": 1}},
        "weighted capacity": {"overrides": [pool("c7i.large", WeightedCapacity=2.0)]},
    }.items():
        with refused("UnsupportedOperation", f".*{gap}"):
            fleet(**{"overrides": [pool("c7i.large")], **options})
    config = {"LaunchTemplateSpecification": {"LaunchTemplateName": "fleet", "Version": "1"}}
    target = {"TotalTargetCapacity": 1}
    with refused("UnsupportedOperation"):
        rig.ec2.create_fleet(
            Type="maintain", LaunchTemplateConfigs=[config], TargetCapacitySpecification=target
        )


SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}, "Placement": {"AvailabilityZone": ZONE}}


def trace(data, *, name="c7i.large", zone=ZONE, **more):
    metadata = {"gap_seconds": 600}
    return {"instance_type": name, "zone": zone, "metadata": metadata, "data": data, **more}


def test_a_trace_gives_count_and_price_of_each_tick():
    market = SpotMarket(list, lambda *_: None)
    market.play([SpotTrace.from_values(trace([3, 1], prices=[0.5, "0.75"]))], speed=0, grace_s=1)
    for moment, count_, price in ((0, 3, "0.5"), (600, 1, "0.75"), (1e9, 1, "0.75")):
        market.move_to(moment)
        assert (market.limit("c7i.large", ZONE), market.price("c7i.large", ZONE)) == (count_, Decimal(price))
    assert market.limit("c7i.large", "us-east-1b") is None


def test_a_playing_trace_applies_each_tick_by_itself():
    applied, done = [], threading.Event()

    def interrupt(*arguments):
        applied.append(arguments)
        if arguments[2] == 0:
            done.set()

    market = SpotMarket(list, interrupt)
    market.play([SpotTrace.from_values(trace([2, 1, 0]))], speed=60_000, grace_s=0.5)
    assert done.wait(60)
    assert applied[0][:2] == ("c7i.large", ZONE)
    assert applied[-1] == ("c7i.large", ZONE, 0, 0.5)
    market.play([], speed=0, grace_s=0)
    assert market.limit("c7i.large", ZONE) is None


@pytest.mark.parametrize(
    "fault",
    [
        *({"data": []}, {"data": [-1]}, {"data": "x"}, {"prices": ["nan"]}, {"prices": ["dear"]}),
        *({"metadata": {}}, {"metadata": {"gap_seconds": 0}}, {"metadata": {"gap_seconds": "inf"}}),
    ],
)
def test_a_faulty_trace_is_refused(fault):
    with pytest.raises(ValueError, match="trace"):
        SpotTrace.from_values({**trace([1]), **fault})


def test_instances_follow_the_trace_of_their_zone(rig):
    with pytest.raises(LocalCloudError, match="a trace has"):
        rig.control.play_traces([trace([])], speed=1)
    rig.control.play_traces([trace([2, 1, 0], prices=[0.01, 0.02, 0.03])], speed=0, grace_s=0.1)
    first, second = rig.run(1, **SPOT)[0], rig.run(1, **SPOT)[0]
    with refused("InsufficientInstanceCapacity"):
        rig.run(1, **SPOT)
    on_demand = rig.run(1, Placement={"AvailabilityZone": ZONE})[0]  # a trace is of spot only
    rig.control.move_trace(600)
    one_is_left = ["running", "terminated"]
    wait_for(lambda: sorted(map(rig.state, (first, second))) == one_is_left, "one is interrupted")
    reply = rig.ec2.describe_spot_price_history(InstanceTypes=["c7i.large"], AvailabilityZone=ZONE)
    assert {price["SpotPrice"] for price in reply["SpotPriceHistory"]} == {"0.02"}
    rig.control.move_trace(1200)
    wait_for(lambda: rig.state(second) == rig.state(first) == "terminated", "both are interrupted")
    assert rig.state(on_demand) in {"pending", "running"}
    shown = rig.control.status()["trace"]["pools"]
    assert shown == [{"instance_type": "c7i.large", "zone": ZONE, "count": 0}]
    rig.control.play_traces([], speed=0)
    rig.ec2.terminate_instances(InstanceIds=[on_demand, *rig.run(1, **SPOT)])


def test_a_trace_of_all_zones_limits_a_fleet(rig, fleet):
    rig.control.play_traces([trace([1], name="c7i.xlarge", zone=None)], speed=0)
    reply = fleet([pool("c7i.xlarge"), pool("c7i.xlarge", "us-east-1b")], 3)
    assert (sum(count(reply).values()), errors(reply)) == (1, {"c7i.xlarge": "InsufficientInstanceCapacity"})
    rig.control.play_traces([], speed=0)
