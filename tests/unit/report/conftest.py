"""Lines as a store would give them: two settings of one case, with a comparison."""

from dlcloud.core.result import Comparison, Hardware, Metric, Result
from dlcloud.report.cost import lines_of
from tests.fakes.samples import run

HARDWARE = Hardware(cpu_model="Xeon 8488C", physical_cores=2)


def metric(value, low=None, high=None, unit="images/s", samples=9):
    return Metric(value=value, low=low, high=high, unit=unit, samples=samples)


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
        "verdict": "faster",
    }
    return Comparison(**{**values, **other})


def lines(*results, of=None, compared=(), hardware=HARDWARE):
    of = of or run()
    results = results or (
        result(baseline=True),
        result("int8", throughput=metric(34.56, 34.1, 35.0)),
    )
    return lines_of(
        [of], {of.run_id: results}, {of.run_id: compared}, {of.run_id: hardware} if hardware else {}
    )
