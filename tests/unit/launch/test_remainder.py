"""Where EC2 cannot end a cluster, what may still be up is stated with its price, by the store alone."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.launch.managed import NOTHING_UP, Remainder
from dlcloud.model.errors import CloudError
from tests.fakes.cloud import Failure, Killed
from tests.fakes.samples import RECIPE, price
from tests.unit.launch.conftest import ONE_TYPE


@pytest.fixture
def world(world):
    """A world whose EC2 states on-demand prices."""
    world.cloud.known_prices = [price()]
    return world


def test_running_instances_are_stated_with_price_and_end_until_they_have_ended(world):
    first, second = world.provision(ONE_TYPE)
    hourly_usd = first.hourly_usd + second.hourly_usd
    remainder = world.launcher.remainder()
    text = remainder.describe()
    assert text.startswith(f"2 instance(s) may still be up for {hourly_usd:.3f} USD/h until they terminate")
    assert text.endswith(" UTC at the latest")
    text = remainder.describe_leaving(world.clock.now())
    hours = (remainder.ends_at - world.clock.now()).total_seconds() / 3600
    assert abs(float(text.split()[-4]) - float(hourly_usd) * hours) < 0.01, text
    staying = world.launcher.remainder([first.instance.instance_id])
    assert (staying.count, staying.hourly_usd) == (1, second.hourly_usd)
    world.launcher.destroy()
    left = world.launcher.remainder().describe()
    assert left == "no instance is up, but its security group may be left, at no cost"


def test_a_launch_without_an_answer_counts_in_full_at_the_on_demand_price(world):
    world.cloud.failures.append(Failure("instances.launch", Killed(), after=True))
    world.killed_while_provisioning(ONE_TYPE)
    text = world.launcher.remainder().describe()
    assert text.startswith("up to 2 of a launch without an answer may still be up for 0.357 USD/h until ")


@pytest.mark.parametrize("failing", [True, False])
def test_a_price_that_cannot_be_had_is_stated_as_unknown(world, failing):
    world.cloud.known_prices = []
    if failing:
        world.cloud.failures.append(Failure("prices.find", CloudError("gone")))
    world.cloud.failures.append(Failure("fleets.launch", Killed(), after=True))
    world.killed_while_provisioning(RECIPE)
    assert " may still be up at an unknown price" in world.launcher.remainder().describe()


NOW = datetime(2026, 11, 26, 22, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("counts", "usd", "hours", "up", "leaving"),
    [
        ((0, 0), None, None, NOTHING_UP, "to leave its security group, at no cost"),
        (
            (2, 0),
            Decimal("0.5"),
            None,
            "2 instance(s) may still be up for 0.500 USD/h",
            "to leave them up for 0.500 USD/h",
        ),
        (
            (0, 3),
            None,
            1,
            "up to 3 of a launch without an answer may still be up at an unknown price {end}",
            "to leave them until they terminate themselves at 23:30 UTC, at an unknown price",
        ),
        (
            (2, 3),
            Decimal("0.5"),
            2,
            "2 instance(s) and up to 3 of a launch without an answer may still be up for 0.500 USD/h {end}",
            "to leave them until they terminate themselves at 2026-11-27 00:30 UTC, 1.00 USD at most",
        ),
        (
            (1, 0),
            Decimal(3600),
            -1,
            "1 instance(s) may still be up for 3600 USD/h {end}",
            "to leave them until they terminate themselves at 21:30 UTC, 0 USD at most",
        ),
    ],
)
def test_what_may_be_up_is_described_with_all_that_is_known_of_it(counts, usd, hours, up, leaving):
    ends_at = None if hours is None else NOW + timedelta(hours=hours)
    remainder = Remainder(count=counts[0], requested=counts[1], hourly_usd=usd, ends_at=ends_at)
    end = f"until they terminate themselves, at {ends_at:%Y-%m-%d %H:%M} UTC at the latest" if ends_at else ""
    assert remainder.describe() == up.format(end=end)
    assert remainder.describe_leaving(NOW) == leaving
