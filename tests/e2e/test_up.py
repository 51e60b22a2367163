"""`dlcloud up` from a recipe to a result, and everything that can go wrong on the way."""

import re
import signal
import sqlite3
import subprocess

import pytest
from terminal import TIMEOUT_S, wait_until

from dlcloud.local.site import LocalSite
from tests.fakes.control import control_of

SLOW = "sleep 3; echo images/sec: 5"
RARER = [
    pytest.param(moment, marks=pytest.mark.long) for moment in ("proving their host keys", "running command")
]


def control(user):
    return control_of(LocalSite(user.home / ".dlcloud" / "local").find())


def test_up_in_an_empty_home_runs_reports_and_leaves_nothing(newcomer):
    done = newcomer.run("up", newcomer.recipe())
    assert re.search(r"(?m)^as it is.* 5\*? .*", done.stdout), done.stdout
    assert "rehearsal" in done.stdout
    assert "to measure it on AWS:\n  dlcloud bench" in done.stdout
    assert "is down" in done.stderr
    assert newcomer.alive() == []
    groups = newcomer.aws("ec2", "describe-security-groups")["SecurityGroups"]
    assert [group["GroupName"] for group in groups] == ["default"]
    assert list((newcomer.home / ".dlcloud" / "clusters").iterdir()) == []
    assert newcomer.run("status").stdout == "nothing is up\n"


@pytest.mark.long
def test_a_bundled_benchmark_runs_on_the_instance_with_marked_figures(user):
    recipe = user.home / "tiny.yaml"
    recipe.write_text(
        "name: tiny\ncloud: local\ninstances: {types: [c7i.xlarge]}\n"
        "workload:\n  benchmark: quantization\n"
        "  parameters: {network: tiny, engine: onnxruntime, max-seconds: 5, slice-seconds: 0.1}\n"
    )
    document = user.json("up", str(recipe))
    settings = {record["setting"]: record for record in document["result"]["records"]}
    assert set(settings) == {"onnxruntime fp32", "onnxruntime int8"}
    assert all(record["rehearsal"] is True for record in settings.values())
    assert settings["onnxruntime int8"]["speed_up"] is not None
    assert float(settings["onnxruntime int8"]["usd_per_million"]) > 0
    assert settings["onnxruntime int8"]["fact_weights"] == "random"
    for form, mark in (("table", "rehearsal"), ("csv", "true"), ("markdown", "rehearsal"), ("json", "true")):
        assert mark in user.run("cost-report", "--output", form).stdout


def test_a_command_runs_with_the_packages_of_its_recipe(user):
    recipe = user.home / "own.yaml"
    recipe.write_text(
        "name: own\ncloud: local\ninstances: {types: [c7i.xlarge]}\n"
        "setup: {requirements: pyyaml==6.0.2}\n"
        "workload:\n  command: python3 -c 'import yaml; print(yaml.__version__)'\n"
        "  throughput: '6.0.([0-9]+)'\n  repeats: 1\n"
    )
    done = user.run("up", str(recipe))
    assert re.search(r"(?m)^as it is.* 2\*? .*", done.stdout), done.stdout + done.stderr


def test_the_dry_run_creates_nothing_and_shows_the_plan_of_the_real_one(user):
    recipe = user.recipe(count=2)
    plan = user.run("up", recipe, "--dry-run").stdout
    assert user.alive() == []
    shown = user.run("up", recipe).stderr
    assert plan.strip() in shown
    assert all(len(line) <= 80 for line in plan.splitlines()), plan


def test_options_change_the_recipe_and_the_plan_says_so(user):
    recipe = user.recipe('echo "images/sec: $RATE"')
    changes = ("--type", "c6i.xlarge", "--count", "2", "--market", "spot", "--env", "RATE=7")
    plan = user.run("up", recipe, *changes, "--dry-run").stdout
    assert "changed by --type c6i.xlarge --market spot --count 2 --env RATE=7" in " ".join(plan.split())
    assert all(len(line) <= 80 for line in plan.splitlines()), plan
    records = user.json("up", recipe, *changes)["result"]["records"]
    assert [(row["instance_type"], row["market"]) for row in records] == [("c6i.xlarge", "spot")] * 2
    assert [row["throughput"] for row in records] == [7, 7]
    refused = user.run("up", recipe, "--type", "c6i", "--secret", "TOKEN=hf_0123", expect=2).stderr
    assert "--type" in refused and "--secret TOKEN: this is no source" in refused  # noqa: PT018  one message
    assert "hf_0123" not in refused


def test_a_second_up_at_once_makes_a_second_cluster_and_says_so(user):
    recipe = user.recipe("sleep 6; echo images/sec: 5")
    first = user.begin("up", recipe)
    wait_until(user.alive)
    both = [first, user.begin("up", recipe)]
    name = user.json("status")["result"]["records"][0]["cluster"]
    warning = f"warning: process {first.pid} runs this recipe on {name} already: both measure"
    assert warning in _read_until(both[1], "both measure")
    wait_until(lambda: len(user.alive()) == 2)
    names = {record["cluster"] for record in user.json("status")["result"]["records"]}
    assert len(names) == 2
    for process in both:
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, out + err
    assert user.alive() == []


