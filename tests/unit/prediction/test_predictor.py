"""Predictions from a few measured types, by the bundled table."""

import json
from dataclasses import replace
from decimal import Decimal
from math import exp

import pytest

from dlcloud.app.results.predict import gpu_types
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.instance import Market
from dlcloud.prediction.linear import factor, solve_lower, solve_upper
from dlcloud.prediction.measured_types import Kind, format_table, parse_table
from dlcloud.prediction.offers import candidates_of, predict_jobs, race_of
from dlcloud.prediction.predictor import Belief, Calibration, Measurement, choose_types, learn, predict
from dlcloud.prediction.resemblance import resemblances
from dlcloud.prediction.rules import BY_PASSMARK, rule_levels
from dlcloud.report.prediction import prediction_report
from dlcloud.report.table import Format, render
from dlcloud.resources.type_table import type_table
from tests.fakes.samples import run
from tests.unit.report.conftest import lines, metric, result

TYPES = ("c7i.xlarge", "m6i.8xlarge", "c8g.4xlarge")


@pytest.fixture(scope="module")
def table():
    return type_table()


def prices(*names):
    known = {price.instance_type: price.hourly_usd for price in Catalog().listed_prices("us-east-1")}
    return {name: {Market.ON_DEMAND: known[name]} for name in names}


def rows(**by_type):
    result_rows = []
    for name, rate in by_type.items():
        of = replace(run(), instance_type=name.replace("_", "."), rank=0)
        result_rows += lines(result(throughput=metric(rate, rate * 0.99, rate * 1.01)), of=of)
    return result_rows


def test_the_table_is_read_as_it_is_written(table):
    assert parse_table(format_table(table)).rows["c7i.xlarge"] == table.rows["c7i.xlarge"]


def test_equations_are_solved():
    lower = factor([[4.0, 2.0], [2.0, 3.0]])
    assert solve_lower(lower, [4.0, 2.0 + 2**0.5]) == pytest.approx([2.0, 1.0])
    assert solve_upper(lower, solve_lower(lower, [8.0, 7.0])) == pytest.approx([1.25, 1.5])


def test_a_reference_job_is_predicted_from_three_types(table):
    j = 20
    belief = Belief(table=table, resemblances=resemblances(table.references, None))
    seen = [Measurement(instance_type=n, throughput=exp(table.rows[n].levels[j])) for n in TYPES]
    belief = learn(belief, seen)
    names = ["m7i.2xlarge", "c6a.4xlarge", "r7g.8xlarge", "c7i.xlarge"]
    for estimate in predict(belief, names, Calibration()):
        truth = exp(table.rows[estimate.instance_type].levels[j])
        assert estimate.low < truth * 1.001
        assert truth < estimate.high * 1.001 or estimate.measured
        assert estimate.throughput == pytest.approx(truth, rel=0.5)
        assert estimate.measured == (estimate.instance_type == "c7i.xlarge")


def test_measurements_say_whether_a_job_is_bound_by_memory(table):
    belief = Belief(table=table, resemblances=resemblances(table.references, None))
    for j, reference in enumerate(table.references):
        if reference.name not in {"llama-6738M-p128", "llama-6738M-g128"}:
            continue
        measured = [Measurement(instance_type=n, throughput=exp(table.rows[n].levels[j])) for n in TYPES]
        learned = learn(belief, measured).resemblances
        models = [one for one in learned if one.kind.is_language]
        chance = sum(one.probability for one in models if one.kind is Kind.GENERATION)
        chance /= sum(one.probability for one in models)
        assert (chance > 0.5) == (reference.kind is Kind.GENERATION)


def test_three_different_types_are_chosen(table):
    belief = Belief(table=table, resemblances=resemblances(table.references, None))
    open_to = {name: float(usd[Market.ON_DEMAND]) for name, usd in prices(*TYPES, "m7i.large").items()}
    chosen = choose_types(belief, open_to, [*open_to, "c6a.4xlarge"])
    assert len(set(chosen)) == 3
    assert set(chosen) <= {*open_to}


def test_every_format_says_what_is_predicted(table):
    measured = rows(c7i_xlarge=100.0, m6i_8xlarge=700.0)
    jobs = predict_jobs(measured, table, prices("c7i.xlarge", "c7i.4xlarge"), Market.ON_DEMAND)
    report = prediction_report(jobs, region="us-east-1", market=Market.ON_DEMAND, most=9, as_of="2026")
    for form in Format:
        text = render(report, form, 100)
        assert "predicted" in text
        assert "measured" in text
    records = json.loads(render(report, Format.JSON))["result"]["records"]
    by_type = {record["instance_type"]: record for record in records}
    assert by_type["c7i.xlarge"]["source"] == "measured"
    assert by_type["c7i.4xlarge"]["source"] == "predicted"
    assert by_type["c7i.4xlarge"]["throughput_low"] < by_type["c7i.4xlarge"]["throughput"]
    assert Decimal(str(by_type["c7i.4xlarge"]["on_demand_usd_per_million_high"])) > 0


def test_a_language_models_results_say_what_it_is(table):
    facts = {"model_bytes": 4_000_000_000, "prompt_tokens": 128, "generated_tokens": 64, "streams": 1}
    of = replace(run(), instance_type="c7i.xlarge", rank=0)
    halves = []
    for known, unit in ((facts, "tokens/s"), ({}, "tokens/s"), ({}, "images/s")):
        measured = lines(result(throughput=metric(10.0, 9.9, 10.1, unit), facts=known), of=of)
        (job,) = predict_jobs(measured, table, prices("c7i.8xlarge"), Market.ON_DEMAND)
        estimate = job.offers[0].estimate
        halves.append(estimate.high / estimate.low)
        likely = [name for name, _ in job.resembles]
        assert all("language" in name for name in likely) == (unit == "tokens/s"), likely
    assert halves[0] < halves[1]


