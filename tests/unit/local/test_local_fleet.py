"""CreateFleet of type instant: pools, errors, strategies."""

import base64

import pytest
from botocore.exceptions import ClientError

from tests.fakes.local_ec2 import UBUNTU


@pytest.fixture(scope="module")
def template(rig):
    rig.ec2.create_launch_template(
        LaunchTemplateName="fleet",
        LaunchTemplateData={
            "ImageId": UBUNTU,
            "InstanceType": "c7i.large",
            "UserData": _encoded(rig.user_data()),
            "MetadataOptions": {"HttpTokens": "required"},
            "InstanceInitiatedShutdownBehavior": "terminate",
        },
    )
    return "fleet"


def _encoded(text):
    return base64.b64encode(text.encode()).decode()


def fleet(rig, template, overrides, target, *, market="spot", **more):
    return rig.fleet(template, overrides, target, market=market, **more)


def pool(name, zone="us-east-1a"):
    return {"InstanceType": name, "AvailabilityZone": zone}


def count(reply):
    return {entry["InstanceType"]: len(entry["InstanceIds"]) for entry in reply["Instances"]}


def test_one_call_reaches_the_target_and_names_the_pool_that_refused(rig, template):
    rig.control.set_capacity("c6i.large", 2)
    reply = fleet(
        rig,
        template,
        [{**pool("c6i.large"), "Priority": 1}, {**pool("c7i.large"), "Priority": 2}],
        5,
        SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
    )
    assert sum(count(reply).values()) == 5
    reply = fleet(
        rig,
        template,
        [{**pool("c6i.large"), "Priority": 1}, {**pool("c7i.large"), "Priority": 2}],
        3,
        market="on-demand",
        OnDemandOptions={"AllocationStrategy": "prioritized"},
    )
    [error] = reply["Errors"]
    assert error["ErrorCode"] == "InsufficientInstanceCapacity"
    assert error["Lifecycle"] == "on-demand"
    assert error["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"] == "c6i.large"
    assert sum(count(reply).values()) == 3
    assert count(reply)["c7i.large"] >= 1


def test_the_cheapest_pool_with_capacity_is_used(rig, template):
    reply = fleet(
        rig,
        template,
        [pool("c7i.24xlarge"), pool("c7i.xlarge")],
        2,
        SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
    )
    assert count(reply) == {"c7i.xlarge": 2}
    assert reply["Errors"] == []


def test_fleet_instances_carry_tags_market_and_user_data(rig, template):
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "dlcloud:cluster", "Value": "f"}]}]
    reply = fleet(rig, template, [pool("c7i.large")], 1, TagSpecifications=tags)
    instance = rig.await_state(reply["Instances"][0]["InstanceIds"][0], "running")
    named = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert named["dlcloud:cluster"] == "f"
    assert named["aws:ec2:fleet-id"] == reply["FleetId"]
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert rig.on(instance, "echo in")[1] == "in\n"


def test_one_zone_for_all_goes_where_there_is_room(rig, template):
    rig.control.set_capacity("g4dn.xlarge", 1, zone="us-east-1a")
    reply = fleet(
        rig,
        template,
        [pool("g4dn.xlarge", "us-east-1a"), pool("g4dn.xlarge", "us-east-1b")],
        3,
        SpotOptions={"SingleAvailabilityZone": True},
    )
    zones = {
        entry["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"] for entry in reply["Instances"]
    }
    assert zones == {"us-east-1b"}


def test_a_fleet_is_idempotent_by_its_token(rig, template):
    first = fleet(rig, template, [pool("c7i.large")], 2, ClientToken="fleet-token")
    again = fleet(rig, template, [pool("c7i.large")], 2, ClientToken="fleet-token")
    assert again["FleetId"] == first["FleetId"]
    assert again["Instances"] == first["Instances"]
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        fleet(rig, template, [pool("c7i.large")], 3, ClientToken="fleet-token")


@pytest.mark.parametrize("code", ["VcpuLimitExceeded", "UnauthorizedOperation", "InvalidBlockDeviceMapping"])
def test_a_refused_launch_is_an_error_of_every_pool(rig, template, code):
    rig.control.add_fault("CreateFleet", code, times=1)
    reply = fleet(rig, template, [pool("c7i.large"), pool("c6i.xlarge")], 1)
    assert reply["Instances"] == []
    assert [error["ErrorCode"] for error in reply["Errors"]] == [code, code]


