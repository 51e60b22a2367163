"""What trackers record of a run: parameters, metrics over steps, and the output's numbers."""

from datetime import UTC, datetime

import pytest

from dlcloud.model.instance import Market
from dlcloud.results.result import Run, RunState
from dlcloud.results.tracking import parameters_of, points_of, points_of_log, tags_of

TIME = "2026-11-01T00:00:01+00:00"


@pytest.fixture
def run():
    return Run(
        run_id="sweep-1",
        cluster_id="c",
        cluster_name="sweep",
        instance_id="i-1",
        workload="sweep",
        cloud="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="c5.large",
        market=Market.SPOT,
        image_id="ami-1",
        hourly_usd=None,
        price_source="",
        price_as_of=None,
        state=RunState.RUNNING,
        started_at=datetime(2026, 11, 1, tzinfo=UTC),
        experiment="e",
        trial=3,
        trial_values='{"lr": "0.1"}',
    )


def test_parameters_are_the_values_and_the_machine(run):
    parameters = parameters_of(run)
    assert parameters["lr"] == "0.1"
    assert parameters["dlcloud.instance_type"] == "c5.large"
    assert parameters["dlcloud.market"] == "spot"
    assert tags_of(run)["dlcloud.trial"] == "3"


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
