"""The answer of a report: winners, the user's job, ties, rehearsals, and which type to buy."""

import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.analysis.compare import pairs_of
from dlcloud.analysis.ranking import By
from dlcloud.analysis.user_job import read_job
from dlcloud.model.instance import Market
from dlcloud.prediction.offers import PredictedJob, PredictedOffer
from dlcloud.prediction.predictor import Estimate
from dlcloud.report.answer import buying_sections
from dlcloud.report.cells import duration
from dlcloud.report.compare_tables import compare_report
from dlcloud.report.cost_tables import View, cost_report
from dlcloud.report.page import page
from dlcloud.report.prediction import prediction_charts
from dlcloud.report.table import Format, render
from tests.fakes.samples import run
from tests.unit.report.conftest import BILL, lines, metric, quote, result

JOB = read_job("1.2M images")


def text(rows, width=80, **view):
    report = cost_report(rows, View(**view), commands={row.run.run_id: "dlcloud bench" for row in rows})
    return render(report, Format.TABLE, width)


def of_type(name, *results, **other):
    of = run(f"{name}-0001", instance_type=name, **other)
    return lines(*results, of=of, quoted=quote(), bill=BILL)


def test_the_answer_is_last_and_names_figures_prices_and_the_job():
    answer = text(lines(quoted=quote()), job=JOB).partition("the answer: quantization, vgg16 batch 1\n\n")[2]
    cells = [" ".join(line.split()) for line in answer.splitlines()]
    assert cells[0] == "cheapest and fastest"
    assert "type, setting c7i.xlarge int8" in cells
    assert "images/s 34.56 (34.1–35)" in cells
    assert "USD per million images 1.43 (1.42–1.45)" in cells
    assert "1.2M images: time 9.65 h (9.52–9.78)" in cells
    assert "1.2M images: spot USD 0.689 (0.680–0.698)" in cells


def test_the_job_has_hours_and_dollars_for_each_type():
    rows = of_type("c7i.xlarge") + of_type("g6.xlarge", result(throughput=metric(800.0, 790.0, 810.0)))
    job = text(rows, job=JOB).partition("your job: 1.2M images")[2].partition("the answer")[0]
    assert [line.split()[0] for line in job.splitlines() if line.startswith(("g6", "c7i"))] == [
        "g6.xlarge",
        "c7i.xlarge",
    ]
    assert "25 min (24.7–25.3)" in job
    assert "no result counts tokens; they count images" in text(rows, job=read_job("5 tokens"))


def test_what_all_jobs_share_is_said_once():
    rows = lines(quoted=quote()) + lines(result(case="vgg16 batch 8"), quoted=quote())
    shown = text(rows, job=JOB)
    assert shown.count("your job: 1.2M images") == 2
    assert shown.count("boot, set-up, disk and address come on top") == 1


def test_compare_names_the_command_that_would_settle_it():
    first = of_type("c7i.xlarge", result(throughput=metric(10.0, 9.5, 10.5)))
    second = of_type("m7i.xlarge", result(throughput=metric(10.4, 9.9, 11.0)))
    pairs = pairs_of(first, second, free=frozenset({"type"}))
    commands = {row.run.run_id: "dlcloud bench" for row in (*first, *second)}
    report = compare_report(("c7i", "m7i"), pairs, [], commands)
    shown = " ".join(render(report, Format.TABLE, 80).split())
    assert "dlcloud bench -t m7i.xlarge -t c7i.xlarge --repeats" in shown
    decided = pairs_of(first, of_type("c5.large", result(throughput=metric(20.0, 19.5, 20.5))), free={"type"})
    report = compare_report(("c7i", "c5"), decided, [], commands)
    assert "dlcloud bench" not in render(report, Format.TABLE, 80)


def test_rehearsed_types_are_undecided_as_they_are_one_machine():
    first = of_type("c7i.xlarge", result(throughput=metric(10.0, 9.5, 10.5)), cloud="local")
    second = of_type("m7i.xlarge", result(throughput=metric(20.0, 19.5, 20.5)), cloud="local")
    report = compare_report(("c7i", "m7i"), pairs_of(first, second, free=frozenset({"type"})), [], {})
    shown = " ".join(render(report, Format.TABLE, 80).split())
    assert "undecided: both types were rehearsed on this one machine" in shown
    assert "fewer than" not in shown


