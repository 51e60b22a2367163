"""The deadline of a cluster is stored once; its pools and prices come from the plan, then from the cloud."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest

from dlcloud.elastic.deadline_scaler import (
    PRICES_EVERY_S,
    PoolPrices,
    end_deadline,
    make_scaler,
    mean_prices,
    prices_of,
)
from dlcloud.elastic.registry import TrainingRegistry
from dlcloud.model.errors import CapacityError
from dlcloud.model.instance import Market, Price
from dlcloud.planning.plan import CapacityPool
from dlcloud.scheduling.deadline_scaling import limit_plan, spot_pool
from dlcloud.store.clusters import DEADLINE, Clusters
from dlcloud.store.database import Database
from tests.fakes.clock import START, FakeClock
from tests.fakes.samples import PRICE_DATE, RECIPE, cluster, plan, recipe

TYPE = "c7i.xlarge"
TEXT = RECIPE.replace(
    "count: 2", "count: {min: 1, max: 4}\n  market: spot-then-on-demand\n  on_demand_base: 1"
).replace("benchmark: quantization", "command: ./train\n  elastic: {}")
TEXT += "deadline:\n  finish: 52h\n  work: {steps: 100}\n"


def price(market, usd, zone=""):
    return Price(
        instance_type=TYPE,
        region="us-east-1",
        market=market,
        hourly_usd=Decimal(usd),
        as_of=PRICE_DATE,
        source="table",
        zone=zone,
    )


POOLS = (
    CapacityPool(
        instance_type=TYPE,
        market=Market.SPOT,
        zone="",
        price=price(Market.SPOT, "0.05", "us-east-1a"),
        zones=("us-east-1a", "us-east-1b"),
        zone_prices=(price(Market.SPOT, "0.05", "us-east-1a"), price(Market.SPOT, "0.06", "us-east-1b")),
    ),
    CapacityPool(instance_type=TYPE, market=Market.ON_DEMAND, zone="", price=price(Market.ON_DEMAND, "0.18")),
)
A, B = spot_pool("us-east-1a", TYPE), spot_pool("us-east-1b", TYPE)


@pytest.fixture
def launcher(tmp_path):
    database = Database(tmp_path / "store.sqlite")
    clusters = Clusters(database)
    clusters.add(cluster(created_at=START))
    events = []
    yield SimpleNamespace(
        store=SimpleNamespace(clusters=clusters),
        cluster=cluster(created_at=START),
        cluster_id=cluster().cluster_id,
        clock=FakeClock(),
        emit=events.append,
        events=events,
    )
    database.close()


def scaler(launcher):
    parsed = recipe(TEXT)
    return make_scaler(launcher, parsed, parsed.deadline, pools={}, registry=TrainingRegistry())


def test_a_later_controller_has_the_deadline_of_the_first(launcher):
    launcher.clock.advance(60)
    assert scaler(launcher).deadline == START + timedelta(hours=52)
    launcher.clock.advance(3600)
    later = scaler(launcher)
    assert (later.began_at, later.deadline) == (START, START + timedelta(hours=52))
    assert len(launcher.store.clusters.intents(launcher.cluster_id, DEADLINE)) == 1


def test_a_kept_cluster_that_trains_again_has_a_new_deadline(launcher):
    scaler(launcher)
    end_deadline(launcher)
    assert launcher.events[-1].message == "finished 52.00 h before the deadline"
    launcher.clock.advance(100 * 3600)
    again = scaler(launcher)
    assert again.deadline == START + timedelta(hours=152)
    launcher.clock.advance(53 * 3600)
    end_deadline(launcher)
    assert "1.00 h after the deadline" in launcher.events[-1].message
    outcomes = [i.outcome for i in launcher.store.clusters.intents(launcher.cluster_id, DEADLINE)]
    assert outcomes == ["met", "missed"]


def test_the_pools_of_a_plan_have_prices_by_zone():
    assert prices_of(replace(plan(), pools=POOLS)) == {
        (Market.SPOT, A): 0.05,
        (Market.SPOT, B): 0.06,
        (Market.ON_DEMAND, TYPE): 0.18,
    }


def test_prices_are_asked_for_again_from_time_to_time(launcher):
    launcher.cloud = SimpleNamespace(
        prices=SimpleNamespace(find=lambda *_: [price(Market.SPOT, "0.09", "us-east-1a")])
    )
    launcher.cloud.prices.spot_history = lambda *_: []
    prices = PoolPrices(launcher=launcher, types=(TYPE,), prices={(Market.SPOT, A): 0.05})
    assert prices() == {(Market.SPOT, A): 0.05}
    launcher.clock.advance(PRICES_EVERY_S)
    prices._ask()
    assert prices.prices == {(Market.SPOT, A): 0.09}


def test_the_usual_price_of_a_pool_is_weighted_by_time():
    """It held for an hour before the time that counts, then changed twice within it."""
    hours = [(-1, "0.05"), (6, "0.01"), (9, "0.08")]
    history = [
        replace(price(Market.SPOT, usd, "us-east-1a"), as_of=START + timedelta(hours=at)) for at, usd in hours
    ]
    later = replace(price(Market.SPOT, "0.07", "us-east-1b"), as_of=START + timedelta(hours=10))
    means = mean_prices([*history, later], START, START + timedelta(hours=10))
    assert means == {
        (Market.SPOT, A): pytest.approx((6 * 0.05 + 3 * 0.01 + 1 * 0.08) / 10),
        (Market.SPOT, B): 0.07,
    }


def test_a_plan_is_limited_to_the_pools_that_are_asked():
    limited = limit_plan(replace(plan(), pools=POOLS), Market.SPOT, [B], 7)
    assert [(pool.market, pool.zones) for pool in limited.pools] == [(Market.SPOT, ("us-east-1b",))]
    assert (limited.rounds, limited.max_count, limited.on_demand_base) == ((Market.SPOT,), 7, 0)
    on_demand = limit_plan(replace(plan(), pools=POOLS), Market.ON_DEMAND, [TYPE], 3)
    assert on_demand.pools == (POOLS[1],)
    with pytest.raises(CapacityError):
        limit_plan(replace(plan(), pools=POOLS[1:]), Market.SPOT, [A], 3)
