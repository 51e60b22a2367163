"""Which Region a job is launched in: the cheapest with disks, addresses and the traffic of its data."""

from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.model.errors import CapacityError, CloudError, QuotaError
from dlcloud.planning.regions import dearest, rank_regions
from dlcloud.planning.storage import describe_moved, traffic_usd
from dlcloud.recipe.data import DataSet
from tests.fakes.controller import TRAINS
from tests.fakes.samples import plan, price, recipe


def plans(**hourly):
    return {
        name.replace("_", "-"): replace(plan(), region=name.replace("_", "-"), pools=pools_at(usd))
        for name, usd in hourly.items()
    }


def pools_at(usd):
    first = plan().pools[0]
    return (replace(first, price=None if usd is None else price(first.instance_type, usd)),)


def test_the_cheapest_region_comes_first_and_an_unknown_price_last():
    ranked = rank_regions(plans(us_west_2=None, us_east_1="0.2", eu_west_1="0.1"), {})
    assert [one.region for one in ranked] == ["eu-west-1", "us-east-1", "us-west-2"]
    assert [offer.region for offer in ranked[1].regions] == ["eu-west-1", "us-east-1", "us-west-2"]
    # 2 instances for 4 h at 0.1 USD are 0.80; two disks of 50 GiB at gp3's price in Ireland and addresses.
    assert Decimal("0.84") < ranked[0].regions[0].job_usd < Decimal("0.90")


def test_traffic_of_data_makes_another_region_the_cheaper_one():
    given = plans(us_east_1="0.11", us_west_2="0.10")
    data = DataSet(uri="s3://b/d", region="us-east-1", files=1, size=100 * 10**9)
    for name, one in given.items():
        given[name] = replace(one, traffic_usd=traffic_usd(data, name, one.max_count))
    assert given["us-west-2"].traffic_usd == Decimal("4.00")  # 2 x 100 GB at 0.02 USD
    assert [one.region for one in rank_regions(given, {})] == ["us-east-1", "us-west-2"]


def test_a_region_that_refuses_is_named_with_its_reason():
    refusal = QuotaError("no vCPUs are left")
    (only,) = rank_regions(plans(us_east_1="0.1"), {"us-west-2": refusal})
    assert only.regions[-1].refusal == "no vCPUs are left"
    with pytest.raises(QuotaError, match=r"us-west-2: no vCPUs are left"):
        rank_regions({}, {"us-west-2": refusal})
    with pytest.raises(CapacityError, match=r"eu-west-1: denied"):
        rank_regions({}, {"us-west-2": refusal, "eu-west-1": CloudError("denied")})
    with pytest.raises(QuotaError, match=r"^us-west-2, eu-west-1: no vCPUs are left$"):
        rank_regions({}, {"us-west-2": refusal, "eu-west-1": refusal})


def test_the_dearest_plan_is_the_one_whose_price_is_unknown():
    one, other = (replace(plan(), worst_case_usd=usd) for usd in (Decimal(3), Decimal(4)))
    assert dearest([one, other]) is other
    unknown = replace(plan(), worst_case_usd=None)
    assert dearest([one, unknown, other]) is unknown


def test_checkpoints_in_another_region_are_read_once_and_stored_for_as_long_as_the_budget_lasts():
    newest = DataSet(uri="s3://b/c", region="us-east-1", files=1, size=4 * 10**9)
    trains = recipe(f"{TRAINS}region: us-west-2\ncheckpoints: s3://runs/c\nbudget: {{max_hours: 10}}\n")
    text, usd = describe_moved(newest, trains)
    assert usd == Decimal("0.08") + Decimal("0.08") * 600  # one is stored each minute
    assert "0.02 USD per GB read, 0.02 stored; 0.08 USD to read the newest, 48.00 to store" in text
    runs = recipe(
        TRAINS.replace("elastic: {}", "checkpoints: [c/]") + "region: us-west-2\ncheckpoints: s3://runs/c\n"
    )
    assert (
        "0.24 USD to read the newest; 4.80 USD per hour at 4,000 MB each" in describe_moved(newest, runs)[0]
    )
    text, usd = describe_moved(replace(newest, size=0), trains)
    assert (usd, "not in the total" in text) == (0, True)
