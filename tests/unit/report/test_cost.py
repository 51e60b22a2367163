"""The cost table in every format: exact, honest about rehearsals and intervals, and within a terminal."""

import csv
import io
import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.cost import BilledCost, reconcile
from dlcloud.model.cluster import Member
from dlcloud.model.instance import Hardware
from dlcloud.report.cells import interval
from dlcloud.report.cost_columns import record_of
from dlcloud.report.cost_tables import View, billed_records, billed_section, cost_report
from dlcloud.report.table import Format, Report, render
from tests.fakes.samples import THEN, cluster, instance, run
from tests.unit.report.conftest import BILL, comparison, lines, metric, quote, result

GOLDEN = """\
sample-1a2b-0001: quantization, vgg16 batch 1 on c7i.xlarge (Xeon 8488C, 2
  cores)
done, on-demand, us-east-1a, 2026-09-01 12:00 UTC

setting  images/s   interval  speed-up           USD/M   spot  USD/M 95 %
-------  --------  ---------  -----------------  -----  -----  ----------
fp32           10  9.8–10.25  baseline            4.96   1.98   4.84–5.06
int8        34.56    34.1–35  3.46x (3.30–3.61)   1.43  0.574   1.42–1.45

USD/M: USD per million images, on demand and spot; intervals of 95 %

what an hour costs

type        zone         USD/h  as of         spot  as of       TFLOPS/USD
----------  ----------  ------  ----------  ------  ----------  ----------
c7i.xlarge  us-east-1a  0.1785  2026-07-20  0.0714  2026-07-20         2.2

on-demand prices: bundled table
spot prices: bundled table
TFLOPS/USD: peak of the data sheet (of a GPU's tensor cores) for an on-demand
  USD

what the runs cost

run               type        billed s  boot  set-up  run  rest      USD
----------------  ----------  --------  ----  ------  ---  ----  -------
sample-1a2b-0001  c7i.xlarge       175    30      40  100     5  0.00900

billed by the second, at least 60 s, EBS volume and public address included
boot: also the idle time since the run before; rest: downloads and termination

the answer: quantization, vgg16 batch 1

                             cheapest and fastest
---------------------------  --------------------
type, setting                c7i.xlarge int8
images/s                     34.56 (34.1–35)
USD per million images       1.43 (1.42–1.45)
spot USD per million images  0.574 (0.567–0.582)
USD per hour                 0.1785
spot USD per hour            0.0714

prices are those of us-east-1
ahead of all others: the interval of each ratio excludes 1"""


def table(*args, details=False, **kwargs):
    return render(cost_report(lines(*args, **kwargs), View(details=details)), Format.TABLE)


def records(*args, **kwargs):
    return json.loads(render(cost_report(lines(*args, **kwargs)), Format.JSON))["result"]["records"]


def rows(*args, **kwargs):
    """Return the cells of the first table's rows."""
    section = cost_report(lines(*args, **kwargs)).sections[0]
    return [dict(zip(section.titles, row, strict=True)) for row in section.rows]


def test_the_golden_table():
    text = table(compared=[comparison()], quoted=quote(), bill=BILL, peak=0.4)
    assert text == GOLDEN


def test_the_dollars_are_right():
    # 0.1785 USD/h at 10 images/s: a million take 100000 s = 27.777.. h, which cost 4.958333.. USD.
    first, second = records()
    assert Decimal(first["usd_per_million"]) == Decimal("4.958333")
    # ... and at 34.56 images/s 1.434703.. USD.
    assert Decimal(second["usd_per_million"]) == Decimal("1.434703")
    assert first["hourly_usd"] == "0.1785"


@pytest.mark.parametrize("details", [False, True])
def test_text_keeps_within_80_columns(details):
    facts = {"model_bytes": 553_000_000, "size_ratio": 3.99, "cosine_similarity": 0.9987, "weights": "random"}
    metrics = {
        "throughput": metric(1234.5, 1230.1, 1240.9),
        "latency_p50": metric(12.345, unit="ms"),
        "latency_p99": metric(23.456, unit="ms"),
        "peak_memory": metric(1234.5, unit="MiB"),
        "resident_memory": metric(1034.5, unit="MiB"),
    }
    of = run(cloud="local", price_source="bundled table")
    wide = Hardware(cpu_model="Intel(R) Xeon(R) Platinum 8488C Processor @ 2.40GHz", physical_cores=48)
    text = table(
        result(case="resnet50 batch 64", baseline=True, metrics=metrics, facts=facts),
        result("int8", case="resnet50 batch 64", metrics=metrics, facts=facts, warnings=("long " * 30,)),
        of=of, compared=[comparison(case="resnet50 batch 64", ratio=13.456, low=12.3, high=14.61)],
        hardware=wide, details=details,
    )  # fmt: skip
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_rehearsal_is_marked_in_every_format():
    of = run(cloud="local")
    report = cost_report(lines(of=of, compared=[comparison()]), View(details=True))
    for form in (Format.TABLE, Format.MARKDOWN):
        text = " ".join(render(report, form).split())
        assert "(rehearsal, measured on Xeon 8488C, 2 cores)" in text
        assert "images/s*" in text
        assert "USD/M*" in text
        assert "4.96*" in text
        assert "1.43*" in text
        assert "* rehearsal: the price is of c7i.xlarge, the speed is of this machine's Xeon 8488C" in text
    assert [record["rehearsal"] for record in csv.DictReader(io.StringIO(render(report, Format.CSV)))] == [
        "true"
    ] * 2
    marked = json.loads(render(report, Format.JSON))["result"]["records"]
    assert [(record["rehearsal"], record["measured_on"]) for record in marked] == [
        (True, "Xeon 8488C, 2 cores")
    ] * 2


