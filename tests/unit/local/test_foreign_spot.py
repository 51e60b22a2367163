"""Spot Instance requests: described, awaited, cancelled, too cheap, persistent, and by the old action."""

import re

import botocore.loaders
import pytest
from botocore.exceptions import ClientError

from dlcloud.local.ec2.spot import SPOT_REQUEST_FILTERS
from tests.fakes.local_ec2 import UBUNTU, wait_for


def refused(code, text=""):
    return pytest.raises(ClientError, match=rf"\({code}\).*{text}")


def market(**options):
    return {"MarketType": "spot", "SpotOptions": options}


def request_of(rig, request_id):
    reply = rig.ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[request_id])
    return reply["SpotInstanceRequests"][0]


def await_status(rig, request_id, code):
    wait_for(lambda: request_of(rig, request_id)["Status"]["Code"] == code, f"{request_id} is {code}")
    return request_of(rig, request_id)


def old_request(rig, **options):
    specification = {"ImageId": UBUNTU, "InstanceType": "c7i.large"}
    reply = rig.ec2.request_spot_instances(LaunchSpecification=specification, **options)
    return [request["SpotInstanceRequestId"] for request in reply["SpotInstanceRequests"]]


def end(rig, instance_id):
    rig.ec2.terminate_instances(InstanceIds=[instance_id])
    rig.await_state(instance_id, "terminated")


def test_every_documented_filter_is_in_the_table():
    model = botocore.loaders.Loader().load_service_model("ec2", "service-2")
    members = model["shapes"]["DescribeSpotInstanceRequestsRequest"]["members"]
    names = re.findall(r"<li> <p> <code>([a-z0-9.:&;<>-]+)</code> - ", members["Filters"]["documentation"])
    assert not {name for name in names if not name.startswith("tag")} - set(SPOT_REQUEST_FILTERS)


def test_a_spot_instance_has_a_request(rig):
    instance = rig.up(InstanceMarketOptions=market(MaxPrice="1.5"))
    request = request_of(rig, instance["SpotInstanceRequestId"])
    assert (request["State"], request["Status"]["Code"]) == ("active", "fulfilled")
    assert (request["InstanceId"], request["SpotPrice"]) == (instance["InstanceId"], "1.5")
    assert request["LaunchSpecification"]["ImageId"] == UBUNTU
    filters = [{"Name": "instance-id", "Values": [instance["InstanceId"]]}]
    assert rig.ec2.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"] == [request]
    waiter = rig.ec2.get_waiter("spot_instance_request_fulfilled")
    waiter.wait(SpotInstanceRequestIds=[request["SpotInstanceRequestId"]])
    end(rig, instance["InstanceId"])
    request = await_status(rig, request["SpotInstanceRequestId"], "instance-terminated-by-user")
    assert request["State"] == "closed"


def test_a_fleet_has_a_request_for_every_spot_instance(rig):
    template = {"ImageId": UBUNTU, "InstanceType": "c7i.large"}
    rig.ec2.create_launch_template(LaunchTemplateName="spot-fleet", LaunchTemplateData=template)
    specification = {"LaunchTemplateName": "spot-fleet", "Version": "$Latest"}
    capacity = {"TotalTargetCapacity": 2, "DefaultTargetCapacityType": "spot"}
    reply = rig.ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification}],
        TargetCapacitySpecification=capacity,
    )
    ids = [instance_id for entry in reply["Instances"] for instance_id in entry["InstanceIds"]]
    assert len(ids) == 2
    for instance_id in ids:
        request = request_of(rig, rig.describe(instance_id)["SpotInstanceRequestId"])
        assert request["InstanceId"] == instance_id
    overrides = [{"InstanceType": "c7i.large", "MaxPrice": "0.0001"}]
    reply = rig.ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification, "Overrides": overrides}],
        TargetCapacitySpecification=capacity,
    )
    assert reply["Instances"] == []
    assert {error["ErrorCode"] for error in reply["Errors"]} >= {"SpotMaxPriceTooLow"}


def test_a_price_below_the_market_launches_nothing(rig):
    before = len(rig.control.status()["instances"])
    with refused("SpotMaxPriceTooLow", "Your Spot request price of 0.001 is lower than the minimum"):
        rig.run(InstanceMarketOptions=market(MaxPrice="0.001"))
    assert len(rig.control.status()["instances"]) == before


