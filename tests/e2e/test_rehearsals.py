"""A recipe for AWS, rehearsed by `--cloud local`; and `down` of what another process is in charge of."""

from terminal import TIMEOUT_S, User, wait_until

OF_AWS = """
name: of-aws
instances: {types: [c7i.xlarge, c5.xlarge], count: 1, market: spot}
setup: {commands: sudo apt-get update}
workload:
  command: 'sh -c ''echo "images/sec: $1"'' measure 5'
  throughput: 'images/sec: ([0-9.]+)'
  unit: images
  tiny: [fewer, steps]
"""


def test_a_recipe_for_aws_is_rehearsed_in_its_tiny_form(user: User):
    path = user.home / "of-aws.yaml"
    path.write_text(OF_AWS)
    refused = user.run("up", str(path), expect=3).stderr
    assert "--cloud local rehearses on this machine without an account" in refused
    done = user.run("up", str(path), "--cloud", "local", "-o", "json")
    words = " ".join(done.stderr.split())
    assert (
        "the recipe is changed by --cloud local (its tiny form: the command with fewer steps, once)" in words
    )
    assert "not rehearsed: apt of setup.commands" in words
    assert user.alive() == []
    (row,) = user.json("cost-report")["result"]["records"]
    assert (row["samples"], row["rehearsal"]) == (1, True)


def test_down_asks_the_process_in_charge_to_end_its_cluster(user: User):
    process = user.begin("up", user.recipe("sleep 100"), "--name", "busy")
    wait_until(user.alive)
    done = user.run("down", "busy")
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert f"process {process.pid} is in charge of busy: asking it to end" in done.stderr
    assert "terminating the instances" not in done.stderr, "that process has done it"
    assert process.returncode == 130, errors
    assert user.alive() == []
