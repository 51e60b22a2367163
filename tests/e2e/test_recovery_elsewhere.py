"""A run that loses its Region's capacity continues in another Region, from its newest checkpoint."""

import re

import pytest
from botocore.exceptions import ClientError
from terminal import TIMEOUT_S, wait_until
from test_kept_checkpoints import SCRIPT
from test_region_failover import groups, living

RECIPE = """\
name: moving
cloud: local
region: [us-east-1, us-west-2]
instances: {types: [c7i.large], market: spot}
workload: {command: python3 train.py, files: train.py, checkpoints: [ckpt/], resume: auto}
budget: {max_hours: 1}
"""


def begin(user, top="", is_there=None):
    (user.home / "train.py").write_text(SCRIPT)
    (user.home / "moving.yaml").write_text(RECIPE + top)
    process = user.begin("up", "moving.yaml", "--name", "moving")
    wait_until(
        is_there or (lambda: list((user.home / ".dlcloud/checkpoints").glob("moving-*/0/state-*.json")))
    )
    return process


def lose(user, region, grace="0"):
    """Take a Region's capacity away, and the instance that runs there."""
    user.run("local", "capacity", "c7i.large", "0", "--zone", region)
    reservations = user.client("ec2", region).describe_instances()["Reservations"]
    (name,) = [
        one["InstanceId"]
        for found in reservations
        for one in found["Instances"]
        if one["State"]["Name"] == "running"
    ]
    user.run("local", "interrupt", name, "--grace", grace)


def remove_bucket(s3, name):
    """Remove a bucket to which an instance still writes; True if it is gone."""
    for item in s3.list_objects_v2(Bucket=name).get("Contents", []):
        s3.delete_object(Bucket=name, Key=item["Key"])
    try:
        s3.delete_bucket(Bucket=name)
    except ClientError:
        return False
    return True


def end(user, process):
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out + err
    assert "us-east-1 has no capacity any more: continuing in us-west-2" in err
    assert re.search(r"restoring checkpoint \d+", err), err
    assert "interrupted once" in err
    (result,) = (user.home / ".dlcloud/runs").glob("moving-*/files/result.txt")
    assert result.read_text() == str(sum(step * step for step in range(61)))
    assert [row[0] for row in user.store("SELECT region FROM runs ORDER BY started_at")] == [
        "us-east-1",
        "us-west-2",
    ]
    for region in ("us-east-1", "us-west-2"):
        assert (living(user, region), groups(user, region)) == ([], [])
    return err


def test_a_script_that_loses_its_region_resumes_in_another_one(newcomer):
    process = begin(newcomer)
    lose(newcomer, "us-east-1")
    end(newcomer, process)


@pytest.mark.long
def test_checkpoints_in_s3_are_read_across_regions_with_the_price_in_the_plan(newcomer):
    newcomer.run("local", "start")
    s3 = newcomer.client("s3")
    s3.create_bucket(Bucket="moving-checkpoints")

    def stored():
        return s3.list_objects_v2(Bucket="moving-checkpoints", Prefix="run/0/state-").get("Contents", [])

    process = begin(newcomer, "checkpoints: s3://moving-checkpoints/run\n", stored)
    lose(newcomer, "us-east-1", grace="40")
    end(newcomer, process)
    plan = newcomer.run("plan", "moving.yaml", "--region", "us-west-2")
    assert "the bucket is in us-east-1: 0.02 USD per GB read, 0.02 stored" in " ".join(plan.stdout.split())


@pytest.mark.long
def test_replicated_checkpoints_are_read_in_the_next_region_although_the_first_is_lost_whole(newcomer):
    newcomer.run("local", "start")
    first, second = (newcomer.client("s3", region) for region in ("us-east-1", "us-west-2"))
    place = "checkpoints: {to: 's3://moving-{region}/run', replicate: yes}\n"
    first.create_bucket(Bucket="moving-us-east-1")
    (newcomer.home / "train.py").write_text(SCRIPT)
    (newcomer.home / "moving.yaml").write_text(RECIPE + place)
    refused = newcomer.run("plan", "moving.yaml")
    assert "there is no bucket moving-us-west-2" in " ".join(refused.stdout.split())
    second.create_bucket(
        Bucket="moving-us-west-2", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )

    def keys(client, region):
        listed = client.list_objects_v2(Bucket=f"moving-{region}", Prefix="run/0/").get("Contents", [])
        return {item["Key"] for item in listed}

    def is_replicated():
        names = keys(second, "us-west-2")
        return any("/state-" in name for name in names) and names <= keys(first, "us-east-1") | names

    process = begin(newcomer, place, is_replicated)
    # All of the first region's S3 is gone: what is restored was read in the second one.
    wait_until(lambda: remove_bucket(first, "moving-us-east-1"))
    lose(newcomer, "us-east-1")
    err = end(newcomer, process)
    assert "checkpoints are replicated to s3://moving-us-west-2/run" in err
    assert "checkpoints in us-east-1 are left out: there is no bucket moving-us-east-1" in err
    assert "the newest checkpoint is in us-west-2 already" in err
    assert any("/state-" in name for name in keys(second, "us-west-2"))


@pytest.mark.long
def test_it_waits_while_no_region_has_capacity_and_continues_where_there_is_some_first(newcomer):
    process = begin(newcomer)
    newcomer.run("local", "capacity", "c7i.large", "0", "--zone", "us-west-2")
    lose(newcomer, "us-east-1")
    lines = []
    while "no region has capacity" not in "".join(lines):
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)
    newcomer.run("local", "capacity", "c7i.large", "5", "--zone", "us-west-2")
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert re.search(r"restoring checkpoint \d+", err)
    assert newcomer.store("SELECT count(DISTINCT region) FROM runs") == [(2,)]
