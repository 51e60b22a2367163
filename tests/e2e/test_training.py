"""An elastic training on the local EC2: an instance interrupted, its launcher killed, and no step lost."""

import contextlib
import itertools
import json
import os
import signal
import sqlite3

import pytest
from secret_places import places_of
from terminal import User, wait_until

from dlcloud.elastic.agents import PACKAGE
from tests.environments import python_with

TOKEN = "hf_value-of-the-training-token"
RECIPE = """\
name: elastic
cloud: local
instances:
  types: [c7i.xlarge, c6i.xlarge]
  count: {min: 1, max: 2}
  market: spot
  on_demand_base: 1
workload:
  command: sh -c 'echo token $TOKEN; exec python3 -m trainer.examples.digits --epochs 6 --delay-ms 150'
  elastic: {checkpoint_seconds: 10, leave_seconds: 4}
  secrets: {TOKEN: env:MY_TOKEN}
rehearsal:
  - {after: 2, interrupt: 0, grace: 8}
"""


def steps_of(user: User, workload: str):
    """Return the stored steps of a training, without repetitions."""
    store = sqlite3.connect(user.home / ".dlcloud" / "store.sqlite")
    select = "SELECT line FROM records JOIN runs USING (run_id) WHERE kind = 'step' AND workload = ?"
    with contextlib.closing(store):
        lines = [line for (line,) in store.execute(select, (workload,))]
    return {record["step"]: record for record in map(json.loads, lines)}


def begun(user: User, workload: str):
    """Return whether it trains; a store that is only being made says nothing yet."""
    with contextlib.suppress(sqlite3.OperationalError):
        return (user.home / ".dlcloud" / "store.sqlite").exists() and len(steps_of(user, workload)) > 5
    return False


LOST = RECIPE.replace("name: elastic", "name: lost").replace(
    "{after: 2, interrupt: 0, grace: 8}", "{after: 3, kill: coordinator}"
)


@pytest.mark.skipif("DLCLOUD_FAULTS" not in os.environ, reason="a minute or two: set DLCLOUD_FAULTS=1")
def test_a_training_outlives_the_end_of_its_coordinator(user: User):
    recipe = user.home / "lost.yaml"
    recipe.write_text(LOST)
    user.variables["MY_TOKEN"] = TOKEN
    python_with(PACKAGE / "requirements" / "elastic.txt")
    up = user.begin("up", str(recipe), "--output", "json")
    output, progress = up.communicate(timeout=600)
    assert up.returncode == 0, progress
    result = json.loads(output)["result"]
    (training,) = result["records"]
    assert sorted(steps_of(user, "lost")) == list(range(1, training["steps"] + 1))
    assert training["steps"] == 90
    assert training["steps_redone"] <= 3
    assert "is the coordinator from now on" in progress
    assert "coordinator" in {event["event"] for event in result["events"]}
    assert [cost["market"] for cost in result["instances"]].count("on-demand") == 2
    assert user.alive() == []


FIXED = """\
name: smaller
cloud: local
instances: {types: [c7i.xlarge], count: 2, market: spot, on_demand_base: 1}
workload:
  command: python3 -m trainer.examples.digits --epochs 12 --delay-ms 100
  elastic: {}
"""


@pytest.mark.long
def test_a_training_goes_on_below_the_count_of_its_recipe(user: User):
    """Resized to one worker, it ends with its last step; the two of its recipe are not waited for."""
    recipe = user.home / "smaller.yaml"
    recipe.write_text(FIXED)
    python_with(PACKAGE / "requirements" / "elastic.txt")
    up = user.begin("up", str(recipe))
    wait_until(lambda: begun(user, "smaller") or up.poll() is not None)
    assert {record["world_size"] for record in steps_of(user, "smaller").values()} == {2}
    name = user.json("status")["result"]["records"][0]["cluster"]
    preview = user.run("resize", name, "1", "--dry-run").stdout
    assert "the training continues with 1 or more workers" in preview
    user.run("resize", name, "1")
    _, progress = up.communicate(timeout=600)
    assert up.returncode == 0, progress
    assert sorted(steps_of(user, "smaller")) == list(range(1, 181))
    assert "Timeout expired" not in progress
    assert user.alive() == []


def test_a_training_outlives_an_interruption_and_the_end_of_its_launcher(user: User):
    recipe = user.home / "elastic.yaml"
    recipe.write_text(RECIPE)
    user.variables["MY_TOKEN"] = TOKEN
    python_with(PACKAGE / "requirements" / "elastic.txt")  # the instances find it built
    first = user.begin("up", str(recipe))
    wait_until(lambda: begun(user, "elastic") or first.poll() is not None)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (up,) = user.json("status")["result"]["records"][:1]
    document = user.json("up", str(recipe))
    (training,) = document["result"]["records"]
    assert document["result"]["cluster"] == up["cluster"]
    steps = steps_of(user, "elastic")
    assert sorted(steps) == list(range(1, training["steps"] + 1))
    epoch = itertools.takewhile(lambda step: step <= 15, sorted(steps))
    assert sum(steps[step]["samples"] for step in epoch) == 1437
    # The record of the notice goes with the instance where no launcher was there to fetch it.
    assert {"notice", "leaving seen"} & {event["event"] for event in document["result"]["events"]}
    assert {period["world_size"] for period in document["result"]["world_sizes"]} >= {1, 2}
    assert len(document["result"]["instances"]) >= 3
    assert training["usd"]
    assert user.alive() == []
    assert user.json("training")["result"]["records"][0]["steps"] == training["steps"]
    logs = [log.read_text() for log in (user.home / ".dlcloud" / "runs").glob("elastic-*/log")]
    assert sum("token ***" in log for log in logs) >= len(document["result"]["instances"]) - 1
    assert places_of(TOKEN, user.home) == []
