"""`dlcloud image` on the local EC2: what is in an image, what is not, and what a kill -9 leaves."""

import re
import signal
import sqlite3

import pytest
from terminal import User

RECIPE = """\
name: prepared
cloud: local
instances: {types: [g5.xlarge], image: IMAGE}
setup: {commands: touch ~/made}
workload:
  command: 'test -f ~/made && echo "images/sec: 5"'
  throughput: 'images/sec: ([0-9.]+)'
  repeats: 1
"""


@pytest.fixture
def recipe(user: User):
    """Write the recipe with an image, and return its path."""

    def write(image: str = "auto") -> str:
        path = user.home / "prepared.yaml"
        path.write_text(RECIPE.replace("IMAGE", image))
        return str(path)

    return write


def images(user: User):
    return user.json("image", "--list", "--cloud", "local")["result"]["records"]


def interrupted(user: User, recipe: str, line: str) -> None:
    """Kill `dlcloud image` as soon as it prints a line."""
    command = user.begin("image", recipe)
    assert command.stderr is not None
    for text in command.stderr:
        if re.search(line, text):
            break
    command.send_signal(signal.SIGKILL)
    command.wait()


def test_instances_of_an_image_are_set_up_and_have_no_secret_of_another(user: User, recipe):
    made = user.json("image", recipe())["result"]["records"][0]
    assert (made["name"], made["state"], made["size_gib"]) == ("dlcloud-prepared", "available", 75)
    assert user.alive() == []
    (folder,) = (user.home / ".dlcloud/local/images").iterdir()
    # Under an overlay, a device stands for a file of the machine that the instance has removed.
    kept = (path for path in folder.rglob("*") if not path.is_char_device())
    names = {str(path.relative_to(folder)) for path in kept}
    assert {"home/made", "home/dlcloud/image"} <= names
    unwanted = (
        "per-boot/dlcloud",
        "ssh_host",
        "authorized_keys",
        "host_proof",
        "watchdog",
        "ends-at",
        "setup.sh",
        "runs",
    )
    assert not [name for name in names if any(word in name for word in unwanted)]
    up = user.run("up", recipe("dlcloud-prepared"))
    assert "the set-up commands were run when its image was made" in up.stderr
    assert made["image_id"] in up.stderr
    assert images(user) == [made]


@pytest.mark.parametrize("line", [pytest.param("removing keys", marks=pytest.mark.long), "creating image"])
def test_a_command_that_was_killed_is_continued_and_makes_one_image(user: User, recipe, line):
    before = {image["image_id"] for image in images(user)}
    interrupted(user, recipe(), line)
    user.run("image", recipe())
    assert user.alive() == []
    (new,) = [image for image in images(user) if image["image_id"] not in before]
    store = sqlite3.connect(user.home / ".dlcloud" / "store.sqlite")
    last = "SELECT outcome FROM intents WHERE action = 'create-image' ORDER BY intent_id DESC LIMIT 1"
    assert store.execute(last).fetchone()[0] in {new["image_id"], None}
    store.close()


def test_gc_removes_what_is_superseded_and_finds_what_a_kill_left(user: User, recipe):
    user.run("image", recipe())
    user.run("image", recipe())
    current = images(user)[-1]
    stale = [image for image in images(user) if image["image_id"] != current["image_id"]]
    assert {image["state"] for image in stale} == {f"superseded by {current['image_id']}"}
    shown = user.json("gc", "--cloud", "local", "--region", "us-east-1", "--dry-run")
    found = {record["id"]: record for record in shown["result"]["records"]}
    assert set(found) == {image["image_id"] for image in stale}
    assert {record["kind"] for record in found.values()} == {"image"}
    assert all(record["hourly_usd"] for record in found.values())
    removal = user.run("gc", "--cloud", "local", "--region", "us-east-1", "--yes")
    assert f"{current['image_id']} (dlcloud-prepared, us-east-1) is kept" in removal.stderr
    assert images(user) == [current]
    snapshots = user.aws("ec2", "describe-snapshots", "--filters", "Name=tag-key,Values=dlcloud:image")
    assert len(snapshots["Snapshots"]) == 1
    # A kill between the two steps leaves a snapshot without an image.
    user.aws("ec2", "deregister-image", "--image-id", current["image_id"])
    (left,) = user.json("gc", "--cloud", "local", "--region", "us-east-1", "--yes")["result"]["records"]
    assert (left["kind"], left["id"]) == ("snapshot", snapshots["Snapshots"][0]["SnapshotId"])
    assert user.json("gc", "--cloud", "local", "--region", "us-east-1")["result"]["records"] == []


def test_an_image_that_does_not_exist_is_refused_before_a_launch(user: User, recipe):
    refused = user.run("up", recipe("dlcloud-other"), expect=3)
    assert "image dlcloud-other does not exist in us-east-1" in refused.stderr
    assert "dlcloud image RECIPE, of the recipe other" in refused.stderr
    assert user.run("image", expect=2).stderr.count("a recipe is missing") == 1
