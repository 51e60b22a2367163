"""What trackers record of a run: parameters, metrics over steps, and the output's numbers."""

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.analysis.tracking import points_of, points_of_log
from dlcloud.model.instance import Market
from tests.fakes import samples

TIME = "2026-11-01T00:00:01+00:00"


@pytest.fixture
def run():
    values = {"market": Market.SPOT, "instance_type": "c5.large", "state": RunState.RUNNING}
    return samples.run("sweep-1", trial=3, trial_values='{"lr": "0.1"}', **values)


def test_metrics_of_records_have_their_steps_and_times(run):
    records = [
        {"record": "sample", "metric": "throughput", "value": 5, "round": 2, "time": TIME},
        {
            "record": "step",
            "step": 7,
            "loss": 0.5,
            "world_size": 2,
            "samples": 64,
            "seconds": 2,
            "time": TIME,
        },
        {
            "record": "step",
            "step": 7,
            "loss": 0.5,
            "world_size": 2,
            "samples": 64,
            "seconds": 2,
            "time": TIME,
        },
        {"record": "step", "step": "broken"},
        {"record": "result", "metrics": {"duration": {"value": 3}}, "time": TIME},
        {"record": "progress"},
    ]
    assert [(point.key, point.value, point.step) for point in points_of(run, records)] == [
        ("sample throughput", 5, 2),
        ("loss", 0.5, 7),
        ("world_size", 2, 7),
        ("samples_per_second", 32, 7),
        ("duration", 3, 0),
    ]
    assert {point.at_ms for point in points_of(run, records)} == {1793491201000}


def test_each_match_of_a_fact_in_the_output_is_a_step():
    lines = ["epoch loss=0.5\n", "nothing\n", "loss=nan loss=1\n", "loss=1,024.5\n"]
    points = [*points_of_log(lines, {"loss": r"loss=([\d,.a-z]+)"}, 5)]
    assert [(point.value, point.step) for point in points] == [(0.5, 0), (1024.5, 1)]
