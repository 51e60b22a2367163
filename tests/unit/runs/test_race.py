"""A race's state: samples in, types ended, and what becomes of types that leave."""

import random
import threading

import pytest

from dlcloud.analysis.user_job import read_job
from dlcloud.model.errors import UnreachableError
from dlcloud.prediction.racing import Verdict
from dlcloud.runs.race import Race, RaceWatch

PRICES = {"c7i.xlarge": 0.2, "c5.xlarge": 0.2, "m5.xlarge": 0.2}


def samples(values, setting="as it is", metric="throughput", first=0):
    return [
        {
            "record": "sample",
            "setting": setting,
            "metric": metric,
            "unit": "images/s",
            "value": value,
            "seconds": 1.0,
            "round": number,
        }
        for number, value in enumerate(values, first)
    ]


def near(value, count=6, seed=1):
    rng = random.Random(seed)
    return [value * rng.uniform(0.995, 1.005) for _ in range(count)]


def test_a_dear_type_is_ended_while_the_others_race_on():
    race = Race(hourly_usd=PRICES)
    race.take("c7i.xlarge", samples(near(100)))
    race.take("c5.xlarge", samples(near(100.5, seed=2)))
    race.take("m5.xlarge", samples(near(50, seed=3)))
    assert [name for name in PRICES if race.ended(name).is_set()] == ["m5.xlarge"]
    result = race.result()
    assert result.verdict is Verdict.GOES_ON
    (lane,) = [lane for lane in result.lanes if lane.stopped]
    assert lane.instance_type == "m5.xlarge"
    assert "dearer than c" in str(lane.stopped)


def test_a_type_goes_on_while_one_of_its_settings_can_be_the_cheapest():
    race = Race(hourly_usd={"c7i.xlarge": 0.2, "c5.xlarge": 0.2})
    race.take("c7i.xlarge", samples(near(50), "fp32") + samples(near(100, seed=2), "int8"))
    race.take("c5.xlarge", samples(near(60, seed=3), "fp32") + samples(near(100.2, seed=4), "int8"))
    assert {lane.label for lane in race.result().lanes if lane.stopped} == {
        "c7i.xlarge fp32",
        "c5.xlarge fp32",
    }
    assert not race.ended("c7i.xlarge").is_set()


def test_a_type_that_fails_leaves_the_race():
    race = Race(hourly_usd=PRICES)
    race.take("c7i.xlarge", samples(near(100)))
    race.leave("m5.xlarge", "refused")
    race.take("c5.xlarge", samples(near(50, seed=2)))
    result = race.result()
    assert result.verdict is Verdict.DECIDED
    assert result.left == {"m5.xlarge": "refused"}
    assert all(race.ended(name).is_set() for name in PRICES)


def test_a_cheapest_that_is_lost_after_it_stopped_others_decides_nothing():
    race = Race(hourly_usd=PRICES)
    race.take("c7i.xlarge", samples(near(100)))
    race.take("c5.xlarge", samples(near(50, seed=2)))
    race.leave("c7i.xlarge", "interrupted")
    race.leave("m5.xlarge", "failed")
    assert race.result().verdict is Verdict.UNDECIDED


def test_times_are_compared_as_runs_in_a_second():
    race = Race(hourly_usd={"c7i.xlarge": 0.2, "c5.xlarge": 0.2})
    race.take("c7i.xlarge", samples(near(2), metric="duration"))
    race.take("c5.xlarge", samples(near(1, seed=2), metric="duration"))
    assert race.result().kept == ("c5.xlarge",)
    assert race.result().unit == "runs/s"


def test_values_within_one_round_are_one_sample():
    race = Race(hourly_usd=PRICES)
    race.take("c7i.xlarge", [*samples([100]), *samples([101]), *samples([102])])
    (lane,) = [lane for lane in race.result().lanes if lane.throughputs]
    assert lane.throughputs == [101]


@pytest.mark.parametrize(
    ("text", "verdict"), [("10 images", Verdict.UNDECIDED), ("1e12 images", Verdict.GOES_ON)]
)
def test_the_size_of_the_job_decides_what_is_worth_measuring(text, verdict):
    race = Race(hourly_usd={"c7i.xlarge": 0.2, "c5.xlarge": 0.2}, job=read_job(text))
    race.take("c7i.xlarge", samples(near(100)))
    race.take("c5.xlarge", samples(near(100.2, seed=2)))
    assert race.result().verdict is verdict


def test_a_broken_connection_at_the_end_of_a_type_harms_nothing():
    race = Race(hourly_usd={"c7i.xlarge": 0.2, "c5.xlarge": 0.2})
    called = threading.Event()

    def finish():
        called.set()
        raise UnreachableError("gone", "none")

    with RaceWatch(race=race, instance_type="c5.xlarge").end_early(finish):
        race.leave("c5.xlarge", "failed")
        assert called.wait(60)


def test_a_program_that_ended_by_itself_is_not_ended():
    race = Race(hourly_usd={"c7i.xlarge": 0.2, "c5.xlarge": 0.2})
    with RaceWatch(race=race, instance_type="c5.xlarge").end_early(lambda: pytest.fail("it had ended")):
        pass
    race.leave("c5.xlarge", "failed")
