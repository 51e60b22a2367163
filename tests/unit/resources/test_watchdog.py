"""An instance ends itself at the end of its budget, after a reboot too, and when it is idle."""

import fcntl
import getpass
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dlcloud.resources.texts import template

MINUTE_S = 60.0


class Rebooted(BaseException):
    """The system goes down here, and the program with it."""


class Time:
    """A clock that only sleeping moves; `until` is when the system goes down."""

    def __init__(self):
        self.now = 1_800_000_000.0
        self.until = float("inf")

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.now >= self.until:
            raise Rebooted


class System:
    """Keeps the one timer that `shutdown` sets, and whether systemd admits logins.

    Source: shutdown(8); /run/nologin appears 5 minutes before a scheduled end; scheduling another one leaves
    the file, and only a cancel removes it.
    """

    def __init__(self, clock):
        self._clock = clock
        self.ends_at = None
        self.orders = []
        self._nologin = False

    def run(self, words, *, check):
        assert not check
        self.refuses_logins()
        if words == ["shutdown", "--no-wall", "-c"]:
            self.ends_at, self._nologin = None, False
            return
        assert words[:3] == ["shutdown", "--no-wall", "-P"]
        minutes = int(words[3].removeprefix("+"))
        self.orders.append(minutes)
        self.ends_at = self._clock.now + minutes * MINUTE_S
        self.refuses_logins()

    def refuses_logins(self):
        is_near = self.ends_at is not None and self.ends_at - self._clock.now <= 5 * MINUTE_S
        self._nologin = self._nologin or is_near
        return self._nologin


class Instance:
    """What outlives a reboot: the clock, the disk, and how long it may live."""

    def __init__(self, folder, *, life, idle):
        self.clock = Time()
        self.system = System(self.clock)
        self.state, self.home = folder / "state", folder / "home"
        self.state.mkdir()
        self.home.mkdir()
        words = {"@LIFE_MINUTES@": str(life), "@IDLE_MINUTES@": str(idle), "@USER@": getpass.getuser()}
        self._text = template("watchdog.py").removesuffix("\nmain()\n")
        for word, value in words.items():
            self._text = self._text.replace(word, value)

    def boot(self, *, minutes=0.0, busy=None):
        """Boot, and run the program for so long."""
        program = types.ModuleType("watchdog")
        exec(compile(self._text, "watchdog.py", "exec"), program.__dict__)
        program.time, program.subprocess = self.clock, self.system
        program.STATE, program.HOME = self.state, self.home
        program.busy_seconds = busy or (lambda: 0.0)
        self.clock.until = self.clock.now + minutes * MINUTE_S
        try:
            program.main()
        except Rebooted:
            return

    def minutes_left(self):
        return (self.system.ends_at - self.clock.now) / MINUTE_S

    def run_folder(self):
        folder = self.home / "dlcloud/runs/one"
        folder.mkdir(parents=True)
        return folder


@pytest.fixture
def made(tmp_path):
    return lambda life=240, idle="inf": Instance(tmp_path, life=life, idle=idle)


def test_the_timer_is_armed_once_where_idleness_does_not_count(made):
    there = made()
    there.boot()
    assert there.system.orders == [240]


@pytest.mark.parametrize(("passed", "left"), [(100, 140), (239.5, 1), (300, 0)])
def test_a_reboot_does_not_move_the_end_of_the_budget(made, passed, left):
    there = made()
    there.boot()
    there.clock.now += passed * MINUTE_S
    there.boot()
    assert there.system.orders == [240, left]


def test_an_idle_instance_ends_after_its_minutes_and_the_timer_stays(made):
    there = made(idle=6)
    there.boot(minutes=5)
    assert there.system.orders == [6]
    assert there.minutes_left() == pytest.approx(1, abs=0.3)


def test_a_reboot_begins_the_idle_minutes_anew_but_not_the_budget(made):
    there = made(life=10, idle=6)
    there.boot(minutes=5)
    there.boot(minutes=1)
    assert there.system.orders == [6, 5]


