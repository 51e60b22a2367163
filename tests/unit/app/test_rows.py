"""Rows of stored runs: ratios that articles published come out, and interrupted runs are in the bill."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.compare import pairs_of
from dlcloud.analysis.cost import tflops_per_usd
from dlcloud.analysis.result import RunState
from dlcloud.app.context import Context
from dlcloud.app.results.rows import load_rows, rows_of_runs
from dlcloud.model.cluster import Member
from dlcloud.model.instance import Market, Price
from dlcloud.model.money import MarketPrices
from dlcloud.report.cost_tables import cost_report, run_cost_section
from dlcloud.report.table import Format, render
from dlcloud.store.measurements import Selection
from tests.fakes.samples import PRICE_DATE, THEN, cluster, instance, run


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    # Not entered: that takes over the signals of the process, which here is pytest's.
    made = Context("test")
    yield made
    made.__exit__()


def measured(case, setting, value, *, metric="throughput", unit="images/s"):
    bounds = {"value": value, "low": value * 0.99, "high": value * 1.01, "unit": unit, "samples": 9}
    return {"record": "result", "case": case, "setting": setting, "metrics": {metric: bounds}}


def enter(context, name, *records, prices=(), **other):
    context.runs.add(run(name, **other))
    context.runs.put_prices(name, prices)
    context.runs.add_records(name, 0, "".join(json.dumps(record) + "\n" for record in records).encode())


def ratios(context, first, second, free=frozenset({"setting"})):
    sides = [
        load_rows(context.measurements, record, context.clock.now(), newest=True)
        for record in (first, second)
    ]
    return pairs_of(*sides, free=free)


def setting(name):
    return Selection(settings=(name,))


# Source: AWS blog, "Use low precision and quantization for deep learning with EC2 C5 and BigDL": SSD, VGG16
# and VGG19 on c5.18xlarge, int8 1.69 to 2.04 times as fast.
# Source: Intel, "Optimizing TensorFlow on EC2 C5": up to 7.4 times the default TensorFlow, on c5.18xlarge.
# Source: Hitachi on Qiita, "Training faster with tensor cores": on g4dn.xlarge (T4), the time falls to
# 45 to 60 %.
SPEED, TIME = ("throughput", "images/s"), ("duration", "s")
PUBLISHED = [
    ("quantization", "c5.18xlarge", ("fp32", "int8"), SPEED, 1.69),
    ("quantization", "c5.18xlarge", ("fp32", "int8"), SPEED, 2.04),
    ("tensorflow", "c5.18xlarge", ("default", "oneDNN"), SPEED, 7.4),
    ("mixed_precision", "g4dn.xlarge", ("fp32", "mixed"), TIME, 0.45),
    ("mixed_precision", "g4dn.xlarge", ("fp32", "mixed"), TIME, 0.60),
]


@pytest.mark.parametrize(("benchmark", "kind", "settings", "figure", "published"), PUBLISHED)
def test_published_ratios_of_speed_and_time_come_out(context, benchmark, kind, settings, figure, published):
    metric, unit = figure
    values = zip(settings, (1.0, published), strict=True)
    records = [measured("a", name, value, metric=metric, unit=unit) for name, value in values]
    enter(context, "article", *records, workload=benchmark, instance_type=kind)
    (pair,) = ratios(context, *map(setting, settings))
    faster = pair.ratio.value if figure is SPEED else 1 / pair.ratio.value
    assert round(faster, 2) == published
    assert pair.ratio.verdict == "faster"
    # The same machine costs the same, so a million images, or an epoch, cost so much less.
    less = pair.usd_ratio if figure is TIME else 1 / pair.usd_ratio
    assert round(less, 2) == Decimal(str(published))


# Source: Hitachi on Qiita, its table of GPU instances (Tokyo, 2022-02-28): TFLOPS, USD/h, TFLOPS per USD.
@pytest.mark.parametrize(
    ("kind", "tflops", "usd", "published"),
    [("p3.2xlarge", 112, "5.252", 21), ("g4dn.xlarge", 65, "0.994", 65)],
)
def test_published_tflops_per_usd_come_out(context, kind, tflops, usd, published):
    assert int(tflops_per_usd(tflops, Decimal(usd))) == published
    price = Price(
        instance_type=kind,
        region="ap-northeast-1",
        market=Market.ON_DEMAND,
        hourly_usd=Decimal(usd),
        as_of=PRICE_DATE,
        source="article",
    )
    enter(
        context,
        "article",
        measured("a", "b", 1.0),
        instance_type=kind,
        region="ap-northeast-1",
        prices=[price],
    )
    (line,) = load_rows(context.measurements, Selection(), context.clock.now())
    assert line.prices == MarketPrices(on_demand=price)
    (record,) = cost_report([line]).records
    # NVIDIA's data sheets: 65 for the T4; 112 is the V100's on PCIe, the one on EC2 is faster, at 125.
    assert int(record["tflops_per_usd"]) == {"p3.2xlarge": 23, "g4dn.xlarge": 65}[kind]
    assert f"{record['tflops_per_usd']:.1f}" in render(cost_report([line]), Format.TABLE)


# Source: AWS blog, "Introducing dynamic training for deep learning with EC2": time falls by 15 to 30 %, cost
# by 15 to 50 %; so an hour of the changing cluster costs cost/time of an hour of the fixed one.
@pytest.mark.parametrize(("time", "cost"), [("0.85", "0.85"), ("0.70", "0.50")])
def test_published_savings_of_elastic_training_come_out(context, time, cost):
    fixed = Decimal("24.48")
    throughput = measured("resnet50", "train", 1.0), measured("resnet50", "train", 1 / float(time))
    enter(context, "fixed", throughput[0], hourly_usd=fixed, cluster_name="one")
    elastic = fixed * Decimal(cost) / Decimal(time)
    enter(context, "elastic", throughput[1], hourly_usd=elastic, cluster_name="two")
    (pair,) = ratios(context, Selection(names=("one",)), Selection(names=("two",)), frozenset())
    assert round(1 / pair.ratio.value, 2) == float(time)
    assert round(pair.usd_ratio, 2) == Decimal(cost)


RESULT = {"record": "result", "case": "train", "setting": "as it is", "metrics": {}}
HOUR = timedelta(hours=1)


def test_the_runs_before_an_interruption_are_in_the_bill(context):
    context.clusters.add(cluster())
    names = ("i-0001", "i-0002")
    members = [
        Member(
            instance=instance(name, launched_at=THEN + place * HOUR),
            hourly_usd=Decimal("0.1785"),
            price_source="bundled table",
            price_as_of=PRICE_DATE,
            ended_at=THEN + (place + 1) * HOUR,
        )
        for place, name in enumerate(names)
    ]
    context.clusters.put_members("c0ffee", members)
    for place, (name, state) in enumerate(zip(names, (RunState.LOST, RunState.DONE), strict=True)):
        begun = THEN + place * HOUR
        context.runs.add(
            run(
                name, instance_id=name, state=state, started_at=begun, ended_at=begun + HOUR, workload="train"
            )
        )
    context.runs.add(run("other", state=RunState.LOST, started_at=THEN, workload="another"))
    context.runs.add_records("i-0002", 0, json.dumps(RESULT).encode() + b"\n")
    rows = rows_of_runs(context.measurements, ["i-0002"], THEN + 2 * HOUR)
    (section,) = run_cost_section(rows, whole=True)
    assert [row[0] for row in section.rows] == ["i-0001", "i-0002"]
    assert [row[-1] for row in section.rows] == ["0.189", "0.189"]
    text = render(cost_report(rows), Format.TABLE)
    assert "interrupted, and repeated or continued by the run below: i-0001" in text
