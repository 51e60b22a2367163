"""Data and checkpoints in a bucket of the local EC2: every instance is lost, and the training goes on."""

import csv
import io
import json
import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress

import boto3
import pytest
from terminal import User, wait_until

from dlcloud.elastic.agents import PACKAGE
from dlcloud.resources.texts import recipe_text
from tests.environments import python_with

SMALLER = {
    "name: elastic-s3": "name: stored",
    "my-training-data": "training-data",
    "--epochs 150 --delay-ms 30": "--batch 48 --epochs 4 --delay-ms 150",
    "checkpoint_seconds: 10": "checkpoint_seconds: 0.5",
    "after: 5, interrupt: 0, grace: 10": "after: 1, interrupt: 0, grace: 4",
}
STEPS = 48
LOSSES = int(os.environ.get("DLCLOUD_LOSSES", "2"))
EPOCHS = 6 + 4 * LOSSES
"""Enough that each loss comes before the last step, however long an upload takes on a busy machine."""


def bundled() -> str:
    """Return the bundled recipe at a small size."""
    text, _ = recipe_text("elastic-s3")
    for words, smaller in SMALLER.items():
        assert words in text, words
        text = text.replace(words, smaller)
    return text


@pytest.fixture
def s3(user: User):
    user.run("local", "start")
    variables = user._endpoint().environment()
    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket="training-data")
    client.put_object(Bucket="training-data", Key="digits/digits.csv", Body=table(rows=720))
    return client


def table(rows):
    """Return made-up digits: their images, and labels that follow from them."""
    draw = random.Random(0)
    text = io.StringIO()
    for _ in range(rows):
        image = [draw.randint(0, 16) for _ in range(64)]
        csv.writer(text).writerow([*image, sum(image) % 10])
    return text.getvalue().encode()


def events(user: User, name: str):
    store = sqlite3.connect(user.home / ".dlcloud" / "store.sqlite")
    with suppress(sqlite3.OperationalError), closing(store):
        select = "SELECT line FROM records WHERE line LIKE ?"
        return [line for (line,) in store.execute(select, (f'%"event":"{name}"%',))]
    return []


def newest_checkpoint(s3, place="checkpoints/digits"):
    """Return the step of the newest manifest; 0 without one."""
    answer = s3.list_objects_v2(Bucket="training-data", Prefix=f"{place}/manifest-")
    return max((int(item["Key"].split("-")[1]) for item in answer.get("Contents", ())), default=0)


def resumed(user: User):
    """Return the steps of the checkpoints that workers went on from, in their order."""
    records = sorted(map(json.loads, events(user, "resumed")), key=lambda record: record["time"])
    return [record["step"] for record in records]


def requests(user: User):
    """Return how often instances were asked for."""
    calls = user.json("local", "status")["result"]["status"]["calls"]
    return calls.get("CreateFleet", 0) + calls.get("RunInstances", 0)


def wait(condition, process):
    """Wait for a condition, or for the end of a process, which the caller then sees."""
    wait_until(lambda: condition() or process.poll() is not None)


def lose_all(user: User, s3, process, draw):
    """End all instances at a moment of their training; return the step of the newest checkpoint before it."""
    before = newest_checkpoint(s3)
    wait(lambda: newest_checkpoint(s3) > before, process)
    time.sleep(draw.uniform(0, 1.5))
    newest = newest_checkpoint(s3)
    end_all(user)
    return newest


def end_all(user: User):
    """End all instances, and wait until no process of theirs is left."""
    names = user.alive()
    user.ec2.terminate_instances(InstanceIds=names)
    user.ec2.get_waiter("instance_terminated").wait(InstanceIds=names, WaiterConfig={"Delay": 1})


