"""Spot Instances: a price below the market, an interruption, and what is not supported."""

import pytest
from botocore.exceptions import ClientError

from tests.fakes.local_ec2 import UBUNTU


def refused(code, text=""):
    return pytest.raises(ClientError, match=rf"\({code}\).*{text}")


def market(**options):
    return {"MarketType": "spot", "SpotOptions": options}


def test_a_price_below_the_market_launches_nothing(rig):
    before = len(rig.control.status()["instances"])
    with refused("SpotMaxPriceTooLow", "Your Spot request price of 0.001 is lower than the minimum"):
        rig.run(InstanceMarketOptions=market(MaxPrice="0.001"))
    template = {"ImageId": UBUNTU, "InstanceType": "c7i.large"}
    rig.ec2.create_launch_template(LaunchTemplateName="spot-fleet", LaunchTemplateData=template)
    specification = {"LaunchTemplateName": "spot-fleet", "Version": "$Latest"}
    overrides = [{"InstanceType": "c7i.large", "MaxPrice": "0.0001"}]
    reply = rig.ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification, "Overrides": overrides}],
        TargetCapacitySpecification={"TotalTargetCapacity": 2, "DefaultTargetCapacityType": "spot"},
    )
    assert reply["Instances"] == []
    assert {error["ErrorCode"] for error in reply["Errors"]} >= {"SpotMaxPriceTooLow"}
    assert len(rig.control.status()["instances"]) == before


def test_an_interruption_is_the_reason_of_the_end(rig):
    instance = rig.up(InstanceMarketOptions=market(MaxPrice="1.5"))
    assert instance["InstanceLifecycle"] == "spot"
    rig.control.interrupt(instance["InstanceId"], grace_s=0.0)
    ended = rig.await_state(instance["InstanceId"], "terminated")
    assert ended["StateReason"]["Code"] == "Server.SpotInstanceTermination"


@pytest.mark.parametrize(
    "options", [{"InstanceInterruptionBehavior": "stop"}, {"SpotInstanceType": "persistent"}]
)
def test_spot_options_that_are_not_supported_are_refused(rig, options):
    with refused("UnsupportedOperation"):
        rig.run(InstanceMarketOptions=market(**options))
