"""`dlcloud up` with a deadline on the local EC2, where spot follows a trace, beside its simulation."""

import json
import os
import re
import sqlite3
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import pytest
from terminal import User, wait_until

from dlcloud.elastic.agents import PACKAGE
from dlcloud.elastic.registry import FEWEST_STEPS, SpeedMeter, StepCommitted, parse_reports
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.simulation.replay import SimulatedJob, SimulatedOutcome, replay
from dlcloud.scheduling.simulation.summary import keep_base
from dlcloud.scheduling.simulation.traces import PoolTrace, Window
from tests.environments import python_with

# The time of a step is all in its samples: n workers are nearly n times as fast as one.
PROGRAM = """
import time
import torch
from torch.utils.data import Dataset
from trainer.training import train

class Slow(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor([float(index % 7)]), torch.tensor([float(index % 2)])

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
train(model, optimizer, Slow(), loss, batch=48, epochs=EPOCHS)
"""

RECIPE = """\
name: friday
cloud: local
instances:
  types: [c7i.large]
  count: {min: 1, max: 3}
  market: spot-then-on-demand
  on_demand_base: 1
  zones: [us-east-1a, us-east-1b]
workload:
  command: python3 train.py
  files: ./train.py
  elastic: {checkpoint_seconds: 30, leave_seconds: 1}
budget: {max_hours: 1}
deadline:
  finish: FINISH
  work: {epochs: EPOCHS, per_hour: 700}
"""
SPEED, GAP_S = 60.0, 600.0
FINISH = timedelta(minutes=7)
USD = {"us-east-1a": 0.02, "us-east-1b": 0.03}
ON_DEMAND_USD = 0.08925


def write(user: User, *, epochs: int, finish: str, counts: dict[str, list[int]], speed: float = SPEED) -> str:
    """Write program, recipe and traces, and begin the traces; return the recipe's path."""
    (user.home / "train.py").write_text(PROGRAM.replace("EPOCHS", str(epochs)))
    recipe = user.home / "friday.yaml"
    recipe.write_text(RECIPE.replace("EPOCHS", str(epochs)).replace("FINISH", finish))
    traces = []
    for zone, data in counts.items():
        path = user.home / f"{zone}.json"
        metadata = {"gap_seconds": GAP_S, "meaning": "obtainable"}
        values = {"metadata": metadata, "data": data, "prices": [USD[zone]] * len(data)}
        path.write_text(json.dumps(values))
        traces += ["--trace", f"{zone}={path}"]
    if traces:
        user.run("local", "capacity", "c7i.large", *traces, "--speed", str(speed), "--grace", "2")
    return str(recipe)


class Record:
    """What the store of a home has of the run."""

    def __init__(self, user: User) -> None:
        store = sqlite3.connect(user.home / ".dlcloud" / "store.sqlite")
        (cluster_id, created_at) = store.execute(
            "SELECT cluster_id, created_at FROM clusters ORDER BY created_at DESC LIMIT 1"
        ).fetchone()
        self.began_at = datetime.fromisoformat(created_at)
        select = "SELECT instance_id, market, zone, launched_at, ended_at FROM members WHERE cluster_id = ?"
        self.members = store.execute(select, (cluster_id,)).fetchall()
        select = (
            "SELECT action, detail, outcome FROM intents WHERE cluster_id = ? AND action LIKE 'deadline%'"
        )
        self.intents = store.execute(select, (cluster_id,)).fetchall()
        select = "SELECT line FROM records JOIN runs USING (run_id) WHERE cluster_id = ?"
        self.records = [json.loads(line) for (line,) in store.execute(select, (cluster_id,))]
        store.close()
        steps = {r["step"]: r for r in self.records if r["record"] == "step" and self._is_own(r)}
        self.steps = [steps[number] for number in sorted(steps)]
        self.finished_at = datetime.fromisoformat(self.steps[-1]["time"])
        self.origin = min(datetime.fromisoformat(row[3]) for row in self.members)

    def _is_own(self, step: dict) -> bool:
        """False for the step of another cluster whose record the checkpoint brought."""
        return datetime.fromisoformat(step["time"]) >= self.began_at

    def usd(self) -> float:
        """The cost until the last step, by the second: the local EC2 ends instances seconds later."""
        total = 0.0
        for _, market, zone, launched_at, ended_at in self.members:
            end = min(datetime.fromisoformat(ended_at), self.finished_at)
            begin = max(datetime.fromisoformat(launched_at), self.origin)
            seconds = max(0.0, (end - begin).total_seconds())
            total += seconds / 3600 * (ON_DEMAND_USD if market == "on-demand" else USD[zone])
        return total

    def first_boot_s(self) -> float:
        """The time from the first launch to the first step, which ends when it is recorded."""
        first = self.steps[0]
        return (datetime.fromisoformat(first["time"]) - self.origin).total_seconds() - first["seconds"]

    def boot_s(self) -> float:
        """The median time from a later launch to the first step of its worker."""
        first_at = datetime.fromisoformat(self.steps[0]["time"])
        launched = {row[0]: datetime.fromisoformat(row[3]) for row in self.members}
        boots = {}
        for record in self.records:
            name = str(record.get("worker", "")).partition(".")[0]
            is_later = name in launched and launched[name] > first_at
            if record.get("event") == "joined" and is_later and name not in boots:
                boots[name] = (datetime.fromisoformat(record["time"]) - launched[name]).total_seconds()
        return median(boots.values()) if boots else self.first_boot_s()


