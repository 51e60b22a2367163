"""The local EC2 refuses requests that name more than one may."""

import pytest

from dlcloud.local.api.call import Call, limit_refusal


def call(action, **parameters):
    pairs = tuple((name.replace("_", "."), str(value)) for name, value in parameters.items())
    return Call(service="ec2", region="us-east-1", action=action, body=b"", parameters=pairs, is_json=False)


def naming(action, prefix, count):
    return call(action, **{f"{prefix}_{number}": f"x-{number}" for number in range(count)})


@pytest.mark.parametrize(
    ("action", "prefix", "most"),
    [
        ("TerminateInstances", "InstanceId", 1000),
        ("DescribeInstances", "InstanceId", 1000),
        ("DescribeInstanceStatus", "InstanceId", 100),
        ("CreateTags", "ResourceId", 1000),
        ("DeleteFleets", "FleetId", 25),
    ],
)
def test_more_ids_than_an_action_takes_are_refused(action, prefix, most):
    assert limit_refusal(naming(action, prefix, most)) is None
    refusal = limit_refusal(naming(action, prefix, most + 1))
    assert (refusal.code, str(most) in refusal.message) == ("InvalidRequest", True)


def test_a_launch_of_more_than_a_thousand_is_throttled():
    assert limit_refusal(call("RunInstances", MaxCount=1000)) is None
    assert limit_refusal(call("RunInstances", MaxCount=1001)).code == "RequestLimitExceeded"


def test_a_fleet_that_is_too_large_or_of_too_many_pools_is_refused():
    target = {"TargetCapacitySpecification_TotalTargetCapacity": 10_000}
    pools = {f"LaunchTemplateConfigs_1_Overrides_{number}_InstanceType": "c5.large" for number in range(300)}
    assert limit_refusal(call("CreateFleet", **target, **pools)) is None
    larger = {"TargetCapacitySpecification_TotalTargetCapacity": 10_001}
    assert limit_refusal(call("CreateFleet", **larger)).code == "InvalidParameterValue"
    one_more = {"LaunchTemplateConfigs_2_Overrides_1_InstanceType": "c5.large"}
    assert limit_refusal(call("CreateFleet", **target, **pools, **one_more)).code == "InvalidParameterValue"
