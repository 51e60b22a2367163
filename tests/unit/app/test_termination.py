"""Termination: signals only print while it runs, a third Ctrl-C abandons it, and `down` takes charge."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dlcloud.app.clusters import down
from dlcloud.app.context import SystemClock
from dlcloud.app.termination import terminating
from dlcloud.launch.managed import Remainder
from dlcloud.model.errors import CloudError, StoreError, UnwritableError
from dlcloud.store.home import Paths
from dlcloud.system.files import FileLock
from tests.fakes.samples import cluster

TIMEOUT_S = 240

WORLD = """
import json, os, random, signal, sys, threading, time
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from dlcloud.app.terminal import signals
from dlcloud.app import termination
from dlcloud.launch.managed import Remainder
from dlcloud.model.errors import InstanceError
from dlcloud.runs.stoppable import StoppedError, run_parallel, stop_emitting
from dlcloud.system.parallel import fan_out

termination.cost_of_cluster = lambda cluster, _: f"{cluster.name} is down"
ENDS_AT = datetime(2030, 1, 1, 14, 5, tzinfo=UTC)

class World:
    '''A cluster that takes some time to launch, to work and to end.'''

    def __init__(self, step_s=0.005, name="digits", write=lambda line: None):
        self.up, self.lines, self.step_s, self.write = False, [], step_s, write
        self.hourly_usd, self.describe_s = Decimal("0.18"), 0
        now = datetime(2030, 1, 1, 13, 0, tzinfo=UTC)
        clock = SimpleNamespace(now=lambda: now)
        clusters = SimpleNamespace(find=lambda _: None, set_state=lambda *_: None, intents=lambda *_: [])
        self.launcher = SimpleNamespace(
            cluster=SimpleNamespace(name=name, recipe_text=""), cluster_id="c", clock=clock, emit=self.emit,
            store=SimpleNamespace(clusters=clusters), destroy=self.destroy, remainder=self.remainder,
            mark_ready=lambda: None, results_left={},
        )

    def emit(self, event):
        self.lines.append(event.message)
        self.write(event.message)

    def remainder(self, keeping=()):
        time.sleep(self.describe_s)
        return Remainder(count=3 * self.up, requested=0, hourly_usd=self.hourly_usd, ends_at=ENDS_AT)

    def work(self, fails=False):
        self.up = True
        self.write("up")
        time.sleep(self.step_s)
        if fails:
            raise InstanceError("the program failed")

    def destroy(self, *, discard=False):  # noqa: ARG002  the launcher's
        def step(_):
            for _ in range(5):
                time.sleep(self.step_s)
        fan_out(step, [1, 2])
        time.sleep(self.step_s)
        self.up = False
        self.write("down")
        return []

    def run(self, fails=False):
        with termination.destroy_at_end(self.launcher, SimpleNamespace(kept=False), keep=False):
            self.work(fails)

def press(numbers, after_s, every_s=0.0, process_id=None):
    def run():
        time.sleep(after_s)
        for number in numbers:
            os.kill(process_id or os.getpid(), number)
            time.sleep(every_s)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread

def in_a_process(run, numbers, after_s, every_s):
    '''Run in a process of its own, which gets the signals; return if it is up at its end, and its lines.'''
    reading, writing = os.pipe()
    process_id = os.fork()
    if not process_id:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            with signals.interrupts():
                signals.raise_on(signal.SIGTERM, signal.SIGHUP)
                os.write(writing, b"begun\\n")
                run(lambda line: os.write(writing, (line + "\\n").encode()))
        except (KeyboardInterrupt, InstanceError):
            pass
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as stream:
        assert stream.readline() == "begun\\n"
        thread = press(numbers, after_s, every_s, process_id)
        lines = stream.read().splitlines()
    thread.join()
    os.waitpid(process_id, 0)
    states = [line for line in lines if line in {"up", "down"}]
    return states[-1:] == ["up"], lines
"""


@pytest.fixture
def run_program(tmp_path):
    """Run a program in the world above; return what it prints as JSON, and its exit status."""

    def run(text):
        program = f"{WORLD}\n{text}"
        variables = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=variables,
        )
        assert not done.stderr, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("fails", [True, False])
def test_signals_at_random_moments_of_an_end_leave_nothing_up(run_program, fails):
    outcomes = run_program(f"""
chance, outcomes = random.Random(28), []
for _ in range(100):
    count, step_s = chance.randint(1, 6), 0.002
    numbers = [chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]) for _ in range(count)]
    def run(write):
        world = World(step_s=step_s, write=write)
        world.run(fails={fails})
    outcomes.append(in_a_process(run, numbers, chance.uniform(0, 0.03), chance.choice([0, 0.001, 0.004])))
print(json.dumps(outcomes))
""")
    assert sum("up" in lines for _, lines in outcomes) > 50
    assert not any(is_up for is_up, _ in outcomes)


def test_a_third_ctrl_c_after_the_message_leaves_and_a_fourth_adds_nothing(run_program):
    up, lines, status = run_program("""
