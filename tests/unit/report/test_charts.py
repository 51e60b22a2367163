"""Charts say what the report says, in colours that light and dark can bear."""

import json
import re
from datetime import timedelta

import pytest

from dlcloud.analysis.training import Step, Timeline, TrainingEvent
from dlcloud.model.instance import Market
from dlcloud.report.cost_charts import cost_charts
from dlcloud.report.cost_tables import cost_report
from dlcloud.report.page import PALETTE, SHAPES, page, themed
from dlcloud.report.training import MOST_POINTS, timeline_charts
from dlcloud.resources.texts import template
from tests.fakes.samples import THEN, run
from tests.unit.report.conftest import comparison, lines, metric, quote, result

PAGES = ("#ffffff", "#16181d")


def luminance(colour):
    """Source: WCAG 2.2, relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", PALETTE)
def test_every_colour_stands_out_from_light_and_dark(colour):
    assert min(contrast(colour, background) for background in PAGES) >= 3
    assert all(background in template("report.html") for background in PAGES)


def test_there_are_as_many_shapes_as_colours():
    assert len(set(SHAPES)) == len(set(PALETTE)) == len(PALETTE)


def charts(**other):
    given = {"compared": [comparison()], "quoted": quote(), **other}
    return cost_charts(lines(**given), Market.ON_DEMAND)


def test_cost_and_speed_up_are_drawn_with_their_intervals():
    bars, pareto, speed_ups = charts()
    cheapest, other = bars.spec["data"]["values"]
    assert (cheapest["name"], cheapest["text"], cheapest["first"]) == (
        "c7i.xlarge int8",
        "1.43 (1.42–1.45)",
        1,
    )
    assert cheapest["low"] < cheapest["value"] < cheapest["high"] < other["value"]
    first, second = pareto.spec["data"]["values"]
    assert (first["throughput"], first["throughput_low"], first["throughput_high"]) == (10.0, 9.8, 10.25)
    assert round(second["usd"], 6) == 1.434703
    assert [value["front"] for value in (first, second)] == [False, True]
    (bar,) = speed_ups.spec["data"]["values"]
    assert (bar["ratio"], bar["low"], bar["high"], bar["verdict"]) == (3.456, 3.3, 3.61, "faster")
    assert speed_ups.rows == [["int8 over fp32", "3.46x (3.30–3.61)", "faster"]]


def test_what_has_no_price_or_no_throughput_is_not_drawn():
    assert cost_charts(lines(of=run(hourly_usd=None)), Market.ON_DEMAND) == []
    assert cost_charts(lines(result(metrics={"peak_memory": metric(3.0)})), Market.ON_DEMAND) == []


def timeline(count=10):
    steps = tuple(
        Step(step=number, at_s=number / 2, world_size=2, samples=64, seconds=0.5, loss=1 / (number + 1))
        for number in range(count)
    )
    event = TrainingEvent(at_s=2.0, event="drain", cause="notice", worker="w1")
    return Timeline(run="digits", began_at=THEN + timedelta(0), steps=steps, events=(event,))


def test_a_timeline_is_drawn_as_four_charts_over_one_axis():
    drawn = timeline_charts(timeline(), 0)
    assert [chart.caption.partition(": ")[2] for chart in drawn] == [
        "world size",
        "samples/s",
        "loss",
        "events",
    ]
    domains = re.findall(r'"domain": (\[0, [0-9.]+\])', json.dumps([chart.spec for chart in drawn]))
    assert set(domains) == {"[0, 4.5]"}
    assert drawn[1].spec["data"]["values"][0]["value"] == 128


def test_long_runs_are_thinned_out_to_what_a_screen_shows():
    values = timeline_charts(timeline(50_000), 0)[0].spec["data"]["values"]
    assert len(values) == MOST_POINTS
    assert (values[0]["step"], values[-1]["step"]) == (0, 49_999)


def built(report, drawn=(), bundle=""):
    return page(template("report.html"), bundle, report, drawn, title="@BODY@ <b>", subtitle="x@y")


def test_nothing_in_the_results_can_break_out_of_the_page():
    evil = '</script><script>alert(1)</script><img src=x onerror="alert(1)">@CHARTS@'
    rows = lines(
        result(evil, case=evil), compared=[comparison(case=evil)], of=run(workload=evil), quoted=quote()
    )
    text = built(cost_report(rows), cost_charts(rows, Market.ON_DEMAND), bundle="'</script>'")
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert "@BODY@ &lt;b&gt;" in text
    assert "x@y" in text
    inside = re.search(r'id="charts">(.*?)</script>', text, re.DOTALL).group(1)
    assert evil in json.dumps(json.loads(inside), ensure_ascii=False).replace('\\"', '"')


def test_the_page_asks_for_nothing_from_elsewhere():
    text = built(cost_report(lines()), charts())
    addresses = set(re.findall(r"https?://[^\"'\s<]+", text))
    assert addresses <= {themed({})["$schema"]}
