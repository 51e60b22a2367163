"""An instance ends itself at the end of its budget, after a reboot too, and when it is idle."""

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
    """A clock that only sleeping moves; `until` is when the system goes down, `set_by` how far it was set."""

    def __init__(self):
        self.now = 1_800_000_000.0
        self.until = float("inf")
        self.set_by = 0.0

    def time(self):
        return self.now + self.set_by

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now = min(self.now + seconds, self.until)
        if self.now >= self.until:
            raise Rebooted


class System:
    """Keeps when a timer of systemd, or an order of the watchdog's, powers the system off.

    A lock against a shutdown is respected as systemd 257 does: of root, too, unless -i or --force is given.
    """

    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, clock):
        self._clock = clock
        self.timers = []
        self.powered_off_at = []
        self.forced_at = []
        self.is_hung = False

    def run(self, words, *, check, timeout=None):
        assert not check
        if words[0] == "systemd-run":
            assert words[-3:] == ["systemctl", "poweroff", "-i"]
            self.timers.append(float(words[2].removeprefix("--on-active=").removesuffix("s")))
            return
        assert words[:2] == ["systemctl", "poweroff"]
        if words[2:] == ["--force", "--force"]:
            self.forced_at.append(self._clock.now)
            return
        assert words[2:] == ["-i"]
        if self.is_hung:
            self._clock.sleep(timeout)
            raise subprocess.TimeoutExpired(words, timeout)
        self.powered_off_at.append(self._clock.now)


class Instance:
    """What outlives a reboot: the clock, the disk, and how long it may live."""

    def __init__(self, folder, *, life, idle, user):
        self.clock = Time()
        self.system = System(self.clock)
        self.began = self.clock.now
        self.state, self.home = folder / "state", folder / "home"
        self.state.mkdir()
        self.home.mkdir()
        words = {"@LIFE_MINUTES@": str(life), "@IDLE_MINUTES@": str(idle), "@USER@": user}
        self._text = template("watchdog.py").removesuffix("\nmain()\n")
        for word, value in words.items():
            self._text = self._text.replace(word, value)

    def boot(self, *, minutes=0.0, busy=lambda: 0.0, home=True):
        """Boot, and run the program for so long."""
        program = types.ModuleType("watchdog")
        exec(compile(self._text, "watchdog.py", "exec"), program.__dict__)
        program.time, program.subprocess = self.clock, self.system
        program.STATE, program.HOME = self.state, self.home if home else program.HOME
        program.busy_seconds = busy or program.busy_seconds
        self.clock.until = self.clock.now + minutes * MINUTE_S
        try:
            program.main()
        except Rebooted:
            return

    def minutes_until_off(self):
        """Return the minutes from the first boot to the first order to power off; None if there was none."""
        orders = self.system.powered_off_at
        return (orders[0] - self.began) / MINUTE_S if orders else None

    def run_folder(self):
        folder = self.home / "dlcloud/runs/one"
        folder.mkdir(parents=True)
        return folder


@pytest.fixture
def made(tmp_path):
    def make(life=240, idle="inf", user=getpass.getuser()):  # noqa: B008
        return Instance(tmp_path, life=life, idle=idle, user=user)

    return make


def test_without_an_idle_end_the_end_of_the_budget_is_ordered_until_off(made):
    there = made(life=240)
    there.boot(minutes=239)
    assert there.system.timers == [], "the first boot's is systemd-run's own"
    assert there.system.powered_off_at == []
    there.boot(minutes=3)
    assert there.minutes_until_off() == pytest.approx(240, abs=0.3)
    assert len(there.system.powered_off_at) == 8, "a refused order is repeated"


def test_a_system_that_does_not_go_down_is_switched_off(made):
    there = made(life=10)
    there.boot(minutes=14)
    assert (there.system.forced_at[0] - there.began) / MINUTE_S == pytest.approx(12, abs=0.3)


