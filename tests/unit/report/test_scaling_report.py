"""The table and the chart of a job over several nodes."""

from dataclasses import replace

from dlcloud.model.instance import Market
from dlcloud.report.cost_charts import cost_charts
from dlcloud.report.cost_tables import cost_report
from dlcloud.report.table import Format, render
from tests.unit.analysis.test_scaling import counted


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
