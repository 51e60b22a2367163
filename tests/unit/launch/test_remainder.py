"""Where EC2 cannot end a cluster, what may still be up is stated with its price, by the store alone."""

from decimal import Decimal

import pytest

from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market, Price
from tests.fakes.cloud import Failure, Killed
from tests.fakes.samples import RECIPE
from tests.unit.launch.conftest import ONE_TYPE

ON_DEMAND_USD = Decimal("0.1785")


@pytest.fixture
def world(world):
    """A world whose EC2 states on-demand prices."""
    world.cloud.known_prices = [
        Price(
            instance_type="c7i.xlarge",
            region="us-east-1",
            market=Market.ON_DEMAND,
            zone="",
            hourly_usd=ON_DEMAND_USD,
            source="test",
            as_of=world.clock.now(),
        )
    ]
    return world


def test_running_instances_are_stated_with_price_and_end(world):
    members = world.provision(ONE_TYPE)
    hourly_usd = sum(member.hourly_usd for member in members)
    text = world.launcher.remainder().describe()
    assert text.startswith(f"2 instance(s) may still be up for {hourly_usd:.3f} USD/h until they end")
    assert text.endswith(" UTC at the latest")


def test_a_launch_without_an_answer_counts_in_full_at_the_on_demand_price(world):
    world.cloud.failures.append(Failure("instances.launch", Killed(), after=True))
    world.killed_while_provisioning(ONE_TYPE)
    text = world.launcher.remainder().describe()
    assert text.startswith(
        f"up to 2 of a launch without an answer may still be up for {2 * ON_DEMAND_USD:.3f} USD/h until "
    )


@pytest.mark.parametrize("failing", [True, False])
def test_a_price_that_cannot_be_had_is_stated_as_unknown(world, failing):
    world.cloud.known_prices = []
    if failing:
        world.cloud.failures.append(Failure("prices.find", CloudError("gone")))
    world.cloud.failures.append(Failure("fleets.launch", Killed(), after=True))
    world.killed_while_provisioning(RECIPE)
    assert " may still be up at an unknown price" in world.launcher.remainder().describe()


def test_ended_instances_are_none_that_may_be_up(world):
    world.provision(ONE_TYPE)
    world.launcher.destroy()
    assert world.launcher.remainder().describe() == (
        "no instance is up, but its security group may be left, at no cost"
    )


def test_instances_that_are_to_stay_are_no_remainder(world):
    first, second = world.provision(ONE_TYPE)
    remainder = world.launcher.remainder([first.instance.instance_id])
    assert (remainder.count, remainder.hourly_usd) == (1, second.hourly_usd)


def test_leaving_is_stated_with_its_end_and_its_most(world):
    members = world.provision(ONE_TYPE)
    remainder = world.launcher.remainder()
    hours = (remainder.ends_at - world.clock.now()).total_seconds() / 3600
    usd = float(sum(member.hourly_usd for member in members)) * hours
    text = remainder.describe_leaving(world.clock.now())
    assert text.startswith("to leave them to their own end at ")
    assert abs(float(text.split()[-4]) - usd) < 0.01, text
    assert text.endswith(" USD at most")