def test_a_gpu_job_is_predicted_on_types_with_as_many_gpus_and_those_that_can_be_cheapest_are_raced(table):
    names = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge", "g6.4xlarge", "g5.12xlarge", "c7i.xlarge")
    measured = rows(g4dn_xlarge=100.0, g6e_xlarge=330.0)
    (job,) = predict_jobs(measured, table, prices(*names), Market.ON_DEMAND, gpus=gpu_types())
    by_type = {offer.estimate.instance_type: offer for offer in job.offers}
    assert {*by_type} == {"g4dn.xlarge", "g5.xlarge", "g6.xlarge", "g6.4xlarge"}
    assert by_type["g4dn.xlarge"].estimate.measured
    assert not by_type["g5.xlarge"].listed
    estimate = by_type["g5.xlarge"].estimate
    assert estimate.low < 150 < estimate.high
    raced = candidates_of([job], Market.ON_DEMAND)
    assert {"g4dn.xlarge", "g5.xlarge", "g6.xlarge"} <= {*raced}


def test_a_gpu_without_a_data_sheet_is_refused_by_name(table):
    jobs = predict_jobs(rows(g6f_large=100.0), table, prices("c7i.xlarge"), Market.ON_DEMAND)
    assert not jobs[0].offers
    assert "g6f.large" in jobs[0].refused
    report = prediction_report(jobs, region="us-east-1", market=Market.ON_DEMAND, most=9, as_of="2026")
    assert "not predicted" in render(report, Format.TABLE, 100)


def test_throttled_types_are_neither_listed_nor_raced_unless_all_are(table):
    names = ("t4g.nano", "t1.micro", "c8g.large", "m6i.xlarge", "c7i.48xlarge")
    jobs = predict_jobs(rows(c7i_48xlarge=1e6), table, prices(*names), Market.ON_DEMAND)
    assert not {"t4g.nano", "t1.micro"} & {*jobs[0].race, jobs[0].by_rule}
    for most, listed in ((1, False), (5, True)):
        report = prediction_report(jobs, region="us-east-1", market=Market.ON_DEMAND, most=most, as_of="x")
        text = render(report, Format.TABLE, 120)
        assert ("t4g.nano" in text) is listed
        assert ("CPU credits" in text) is not listed
        assert "c7i.48xlarge" in text
        assert "1000000" in text


def test_a_rehearsal_is_refused(table):
    rehearsed = lines(result(), of=replace(run(), instance_type="c7i.xlarge", cloud="local"))
    jobs = predict_jobs(rehearsed, table, prices("c7i.xlarge"), Market.ON_DEMAND)
    assert "rehearsed" in jobs[0].refused


def test_a_program_resembles_programs_and_the_rule_is_raced_where_few_types_were_measured(table):
    j = next(j for j, one in enumerate(table.references) if one.name == "compression-gzip_5_1_c")
    measured = {name.replace(".", "_"): exp(table.rows[name].levels[j]) for name in TYPES}
    names = ("c7i.xlarge", "c7a.4xlarge", "m6i.8xlarge", "c8g.large")
    (job,) = predict_jobs(rows(**measured), table, prices(*names), Market.ON_DEMAND)
    assert job.resembles[0][0] not in {"a language model", "a language model that generates"}
    assert job.by_rule == candidates_of([job], Market.ON_DEMAND)[0]
    assert set(job.race) <= {*names}
    by_type = {offer.estimate.instance_type: offer.estimate for offer in job.offers}
    gained = by_type["m6i.8xlarge"].throughput / by_type["c7i.xlarge"].throughput
    assert gained == pytest.approx(1.0, abs=0.4)  # one thread: sixteen cores gain nothing


def test_entrants_of_a_race_err_differently(table):
    j = next(j for j, one in enumerate(table.references) if one.name == "geekbench-a-clang")
    belief = Belief(table=table, resemblances=resemblances(table.references, None))
    rates = {name: exp(row.levels[j]) for name, row in table.rows.items() if row.measured}
    belief = learn(belief, [Measurement(instance_type=name, throughput=rates[name]) for name in TYPES])
    hourly = {
        price.instance_type: float(price.hourly_usd)
        for price in Catalog().listed_prices("us-east-1")
        if price.instance_type in rates and ".metal" not in price.instance_type
    }
    predicted = {one.instance_type: one.throughput for one in predict(belief, list(hourly), Calibration())}
    passmark = rule_levels(table)[BY_PASSMARK]
    by_rule, race = race_of(belief, hourly, predicted, passmark, 6)
    assert race[0] == by_rule
    assert len({*race}) == len(race) <= 6
    cheapest = sorted(hourly, key=lambda name: hourly[name] / predicted[name])[:6]
    designs = [{table.rows[name].traits.processor.design for name in some} for some in (race, cheapest)]
    assert len(designs[0]) >= len(designs[1])
    least = min(hourly[name] / rates[name] for name in hourly)
    assert min(hourly[name] / rates[name] for name in race) <= 1.1 * least
    assert race_of(belief, hourly, predicted, passmark, 6) == (by_rule, race)
