"""How a job scales over nodes: efficiency with its interval, and the cheapest count."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dlcloud.analysis.node_scaling import scalings_of
from dlcloud.analysis.ranking import By
from dlcloud.model.instance import Market
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