signals.READ_S = 0.05
world, status = World(step_s=0.4), ""
with signals.interrupts():
    press([signal.SIGINT] * 4, 0.6, 0.3)
    try:
        world.run()
    except signals.TerminationAbandonedError:
        status = "left"
    time.sleep(0.6)
print(json.dumps([world.up, world.lines, status]))
""")
    ending = "terminating 3 instances of digits, a few seconds"
    otherwise = "to leave them until they terminate themselves at 14:05 UTC, 0.195 USD at most"
    end = "at 2030-01-01 14:05 UTC at the latest"
    remainder = f"3 instance(s) may still be up for 0.180 USD/h until they terminate themselves, {end}"
    assert up
    assert status == "left"
    assert lines == [
        f"{ending}; interrupt twice more {otherwise}",
        f"{ending}; interrupt again {otherwise}",
        f"digits: {remainder}; dlcloud down digits terminates it",
    ]


def test_a_burst_of_presses_is_one(run_program):
    up, lines = run_program("""
world = World(step_s=0.1)
with signals.interrupts():
    press([signal.SIGINT] * 9, 0.2, 0.02)
    world.run()
print(json.dumps([world.up, world.lines]))
""")
    assert not up
    assert len([line for line in lines if line.startswith("terminating 3")]) == 1


def test_a_closed_terminal_never_leaves_an_end(run_program):
    up, lines = run_program("""
signals.READ_S = 0.01
world = World(step_s=0.1)
with signals.interrupts():
    signals.raise_on(signal.SIGTERM, signal.SIGHUP)
    press([signal.SIGHUP, signal.SIGTERM] * 4, 0.2, 0.05)
    world.run()
print(json.dumps([world.up, world.lines]))
""")
    assert not up
    assert any("press Ctrl-C three times" in line for line in lines)


def test_in_a_bench_a_second_ctrl_c_waits_for_the_ends_of_all_types(run_program):
    up, status = run_program("""
worlds, stop, status = [World(step_s=0.3), World(step_s=0.3)], threading.Event(), ""
def work(world):
    with termination.destroy_at_end(world.launcher, SimpleNamespace(kept=False), keep=False):
        world.up = True
        stop.wait()
        time.sleep(0.5)  # a step that cannot be stopped, before the end
        raise StoppedError
def measure(world):
    try:
        work(world)
    except StoppedError:
        pass
with signals.interrupts():
    press([signal.SIGINT] * 3, 0.2, 0.25)
    try:
        run_parallel(measure, worlds, stop=stop, on_stop=lambda: None)
    except KeyboardInterrupt:
        status = "interrupted"