def test_an_unknown_price_is_said_and_is_no_number():
    of = run(hourly_usd=None, price_as_of=None, price_source="")
    assert "unknown" in table(of=of).partition("what an hour costs")[2]
    assert [row["USD/M"] for row in rows(of=of)] == ["unknown", "unknown"]
    assert [record["usd_per_million"] for record in records(of=of)] == [None, None]


def test_a_single_sample_has_no_interval():
    assert interval(metric(3.0)) == ""
    assert interval(metric(3.0, 3.0, 3.0)) == ""
    assert interval(None) == ""
    assert interval(metric(3.0, 2.9, 3.123456)) == "2.9–3.123"
    assert rows(result(throughput=metric(3.0)))[0]["interval"] == ""


NO_DIFFERENCE = "no difference seen: the interval of their ratio includes 1"
UNDECIDED = "undecided: one has fewer than 6 samples"


@pytest.mark.parametrize(
    ("verdicts", "legend"),
    [
        (["no difference seen"], f"≈: {NO_DIFFERENCE}"),
        (["undecided"], f"≈: {UNDECIDED}"),
        ([""], f"≈: {UNDECIDED}"),
        (["undecided", "no difference seen"], f"≈: {NO_DIFFERENCE}\n≈: {UNDECIDED}"),
    ],
)
def test_no_winner_is_named_where_none_was_seen_and_the_legend_says_why(verdicts, legend):
    compared = [
        comparison(candidate=name, ratio=1.02, low=0.97, high=1.08, verdict=verdict)
        for name, verdict in zip(("int8", "bf16"), verdicts, strict=False)
    ]
    results = (result(baseline=True), result("int8"), result("bf16"))
    assert f"\n{legend}\n" in table(*results, compared=compared)
    assert rows(*results, compared=compared)[1]["speed-up"] == "≈ 1.02x (0.97–1.08)"


ENGINES = (
    result("openvino fp32", baseline=True),
    result("openvino int8", throughput=metric(34.56, 34.1, 35.0)),
    result("onnxruntime fp32", baseline=True),
    result("onnxruntime int8", throughput=metric(30.1, 29.9, 30.3)),
)
BESIDE_BEST = [
    comparison(baseline="openvino fp32", candidate="openvino int8"),
    comparison(
        baseline="openvino fp32", candidate="onnxruntime fp32", ratio=0.98, verdict="no difference seen"
    ),
    comparison(baseline="openvino fp32", candidate="onnxruntime int8", ratio=3.01, low=2.9, high=3.1),
]


def test_settings_show_ratios_to_their_own_and_to_the_best_baseline():
    shown = rows(*ENGINES, overall=BESIDE_BEST, quoted=quote())
    assert [row["over best"] for row in shown] == ["best", "3.46x", "≈ 0.98x", "3.01x"]
    text = table(*ENGINES, overall=BESIDE_BEST, quoted=quote())
    assert "over best: compared with openvino fp32, the best baseline of the case" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_json_and_wide_table_hold_the_interval_over_the_best_baseline():
    first, *_, last = records(*ENGINES, overall=BESIDE_BEST)
    assert (first["best_baseline"], first["over_best"]) == ("openvino fp32", None)
    beside = [last[f"over_best{part}"] for part in ("", "_low", "_high", "_verdict")]
    assert (last["best_baseline"], *beside) == ("openvino fp32", 3.01, 2.9, 3.1, "faster")
    section, _answer = cost_report(lines(*ENGINES, overall=BESIDE_BEST), View(wide=True)).sections
    assert "best baseline" in section.titles


def test_what_did_not_settle_is_marked_with_its_warning_once():
    shaky = result(stable=False, warnings=("another program took 9 % of the processor",) * 2)
    text = table(shaky)
    assert "fp32 ~" in text
    assert text.count("another program took 9 %") == 1


