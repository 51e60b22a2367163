"""Lines as a store would give them: two settings of one case, with a comparison."""

from decimal import Decimal

from dlcloud.analysis.cost import MeasuredRun, RunCost, prices_of_run, rows_of_run
from dlcloud.benchmarks.harness.schema import Comparison, Measurement, Result
from dlcloud.model.instance import Hardware, Market
from dlcloud.model.money import MarketPrices
from tests.fakes.samples import price, run

HARDWARE = Hardware(cpu_model="Xeon 8488C", physical_cores=2)


def metric(value, low=None, high=None, unit="images/s", samples=9):
    return Measurement(value=value, low=low, high=high, unit=unit, samples=samples)


def result(setting="fp32", *, case="vgg16 batch 1", baseline=False, throughput=None, **other):
    metrics = other.pop("metrics", None)
    if metrics is None:
        metrics = {"throughput": throughput or metric(10.0, 9.8, 10.25)}
    return Result(case=case, setting=setting, baseline=baseline, metrics=metrics, **other)


def comparison(**other):
    values = {
        "case": "vgg16 batch 1",
        "baseline": "fp32",
        "candidate": "int8",
        "metric": "throughput",
        "ratio": 3.456,
        "low": 3.3,
        "high": 3.61,
        "confidence": 0.95,
        "verdict": "faster",
        "samples": 9,
    }
    return Comparison(**{**values, **other})


BILL = RunCost(
    boot_s=30,
    setup_s=40,
    run_s=100,
    rest_s=5,
    instance_usd=Decimal("0.0087"),
    volume_usd=Decimal("0.0003"),
    final=True,
)


def quote(on_demand="0.1785", spot="0.0714"):
    in_zone = price(usd=spot, market=Market.SPOT, zone="us-east-1a")
    return MarketPrices(on_demand=price(usd=on_demand), spot=in_zone)


def lines(*results, of=None, compared=(), overall=(), hardware=HARDWARE, quoted=None, bill=None, peak=None):
    of = of or run()
    results = results or (
        result(baseline=True),
        result("int8", throughput=metric(34.56, 34.1, 35.0)),
    )
    measured = MeasuredRun(
        run=of,
        hardware=hardware or Hardware(),
        prices=prices_of_run(of, quoted, None),
        cost=bill,
        peak_tflops=peak,
    )
    return rows_of_run(measured, results, compared, overall)