def test_an_interruption_is_the_status_of_the_request(rig):
    instance = rig.up(InstanceMarketOptions=market())
    rig.control.interrupt(instance["InstanceId"], grace_s=0.0)
    request = await_status(rig, instance["SpotInstanceRequestId"], "instance-terminated-no-capacity")
    assert request["State"] == "closed"


def test_a_cancelled_request_leaves_its_instance(rig):
    instance = rig.up(InstanceMarketOptions=market())
    request_id = instance["SpotInstanceRequestId"]
    reply = rig.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request_id])
    assert reply["CancelledSpotInstanceRequests"] == [
        {"SpotInstanceRequestId": request_id, "State": "cancelled"}
    ]
    assert request_of(rig, request_id)["Status"]["Code"] == "request-canceled-and-instance-running"
    assert rig.state(instance["InstanceId"]) == "running"
    rig.ec2.get_waiter("spot_instance_request_fulfilled").wait(SpotInstanceRequestIds=[request_id])


def test_a_persistent_request_replaces_its_instance_until_cancelled(rig):
    instance = rig.up(InstanceMarketOptions=market(SpotInstanceType="persistent"))
    request_id = instance["SpotInstanceRequestId"]
    assert request_of(rig, request_id)["Type"] == "persistent"
    rig.control.interrupt(instance["InstanceId"], grace_s=0.0)
    wait_for(
        lambda: request_of(rig, request_id).get("InstanceId") not in (None, instance["InstanceId"]),
        "another instance",
    )
    second = rig.await_state(request_of(rig, request_id)["InstanceId"], "running")
    assert second["SpotInstanceRequestId"] == request_id
    assert second["InstanceType"] == instance["InstanceType"]
    assert rig.on(second, "echo in")[1] == "in\n"
    rig.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request_id])
    end(rig, second["InstanceId"])
    assert request_of(rig, request_id)["State"] == "cancelled"
    assert request_of(rig, request_id)["InstanceId"] == second["InstanceId"]


def test_the_old_action_requests_and_the_waiter_sees_it(rig):
    tags = [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "Name", "Value": "old"}]}]
    ids = old_request(rig, InstanceCount=2, TagSpecifications=tags)
    wait_for(lambda: all(request_of(rig, name)["State"] == "active" for name in ids), "both are active")
    rig.ec2.get_waiter("spot_instance_request_fulfilled").wait(SpotInstanceRequestIds=ids)
    filters = [{"Name": "tag:Name", "Values": ["old"]}]
    found = rig.ec2.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
    assert sorted(request["SpotInstanceRequestId"] for request in found) == sorted(ids)
    assert len({request["InstanceId"] for request in found}) == 2


def test_the_old_action_waits_for_price_and_capacity(rig):
    [cheap] = old_request(rig, SpotPrice="0.0001")
    assert await_status(rig, cheap, "price-too-low")["State"] == "open"
    rig.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[cheap])
    assert request_of(rig, cheap)["Status"]["Code"] == "canceled-before-fulfillment"
    rig.control.set_capacity("c7i.large", 0)
    [waiting] = old_request(rig)
    await_status(rig, waiting, "capacity-not-available")
    rig.control.set_capacity("c7i.large", None)
    await_status(rig, waiting, "fulfilled")


def test_a_wrong_image_is_refused_at_once(rig):
    with refused(r"InvalidAMIID\.NotFound"):
        rig.ec2.request_spot_instances(LaunchSpecification={"ImageId": "ami-0123456789abcdef0"})


def test_unknown_requests_are_refused(rig):
    with refused(r"InvalidSpotInstanceRequestID\.NotFound"):
        request_of(rig, "sir-01234567")
    with refused(r"InvalidSpotInstanceRequestID\.Malformed"):
        rig.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=["sir-?"])


def test_an_interruption_that_stops_is_refused(rig):
    with refused("InvalidParameterCombination"):
        rig.run(InstanceMarketOptions=market(InstanceInterruptionBehavior="stop"))
    options = market(InstanceInterruptionBehavior="stop", SpotInstanceType="persistent")
    with refused("UnsupportedOperation"):
        rig.run(InstanceMarketOptions=options)
