"""What instances cost, from where, as of when."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.cloud.offers.prices import MANY
from dlcloud.model.instance import Market
from tests.fakes.clock import FakeClock
from tests.unit.cloud.conftest import cloud_over

ON_DEMAND, SPOT = Market.ON_DEMAND, Market.SPOT


def product(usd):
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    return json.dumps({"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}})


WANTED = {
    "ServiceCode": "AmazonEC2",
    "Filters": [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {
            "instanceType": "c7i.xlarge",
            "regionCode": "us-east-1",
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }.items()
    ],
}


class FakeCache:
    """Prices in a dictionary."""

    def __init__(self, *prices):
        self.stored = {(each.instance_type, each.region, each.market): each for each in prices}

    def get(self, instance_type, region, market):
        return self.stored.get((instance_type, region, market))

    def put(self, price):
        self.stored[price.instance_type, price.region, price.market] = price


@pytest.fixture
def pricing(clients, stub):
    return stub(clients.get("pricing", "us-east-1"))


def ask(clients, cache, clock):
    return cloud_over(clients, cache, clock).prices.find(["c7i.xlarge"], [ON_DEMAND])


def test_aws_is_asked_once_a_day(clients, pricing):
    clock, cache = FakeClock(), FakeCache()
    pricing.add_response("get_products", {"PriceList": [product("0.2000000000")]}, WANTED)
    (first,) = ask(clients, cache, clock)
    assert (first.hourly_usd, first.source, first.as_of) == (Decimal("0.2"), "AWS Pricing API", clock.now())
    clock.advance(24 * 3600 - 1)
    assert ask(clients, cache, clock) == [first]
    pricing.add_response("get_products", {"PriceList": [product("0.3")]}, WANTED)
    clock.advance(1)
    assert ask(clients, cache, clock)[0].hourly_usd == Decimal("0.3")


def test_many_types_are_picked_out_of_the_whole_region(clients, pricing):
    names = [f"c9x.{size}xlarge" for size in range(1, MANY + 1)]
    everything = {"ServiceCode": "AmazonEC2", "Filters": WANTED["Filters"][1:]}
    first = [named("c9x.1xlarge", "0.5"), named("zz9.huge", "9")]
    second = [named("c9x.2xlarge", "0.9"), named("c7i.xlarge", "0.2")]
    pricing.add_response("get_products", {"PriceList": first, "NextToken": "2"}, everything)
    pricing.add_response("get_products", {"PriceList": second}, everything | {"NextToken": "2"})
    prices = cloud_over(clients, FakeCache(), FakeClock()).prices.find([*names, "c7i.xlarge"], [ON_DEMAND])
    usd = {price.instance_type: price.hourly_usd for price in prices}
    assert usd == {"c9x.1xlarge": Decimal("0.5"), "c9x.2xlarge": Decimal("0.9"), "c7i.xlarge": Decimal("0.2")}


def named(name, usd):
    return json.dumps({**json.loads(product(usd)), "product": {"attributes": {"instanceType": name}}})


def test_products_without_a_price_are_passed_over(clients, pricing):
    products = [json.dumps({"terms": {}}), product("0.0000000000"), product("0.25")]
    pricing.add_response("get_products", {"PriceList": products}, WANTED)
    assert ask(clients, FakeCache(), FakeClock())[0].hourly_usd == Decimal("0.25")


def test_without_an_answer_the_bundled_price_keeps_its_own_date_and_source(clients, pricing):
    pricing.add_client_error("get_products", "AccessDeniedException")
    cache = FakeCache()
    (price,) = ask(clients, cache, FakeClock())
    assert price == Catalog().on_demand_price("c7i.xlarge", "us-east-1")
    assert price.source == "bundled table"
    assert price.as_of < datetime(2026, 9, 1, tzinfo=UTC)
    assert cache.stored == {}


@pytest.mark.parametrize("refused", [True, False])
def test_an_old_price_of_aws_is_better_than_the_bundled_one(clients, pricing, refused):
    clock = FakeClock()
    bundled = Catalog().on_demand_price("c7i.xlarge", "us-east-1")
    old = replace(bundled, hourly_usd=Decimal("0.19"), as_of=clock.now() - timedelta(days=9), source="AWS")
    if refused:
        pricing.add_client_error("get_products", "ThrottlingException")
    else:
        pricing.add_response("get_products", {"PriceList": []}, WANTED)
    assert ask(clients, FakeCache(old), clock) == [old]


def test_on_the_local_cloud_only_the_table_is_used(clients):
    assert cloud_over(clients).prices.find(["c7i.xlarge", "zz9.huge"], [ON_DEMAND]) == [
        Catalog().on_demand_price("c7i.xlarge", "us-east-1")
    ]


def test_the_newest_spot_price_of_every_zone_is_returned_and_of_a_history_all(clients, stub):
    clock, ec2 = FakeClock(), stub(clients.get("ec2"))
    prices = cloud_over(clients, None, clock).prices
    names = ["c7i.xlarge", "c6i.xlarge", "c5.large"]

    def answer(since, *rows):
        columns = ("InstanceType", "AvailabilityZone", "SpotPrice", "Timestamp")
        ec2.add_response(
            "describe_spot_price_history",
            {"SpotPriceHistory": [dict(zip(columns, row, strict=True)) for row in rows]},
            {"InstanceTypes": names, "ProductDescriptions": ["Linux/UNIX"], "StartTime": since},
        )

    then, minute = clock.now() - timedelta(hours=3), timedelta(minutes=1)
    answer(
        clock.now(),
        ("c7i.xlarge", "us-east-1a", "0.0700", then),
        ("c7i.xlarge", "us-east-1b", "0.0612", then),
        ("c6i.xlarge", "us-east-1a", "0.0500", then),
        ("c7i.xlarge", "us-east-1a", "0.0710", then + 30 * minute),
        ("c7i.xlarge", "us-east-1a", "0.0720", then + 20 * minute),
    )
    prices_now = prices.find(names, [SPOT, ON_DEMAND])
    spot = {(each.instance_type, each.zone): each for each in prices_now if each.market is SPOT}
    assert {name: each.hourly_usd for name, each in spot.items()} == {
        ("c7i.xlarge", "us-east-1a"): Decimal("0.0710"),
        ("c7i.xlarge", "us-east-1b"): Decimal("0.0612"),
        ("c6i.xlarge", "us-east-1a"): Decimal("0.0500"),
    }
    assert spot["c7i.xlarge", "us-east-1b"].as_of == then
    assert spot["c7i.xlarge", "us-east-1b"].source == "local EC2"
    assert sum(each.market is ON_DEMAND for each in prices_now) == 3
    since = clock.now() - timedelta(days=14)
    rows = [
        ("c7i.xlarge", "us-east-1a", usd, since + days * 1440 * minute)
        for usd, days in (("0.08", 9), ("0.07", 0))
    ]
    answer(since, *rows)
    history = prices.spot_history(names, since)
    assert [(str(each.hourly_usd), each.as_of) for each in history] == [row[2:] for row in reversed(rows)]
