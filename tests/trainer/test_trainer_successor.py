"""When the agent of an instance that stands by starts the program by which it takes over."""

import subprocess
import sys

import pytest

from dlcloud.model.secret_source import CONTROLLER_PREFIX
from dlcloud.resources.texts import template
from dlcloud.trainer.agent import (
    ALONE_S,
    NAMES,
    PREFIX,
    RETRY_S,
    Successor,
    controller_environment,
)
from dlcloud.trainer.records import Records
from tests.fakes.training import read_records, wait_until

JOB = template("job.py")


class Standby:
    """An instance with the folders of a controller, and the agent's look at them."""

    def __init__(self, folder, records):
        self.folder, self.now = folder, 0.0
        self.program = folder / "control" / "stand-by"
        self.job = folder / "runs" / "control"
        self.job.mkdir(parents=True)
        self.successor = Successor(program=self.program, records=records)

    def install(self, status=0):
        self.program.parent.mkdir(exist_ok=True)
        self.program.write_text(f"echo ran >> {self.folder}/ran; exit {status}")

    def poll(self, alone_s=0.0, *, coordinates=False, later_s=1.0):
        self.now += later_s
        self.successor.poll(alone_s, self.now, coordinates=coordinates)

    def runs(self):
        path = self.folder / "ran"
        return len(path.read_text().split()) if path.exists() else 0


@pytest.fixture
def standby(tmp_path):
    with Records(path=tmp_path / "records.jsonl", run="r", worker="w") as records:
        yield Standby(tmp_path, records)


def test_an_instance_that_does_not_stand_by_does_nothing(standby):
    standby.poll(10 * ALONE_S)
    Successor(program=None, records=standby.successor.records).poll(10 * ALONE_S, 1.0, coordinates=False)
    assert standby.runs() == 0


def test_a_coordinator_that_is_silent_for_a_moment_is_waited_for(standby):
    standby.install()
    standby.poll(ALONE_S - 1)
    assert standby.successor._process is None
    standby.poll(ALONE_S)
    wait_until(lambda: standby.runs() == 1, "the program")
    (record,) = read_records(standby.folder / "records.jsonl")
    assert record["event"] == "take_over"


def test_a_take_over_that_was_refused_is_tried_again_later(standby):
    standby.install(status=1)
    standby.poll(ALONE_S)
    standby.successor._process.wait()
    standby.poll(ALONE_S)
    standby.poll(ALONE_S, later_s=RETRY_S / 2)
    assert standby.runs() == 1
    standby.poll(ALONE_S, later_s=RETRY_S)
    wait_until(lambda: standby.runs() == 2, "the program again")


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("pid", "status", "starts"),
    [(True, None, True), (True, "137", True), (True, "0", False), (True, "1", False), (False, None, False)],
)
def test_only_a_controller_that_was_killed_is_started_again(standby, pid, status, starts):
    standby.install()
    if pid:
        (standby.job / "pid").write_text(str(ended_process()))
    if status is not None:
        (standby.job / "exit_status").write_text(status)
    standby.poll(coordinates=True)
    assert (standby.successor._process is not None) is starts


def test_a_controller_inherits_secrets_by_other_names_and_no_variables():
    training = {"PATH": "/bin", "AWS_ACCESS_KEY_ID": "theirs", "PYTHONPATH": "..", "NOTE": "x"}
    training |= {"DLCLOUD_SECRETS": "TOKEN AWS_ACCESS_KEY_ID GONE", "TOKEN": "t"}
    expected = {"DLCLOUD_SECRET_TOKEN": "t", "DLCLOUD_SECRET_AWS_ACCESS_KEY_ID": "theirs", "PATH": "/bin"}
    assert controller_environment(training) == expected
    assert NAMES in JOB
    assert PREFIX == CONTROLLER_PREFIX


def test_the_coordinator_never_takes_over_from_itself(standby):
    standby.install()
    standby.poll(10 * ALONE_S, coordinates=True)
    assert standby.successor._process is None