print(json.dumps([[world.up for world in worlds], status]))
""")
    assert up == [False, False]
    assert status == "interrupted"


def test_what_nohup_lets_ignore_stays_ignored(run_program):
    assert (
        run_program("""
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with signals.interrupts():
    signals.raise_on(signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    print(json.dumps("went on"))
""")
        == "went on"
    )


def test_a_signal_where_a_block_ends_that_owes_an_end_waits_for_it(run_program):
    up, lines = run_program("""
world, chance = World(), random.Random(5)
frames = []
def trace(frame, event, _):  # at the very first instruction of the __exit__ that is to resume the end
    if event == "call" and frame.f_code is signals._EXIT and world.up and not frames:
        frames.append(frame)
        os.kill(os.getpid(), signal.SIGINT)
with signals.interrupts():
    sys.setprofile(trace)
    try:
        world.run(fails=True)
    except InstanceError:
        pass
    sys.setprofile(None)
print(json.dumps([world.up, world.lines]))
""")
    assert not up
    assert lines[0] == "failed (the program failed): terminating digits"


def test_ctrl_c_while_one_type_of_a_bench_ends_stops_the_other(run_program):
    up, status = run_program("""
worlds, stop, status = [World(step_s=0.2, name="a"), World(step_s=0.2, name="b")], threading.Event(), ""
def measure(world):
    try:
        with termination.destroy_at_end(world.launcher, SimpleNamespace(kept=False), keep=False):
            world.up = True
            if world is worlds[1] and stop.wait(30):
                raise StoppedError
    except StoppedError:
        pass
with signals.interrupts():
    press([signal.SIGINT], 0.5)
    try:
        run_parallel(measure, worlds, stop=stop, on_stop=lambda: None)
    except KeyboardInterrupt:
        status = "interrupted"
print(json.dumps([[world.up for world in worlds], status]))
""")
    assert up == [False, False]
    assert status == "interrupted"


def test_what_does_not_answer_is_left_with_its_command(run_program):
    up, lines = run_program("""
signals.READ_S = signals.DESCRIBE_S = 0.05
world = World(step_s=0.4)
world.describe_s = 60
with signals.interrupts():
    press([signal.SIGINT] * 3, 0.6, 0.3)
    try:
        world.run()
    except signals.TerminationAbandonedError:
        pass
print(json.dumps([world.up, world.lines]))
""")
    assert up
    unknown = "digits: something may still be up, and its price is unknown (EC2 does not answer)"
    assert lines[-1] == f"{unknown}; dlcloud down digits terminates it"


def test_what_is_kept_is_emitted_before_the_block_ends(run_program):
    outcomes = run_program("""
chance, outcomes = random.Random(3), []
def run(write):
    world = World(step_s=0.002, write=write)
    with termination.destroy_at_end(world.launcher, SimpleNamespace(kept=False), keep=True):
        world.work()
for _ in range(60):
    outcomes.append(in_a_process(run, [signal.SIGINT], chance.uniform(0, 0.02), 0))
print(json.dumps(outcomes))
""")
    assert any(is_up for is_up, _ in outcomes)
    assert all(
        "digits is kept up: dlcloud down digits terminates it" in lines for is_up, lines in outcomes if is_up
    )


def launcher_with(remainder):
    events = []
    return SimpleNamespace(
        cluster=SimpleNamespace(name="digits"), remainder=remainder, emit=events.append, events=events
    )


def two_instances(_):
    return Remainder(count=2, requested=0, hourly_usd=None, ends_at=None)


def unreadable(_):
    raise StoreError("a launch request in the store cannot be read")


@pytest.mark.parametrize(
    ("remainder", "words"),
    [(two_instances, "2 instance(s) may still be up"), (unreadable, "cannot be read")],
)
def test_the_error_of_the_end_itself_is_raised_after_the_warning(remainder, words):
    made = launcher_with(remainder)
    with pytest.raises(CloudError, match="refused"), terminating(made):
        raise CloudError("refused")
    (event,) = made.events
    assert words in event.message
    assert event.message.endswith("dlcloud down digits terminates it")


def test_a_store_that_is_full_after_the_end_is_no_remainder():
    made = launcher_with(two_instances)
    with pytest.raises(UnwritableError), terminating(made):
        raise UnwritableError("the disk is full")
    assert made.events == []


HOLDER = """
import signal, sys, time
from pathlib import Path
from dlcloud.system.files import FileLock
locks = [FileLock(Path(name)) for name in sys.argv[2:]]
for lock in locks:
    lock.acquire()
if sys.argv[1] == "answers":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("holds", flush=True)
time.sleep(60)
"""


@pytest.fixture
def home(tmp_path):
    return Paths(tmp_path)


@pytest.fixture
def hold(home):
    """Start a process that holds the locks of clusters and answers SIGTERM, or does not."""
    processes = []

    def start(how, *ids):
        for name in ids:
            home.make_folder(home.cluster(name))
        locks = [str(home.cluster_lock(name)) for name in ids]
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, how, *locks], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout.readline() == "holds\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def context_of(home, *clusters):
    events = []
    return SimpleNamespace(
        paths=home,
        clock=SystemClock(),
        emit=events.append,
        events=events,
        clusters=SimpleNamespace(active=lambda: list(clusters)),
    )


def test_a_process_that_answers_ends_and_its_cluster_is_locked(home, hold):
    process = hold("answers", "c0ffee")
    context = context_of(home, cluster())
    with down.take_charge(context, cluster(), yes=False):
        assert process.wait(timeout=10) == 130
        assert FileLock(home.cluster_lock("c0ffee")).holder_id() == os.getpid()
    assert [event.message for event in context.events] == [
        f"process {process.pid} is in charge of {cluster().name}: asking it to end"
    ]


def test_a_process_that_does_not_answer_is_killed(home, hold, monkeypatch):
    monkeypatch.setattr(down, "ANSWER_S", 0.5)
    process = hold("ignores", "c0ffee")
    context = context_of(home, cluster())
    with down.take_charge(context, cluster(), yes=False):
        assert process.wait(timeout=10) == -signal.SIGKILL
    assert "is killed, and" in context.events[-1].message


def test_a_process_in_charge_of_others_is_ended_only_with_yes(home, hold):
    process = hold("answers", "c0ffee", "feed")
    other = cluster(cluster_id="feed", name="other")
    context = context_of(home, cluster(), other)
    with pytest.raises(StoreError, match="and of other") as refused:
        down.take_charge(context, cluster(), yes=False)
    assert "--yes" in refused.value.hint
    assert process.poll() is None
    with down.take_charge(context, cluster(), yes=True):
        assert process.wait(timeout=10) == 130


def test_an_id_that_does_not_hold_the_lock_is_not_signalled(home):
    """As of a home that two machines share: the id in the file is of a process of the other one."""
    home.make_folder(home.cluster("c0ffee"))
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lock = FileLock(home.cluster_lock("c0ffee"))
    try:
        assert lock.acquire(wait=False)
        home.cluster_lock("c0ffee").write_text(f"{stranger.pid}\n")
        with pytest.raises(StoreError, match=f"process {stranger.pid} is in charge"):
            down.take_charge(context_of(home, cluster()), cluster(), yes=True)
        assert stranger.poll() is None
    finally:
        lock.release()
        stranger.kill()
        stranger.wait()
