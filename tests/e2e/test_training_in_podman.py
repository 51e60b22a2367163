"""An elastic training in real containers, with data and checkpoints in a bucket; podman kills one of them."""

import json
import os
import signal
import sqlite3
import subprocess
from contextlib import closing, suppress
from itertools import groupby

import pytest
from terminal import User, wait_until

from tests.needs import needs

IMAGE = os.environ.get("DLCLOUD_TEST_PODMAN_IMAGE", "")
WITH_TORCH = ["podman", "run", "--rm", IMAGE, "python3", "-c", "import numpy, torch"]
BATCHES = 12
"""Of an epoch: 720 images, of which 144 are held out, in batches of 48."""

RECIPE = """\
name: boxed
cloud: local
instances:
  types: [c7i.xlarge, c6i.xlarge]
  count: {min: 1, max: 2}
  market: spot
  on_demand_base: 1
setup: {image: "%s"}
data:
  - {from: s3://boxed/digits, to: data/digits}
checkpoints: s3://boxed/checkpoints
workload:
  command: python3 -m trainer.examples.digits --data data/digits --batch 48 --epochs EPOCHS --delay-ms 100
  elastic: {checkpoint_seconds: 1, leave_seconds: 4}
rehearsal:
  - {after: 600, interrupt: 0}
""" % (IMAGE)  # noqa: UP031 - the recipe has braces
pytestmark = [
    pytest.mark.skipif(
        not IMAGE,
        reason="DLCLOUD_TEST_PODMAN_IMAGE names an image with python3.11, NumPy and PyTorch for podman",
    ),
    needs("podman"),
]


@pytest.fixture
def owner(tmp_path):
    """A user whose instances see this machine's images, which namespaces hide."""
    user = User(tmp_path, variables={"DLCLOUD_LOCAL_ISOLATION": "none"})
    user.run("local", "start")
    yield user
    user.run("local", "stop")


def containers(user: User):
    """Return the names of the containers of this user's instances, those that have ended too."""
    words = ["podman", "ps", "--all", "--format", "{{.Names}} {{.Labels}}"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0] for line in listed if f"{user.home}/" in line}


def rows(user: User, select: str):
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(user.home / ".dlcloud/store.sqlite")) as s,
    ):
        return s.execute(select).fetchall()
    return []


def sizes(user: User):
    """Return the numbers of workers that the training has had, one after the other."""
    lines = [json.loads(line) for (line,) in rows(user, "SELECT line FROM records WHERE kind = 'step'")]
    steps = {record["step"]: record["world_size"] for record in lines}
    return [size for size, _ in groupby(steps[step] for step in sorted(steps))]


def events(user: User):
    lines = [json.loads(line) for (line,) in rows(user, "SELECT line FROM records WHERE kind = 'event'")]
    return [record["event"] for record in lines]


def table():
    """Return made-up digits: 64 values and a label in a line."""
    return "".join(",".join(map(str, [*(i * k % 17 for k in range(64)), i % 10])) + "\n" for i in range(720))


def test_containers_are_killed_resized_ended_and_begun_again(owner: User):
    if subprocess.run(WITH_TORCH, check=False).returncode:
        pytest.skip("the image of DLCLOUD_TEST_PODMAN_IMAGE has no PyTorch")
    s3 = owner.client("s3")
    s3.create_bucket(Bucket="boxed")
    s3.put_object(Bucket="boxed", Key="digits/digits.csv", Body=table().encode())
    recipe = owner.home / "boxed.yaml"
    recipe.write_text(RECIPE.replace("EPOCHS", "9999"))
    first = owner.begin("up", str(recipe))

    def come(*expected: int):
        wait_until(lambda: sizes(owner)[-len(expected) :] == list(expected) or first.poll() is not None)
        assert first.poll() is None, first.communicate()

    come(2)
    coordinates = {
        instance["InstanceId"]
        for reservation in owner.ec2.describe_instances()["Reservations"]
        for instance in reservation["Instances"]
        if instance.get("InstanceLifecycle") != "spot"
    }
    runs = dict(rows(owner, "SELECT instance_id, run_id FROM runs"))
    (killed,) = (run for instance, run in runs.items() if instance not in coordinates)
    assert containers(owner) == {f"dlcloud-{run}" for run in runs.values()}
    subprocess.run(["podman", "kill", f"dlcloud-{killed}"], check=True, capture_output=True)
    come(2, 1, 2)
    owned = {path.stat().st_uid for path in owner.home.glob(".dlcloud/local/**/checkpoints/*.pt")}
    assert owned == {os.getuid()}
    (cluster,) = {row["cluster"] for row in owner.json("status")["result"]["records"]}
    owner.run("resize", cluster, "1")
    come(2, 1)
    wait_until(lambda: len(containers(owner)) == 1)
    assert "drained" in events(owner)
    wait_until(lambda: "checkpoint_stored" in events(owner))
    first.send_signal(signal.SIGINT)
    _, progress = first.communicate(timeout=600)
    assert first.returncode == 130, progress
    assert "Traceback" not in progress
    assert (owner.alive(), containers(owner)) == ([], set())

    manifests = s3.list_objects_v2(Bucket="boxed", Prefix="checkpoints/manifest-")["Contents"]
    step = max(int(item["Key"].split("-")[1]) for item in manifests)
    epochs = step // BATCHES + 3
    recipe.write_text(RECIPE.replace("EPOCHS", str(epochs)).replace("after: 600", "after: 1"))
    second = owner.run("up", str(recipe))
    assert f"resumes from the checkpoint of step {step}" in second.stderr
    assert f"the last step, {epochs * BATCHES}, is committed" in second.stderr
    assert "is interrupted: interruption notice" in second.stderr
    assert (owner.alive(), containers(owner)) == ([], set())