@pytest.mark.long
@pytest.mark.timeout(300 + 120 * LOSSES)
def test_every_loss_of_all_instances_is_a_pause(user: User, s3):
    """Ten are lost with DLCLOUD_LOSSES=10; the training goes on each time, from the newest checkpoint."""
    python_with(PACKAGE / "requirements" / "elastic.txt")
    recipe, draw = user.home / "stored.yaml", random.Random(LOSSES)
    recipe.write_text(bundled().replace("--epochs 4", f"--epochs {EPOCHS}"))
    process = user.begin("up", str(recipe), "--output", "json")
    lost = []
    for number in range(LOSSES):
        lost.append(lose_all(user, s3, process, draw))
        wait(lambda number=number: len(resumed(user)) > number, process)
    output, progress = process.communicate(timeout=600)
    assert process.returncode == 0, progress
    assert user.alive() == []
    # An instance that shuts down may commit one more while its replacement starts.
    went_on = resumed(user)
    assert len(went_on) == LOSSES, went_on
    assert all(step >= newest for step, newest in zip(went_on, lost, strict=True)), (
        "a checkpoint was passed over"
    )
    (training,) = json.loads(output)["result"]["records"]
    steps = STEPS // 4 * EPOCHS
    assert training["steps"] == newest_checkpoint(s3) == steps
    redone, usd = training["steps_redone"], float(training["redone_usd"] or 0)
    assert redone or not usd
    figures = f"{LOSSES} losses of all, {redone} of {steps} steps taken again for {usd:.4f} of"
    sys.stdout.write(f"{figures} {training['usd']} USD; lost at {lost}\n")
    # What is trained already costs nothing; more of it is trained.
    again = user.run("up", str(recipe))
    words = " ".join(again.stdout.split())
    assert f"nothing is launched: the last step, {steps}, is in s3://training-data" in words
    assert "launching" not in again.stderr
    recipe.write_text(recipe.read_text().replace(f"--epochs {EPOCHS}", f"--epochs {EPOCHS + 2}"))
    assert f"continues from step {steps}" in user.run("up", str(recipe), "--dry-run").stdout
    # Nothing is left but what the user asked for.
    assert user.aws("iam", "list-roles", "--path-prefix", "/dlcloud/")["Roles"] == []


def test_ctrl_c_ends_a_pause_without_capacity(user: User, s3):
    """Nothing is up then, and the next `up` goes on from the newest checkpoint."""
    python_with(PACKAGE / "requirements" / "elastic.txt")
    recipe, place = user.home / "paused.yaml", "checkpoints/paused"
    of_one = bundled().replace("{min: 1, max: 2}", "1")
    recipe.write_text(of_one.replace("checkpoints/digits", place))
    process = user.begin("up", str(recipe))
    wait(lambda: newest_checkpoint(s3, place) > 0, process)
    for name in ("c7i.xlarge", "c6i.xlarge"):
        user.run("local", "capacity", name, "0")
    calls = requests(user)
    end_all(user)
    wait(lambda: requests(user) > calls, process)
    step = newest_checkpoint(s3, place)
    process.send_signal(signal.SIGINT)
    _, progress = process.communicate(timeout=120)
    assert process.returncode == 130, progress
    assert user.alive() == []
    for name in ("c7i.xlarge", "c6i.xlarge"):
        user.run("local", "capacity", name)
    own, other = f"{place}/step-{1:012d}-{'a' * 32}.pt", f"{place}/of-another-program"
    for key in (own, other):
        s3.create_multipart_upload(Bucket="training-data", Key=key)
    second = user.run("up", str(recipe))
    assert "aborted 1 unfinished upload(s)" in second.stderr, "S3 would bill its parts for ever"
    assert [one["Key"] for one in s3.list_multipart_uploads(Bucket="training-data")["Uploads"]] == [other]
    assert f"resumes from the checkpoint of step {step}" in second.stderr
    assert "the checkpoint of step 48 is stored" in second.stderr
    assert user.alive() == []


@pytest.mark.long
def test_the_bundled_recipe_makes_its_own_bucket(user: User):
    done = user.run("up", "elastic-s3", "--cloud", "local", "--dry-run")
    assert "made the bucket my-training-data of the rehearsal" in done.stderr
    assert "data: 1 file(s)" in done.stdout
    again = user.run("up", "elastic-s3", "--cloud", "local", "--dry-run")
    assert "made the bucket" not in again.stderr
    (user.home / "own.yaml").write_text(recipe_text("elastic-s3")[0].replace("my-training", "other-training"))
    assert (
        "there is no bucket other-training-data" in user.run("up", "own.yaml", "--dry-run", expect=3).stderr
    )


@pytest.mark.long  # more than a minute
def test_the_bundled_recipe_is_rehearsed_to_its_last_step(user: User):
    python_with(PACKAGE / "requirements" / "elastic.txt")
    done = user.run("up", "elastic-s3", "--cloud", "local", "--yes")
    assert "has joined at step" in done.stderr
    assert "the checkpoint of step 450 is stored" in done.stderr
    assert user.alive() == []
    words = user.run("up", "elastic-s3", "--cloud", "local", "--yes").stdout.split()
    assert "nothing is launched: the last step, 450, is in s3://my-training-data" in " ".join(words)
