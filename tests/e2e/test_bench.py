"""`dlcloud bench`: several types, one refused, failing or interrupted; and races."""

import json
import signal

import pytest
from terminal import TIMEOUT_S, wait_until

TYPES = ("-i", "c5.xlarge", "-i", "c7i.xlarge")


@pytest.mark.long
def test_a_type_without_capacity_stops_no_other_and_is_completed_later(user):
    recipe = user.recipe(name="own.yaml")
    user.run("local", "capacity", "c5.xlarge", "0")
    try:
        done = user.run("bench", *TYPES, "--recipe", recipe, expect=5)
    finally:
        user.run("local", "capacity", "c5.xlarge")
    assert "c5.xlarge was refused" in done.stderr
    assert "c7i.xlarge" in done.stdout
    assert user.alive() == []
    resumed = "resuming an earlier bench"
    assert resumed in user.run("bench", *TYPES, "--recipe", recipe, "--dry-run").stderr
    again = user.json("bench", *TYPES, "--recipe", recipe)
    rows = again["result"]["records"]
    assert sorted(row["instance_type"] for row in rows) == ["c5.xlarge", "c7i.xlarge"]
    dry = user.run("bench", *TYPES, "--recipe", recipe, "--dry-run")
    assert resumed not in dry.stderr
    plan = dry.stdout
    assert plan.count("0.17") >= 2
    assert all(len(line) <= 80 for line in plan.splitlines()), plan


def test_no_type_and_a_program_failing_everywhere_have_own_exit_codes(user):
    user.run("bench", "-i", "p9.xlarge", "--recipe", user.recipe(), expect=3)
    failing = user.recipe("echo something broke; exit 7", name="failing.yaml")
    done = user.run("bench", "-i", "c5.xlarge", "--recipe", failing, expect=4)
    assert "something broke" in done.stderr
    assert user.alive() == []
    for words in (("-i", "c5"), ("-i", "c5.xlarge", "-b", "nothing"), ()):
        user.run("bench", *words, "--cloud", "local", expect=2)


def test_ctrl_c_ends_every_instance_and_a_kill_is_made_up_for_by_the_next(user):
    recipe = user.recipe("sleep 3; echo images/sec: 5", name="slow.yaml")
    for number in (signal.SIGINT, signal.SIGKILL):
        process = user.begin("bench", *TYPES, "--recipe", recipe)
        wait_until(user.alive)  # one at a time: the machine is one
        process.send_signal(number)
        _, output = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == (130 if number is signal.SIGINT else -9), output
        assert user.alive() == [] or number is signal.SIGKILL
    left = set(user.alive())
    rows = user.json("bench", *TYPES, "--recipe", recipe)["result"]["records"]
    assert sorted(row["instance_type"] for row in rows) == ["c5.xlarge", "c7i.xlarge"]
    assert len(left) == 1
    assert user.alive() == []
    assert user.run("status").stdout == "nothing is up\n"


RACED = ("-i", "c5.xlarge", "-i", "c7i.xlarge", "-i", "m5.xlarge")
PROGRAM = """
import json, os, random, sys, time, urllib.request

base = os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"].rstrip("/") + "/latest/"


def ask(path, method="GET", **headers):
    request = urllib.request.Request(base + path, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


token = ask("api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
name = ask("meta-data/instance-type", **{"X-aws-ec2-metadata-token": token})
time.sleep(0.1)
speed = json.loads(sys.argv[1]).get(name, 100) * random.uniform(0.999, 1.001)
print(f"images/sec: {speed}")
"""
RACE = """
name: {name}
cloud: local
instances:
  types: [c5.xlarge]
workload:
  command: "python3 speed.py '{speeds}'"
  files: job
  throughput: 'images/sec: ([0-9.]+)'
  unit: images
"""


@pytest.fixture
def recipe(user):
    folder = user.home / "job"
    folder.mkdir(exist_ok=True)
    (folder / "speed.py").write_text(PROGRAM)

    def write(name, **speeds):
        text = json.dumps({kind.replace("_", "."): speed for kind, speed in speeds.items()})
        path = user.home / f"{name}.yaml"
        path.write_text(RACE.format(name=name, speeds=text.replace('"', '\\"')))
        return str(path)

    return write


def test_slow_types_are_ended_early_and_the_cheapest_is_named(user, recipe):
    planted = recipe("planted", c5_xlarge=100, c7i_xlarge=300, m5_xlarge=150)
    result = user.json("bench", "--race", *RACED, "--recipe", planted)["result"]
    race = result["race"]
    assert race["verdict"] == "decided"
    assert race["kept"] == ["c7i.xlarge"]
    first, *others = race["candidates"]
    assert (first["instance_type"], first["outcome"]) == ("c7i.xlarge", "the cheapest")
    assert all(other["outcome"].startswith("stopped: at least ") for other in others)
    assert all("dearer than c7i.xlarge" in other["outcome"] for other in others)
    assert max(lane["samples"] for lane in race["candidates"]) < 1000
    rows = {row["instance_type"]: row for row in result["records"]}
    assert set(rows) == {"c5.xlarge", "c7i.xlarge", "m5.xlarge"}
    for lane in race["candidates"]:
        run = user.home / ".dlcloud" / "runs" / rows[lane["instance_type"]]["run"]
        samples = (run / "records.jsonl").read_text().count('"record":"sample"')
        assert samples >= lane["samples"]
    assert user.alive() == []


@pytest.mark.long
def test_a_tie_is_named_and_a_refused_type_leaves_the_race(user, recipe):
    tie = recipe("tie", c5_xlarge=170, c7i_xlarge=178.5)
    user.run("local", "capacity", "m5.xlarge", "0")
    try:
        done = user.run("bench", "--race", *RACED, "--recipe", tie, "--repeats", "400", expect=5)
    finally:
        user.run("local", "capacity", "m5.xlarge")
    assert "c5.xlarge" in done.stdout
    assert "differ by less than 2%" in " ".join(done.stdout.split())
    assert done.stdout.count("tied") >= 2
    assert "m5.xlarge left the race" in done.stdout
    assert user.alive() == []


def test_ctrl_c_ends_every_instance_of_a_race(user, recipe):
    slow = recipe("slow", c5_xlarge=100, c7i_xlarge=105, m5_xlarge=110)
    process = user.begin("bench", "--race", *RACED, "--recipe", slow)
    wait_until(lambda: len(user.alive()) == 3)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, output
    assert "races again" in output
    assert user.alive() == []


def test_what_cannot_be_raced_is_refused_before_anything_is_launched(user, recipe):
    one = recipe("one", c5_xlarge=100)
    for words, said in (
        (("-i", "c5.xlarge", "--recipe", one), "needs two types"),
        (("-i", "c5.xlarge", "-i", "c7i.xlarge", "--cloud", "local"), "by one job"),
        (("-i", "c5.xlarge", "-i", "c7i.xlarge", "-b", "quantization", "--cloud", "local"), "by one case"),
        (("--recipe", one, "--predict"), "needs the types to choose from"),
    ):
        assert said in user.run("bench", "--race", *words, expect=2).stderr
    assert user.alive() == []
