"""`dlcloud resize` by hand: dry run, more, fewer, refusals, Ctrl-C."""

import signal

from terminal import TIMEOUT_S

RECIPE = """
name: sized
cloud: local
instances: {types: [c5.xlarge, c6i.xlarge], market: spot, on_demand_base: 1, count: {min: 1, max: 4}}
setup: {commands: echo ready >was-set-up}
workload: {command: 'true', repeats: 1}
"""


def test_a_cluster_grows_and_shrinks_while_it_is_up(user):
    (user.home / "sized.yaml").write_text(RECIPE)
    user.run("up", "sized.yaml", "--keep", "--name", "sized")
    assert len(user.alive()) == 4
    first = set(user.alive())

    shown = user.json("resize", "sized", "2", "--dry-run")["result"]
    assert set(user.alive()) == first
    done = user.json("resize", "sized", "2")["result"]
    assert shown["resize"]["end"] == done["resize"]["end"]
    assert set(user.alive()) == first - set(done["resize"]["end"])
    assert {row["market"] for row in done["records"] if row["action"] == "up"} == {
        "spot",
        "on-demand",
    }

    user.run("local", "capacity", "c5.xlarge", "0")
    user.run("local", "capacity", "c6i.xlarge", "0")
    refused = user.run("resize", "sized", "3", expect=3)
    assert "c6i.xlarge spot in us-east-1a" in refused.stderr
    user.run("local", "capacity", "c5.xlarge", "2")
    assert "3 of 4 instance(s)" in user.run("resize", "sized", "4", expect=5).stderr
    user.run("local", "capacity", "c5.xlarge")
    user.run("local", "capacity", "c6i.xlarge")
    user.run("resize", "sized", "4")
    assert len(user.alive()) == 4
    ready = user.run("exec", "sized", "--", "cat", "was-set-up").stdout
    assert ready.count("ready") == 4

    user.run("resize", "sized", "1")
    user.run("up", "sized.yaml", "--name", "sized")
    assert len(user.alive()) == 1, "up goes on with the size that the cluster was given"
    user.run("down", "sized")
    assert user.alive() == []


def test_ctrl_c_while_growing_ends_what_was_launched(user):
    user.run("up", user.recipe(count=1), "--keep", "--name", "small")
    process = user.begin("resize", "small", "3")
    for line in process.stderr:
        if "proving" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, out + err
    assert len(user.alive()) == 1
    user.run("down", "small")


def test_what_cannot_be_resized_says_why(user):
    assert "no cluster missing is up" in user.run("resize", "missing", "2", expect=2).stderr
    (user.home / "sized.yaml").write_text(RECIPE)
    user.run("up", "sized.yaml", "--keep", "--name", "sized")
    assert "between 1 and 4" in user.run("resize", "sized", "5", expect=2).stderr
    user.run("resize", "sized", "0", expect=2)


def test_an_instance_that_another_machine_has_launched_for_a_cluster_has_a_price(user):
    (user.home / "sized.yaml").write_text(RECIPE)
    user.run("up", "sized.yaml", "--keep", "--name", "sized")
    found = user.ec2.describe_instances(InstanceIds=user.alive()[:1])
    (one,) = found["Reservations"][0]["Instances"]
    tags = [tag for tag in one["Tags"] if not tag["Key"].startswith("aws:")]
    user.ec2.run_instances(
        ImageId=one["ImageId"],
        InstanceType="c6i.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    records = user.json("status")["result"]["records"]
    assert len(records) == 5
    assert all(record["hourly_usd"] for record in records)
    user.run("down", "sized")
