"""A training left to its own coordinator: its launcher killed at any moment, then watched from elsewhere."""

import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from secret_places import places_of
from terminal import User, wait_until

from dlcloud.elastic.agents import PACKAGE
from dlcloud.local.site import ENDPOINT_VARIABLE, KEY_ID_VARIABLE, SECRET_VARIABLE
from tests.environments import python_with

NAME = "left"
TOKEN = "hf_value-of-the-training-token"
RECIPE = """\
name: detached
cloud: local
instances:
  types: [c7i.xlarge, c6i.xlarge]
  count: {min: 1, max: 2}
  market: spot
  on_demand_base: 1
workload:
  command: sh -c 'echo token $TOKEN; exec python3 -m trainer.examples.digits --epochs 7 --delay-ms 150
    --save model.pt'
  secrets: {TOKEN: env:MY_TOKEN}
  elastic: {checkpoint_seconds: 10, leave_seconds: 4}
keep:
  files: ['*.pt']
"""


def killed_when(user: User, words: str, *arguments: str) -> str:
    """Run dlcloud, kill it as soon as it prints something, and return all that it printed."""
    begun = user.begin(*arguments)
    output = ""
    for line in begun.stderr:
        output += line
        if words in line:
            break
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    assert words in output, output
    return output


def processes_of(folder: Path, *, word: str, inside: bool) -> dict[int, str]:
    """Return the command lines of processes with a word in them, of instances or of the home itself."""
    processes = {}
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        places = (b"DLCLOUD_HOME=" + os.fsencode(folder), b"DLCLOUD_ROOT=" + os.fsencode(folder))
        is_of_home = any(entry.startswith(places) for entry in environment)
        instance = any(entry.startswith(b"DLCLOUD_ROOT=") for entry in environment)
        if is_of_home and instance is inside and word in line:
            processes[int(entry.name)] = line
    return processes


def known_here(user: User) -> list[tuple[str, str]]:
    with sqlite3.connect(user.home / ".dlcloud" / "store.sqlite") as store:
        return store.execute("SELECT action, outcome FROM intents WHERE action = 'hand-over'").fetchall()


@pytest.fixture(scope="module")
def left(user: User) -> User:
    """Someone who has left a training to its coordinator, killed three times on the way."""
    recipe = user.home / "elastic.yaml"
    recipe.write_text(RECIPE)
    python_with(PACKAGE / "requirements" / "elastic.txt")  # the instances find it built
    user.variables["MY_TOKEN"] = TOKEN
    up = ("up", str(recipe), "--detach", "--name", NAME)
    killed_when(user, "sending dlcloud itself ...", *up)
    killed_when(user, "waiting until it is in charge ...", *up)
    output = killed_when(user, ": waiting until it is in charge", *up)
    assert "completing the interrupted hand-over" in output
    printed = user.run(*up).stdout
    assert "this machine may be off" in " ".join(printed.split())
    del user.variables["MY_TOKEN"]
    return user