@pytest.mark.parametrize("moment", ["launching", *RARER])
def test_an_up_killed_halfway_and_run_again_is_one_cluster(user, moment):
    recipe = user.recipe(SLOW, count=2)
    process = user.begin("up", recipe)
    _read_until(process, moment)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = set(user.alive())
    again = user.begin("up", recipe)
    output = _read_until(again, "running command")
    instances = set(user.alive())
    assert len(instances) == 2
    assert left <= instances
    out, err = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0, out + err
    assert "left unfinished" in output or moment == "launching"
    assert user.alive() == []
    assert user.run("status").stdout == "nothing is up\n"


@pytest.mark.parametrize("moment", ["launching", *RARER, pytest.param("looking at", marks=pytest.mark.long)])
def test_ctrl_c_leaves_nothing_running_and_says_so(user, moment):
    process = user.begin("up", user.recipe("sleep 60"))
    _read_until(process, moment)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, out + err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert user.alive() == []
    assert user.run("status").stdout == "nothing is up\n"
    if moment == "running command":
        assert "terminating quick" in err
        assert "is down" in err


def test_without_capacity_the_verdict_is_quick_and_nothing_is_left(user):
    user.run("local", "capacity", "c5.xlarge", "0")
    try:
        done = user.run("up", user.recipe(), expect=3)
    finally:
        user.run("local", "capacity", "c5.xlarge")
    assert "InsufficientInstanceCapacity" in done.stderr
    assert "hint:" in done.stderr
    assert user.alive() == []


def test_a_failing_program_ends_with_its_log_and_exit_code_4(user):
    done = user.run("up", user.recipe("echo something broke; exit 7"), expect=4)
    assert "something broke" in done.stderr
    assert user.alive() == []
    assert "something broke" in user.run("logs").stdout


def test_keep_keeps_the_instance_of_a_program_that_failed(user):
    recipe = user.recipe("echo something broke; exit 7")
    try:
        done = user.run("up", recipe, "--keep", "--name", "looked", expect=4)
        assert "looked is kept up (0.170 USD/h): dlcloud ssh looked opens a shell" in done.stderr
        assert len(user.alive()) == 1
        assert "something broke" in user.run("exec", "looked", "--", "cat dlcloud/runs/*/log").stdout
    finally:
        user.run("down", "looked")
    assert user.alive() == []


def test_a_kept_cluster_is_used_again_and_then_ended(user):
    recipe = user.recipe()
    user.run("up", recipe, "--keep", "--name", "mine")
    first = user.alive()
    again = user.run("up", recipe, "--name", "mine").stderr
    assert "kept up afterwards: dlcloud down ends it" in again
    assert "mine is used again: it is up, and stays so" in again
    assert user.alive() == first
    assert first[0] in user.run("status", "mi").stdout
    user.run("down", "mine")
    assert user.alive() == []
    assert first[0] in user.run("status", "mi").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("up", "no-such-recipe"), 2, "dlcloud recipes"),
        (("up",), 2, "Missing argument"),
        (("up", "quickstart", "--cidr", "all"), 2, "--cidr"),
        (("exec", "missing", "true"), 2, "no cluster missing is up"),
        (("logs", "nothing"), 2, "no run"),
        (("cost-report", "nothing"), 2, "is stored"),
        (("frobnicate",), 2, "No such command"),
        (("local", "interrupt", "i-0123"), 1, "i-0123"),
    ],
)
def test_bad_input_gets_a_clear_error(user, arguments, code, message):
    done = user.run(*arguments, expect=code)
    assert message in done.stderr + done.stdout


def test_five_faults_are_five_lines(user):
    recipe = user.home / "faulty.yaml"
    recipe.write_text(
        "name: Faulty\ncloud: azure\ninstances:\n  types: [c5.xlarge]\n  count: none\n"
        "workload: {benchmark: quantization}\nzap: 1\nkeep: {instances: maybe}\n"
    )
    done = user.run("up", str(recipe), expect=2)
    faults = [line for line in done.stderr.splitlines() if "faulty.yaml:" in line]
    assert [int(re.search(r"yaml:(\d+):", line)[1]) for line in faults] == [1, 2, 5, 7, 8]
    assert user.alive() == []


def test_aws_without_credentials_says_what_to_do(user):
    recipe = user.home / "aws.yaml"
    recipe.write_text("name: real\ninstances: {types: [c5.xlarge]}\nworkload: {command: 'true'}\n")
    environment = user.environment | {"AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [*user.command, "up", str(recipe), "--cidr", "203.0.113.7/32"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "there are no AWS credentials" in done.stderr
    assert "aws configure" in done.stderr


def _read_until(process, text: str) -> str:
    output = ""
    for line in process.stderr:
        output += line
        if text in line:
            return output
    raise AssertionError(f"{text!r} was never printed")


def _records(user, workload: str) -> list[str]:
    store = user.home / ".dlcloud" / "store.sqlite"
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT kind FROM records JOIN runs USING (run_id) WHERE workload = ?", (workload,)
        )
        return [row[0] for row in rows]


def test_an_instance_that_ends_at_boot_is_replaced_and_the_run_goes_on(user):
    control(user).fail_boots("ends")
    done = user.run("up", user.recipe(count="{min: 1, max: 2}"))
    assert "giving up on this instance: an instance ended while it was booting: i-" in done.stderr
    assert len(set(re.findall(r"(i-[0-9a-f]+)  c5.xlarge on-demand", done.stderr))) == 3
    assert "180 s of 3 instance(s)" in done.stderr
    assert user.alive() == []