def test_a_disk_below_the_image_is_named_in_the_pools_error(rig):
    mapping = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}
    data = {"ImageId": UBUNTU, "BlockDeviceMappings": [mapping]}
    [error] = fleet(rig, data, [pool("c7i.large")], 1)["Errors"]
    assert error["ErrorCode"] == "InvalidBlockDeviceMapping"
    assert "smaller than snapshot" in error["ErrorMessage"]


def test_a_missing_group_is_an_error_of_the_pool(rig):
    data = {"ImageId": UBUNTU, "SecurityGroupIds": ["sg-0123456789abcdef0"]}
    reply = fleet(rig, data, [pool("c7i.large")], 1)
    assert [error["ErrorCode"] for error in reply["Errors"]] == ["InvalidGroup.NotFound"]
    assert reply["Instances"] == []


def test_a_missing_template_refuses_the_call(rig):
    with pytest.raises(ClientError, match="InvalidLaunchTemplateName"):
        fleet(rig, "missing", [pool("c7i.large")], 1)


def test_a_type_that_a_zone_does_not_offer_is_that_pools_error(rig, template):
    reply = fleet(rig, template, [pool("c99.huge"), pool("c7i.large")], 1)
    assert count(reply) == {"c7i.large": 1}
    assert [error["ErrorCode"] for error in reply["Errors"]] == ["InvalidFleetConfiguration"]


def test_deleting_a_fleet_ends_its_instances_and_no_others(rig, template):
    bystander = rig.up()
    reply = fleet(rig, template, [pool("c7i.large")], 1)
    rig.ec2.delete_fleets(FleetIds=[reply["FleetId"]], TerminateInstances=True)
    rig.await_state(reply["Instances"][0]["InstanceIds"][0], "terminated")
    assert rig.state(bystander["InstanceId"]) == "running"


def test_other_fleets_are_refused(rig, template):
    with pytest.raises(ClientError, match="UnsupportedOperation"):
        rig.ec2.create_fleet(
            Type="maintain",
            LaunchTemplateConfigs=[
                {"LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "1"}}
            ],
            TargetCapacitySpecification={"TotalTargetCapacity": 1},
        )


def test_a_limit_of_a_type_holds_over_all_its_zones_together(rig, template):
    rig.control.set_capacity("r7i.large", 2)
    reply = fleet(rig, template, [pool("r7i.large"), pool("r7i.large", "us-east-1b")], 3)
    rig.control.set_capacity("r7i.large", None)
    assert sum(count(reply).values()) == 2


def test_strategies_and_weights_of_other_fleets_are_named_as_gaps(rig, template):
    with pytest.raises(ClientError, match=r"UnsupportedOperation.*diversified"):
        fleet(rig, template, [pool("c7i.large")], 1, SpotOptions={"AllocationStrategy": "diversified"})
    with pytest.raises(ClientError, match=r"UnsupportedOperation.*MinTargetCapacity"):
        fleet(rig, template, [pool("c7i.large")], 1, SpotOptions={"MinTargetCapacity": 1})
    with pytest.raises(ClientError, match=r"UnsupportedOperation.*weighted capacity"):
        fleet(rig, template, [{**pool("c7i.large"), "WeightedCapacity": 2.0}], 1)


def test_credits_are_for_burstable_types_only(rig):
    credit = {"CreditSpecification": {"CpuCredits": "standard"}}
    data = {"ImageId": UBUNTU, "UserData": _encoded(rig.user_data()), **credit}
    reply = fleet(rig, data, [pool("c7i.large"), pool("t3.micro")], 1)
    assert count(reply) == {"t3.micro": 1}
    assert [(error["ErrorCode"], pool_of(error)) for error in reply["Errors"]] == [
        ("InstanceCreditSpecification.NotSupported", "c7i.large")
    ]
    with pytest.raises(ClientError, match=r"InstanceCreditSpecification\.NotSupported"):
        rig.run(**credit)


def pool_of(error):
    return error["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"]
