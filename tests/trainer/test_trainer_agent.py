"""The agent, with workers that train nothing: notices, deaths, orders, deadlines, and when it takes over."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest

from dlcloud.model.secret_source import CONTROLLER_PREFIX
from dlcloud.resources.texts import template
from dlcloud.trainer.agent import (
    ALONE_S,
    NAMES,
    PREFIX,
    RETRY_S,
    Agent,
    OrphanWatch,
    Successor,
    controller_environment,
    power_off,
)
from dlcloud.trainer.coordination.ledger import Entry
from dlcloud.trainer.drain import DRAINED
from dlcloud.trainer.instance.notices import MetadataError, SpotStatus
from dlcloud.trainer.instance.options import parse, promote
from dlcloud.trainer.instance.processes import SupervisedProcess, make_workers
from dlcloud.trainer.records import EventName, Records
from dlcloud.trainer.settings import Control
from tests.fakes.training import read_records, wait_until, write_control_file

DRAINS = "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(10)); time.sleep(3600)"
STUBBORN = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready','w'); time.sleep(3600)"
)
DONE = "pass"
FAILS = "raise SystemExit(3)"
LIMIT_S = 600.0
SOME_TICKS = 10


class Desk:
    """An agent, and a metadata service with a given answer."""

    def __init__(self, folder, script, *options):
        base = ["--run", "r", "--worker", "w", "--coordinator", "127.0.0.1", "--folder", str(folder)]
        self.folder, self.answer = folder, SpotStatus()
        self.options = parse([*base, *options, "--", sys.executable, "-c", script], {})
        self.actions, self.ticks = [], 0

    def when(self, condition, action):
        """Do something once a condition holds, and what was to be done before is done."""
        self.actions.append((condition, action))

    def answers(self, answer):
        """Return an action: let the metadata service answer so."""
        return lambda: setattr(self, "answer", answer)

    def notices(self, seconds):
        """Return an action: let the service give notice of an end in so many seconds from then."""
        return lambda: setattr(self, "answer", notice(seconds))

    def causes(self, kind):
        return [event["cause"] for event in self.events(kind)]

    def once(self, kind, action, count=1):
        """Do something once so many events of a kind are recorded."""
        self.when(lambda: len(self.events(kind)) >= count, action)

    def some_ticks_after(self, kind, action):
        """Do something once an event is recorded and the agent has had the time to react to it."""
        self.once(kind, lambda: self.actions.insert(0, (self.after_ticks(), action)))

    def after_ticks(self):
        last = self.ticks + SOME_TICKS
        return lambda: self.ticks >= last

    def leave(self):
        self.agent.ask_to_leave("SIGTERM")

    def fetch(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def lighthouse(self, records):
        """A process in place of the lighthouse, where the options ask for one."""
        if not self.options.lighthouse:
            return None
        command, started = [sys.executable, "-c", DRAINS], EventName.LIGHTHOUSE_STARTED
        named = {"name": "lighthouse", "environment": os.environ, "restarts": 0}
        return SupervisedProcess(command=command, records=records, started=started, **named)

    def run(self):
        began = time.monotonic()
        with Records(path=self.folder / "records.jsonl", run="r", worker="w") as records:
            self.agent = Agent(
                options=self.options,
                records=records,
                workers=make_workers(self.options, records),
                lighthouse=self.lighthouse(records),
                fetch_status=self.fetch,
                poll_s=0.2,
                sleep=lambda _s: self.tick(time.monotonic() - began),
            )
            return self.agent.run()

    def tick(self, elapsed):
        assert elapsed < LIMIT_S, "the agent does not end"
        self.ticks += 1
        while self.actions and self.actions[0][0]():
            self.actions.pop(0)[1]()
        time.sleep(0.02)

    def events(self, kind=None):
        events = [r for r in read_records(self.folder / "records.jsonl") if r["record"] == "event"]
        return [event for event in events if kind in {None, event["event"]}]


def notice(seconds):
    """Return the answer that this instance ends in so many seconds."""
    return SpotStatus(action="terminate", at=datetime.now(UTC) + timedelta(seconds=seconds))


def test_a_worker_that_is_done_ends_the_agent(tmp_path):
    desk = Desk(tmp_path, DONE)
    assert desk.run() == 0
    assert desk.causes("worker_ended") == ["done"]


@pytest.mark.parametrize("option", [(), ("--lighthouse",)], ids=["alone", "with its lighthouse"])
def test_a_worker_that_fails_is_started_again_and_then_given_up(tmp_path, option):
    desk = Desk(tmp_path, FAILS, "--restarts", "1", *option)
    assert desk.run() == 1
    assert len(desk.events("worker_started")) == 2
    assert "failed with status 3" in desk.causes("worker_ended")[0]


def test_a_lighthouse_serves_the_others_while_they_train(tmp_path, monkeypatch):
    monkeypatch.setattr("dlcloud.trainer.agent.STALL_S", 1.0)
    steps = [3, 4, 5]
    read = lambda _: Entry(run="r", step=steps.pop(0) if len(steps) > 1 else steps[0])  # noqa: E731
    monkeypatch.setattr("dlcloud.trainer.agent.LEDGER_S", 0.1)
    monkeypatch.setattr("dlcloud.trainer.agent.LedgerClient.read", read)
    desk = Desk(tmp_path, FAILS, "--restarts", "0", "--lighthouse")
    assert desk.run() == 1
    assert steps == [5]


def test_a_worker_that_is_asked_to_leave_before_it_listens_has_left(tmp_path):
    desk = Desk(tmp_path, "import time; time.sleep(3600)")
    desk.once("worker_started", desk.leave)
    assert desk.run() == DRAINED
    assert desk.causes("worker_ended") == ["ended by SIGTERM"]


def test_a_worker_that_is_killed_is_started_again_and_said_so(tmp_path):
    desk = Desk(tmp_path, DRAINS)
    desk.once("worker_started", lambda: os.kill(desk.events("worker_started")[0]["pid"], signal.SIGKILL))
    desk.once("worker_started", desk.leave, count=2)
    assert desk.run() == DRAINED
    assert desk.causes("killed") == ["ended by SIGKILL"]
    assert len(desk.events("worker_started")) == 2


def test_a_notice_far_off_lets_the_worker_train_on_and_a_near_one_does_not(tmp_path):
    desk = Desk(tmp_path, DRAINS, "--margin", "60", "--last-seconds", "1")
    desk.answer = notice(600)
    drains = []
    desk.some_ticks_after("notice", lambda: drains.extend(desk.events("drain")))
    desk.when(lambda: True, desk.notices(50))
    assert desk.run() == DRAINED
    assert drains == []
    notices = desk.events("notice")
    assert ["moved" in event["cause"] for event in notices] == [False, True]
    drain = desk.events("drain")[0]
    assert drain["cause"] == "interruption notice"
    assert drain["deadline"] == notices[1]["deadline"]
    ended = desk.events("worker_ended")[0]
    assert ended["time"] < drain["deadline"]


def test_a_worker_that_does_not_leave_is_ended_before_the_deadline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path, STUBBORN, "--margin", "90", "--last-seconds", "60")
    desk.when((tmp_path / "ready").exists, desk.notices(61.5))
    assert desk.run() == 1
    assert desk.events("killed")[0]["time"] < desk.events("notice")[0]["deadline"]


def test_the_controller_may_ask_a_worker_to_leave(tmp_path):
    desk = Desk(tmp_path, DRAINS)
    path = tmp_path / "control.json"
    desk.once("worker_started", lambda: write_control_file(path, generation=1, drain="resize to 2"))
    assert desk.run() == DRAINED
    assert desk.causes("drain") == ["resize to 2"]


def test_an_agent_takes_over_from_a_coordinator_that_is_lost(tmp_path):
    desk = Desk(tmp_path, DRAINS)
    promoted = []

    def make_lighthouse(control):
        promoted.append(promote(desk.options, control))
        return SupervisedProcess(
            name="lighthouse",
            command=[sys.executable, "-c", DRAINS],
            environment=os.environ,
            records=desk.agent.records,
            restarts=0,
            started=EventName.LIGHTHOUSE_STARTED,
        )

    control = Control(generation=1, minimum=2, coordinator="127.0.0.7:4000", coordinates=True, step=12)
    desk.once("worker_started", lambda: setattr(desk.agent, "make_lighthouse", make_lighthouse))
    desk.when(lambda: True, lambda: write_control_file(tmp_path / "control.json", **asdict(control)))
    desk.once("lighthouse_started", desk.leave)
    assert desk.run() == DRAINED
    assert len(desk.events("lighthouse_started")) == 1
    (options,) = promoted
    assert (options.host, options.port, options.step, options.minimum) == ("127.0.0.7", 4000, 12, 1)


def test_an_agent_asks_the_ledger_of_the_coordinator_that_took_over(tmp_path):
    desk = Desk(tmp_path, DRAINS, "--end-alone-after", "600")
    path, asked = tmp_path / "control.json", []
    desk.once("worker_started", lambda: write_control_file(path, generation=1, coordinator="127.0.0.9:4000"))
    desk.some_ticks_after("worker_started", lambda: (asked.append(desk.agent._orphan.ledger()), desk.leave()))
    assert desk.run() == DRAINED
    assert asked == ["127.0.0.9:4001"]


@pytest.mark.parametrize("drain", [True, False])
def test_a_rebalance_recommendation_is_recorded_and_followed_if_wished(tmp_path, drain):
    desk = Desk(tmp_path, DRAINS, *(["--drain-on-rebalance"] if drain else []))
    desk.answer = SpotStatus(rebalance=datetime.now(UTC))
    if not drain:
        desk.some_ticks_after("rebalance", desk.leave)
    assert desk.run() == DRAINED
    assert len(desk.events("rebalance")) == 1
    assert desk.causes("drain") == ["rebalance recommendation" if drain else "SIGTERM"]


AWAY, ANSWERS = MetadataError("answered 503"), "the metadata service answers again"
BROKEN = ValueError("Invalid header value")
FAILED = "the metadata client failed: ValueError('Invalid header value')"


@pytest.mark.parametrize(
    ("answers", "causes"),
    [
        ([AWAY, SpotStatus()], ["answered 503", ANSWERS]),
        ([BROKEN, SpotStatus()], [FAILED, ANSWERS]),
        ([AWAY, BROKEN], ["answered 503", FAILED]),
    ],
    ids=["away", "a fault of the client", "a fault where the service failed before"],
)
def test_what_fails_of_the_metadata_service_is_reported_once(tmp_path, answers, causes):
    desk = Desk(tmp_path, DRAINS)
    desk.answer, after = answers
    desk.some_ticks_after("metadata", desk.answers(after))
    desk.once("metadata", desk.leave, count=2)
    assert desk.run() == DRAINED
    assert desk.causes("metadata") == causes


def test_a_notice_is_followed_where_the_rebalance_path_fails(tmp_path):
    desk = Desk(tmp_path, DRAINS)
    desk.answer = MetadataError("answered 503 for rebalance", notice(30))
    assert desk.run() == DRAINED
    assert desk.causes("metadata") == ["answered 503 for rebalance"]
    assert len(desk.events("notice")) == 1
    assert desk.causes("drain") == ["interruption notice"]


def test_a_notice_whose_time_slides_is_followed_and_recorded_once(tmp_path):
    desk = Desk(tmp_path, DRAINS, "--margin", "60", "--last-seconds", "1")
    desk.fetch = lambda: notice(61)
    assert desk.run() == DRAINED
    (event,), (drain,) = desk.events("notice"), desk.events("drain")
    assert drain["cause"] == "interruption notice"
    assert drain["deadline"] == event["deadline"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_polling_thread_that_ends_is_started_again(tmp_path):
    desk = Desk(tmp_path, DRAINS)
    fetch, ends = desk.fetch, [SystemExit(), SystemExit()]

    def fetch_or_end():
        if ends:
            raise ends.pop()
        return fetch()

    desk.fetch = fetch_or_end
    desk.once("metadata", desk.notices(30), count=2)
    assert desk.run() == DRAINED
    ended = "the thread that polls the metadata service ended; starting it again"
    assert desk.causes("metadata") == [ended, ANSWERS]
    assert desk.causes("drain") == ["interruption notice"]


def test_an_instance_without_coordinator_and_controller_ends_itself(tmp_path):
    desk = Desk(tmp_path, DRAINS, "--port", "1", "--end-alone-after", "600")
    ended = []
    desk.when(
        lambda: True,
        lambda: setattr(desk.agent, "power_off", lambda: ended.append(desk.events("worker_ended"))),
    )
    desk.once("worker_started", lambda: [desk.agent._orphan.look(60.0) for _ in range(11)])
    assert desk.run() == DRAINED
    assert len(ended[0]) == 1, "its worker has left before"
    (event,) = desk.events("orphaned")
    assert event["cause"] == "neither coordinator nor controller for 600 s"


@pytest.mark.parametrize("status", [None, 0, 1])
def test_what_cannot_power_off_asks_its_supervisor_for_it(tmp_path, monkeypatch, status):
    programs, folder = tmp_path / "programs", tmp_path / "run"
    programs.mkdir()
    folder.mkdir()
    for name in () if status is None else ("sudo", "systemctl"):
        (programs / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    power_off(folder)
    assert (folder / "power-off").exists() is (status != 0)


def test_a_sign_of_the_controller_keeps_an_instance(tmp_path):
    control = tmp_path / "control.json"
    write_control_file(control, generation=1)
    watch = OrphanWatch(run="r", ledger=lambda: "127.0.0.1:1", control=control, limit_s=100)
    for moment in range(1, 6):
        os.utime(control, ns=(moment, moment))
        watch.look(60)
    assert not watch.is_orphan
    watch.look(1e9)
    assert not watch.is_orphan, "a pause of the machine is no time alone"
    watch.look(60)
    assert watch.is_orphan


def test_a_program_that_is_not_there_is_said(tmp_path):
    desk = Desk(tmp_path, DONE)
    desk.options = replace(desk.options, command=("no-such-program",))
    assert desk.run() == 1
    assert "cannot be started" in desk.events("worker_ended")[0]["cause"]


def test_workers_are_sent_the_addresses_of_the_others(tmp_path, monkeypatch):
    script = "import os; open('settings.json','w').write(os.environ['DLCLOUD_TRAINER'])"
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path, script, "--hash-every", "5", "--port", "4000")
    assert desk.run() == 0
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["lighthouse"] == "127.0.0.1:4000"
    assert settings["ledger"] == "127.0.0.1:4001"
    assert settings["hash_every"] == 5
    assert settings["durable"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "r"], "required"),
        (
            ["--run", "r", "--worker", "w", "--coordinator", "127.0.0.1", "--folder", "f"],
            "the command of a worker is missing",
        ),
        (
            ["--run", "r", "--worker", "w", "--coordinator", "no.such.host.invalid", "--folder", "f", "x"],
            "cannot be reached",
        ),
        (["--margin", "-1"], "not a number above 0"),
    ],
)
def test_bad_arguments_are_refused_at_once(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        parse(arguments, {})
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


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
