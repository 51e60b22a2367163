"""How a job scales over nodes: efficiency with its interval, the cheapest count, table and chart."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dlcloud.analysis.node_scaling import scalings_of
from dlcloud.analysis.ranking import By
from dlcloud.model.instance import Market
from dlcloud.report.cost_charts import cost_charts
from dlcloud.report.cost_tables import cost_report
from dlcloud.report.table import Format, render
from tests.fakes.samples import run
from tests.unit.report.conftest import lines, metric, quote, result


def counted(nodes, value, *, spread=0.01, cloud="aws", case="job", minute=0, samples=9):
    of = run()
    of = replace(
        of,
        nodes=nodes,
        run_id=f"n{nodes}-{minute}",
        cloud=cloud,
        started_at=of.started_at + timedelta(minutes=minute),
    )
    figure = metric(value, value * (1 - spread), value * (1 + spread), samples=samples)
    name = f"{case} on {nodes} node{'' if nodes == 1 else 's'}"
    (row,) = lines(result("as it is", case=name, throughput=figure), of=of, quoted=quote())
    return row


def test_efficiency_is_the_speed_up_by_node_with_an_interval():
    (scaling,) = scalings_of([counted(4, 320), counted(1, 100), counted(2, 180)])
    first, second, fourth = (point.efficiency for point in scaling.points)

    assert (first.value, first.low) == (1.0, None)
    assert (second.value, fourth.value) == pytest.approx((0.9, 0.8))
    # Two independent intervals of 1 %: their distances add as squares.
    assert (fourth.low, fourth.high) == pytest.approx((0.8 * 0.986, 0.8 * 1.014), rel=1e-3)


def test_the_cheapest_count_is_named_where_the_interval_excludes_1():
    (scaling,) = scalings_of([counted(1, 100), counted(2, 150), counted(4, 200)])
    best = scaling.best(By.COST, Market.ON_DEMAND)
    assert best.row.run.nodes == 1
    assert scaling.best(By.THROUGHPUT, Market.ON_DEMAND).row.run.nodes == 4


def test_no_cheapest_count_is_named_where_the_interval_includes_1():
    (scaling,) = scalings_of([counted(1, 100, spread=0.2), counted(2, 199), counted(4, 200)])
    best = scaling.best(By.COST, Market.ON_DEMAND)
    assert best.row is None
    assert "between 1 node and 2 nodes: the interval of their ratio includes 1" in best.reason
    assert [row.run.nodes for row in best.tied] == [1, 2]


def test_no_count_of_a_rehearsal_is_cheapest():
    (scaling,) = scalings_of([counted(1, 100, cloud="local"), counted(2, 110, cloud="local")])
    assert scaling.best(By.COST, Market.ON_DEMAND).row is None
    assert "one machine" in scaling.best(By.COST, Market.ON_DEMAND).reason


def test_a_single_sample_gives_no_interval_of_the_efficiency():
    (scaling,) = scalings_of([counted(1, 100, spread=0), counted(2, 150)])
    assert scaling.points[1].efficiency.low is None


def test_the_table_has_efficiency_and_cost_by_count_and_names_the_cheapest():
    report = cost_report([counted(1, 100), counted(2, 150)])
    text = render(report, Format.TABLE)
    assert "how it scales: job on " in text
    assert "75%" in text
    assert "74%–76%" in text
    assert "cheapest: 1 node: ahead of all others: the interval of each ratio excludes 1" in text
    assert "fastest: 2 nodes" in text
    assert "the answer" not in text
    (scaling,) = report.extra["scaling"]
    assert [point["nodes"] for point in scaling["points"]] == [1, 2]
    assert (scaling["cheapest"]["nodes"], scaling["fastest"]["nodes"]) == (1, 2)


def test_facts_that_a_job_printed_are_named_by_count():
    printed = [(1, {"accuracy": "0.96"}), (2, {"accuracy": "0.96"}), (3, {"accuracy": "0.95"})]
    rows = [with_facts(counted(nodes, 100), facts) for nodes, facts in printed]
    report = cost_report(rows)
    assert "accuracy: 0.96 (1 node, 2 nodes); 0.95 (3 nodes)" in render(report, Format.TABLE, width=80)
    assert report.extra["scaling"][0]["points"][2]["facts"] == {"accuracy": "0.95"}


def test_facts_of_a_job_of_one_count_stand_below_its_answer():
    row = with_facts(counted(2, 100), {"accuracy": "0.96"})
    assert "accuracy: 0.96\n" in render(cost_report([row]), Format.TABLE)


def with_facts(row, facts):
    return replace(row, result=replace(row.result, facts={"printed": facts}))


def test_a_rehearsal_says_that_its_nodes_share_one_machine():
    text = render(cost_report([counted(1, 100, cloud="local"), counted(2, 90, cloud="local")]), Format.TABLE)
    assert "rehearsal: all nodes share the processors of this machine" in text
    assert "cheapest and fastest: none is named" in text


def test_the_chart_shows_throughput_beside_perfect_scaling():
    (chart,) = cost_charts([counted(1, 100), counted(2, 150)], Market.ON_DEMAND)
    assert [value["perfect"] for value in chart.spec["data"]["values"]] == [100, 200]
    assert chart.rows[1][2] == "75%"


def test_no_line_is_wider_than_a_terminal():
    rows = [counted(1, 100.123), counted(1000, 99999.5)]
    lines = render(cost_report(rows), Format.TABLE, width=80).splitlines()
    assert max(map(len, lines)) <= 80