def test_a_system_that_does_not_answer_is_switched_off(made):
    there = made(life=10)
    there.system.is_hung = True
    there.boot(minutes=30)
    assert there.system.powered_off_at == []
    assert (there.system.forced_at[0] - there.began) / MINUTE_S == pytest.approx(20, abs=0.3)


def test_nothing_is_looked_at_where_idleness_does_not_end_the_instance(made):
    there, looked = made(), []
    there.boot(minutes=30, busy=lambda: looked.append(1) or 0.0)
    assert len(looked) == 1


@pytest.mark.parametrize("step_s", [-7200.0, 3600.0])
def test_setting_the_clock_ends_nothing_early_or_late(made, step_s):
    there = made(life=20, idle=6)

    def set_clock():
        there.clock.set_by = step_s if there.clock.now > there.began else 0.0
        return 0.0

    there.boot(minutes=7, busy=set_clock)
    assert there.minutes_until_off() == pytest.approx(6, abs=0.3)


@pytest.mark.parametrize(("passed", "left_s"), [(100, 140 * 60), (239.5, 30), (300, 1)])
def test_a_reboot_does_not_move_the_end_of_the_budget(made, passed, left_s):
    there = made()
    there.boot()
    there.clock.now += passed * MINUTE_S
    there.boot()
    assert there.system.timers == [left_s]


def test_an_idle_instance_powers_off_until_the_system_is_down(made):
    there = made(idle=6)
    there.boot(minutes=5.5)
    assert there.minutes_until_off() is None
    there.boot(minutes=7)
    assert there.minutes_until_off() == pytest.approx(5.5 + 6, abs=0.3)
    assert len(there.system.powered_off_at) == 4


def test_a_reboot_begins_the_idle_minutes_anew_but_not_the_budget(made):
    there = made(life=10, idle=6)
    there.boot(minutes=5)
    there.boot(minutes=6)
    assert there.minutes_until_off() == pytest.approx(10, abs=0.3)


def test_a_busy_program_of_the_user_holds_the_idle_end_off(made):
    there = made(idle=6)
    used = [0.0]

    def busy():
        used[0] += 0.06 * MINUTE_S / 4  # of each quarter of a minute
        return used[0]

    there.boot(minutes=30, busy=busy)
    assert there.minutes_until_off() is None
    there.boot(minutes=7, busy=lambda: 100.0)
    assert there.minutes_until_off() == pytest.approx(36, abs=0.3)


def test_less_than_a_twentieth_of_a_processor_is_no_work(made):
    there = made(idle=6)
    used = [0.0]

    def hardly():
        used[0] += 0.04 * MINUTE_S / 4
        return used[0]

    there.boot(minutes=7, busy=hardly)
    assert there.minutes_until_off() == pytest.approx(6, abs=0.3)


def test_work_never_moves_the_end_beyond_the_budget(made):
    there = made(life=20, idle=6)
    used = [0.0]

    def busy():
        used[0] += MINUTE_S
        return used[0]

    there.boot(minutes=21, busy=busy)
    assert there.minutes_until_off() == pytest.approx(20, abs=0.3)


def test_a_run_holds_the_end_off_until_its_exit_status_is_there(made):
    there = made(idle=6)
    run = there.run_folder()
    (run / "pid").write_text(str(os.getpid()))
    there.boot(minutes=20)
    assert there.minutes_until_off() is None
    (run / "exit_status").write_text("0")
    there.boot(minutes=7)
    assert there.minutes_until_off() == pytest.approx(26, abs=0.3)


def test_a_run_whose_process_is_gone_does_not_delay_the_end(made):
    there = made(idle=6)
    ended = subprocess.Popen(["true"])
    ended.wait()
    (there.run_folder() / "pid").write_text(str(ended.pid))
    there.boot(minutes=7)
    assert there.minutes_until_off() == pytest.approx(6, abs=0.3)


def test_an_instance_without_the_recipes_user_ends_all_the_same(made):
    there = made(idle=6, user="no-such-user")
    there.boot(minutes=7, busy=None, home=None)
    assert there.minutes_until_off() == pytest.approx(6, abs=0.3)


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