def test_a_busy_program_of_the_user_holds_the_idle_end_off(made):
    there = made(idle=6)
    used = [0.0]

    def busy():
        used[0] += 0.06 * MINUTE_S / 4  # of each quarter of a minute
        return used[0]

    there.boot(minutes=30, busy=busy)
    assert there.minutes_left() > 5
    there.boot(minutes=5, busy=lambda: 100.0)
    assert there.minutes_left() == pytest.approx(1, abs=0.3)


def test_less_than_a_twentieth_of_a_processor_is_no_work(made):
    there = made(idle=6)
    used = [0.0]

    def hardly():
        used[0] += 0.04 * MINUTE_S / 4
        return used[0]

    there.boot(minutes=5, busy=hardly)
    assert there.system.orders == [6]


def test_logins_are_admitted_again_when_work_resumes(made):
    there = made(idle=15)
    run = there.run_folder()
    refused = []

    def busy():
        refused.append(there.system.refuses_logins())
        if len(refused) == 12 * 4:  # after 12 idle minutes
            (run / "pid").write_text(str(os.getpid()))
        return 0.0

    there.boot(minutes=30, busy=busy)
    assert any(refused)
    assert not there.system.refuses_logins()
    assert there.minutes_left() > 14


def test_the_timer_is_not_cancelled_for_an_end_that_comes_nearer(made):
    there = made(life=12, idle=6)
    cancelled_at, run = [], there.system.run

    def record(words, *, check):
        if words[-1] == "-c":
            cancelled_at.append(there.clock.now)
        run(words, check=check)

    there.system.run = record
    there.boot(minutes=5)
    assert cancelled_at == []


def test_work_never_moves_the_end_beyond_the_budget(made):
    there = made(life=20, idle=6)
    used = [0.0]

    def busy():
        used[0] += MINUTE_S
        return used[0]

    began = there.clock.now
    there.boot(minutes=19, busy=busy)
    assert there.system.ends_at <= began + 21 * MINUTE_S
    assert there.minutes_left() < 2


def test_a_run_holds_the_end_off_until_its_exit_status_is_there(made):
    there = made(idle=6)
    run = there.run_folder()
    (run / "pid").write_text(str(os.getpid()))
    there.boot(minutes=20)
    assert there.minutes_left() > 5
    (run / "exit_status").write_text("0")
    there.boot(minutes=5)
    assert there.minutes_left() == pytest.approx(1, abs=0.3)


def test_a_run_whose_process_is_gone_does_not_delay_the_end(made):
    there = made(idle=6)
    ended = subprocess.Popen(["true"])
    ended.wait()
    (there.run_folder() / "pid").write_text(str(ended.pid))
    there.boot(minutes=5)
    assert there.system.orders == [6]


def test_a_second_watchdog_exits(made):
    there = made(idle=6)
    with (there.state / "watchdog.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        there.boot(minutes=1)
    assert there.system.orders == []


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")  # noqa: PTH110
def test_the_processor_time_of_living_and_of_ended_programs_is_counted(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    program = types.ModuleType("watchdog")
    text = template("watchdog.py").removesuffix("\nmain()\n")
    text = (
        text.replace("@LIFE_MINUTES@", "1")
        .replace("@IDLE_MINUTES@", "6")
        .replace("@USER@", getpass.getuser())
    )
    exec(compile(text, "watchdog.py", "exec"), program.__dict__)
    program.HOME = folder
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    code = (
        "import subprocess, sys; "
        f"subprocess.run([sys.executable, '-c', {burn!r}]); "
        "print('done', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "done\n"
        used = program_time(program, parent.pid)
        parent.communicate("\n")
    assert used >= 0.4, "what a child used that has ended counts as its parent's"


def program_time(program, pid):
    """Return what the rule counts where there is no other process."""

    class Proc:
        def __init__(self, path):
            self._path = path

        def iterdir(self):
            return iter([Path(self._path, str(pid))])

    program.pathlib = types.SimpleNamespace(Path=Proc)
    return program.busy_seconds()