@pytest.fixture(scope="module")
def elsewhere(left: User, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Another machine: it shares the local EC2's address, as it would share AWS, and nothing else."""
    local = left.json("local", "status")["result"]["environment"]
    variables = {
        ENDPOINT_VARIABLE: local["AWS_ENDPOINT_URL"],
        KEY_ID_VARIABLE: local["AWS_ACCESS_KEY_ID"],
        SECRET_VARIABLE: local["AWS_SECRET_ACCESS_KEY"],
    }
    return User(tmp_path_factory.mktemp("elsewhere"), variables=variables)


def test_a_launcher_that_is_killed_leaves_one_controller_and_no_process(left: User):
    home = left.home / ".dlcloud"
    (controller,) = processes_of(home, word="recipe.yaml --name left", inside=True).values()
    assert "--detach" not in controller
    assert processes_of(home, word="dlcloud up", inside=False) == {}
    assert [outcome for _, outcome in known_here(left)].count("in charge") == 1
    refused = left.run("up", str(left.home / "elastic.yaml"), "--name", NAME, expect=2)
    assert "is controlled by its own instance" in refused.stderr


@pytest.mark.long
def test_another_machine_watches_resizes_and_brings_the_results_home(left: User, elsewhere: User):
    for path in (left.home / ".dlcloud").iterdir():
        if path.name != "local":
            path.rename(path.with_name(f"{path.name}-off"))
    assert elsewhere.run("status").stdout == "nothing is up\n"
    records = elsewhere.json("status", "--everywhere")["result"]["records"]
    assert {(record["cluster"], record["cluster_state"]) for record in records} == {(NAME, "detached")}
    wait_until(lambda: sizes(elsewhere) >= {2})
    assert elsewhere.json("resize", NAME, "1")["result"]["records"]
    assert "worker" in elsewhere.run("logs", NAME).stdout
    assert "token ***" in elsewhere.run("logs", NAME).stdout
    assert places_of(TOKEN, left.home, elsewhere.home) == []
    wait_until(lambda: state(elsewhere) == "ready")
    ended = [record["state"] for record in elsewhere.json("status", NAME)["result"]["records"]]
    assert sorted(ended) == ["running", "terminated"]
    down = elsewhere.json("down", NAME)["result"]
    (training,) = down["trainings"][0]["records"]
    assert training["steps"] == 105
    assert {period["world_size"] for period in down["trainings"][0]["world_sizes"]} == {1, 2}
    assert elsewhere.json("training", NAME)["result"]["records"][0]["steps"] == 105
    assert list((elsewhere.home / ".dlcloud" / "runs").glob("*/files/model.pt"))
    logs = list((elsewhere.home / ".dlcloud" / "runs").glob("*/log"))
    assert sum("token ***" in log.read_text() for log in logs) == 2
    assert places_of(TOKEN, left.home, elsewhere.home) == []
    assert elsewhere.json("status")["result"]["records"] == []
    assert left.alive() == []
    assert left.aws("iam", "list-roles", "--path-prefix", "/dlcloud/")["Roles"] == []
    assert (
        elsewhere.json("gc", "--cloud", "local", "--region", "us-east-1", "--dry-run")["result"]["records"]
        == []
    )


def sizes(user: User) -> set[int]:
    """Return the numbers of workers that there have been; none before the first step."""
    time.sleep(0.5)  # a question takes a processor from the workers
    document = json.loads(user.run("training", NAME, "--output", "json", expect=None).stdout)
    return {period["world_size"] for period in document.get("result", {}).get("world_sizes", ())}


def state(user: User) -> str:
    time.sleep(1)
    return user.json("status", NAME)["result"]["records"][0]["cluster_state"]


COMMAND = """\
name: outlived
cloud: local
instances: {types: [t3.micro]}
workload:
  command: sleep 15 && echo done > result.txt
"""


@pytest.mark.long
def test_a_command_outlives_its_controller_and_down_loses_nothing_of_it(user: User):
    (user.home / "outlived.yaml").write_text(COMMAND)
    up = ("up", str(user.home / "outlived.yaml"), "--detach", "--name", "outlived")
    home, others = user.home / ".dlcloud", user.alive()
    user.run(*up)
    wait_until(lambda: list(home.glob("local/instances/*/home/dlcloud/runs/outlived-*/pid")))
    for word in ("runs/control", "--name outlived"):
        for process in processes_of(home, word=word, inside=True):
            os.kill(process, signal.SIGKILL)
    refused = user.run("down", "outlived", "--yes", expect=4)
    assert "its controller was killed while 1 run(s) went on" in refused.stderr
    assert "up RECIPE --detach --name outlived starts it again" in " ".join(refused.stderr.split())
    user.run(*up)
    wait_until(lambda: user.json("status", "outlived")["result"]["records"][0]["cluster_state"] == "ready")
    user.run("down", "outlived", "--yes")
    assert [path.read_text() for path in home.glob("runs/*/files/result.txt")] == ["done\n"]
    assert user.alive() == others


@pytest.mark.long
def test_down_downloads_what_the_run_that_it_ends_has_written(user: User):
    path = user.home / "begun.yaml"
    path.write_text(
        COMMAND.replace("outlived", "begun").replace("sleep 15 &&", "echo early > early.txt; sleep 600;")
    )
    user.run("up", str(path), "--detach", "--name", "begun")
    home = user.home / ".dlcloud"
    wait_until(lambda: list(home.glob("local/instances/*/home/dlcloud/runs/begun-*/work/early.txt")))
    assert "begun is controlled by its own instance" in user.run("cancel", "beg", expect=2).stderr
    user.run("down", "begun", "--yes")
    assert [file.read_text() for file in home.glob("runs/*/files/early.txt")] == ["early\n"]
    user.run("logs", "begun")