def step_of(record: dict) -> StepCommitted:
    (step,) = [
        report for report in parse_reports(record["worker"], [record]) if isinstance(report, StepCommitted)
    ]
    return step


def mean_speed(steps: list[StepCommitted]) -> SpeedMeter:
    """Measure the mean of all steps but those after a change; a meter of a run knows the newest only."""
    seconds: dict[int, list[float]] = {}
    for before, step in pairwise(steps):
        if before.world_size == step.world_size:
            seconds.setdefault(step.world_size or 0, []).append(step.seconds or 0.0)
    meter, number = SpeedMeter(), 0
    for size, lengths in sorted(seconds.items()):
        for _ in range(FEWEST_STEPS + 1):
            number += 1
            meter.observe(StepCommitted(step=number, instance_id="", world_size=size, seconds=fmean(lengths)))
    return meter


def simulate(record: Record, counts: dict[str, list[int]], *, traced_at: datetime) -> SimulatedOutcome:
    """Replay the same traces, with the speed, the scaling, the boots and the pauses of this run."""
    measured, steps = SpeedMeter(), [step_of(step) for step in record.steps]
    for step in steps:
        measured.observe(step)
    meter = mean_speed(steps)
    assert meter.steps_per_second is not None
    shift_s = (record.origin - traced_at).total_seconds()
    finish_s = (record.began_at + FINISH - record.origin).total_seconds()
    pools = []
    for zone, data in counts.items():
        starts = [max(0.0, place * GAP_S / SPEED - shift_s) for place in range(len(data))]
        kept = [place for place in range(len(data)) if place + 1 == len(data) or starts[place + 1] > 0]
        pools.append(
            PoolTrace(
                name=zone,
                starts_s=tuple(starts[place] for place in kept),
                counts=tuple(data[place] for place in kept),
                prices=(USD[zone],) * len(kept),
                end_s=10_000.0,  # the last tick stays
            )
        )
    job = SimulatedJob(
        work_s=len(record.steps) / meter.steps_per_second,
        allowed_s=finish_s,
        on_demand_usd=ON_DEMAND_USD,
        spot_usd=0.02,
        maximum=3,
        boot_s=record.boot_s(),
        first_boot_s=record.first_boot_s(),
        changeover_s=measured.changeover_s,
        scaling=meter.scaling,
        refusal_s=FINISH.total_seconds() / 10,
    )
    policy = keep_base(POLICIES["elastic"], 1)
    return replay(job, Window(name="trace", pools=tuple(pools)), policy, keep_moments=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_short_training_meets_its_deadline(user: User):
    counts = {"us-east-1a": [1], "us-east-1b": [0]}
    python_with(PACKAGE / "requirements" / "elastic.txt")
    recipe = write(user, epochs=30, finish="30m", counts=counts)
    up = user.begin("up", recipe, "--output", "json")
    output, progress = up.communicate(timeout=850)
    assert up.returncode == 0, progress
    assert "before the deadline" in progress
    decisions = json.loads(output)["result"]["decisions"]
    assert all(decision["reason"] and 0 < decision["probability"] <= 1 for decision in decisions)
    record = Record(user)
    assert [row[2] for row in record.intents if row[0] == "deadline"] == ["met"]
    # One instance on-demand, one on spot, and requests for a third that the trace refuses.
    assert sorted(row[1] for row in record.members) == ["on-demand", "spot"]
    assert {name for decision in decisions for name in decision["launch"]} >= {"spot us-east-1b c7i.large"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_training_leaves_a_region_without_spot_and_ends_in_time(user: User):
    python_with(PACKAGE / "requirements" / "elastic.txt")
    s3, ec2 = user.client("s3"), user.client("ec2")
    s3.create_bucket(Bucket="friday")
    recipe = Path(write(user, epochs=90, finish="15m", counts={}))
    text = recipe.read_text().replace("  zones: [us-east-1a, us-east-1b]\n", "")
    text = text.replace("checkpoint_seconds: 30", "checkpoint_seconds: 3")
    recipe.write_text(text + "region: [us-east-1, us-west-2]\ncheckpoints: s3://friday/run\n")
    up = user.begin("up", str(recipe))
    wait_until(lambda: s3.list_objects_v2(Bucket="friday", Prefix="run/manifest-").get("Contents"))
    trace = user.home / "none.json"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": GAP_S, "meaning": "obtainable"}, "data": [0]}))
    zones = [one["ZoneName"] for one in ec2.describe_availability_zones()["AvailabilityZones"]]
    traces = [word for zone in zones for word in ("--trace", f"{zone}={trace}")]
    user.run("local", "capacity", "c7i.large", *traces, "--grace", "2")
    _, progress = up.communicate(timeout=850)
    assert up.returncode == 0, progress
    left = re.search(r"us-east-1 has no spot capacity, leaving it at step (\d+)", progress)
    assert left is not None, progress
    assert int(left[1]) > 0
    assert "continuing in us-west-2" in progress
    assert "before the deadline" in progress
    record = Record(user)
    assert {row[2][:-1] for row in record.members} == {"us-west-2"}
    assert record.steps[0]["step"] > int(left[1]), "it continues from its checkpoint"
    (training,) = user.json("training")["result"]["records"]
    assert training["start_seconds"] > 0


@pytest.mark.skipif("DLCLOUD_DEADLINE" not in os.environ, reason="five minutes: set DLCLOUD_DEADLINE=1")
@pytest.mark.timeout(900)
def test_cost_and_finish_agree_with_the_simulation(user: User):
    counts = {
        "us-east-1a": [2] * 7 + [0] * 4 + [1] * 7 + [0] * 3 + [2] * 40,
        "us-east-1b": [0] * 9 + [1] * 9 + [0] * 40,
    }
    python_with(PACKAGE / "requirements" / "elastic.txt")
    recipe = write(user, epochs=90, finish="7m", counts=counts)
    trace = user.json("local", "status")["result"]["status"]["trace"]
    traced_at = datetime.now().astimezone() - timedelta(seconds=trace["position_s"] / SPEED)
    up = user.begin("up", recipe, "--output", "json")
    _, progress = up.communicate(timeout=850)
    assert up.returncode == 0, progress
    record = Record(user)
    expected = simulate(record, counts, traced_at=traced_at)
    finished_s = (record.finished_at - record.origin).total_seconds()
    figures = f"cost {record.usd():.5f} USD, simulated {expected.usd:.5f}; finish {finished_s:.1f} s"
    sys.stdout.write(f"{figures}, simulated {expected.finished_s:.1f}\n")
    assert record.finished_at <= record.began_at + FINISH
    assert expected.late_s == 0
    assert record.usd() == pytest.approx(expected.usd, rel=0.05)
    assert finished_s == pytest.approx(expected.finished_s, rel=0.05)