def test_settings_of_a_search_are_shown_with_six_digits():
    rows = lines(result(setting="lr=0.017183504507758688 depth=3", throughput=metric(10.0, 9.5, 10.5)))
    assert " lr=0.0171835 depth=3 " in " ".join(text(rows, width=120).split())


def test_a_page_begins_with_the_answer_and_then_the_job():
    report = cost_report(lines(quoted=quote()), View(job=JOB))
    body = page("@BODY@", "", report, [], title="", subtitle="")
    places = [body.index(text) for text in ("the answer", "your job", "what an hour costs")]
    assert places == sorted(places)


def test_a_case_without_a_winner_has_no_mark_of_its_own():
    rows = of_type("c7i.xlarge", result(throughput=metric(10.0, 9.5, 10.5)), cloud="local")
    rows += of_type("m7i.xlarge", result(throughput=metric(10.4, 9.9, 11.0)), cloud="local")
    summary = text(rows, job=JOB, summary=True)
    assert not any(line.rstrip().endswith("  *") for line in summary.splitlines())


def test_a_summary_has_the_job_also_where_no_winner_is_named():
    tied = lines(result(throughput=metric(10.0, 9.5, 10.5)), result("int8", throughput=metric(10.4, 9.9, 11)))
    summary = text(tied, 200, job=JOB, summary=True)
    (line,) = [line for line in summary.splitlines() if line.startswith("vgg16")]
    assert line.count("≈") == 4, "the pair, USD/M, images/s, and the job"
    assert re.search(r"≈ [0-9.]+, [0-9.]+ h$", line.rstrip()), line
    other = text(tied, 200, job=read_job("5 tokens"), summary=True)
    assert "counts images" in other


def test_settings_that_differ_by_nothing_are_left_to_the_user():
    rows = lines(result(), result("nhwc", throughput=metric(10.01, 9.8, 10.26)))
    assert "nhwc and fp32 differ by 0.1 %: more runs would hardly decide; take either" in " ".join(
        text(rows).split()
    )


def test_a_rehearsal_is_no_figure_of_a_type():
    alone = text(of_type("c7i.xlarge", cloud="local"), job=JOB)
    answer = alone.partition("your job")[2]
    assert "setting" in answer
    assert "c7i.xlarge int8" not in answer
    rows = of_type("c7i.xlarge", cloud="local") + of_type("c5.large", cloud="local")
    both = text(rows, job=JOB)
    assert "no USD: one speed, of this machine, for 2 types; --cloud aws measures each" in both
    assert "none: all types were rehearsed on this one machine" in " ".join(text(rows, summary=True).split())
    answer = both.partition("your job")[2]
    assert "USD*" not in answer.partition("the answer")[0]
    assert "no cheapest is named: all types were rehearsed on this one machine" in answer
    assert "dlcloud bench -t c7i.xlarge -t c5.large" in answer


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_summary_has_one_line_for_each_case(width):
    rows = []
    for case in ("vgg16 batch 1", "vgg16 batch 8", "resnet50 batch 1"):
        rows += lines(result(case=case), result("int8", case=case, throughput=metric(30.0, 29.0, 31.0)))
    summary = text(rows, width, summary=True, job=JOB)
    assert summary.startswith("the answer, case by case: quantization\n")
    assert sum("c7i.xlarge int8" in line for line in summary.splitlines()) == 3
    assert sum("the same" in line for line in summary.splitlines()) == 3, "the cheapest is the fastest"
    assert max(map(len, summary.splitlines())) <= width


def test_programs_read_the_answer_and_the_job():
    document = json.loads(render(cost_report(lines(), View(job=JOB, by=By.LATENCY)), Format.JSON))["result"]
    named = {record["superlative"]: record["setting"] for record in document["answer"]}
    assert named == {"cheapest": "int8", "fastest": "int8", "shortest latency": None}
    assert document["job"][0]["hours"] == pytest.approx(1.2e6 / 34.56 / 3600)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.5, "0.5 s"),
        (119, "119 s"),
        (600, "10 min"),
        (36000, "10 h"),
        (864000, "10 days"),
        (9e8, "10,417 days"),
    ],
)
def test_a_duration_has_three_digits(seconds, shown):
    assert duration(seconds) == shown


