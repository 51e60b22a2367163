"""No capacity, too little of it, and quota: how few calls the verdict takes, and its reasons."""

import pytest

from tests.fakes.control import control_of

TYPES = ("c5.xlarge", "c6i.xlarge")
RECIPE = """
name: capacity
cloud: local
instances:
  types: [c5.xlarge, c6i.xlarge]
  count: {count}
  market: {market}
workload: {{command: echo, repeats: 1}}
"""
LAUNCHING = ("CreateSecurityGroup", "CreateLaunchTemplate", "CreateFleet", "RunInstances")
MOST_LAUNCH_CALLS = 3


@pytest.fixture
def control(home):
    control = control_of(home.site.find())
    control.reset_calls()
    yield control
    control.clear_faults()
    for name in TYPES:
        control.set_capacity(name, None)


def up(home, *, count=2, market="spot"):
    path = home.folder / "capacity.yaml"
    path.write_text(RECIPE.format(count=count, market=market))
    return home.run("up", str(path))


def launch_calls(control):
    return {name: number for name, number in control.calls().items() if name in LAUNCHING}


def test_no_capacity_is_found_after_three_calls_with_every_pool_named(home, control):
    for name in TYPES:
        control.set_capacity(name, 0)
    outcome = up(home)
    assert outcome["status"] == 3
    assert sum(launch_calls(control).values()) <= MOST_LAUNCH_CALLS
    for name in TYPES:
        assert f"{name} spot in us-east-1a, us-east-1b" in outcome["output"]
    assert "InsufficientInstanceCapacity" in outcome["output"]
    assert not any(home.left().values())


def test_a_second_market_adds_one_call_to_the_verdict(home, control):
    """EC2 has no fleet that falls back from spot to on-demand: each market is a call of its own."""
    for name in TYPES:
        control.set_capacity(name, 0)
    outcome = up(home, market="spot-then-on-demand")
    assert outcome["status"] == 3
    assert launch_calls(control) == {"CreateSecurityGroup": 1, "CreateLaunchTemplate": 1, "CreateFleet": 2}
    for name in TYPES:
        for market in ("spot", "on-demand"):
            assert f"{name} {market} in us-east-1a, us-east-1b" in outcome["output"]


def test_a_denied_spot_request_costs_no_on_demand_price(home, control):
    control.add_fault("CreateFleet", "UnauthorizedOperation")
    outcome = up(home, market="spot-then-on-demand")
    assert outcome["status"] == 3
    assert launch_calls(control)["CreateFleet"] == 1
    assert "c5.xlarge spot in us-east-1a, us-east-1b" in outcome["output"]
    assert "The local cloud was asked to refuse this call. (UnauthorizedOperation)" in outcome["output"]
    assert "dlcloud policy" in outcome["output"]
    assert not any(home.left().values())


def test_a_quota_is_asked_once_and_never_again(home, control):
    control.add_fault("CreateFleet", "MaxSpotInstanceCountExceeded")
    outcome = up(home)
    assert outcome["status"] == 3
    assert launch_calls(control)["CreateFleet"] == 1
    assert "Service Quotas" in outcome["output"]


def test_a_quota_of_a_single_type_is_asked_once(home, control):
    control.add_fault("RunInstances", "VcpuLimitExceeded")
    path = home.folder / "one.yaml"
    path.write_text(
        RECIPE.format(count=1, market="on-demand").replace("[c5.xlarge, c6i.xlarge]", "[c5.xlarge]")
    )
    outcome = home.run("up", str(path))
    assert outcome["status"] == 3
    assert launch_calls(control)["RunInstances"] == 1


@pytest.mark.long
def test_what_spot_gives_in_part_is_completed_on_demand(home, control):
    control.set_capacity("c5.xlarge", 3)
    control.set_capacity("c6i.xlarge", 0)
    outcome = up(home, count=3, market="spot-then-on-demand")
    assert outcome["status"] == 0, outcome["output"]
    control.set_capacity("c5.xlarge", 1, "us-east-1a")
    control.set_capacity("c6i.xlarge", 1, "us-east-1b")
    assert up(home, count="{min: 1, max: 3}", market="spot")["status"] == 0


@pytest.mark.long
def test_throttling_slows_a_launch_and_breaks_nothing(home, control):
    control.add_fault("*", "RequestLimitExceeded", rate=1 / 3, status=503)
    outcome = up(home)
    assert outcome["status"] == 0, outcome["output"]
    control.clear_faults()
    assert not any(home.left().values())
