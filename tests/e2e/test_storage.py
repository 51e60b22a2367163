"""Data and checkpoints in a bucket of the local EC2: every instance is lost, and the training goes on."""

import csv
import io
import random
import sqlite3
from contextlib import closing, suppress

import boto3
import pytest
from terminal import User, wait_until

from dlcloud.elastic.program import PACKAGE
from dlcloud.resources.texts import recipe_text
from tests.environments import python_with

SMALLER = {
    "name: elastic-s3": "name: stored",
    "my-training-data": "training-data",
    "--epochs 30 --delay-ms 30": "--batch 48 --epochs 4 --delay-ms 150",
    "checkpoint_seconds: 10": "checkpoint_seconds: 0.5",
    "after: 5, interrupt: 0, grace: 10": "after: 1, interrupt: 0, grace: 4",
}
STEPS = 48


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
    client.put_object(Bucket="training-data", Key="digits/digits.csv", Body=table(rows=936))
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


def test_the_bundled_recipe_goes_on_from_its_bucket_without_any_instance(user: User, s3):
    python_with(PACKAGE / "requirements" / "elastic.txt")
    recipe = user.home / "stored.yaml"
    recipe.write_text(bundled())
    first = user.begin("up", str(recipe))
    interrupted = ("notice", "checkpoint_stored")
    wait_until(lambda: all(events(user, name) for name in interrupted) or first.poll() is not None)
    instances = user.alive()
    user.aws("ec2", "terminate-instances", "--instance-ids", *instances)
    _, progress = first.communicate(timeout=600)
    assert first.returncode == 4, progress
    assert user.alive() == []
    assert "goes on from the newest checkpoint in s3://training-data/checkpoints/digits" in progress
    listed = s3.list_objects_v2(Bucket="training-data", Prefix="checkpoints/digits/manifest-")["Contents"]
    step = max(int(item["Key"].split("-")[1]) for item in listed)
    assert 0 < step < STEPS
    own, other = f"checkpoints/digits/step-{1:012d}-{'a' * 32}.pt", "checkpoints/digits/of-somebody-else"
    for key in (own, other):
        s3.create_multipart_upload(Bucket="training-data", Key=key)
    second = user.run("up", str(recipe))
    assert "aborted 1 unfinished upload(s)" in second.stderr, "S3 would bill its parts for ever"
    assert [one["Key"] for one in s3.list_multipart_uploads(Bucket="training-data")["Uploads"]] == [other]
    assert f"goes on from step {step}" in second.stderr
    assert f"goes on from the checkpoint of step {step}" in second.stderr
    assert "the checkpoint of step 48 is stored" in second.stderr
    assert user.alive() == []
    # Nothing is left but what the user asked for.
    assert user.aws("iam", "list-roles", "--path-prefix", "/dlcloud/")["Roles"] == []
