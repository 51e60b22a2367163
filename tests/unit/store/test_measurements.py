"""What reports read: the newest of each, selected in the store, and what old stores lack."""

import json
import sqlite3
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market
from dlcloud.store.database import MIGRATIONS, Database
from dlcloud.store.measurements import Measurements, Selection
from tests.fakes.samples import THEN, cluster, instance, price, run

LATER = THEN + timedelta(days=1)


def store(runs, one, *results):
    runs.add(one)
    lines = [
        json.dumps({"record": "result", "case": case, "setting": setting, "metrics": {}})
        for case, setting in results
    ]
    runs.add_records(one.run_id, 0, "".join(line + "\n" for line in lines).encode())


@pytest.fixture
def filled(runs, measurements):
    store(runs, run("a"), ("vgg16", "fp32"), ("vgg16", "int8"))
    store(runs, run("b", started_at=LATER, cluster_name="other"), ("vgg16", "fp32"))
    store(runs, run("c", instance_type="c5.large", workload="tensorflow"), ("vgg16", "fp32"))
    store(runs, run("d", cloud="local", started_at=LATER), ("vgg16", "int8"))
    return measurements


def test_newest_result_per_type_case_and_setting_real_and_rehearsed(filled):
    newest = filled.select(Selection(), newest=True)
    assert {name: len(places) for name, places in newest.items()} == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert [each.setting for each in filled.results(newest)["a"]] == ["int8"]
    every = filled.select(Selection(), newest=False)
    assert {name: len(places) for name, places in every.items()} == {"a": 2, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(types=("c5",)), "c"),
        (Selection(types=("c5.large", "c7i")), "abcd"),
        (Selection(types=("c",)), ""),
        (Selection(benchmarks=("tensorflow",)), "c"),
        (Selection(settings=("int8",)), "ad"),
        (Selection(cases=("resnet50",)), ""),
        (Selection(clusters=("other",)), "b"),
        (Selection(names=("other", "c")), "bc"),
        (Selection(clouds=("local",)), "d"),
        (Selection(since=LATER), "bd"),
        (Selection(until=LATER), "ac"),
        (Selection(run_ids=("a", "d"), settings=("fp32",)), "a"),
        (Selection(settings=("'; DROP TABLE runs; --",)), ""),
    ],
)
def test_a_selection_returns_the_results_it_names(filled, selection, expected):
    assert "".join(sorted(filled.select(selection, newest=False))) == expected


@pytest.mark.parametrize(
    "selection",
    [
        Selection(types=("c7i",)),
        Selection(benchmarks=("quantization",), settings=("fp32",)),
        Selection(clouds=("local",)),
        Selection(until=LATER),
        Selection(since=LATER, cases=("vgg16",)),
    ],
)
def test_the_newest_is_the_same_found_kind_by_kind_or_among_all_results(filled, selection):
    every = Selection(
        **{name: getattr(selection, name) for name in Selection.__dataclass_fields__ if name != "names"},
        names=("sample-1a2b", "other"),
    )
    assert filled.select(selection, newest=True) == filled.select(every, newest=True)


def test_names_are_of_runs_and_clusters(filled):
    assert filled.known_names({"a", "other", "missing"}) == {"a", "other"}
    assert [kind.setting for kind in filled.kinds()] == ["fp32", "int8", "int8", "fp32"]


def test_prices_of_both_markets_come_back_with_date_source_and_zone(runs, measurements):
    runs.add(run("a"))
    spot = price(usd="0.07", market=Market.SPOT)
    runs.put_prices("a", [price(), spot])
    runs.put_prices("a", [price(), spot])
    quote = measurements.market_prices(["a", "b"])["a"]
    assert quote.on_demand == price()
    assert (quote.spot.hourly_usd, quote.spot.source) == (Decimal("0.07"), "bundled table")


def test_the_billing_period_of_an_instance_is_that_of_its_member(clusters, measurements):
    clusters.add(cluster(ended_at=LATER))
    one = Member(instance=instance(), hourly_usd=None, price_source="", price_as_of=None)
    clusters.put_members("c0ffee", [one])
    period = measurements.billing_periods(["i-0001", "i-0002"])["i-0001"]
    assert (period.launched_at, period.ended_at, period.disk_gib) == (THEN, None, 50)


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_from_before_the_index_keeps_its_results(tmp_path, version):
    path = tmp_path / "old.sqlite"
    raw = sqlite3.connect(path)
    for step in MIGRATIONS[:version]:
        raw.executescript(step)
    raw.execute(f"PRAGMA user_version = {version}")
    columns = "run_id, cluster_id, cluster_name, instance_id, workload, cloud, region, zone, instance_type,"
    columns += " market, image_id, hourly_usd, price_source, price_as_of, state, started_at, ended_at"
    values = ["a", "1", "one", "i-1", "quantization", "aws", "us-east-1", "us-east-1a", "c5.large", "spot"]
    values += ["ami-1", "0.05", "spot", None, "done", "2026-09-01T12:00:00+00:00", None]
    marks = ", ".join("?" * len(values))
    raw.execute(f"INSERT INTO runs ({columns}) VALUES ({marks})", values)
    good = json.dumps({"record": "result", "case": "vgg16", "setting": "int8", "metrics": {}})
    for position, line in enumerate((good, "torn {", good.replace("int8", "fp32"))):
        raw.execute("INSERT INTO records VALUES ('a', ?, 'result', ?)", (position, line))
    raw.commit()
    raw.close()
    database = Database(path)
    measurements = Measurements(database)
    (one,) = measurements.runs(["a"])
    assert (one.run_id, one.setup_at) == ("a", None)
    found = measurements.results(measurements.select(Selection(), newest=True))
    assert sorted(each.setting for each in found["a"]) == ["fp32", "int8"]
    database.close()
