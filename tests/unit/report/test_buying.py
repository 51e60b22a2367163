"""The first lines of the page: which type to buy, measured and predicted apart, with the Pareto front."""

from dataclasses import replace
from decimal import Decimal

from dlcloud.model.instance import Market
from dlcloud.prediction.offers import PredictedJob, PredictedOffer
from dlcloud.prediction.predictor import Estimate
from dlcloud.report.answer import buying_sections
from dlcloud.report.prediction import prediction_charts
from tests.fakes.samples import run
from tests.unit.report.conftest import lines, metric, quote, result


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