def test_wall_time_stands_in_for_a_throughput():
    timed = result(metrics={"duration": metric(4.0, 2.0, 8.0, unit="s")})
    (row,) = rows(timed)
    assert row["runs/s"] == "0.25"
    assert row["interval"] == "0.125–0.5"
    # A million runs of 4 s at 0.1785 USD/h.
    assert row["USD/M"] == "198"


def test_a_price_that_is_not_zero_is_never_shown_as_zero():
    fast = result(throughput=metric(4_500_000.0, 4_400_000.0, 4_600_000.0))
    cheap = replace(BILL, instance_usd=Decimal("0.0000411"), volume_usd=Decimal("0.0000021"))
    (row,) = rows(fast, quoted=quote())
    assert (row["USD/M"], row["spot"]) == ("0.0000110", "0.00000441")
    text = table(fast, quoted=quote(), bill=cheap)
    assert "0.0000432" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_result_that_measured_nothing_has_empty_cells():
    (row,) = rows(result(metrics={"duration": metric(0.0)}))
    assert row["USD/M"] == "unknown"
    assert row["items/s"] == ""


def test_random_weights_are_said_with_the_details_only():
    random = result(facts={"weights": "random", "cosine_similarity": 0.99})
    assert "weights are random" in " ".join(table(random, details=True).split())
    assert "weights are random" not in table(random)


def test_nothing_measured_is_said():
    report = cost_report([])
    assert "dlcloud up quickstart" in render(report, Format.TABLE)
    assert render(report, Format.CSV) == ""
    assert json.loads(render(report, Format.JSON))["result"]["records"] == []


def test_a_result_states_its_share_of_the_machines_peak():
    facts = {"share_of_peak_percent": 62.4, "bound": "compute", "reached_gflops": 41.0, "peak_dtype": "fp32"}
    measured = result("bf16", baseline=True, facts={**facts, "peak_raised_percent": 2.0})
    (row,) = lines(measured, of=run(cloud="aws"))

    def sheet(**figures):
        return replace(row, measured=replace(row.measured, **figures))

    row = sheet(fp32_tflops=0.41, peak_tflops=0.41)
    assert record_of(row)["share_of_peak_percent"] == 62.4
    assert record_of(row)["share_of_sheet_percent"] == 10
    assert "62 %+ compute" in render(cost_report([row], View(wide=True)), Format.MARKDOWN)
    assert sheet(fp32_tflops=0.04).share_of_sheet_percent is None  # the clock was above the sheet's
    assert sheet(peak_tflops=100.0, fp32_tflops=None).share_of_sheet_percent is None
    assert sheet(run=run(cloud="local")).share_of_sheet_percent is None


def test_a_speed_that_lasts_only_while_credits_do_is_marked():
    text = render(cost_report(lines(of=run(instance_type="t3.xlarge"))), Format.TABLE)
    assert "t3.xlarge †" in text
    assert "† burstable: this speed lasts until the CPU credits of the instance are spent" in text
    assert "†" not in render(cost_report(lines()), Format.TABLE)


HOUR = THEN + timedelta(hours=1)


def member(**other):
    values = {"instance": instance(), "hourly_usd": Decimal("0.5"), "price_source": "", "price_as_of": None}
    return Member(**{**values, "ended_at": HOUR, **other})


def reconciled(billed, *members, **other):
    return reconcile([cluster(**other)], {"c0ffee": members or [member()]}, billed, HOUR)


def shown(clusters, unanswered=""):
    section = billed_section(clusters, unanswered)
    return " ".join(
        render(Report(command="", records=[], sections=[section], empty=""), Format.TABLE).split()
    )


def test_the_bill_stands_beside_the_estimate():
    both = reconciled({"c0ffee": BilledCost(usd=Decimal("0.52"), estimated=True)})
    assert "sample-1a2b us-east-1 0.510 0.520 ~ +0.00952" in shown(both)
    assert "has not closed the month" in shown(both)
    (record,) = billed_records(both, "")["clusters"]
    assert record["difference_usd"] == Decimal("0.009521")


def test_where_nothing_is_billed_yet_it_says_what_to_do():
    assert "activate it once as a cost allocation tag" in shown(reconciled({}))


def test_where_aws_does_not_answer_it_says_why():
    text = shown(reconciled({}), "AWS's side is not known: denied")
    assert "AWS's side is not known: denied" in text
    assert "cost allocation tag" not in text


def test_what_was_rehearsed_is_not_billed():
    assert reconciled({}, cloud="local") == []


def test_it_keeps_within_80_columns():
    long = replace(reconciled({})[0], cluster=cluster("a-cluster-of-a-name-that-is-very-long-1a2b3c4d5e6f"))
    section = billed_section([long], "")
    text = render(Report(command="", records=[], sections=[section], empty=""), Format.TABLE)
    assert max(map(len, text.splitlines())) <= 80
