"""Spot Instances: a price below the market, an interruption, and what is not supported."""

import pytest

from tests.fakes.local_ec2 import UBUNTU, refused


def market(**options):
    return {"MarketType": "spot", "SpotOptions": options}


def test_a_price_below_the_market_launches_nothing(rig):
    before = len(rig.control.status()["instances"])
    with refused("SpotMaxPriceTooLow", "Your Spot request price of 0.001 is lower than the minimum"):
        rig.run(InstanceMarketOptions=market(MaxPrice="0.001"))
    overrides = [{"InstanceType": "c7i.large", "MaxPrice": "0.0001"}]
    reply = rig.fleet({"ImageId": UBUNTU}, overrides, 2, market="spot")
    assert reply["Instances"] == []
    assert {error["ErrorCode"] for error in reply["Errors"]} >= {"SpotMaxPriceTooLow"}
    assert len(rig.control.status()["instances"]) == before


@pytest.mark.parametrize(
    "options", [{"InstanceInterruptionBehavior": "stop"}, {"SpotInstanceType": "persistent"}]
)
def test_spot_options_that_are_not_supported_are_refused(rig, options):
    with refused("UnsupportedOperation"):
        rig.run(InstanceMarketOptions=market(**options))
