"""Spot capacity that follows a trace: refusals, interruptions, prices, and faulty traces."""

import threading
from decimal import Decimal

import pytest
from botocore.exceptions import ClientError

from dlcloud.local.capacity.spot_market import SpotMarket, SpotTrace
from dlcloud.model.errors import LocalCloudError
from tests.fakes.local_ec2 import UBUNTU, wait_for

ZONE = "us-east-1a"
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}, "Placement": {"AvailabilityZone": ZONE}}


def values(data, *, zone=ZONE, gap=600, **more):
    return {
        "instance_type": "c7i.large",
        "zone": zone,
        "metadata": {"gap_seconds": gap},
        "data": data,
        **more,
    }


def trace(data, **options):
    return SpotTrace.from_values(values(data, **options))


def test_a_trace_gives_count_and_price_of_each_tick():
    market = SpotMarket(list, lambda *_: None)
    market.play([trace([3, 1], prices=[0.5, "0.75"])], speed=0, grace_s=1)
    assert (market.limit("c7i.large", ZONE), market.price("c7i.large", ZONE)) == (3, Decimal("0.5"))
    market.move_to(600)
    assert (market.limit("c7i.large", ZONE), market.price("c7i.large", ZONE)) == (1, Decimal("0.75"))
    market.move_to(1e9)  # the last value stays
    assert market.limit("c7i.large", ZONE) == 1
    assert market.limit("c7i.large", "us-east-1b") is None


def test_a_playing_trace_applies_each_tick_by_itself():
    applied, done = [], threading.Event()

    def interrupt(*arguments):
        applied.append(arguments)
        if arguments[2] == 0:
            done.set()

    market = SpotMarket(list, interrupt)
    market.play([trace([2, 1, 0])], speed=60_000, grace_s=0.5)
    assert done.wait(60)
    assert applied[0][:2] == ("c7i.large", ZONE)
    assert applied[-1] == ("c7i.large", ZONE, 0, 0.5)
    market.play([], speed=0, grace_s=0)
    assert market.limit("c7i.large", ZONE) is None


@pytest.mark.parametrize(
    "fault",
    [
        {"data": []},
        {"data": [-1]},
        {"data": "x"},
        {"metadata": {}},
        {"metadata": {"gap_seconds": 0}},
        {"metadata": {"gap_seconds": "inf"}},
        {"prices": ["nan"]},
        {"prices": ["dear"]},
    ],
)
def test_a_faulty_trace_is_refused(fault):
    with pytest.raises(ValueError, match="trace"):
        SpotTrace.from_values({**values([1]), **fault})


def test_instances_follow_the_trace_of_their_zone(rig):
    rig.control.play_traces([values([2, 1, 0], prices=[0.01, 0.02, 0.03])], speed=0, grace_s=0.1)
    first = rig.run(1, **SPOT)[0]
    second = rig.run(1, **SPOT)[0]
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        rig.run(1, **SPOT)
    on_demand = rig.run(1, Placement={"AvailabilityZone": ZONE})[0]  # a trace is of spot only
    rig.control.move_trace(600)
    wait_for(
        lambda: sorted(map(rig.state, (first, second))) == ["running", "terminated"], "one is interrupted"
    )
    reply = rig.ec2.describe_spot_price_history(InstanceTypes=["c7i.large"], AvailabilityZone=ZONE)
    assert {price["SpotPrice"] for price in reply["SpotPriceHistory"]} == {"0.02"}
    rig.control.move_trace(1200)
    wait_for(lambda: rig.state(second) == rig.state(first) == "terminated", "both are interrupted")
    assert rig.state(on_demand) in {"pending", "running"}
    assert rig.control.status()["trace"]["pools"] == [
        {"instance_type": "c7i.large", "zone": ZONE, "count": 0}
    ]
    rig.control.play_traces([], speed=0)
    rig.ec2.terminate_instances(InstanceIds=[on_demand, *rig.run(1, **SPOT)])


def test_a_trace_of_all_zones_limits_a_fleet(rig):
    rig.control.play_traces([{**values([1], zone=None), "instance_type": "c7i.xlarge"}], speed=0)
    overrides = [{"AvailabilityZone": zone} for zone in (ZONE, "us-east-1b")]
    reply = rig.fleet({"ImageId": UBUNTU, "InstanceType": "c7i.xlarge"}, overrides, 3, market="spot")
    ids = [name for part in reply["Instances"] for name in part["InstanceIds"]]
    assert len(ids) == 1
    assert {error["ErrorCode"] for error in reply["Errors"]} == {"InsufficientInstanceCapacity"}
    rig.control.play_traces([], speed=0)
    rig.ec2.terminate_instances(InstanceIds=ids)


def test_a_faulty_trace_is_refused_by_the_control_page(rig):
    with pytest.raises(LocalCloudError, match="a trace has"):
        rig.control.play_traces([values([])], speed=1)