def test_a_warning_of_several_types_is_printed_once_with_its_types():
    rows = [
        row
        for name in ("c5.large", "c6i.large", "c7i.large", "m7i.large", "r7i.large")
        for row in of_type(name, result(warnings=("time was up",), stable=False))
    ]
    shown = " ".join(text(rows).split())
    assert "~ c5.large fp32, c6i.large fp32, c7i.large fp32, m7i.large fp32 and 1 more: time was up" in shown
    assert shown.count("time was up") == 1


def test_the_answer_names_the_regions_of_its_prices():
    near = of_type("c5.xlarge", region="us-east-1")
    shown = text(near + of_type("c6i.xlarge", region="us-west-2"), width=200)
    assert "prices are those of c5.xlarge in us-east-1, c6i.xlarge in us-west-2" in shown
    assert "prices are those of us-east-1\n" in text(near)


def offer(name, rate, usd, *, measured=False):
    estimate = Estimate(
        instance_type=name, throughput=rate, low=rate * 0.8, high=rate * 1.2, measured=measured
    )
    return PredictedOffer(estimate=estimate, listed=True, hourly_usd={Market.ON_DEMAND: Decimal(usd)})


def job(*offers):
    of = run()
    return PredictedJob(
        workload=of.workload, case="vgg16 batch 1", setting="fp32", unit="images/s", offers=offers
    )


def rows(cloud="aws"):
    of = replace(run(), cloud=cloud)
    slow, fast = metric(10.0, 9.8, 10.2), metric(40.0, 39, 41)
    return lines(result(throughput=slow), result("int8", throughput=fast), of=of, quoted=quote())


def headings(*jobs, of=None):
    return [section.heading for section in buying_sections(of or rows(), jobs, Market.ON_DEMAND)]


def test_the_first_line_names_the_type_the_setting_and_the_cost():
    (heading,) = headings()
    assert heading.startswith(f"Buy {run().instance_type} (int8) on-demand for ")
    assert heading.endswith("USD per million images, measured.")


def test_a_cheaper_predicted_type_is_named_apart_with_its_interval():
    burst = replace(offer("t4g.nano", 900.0, "0.001"), is_burstable=True)
    (heading,) = headings(job(offer("c7a.large", 900.0, "0.1"), offer("m5.large", 1.0, "9"), burst))
    assert "measured.\nPredicted to be cheaper, not measured: c7a.large (fp32), " in heading
    assert "(90 %: " in heading


def test_dearer_predictions_are_not_named():
    (heading,) = headings(job(offer("m5.large", 1.0, "9")))
    assert heading.endswith("No other type is predicted to be cheaper.")


def test_a_rehearsal_sells_nothing():
    (heading,) = headings(of=rows(cloud="local"))
    assert heading.startswith("Nothing to buy by")
    assert buying_sections([], [], Market.ON_DEMAND) == []


def test_the_front_holds_the_types_that_no_other_beats_in_both():
    offers = (
        offer("cheap", 10.0, "0.1", measured=True),
        offer("beaten", 9.0, "0.2"),
        offer("fast", 100.0, "4"),
        replace(offer("unpriced", 100.0, "0"), hourly_usd={}),
        replace(offer("burst", 200.0, "0.01"), is_burstable=True),
    )
    (chart,) = prediction_charts([job(*offers)], Market.ON_DEMAND)
    values = {value["type"]: value for value in chart.spec["data"]["values"]}
    assert set(values) == {"burst", "cheap", "beaten", "fast"}
    assert [name for name, value in values.items() if value["front"]] == ["cheap", "fast"]
    assert values["cheap"]["source"] == "measured"
    assert values["fast"]["source"] == "predicted"
    assert [row[0] for row in chart.rows] == ["cheap", "fast"]


def test_what_is_not_predicted_has_no_chart():
    assert prediction_charts([job()], Market.ON_DEMAND) == []
