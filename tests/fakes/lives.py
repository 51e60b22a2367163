"""A long life of one training: agents on machines of their own, events at random, all checked after each."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes.metadata import NOTICE, Service
from tests.fakes.training import RUN, Cluster, wait_until, write_control_file

BATCH, STEPS_PER_EPOCH, SAMPLES = 96, 15, 1437
SCRIPT = ["-m", "trainer.examples.digits", "--shards", "4", "--epochs", "1000000"]
DELAY = ["--delay-ms", "60"]
MACHINES = "abcdef"
AWAY_S = 10.0
"""A worker takes a step so long after the end of its fault, at the latest."""

START_S = 300.0
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *shift;
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CLOCK_SHIFT");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file >= 0) shift = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}
static long now(void) { return shift && shift != MAP_FAILED ? *shift : 0; }
int clock_gettime(clockid_t id, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(id, at);
  if (!status && id == CLOCK_REALTIME) at->tv_sec += now();
  return status;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int status = real(at, zone);
  if (!status) at->tv_sec += now();
  return status;
}
time_t time(time_t *at) {
  struct timespec value;
  clock_gettime(CLOCK_REALTIME, &value);
  if (at) *at = value.tv_sec;
  return value.tv_sec;
}
"""


def samples(step):
    return BATCH if step % STEPS_PER_EPOCH else SAMPLES - BATCH * (STEPS_PER_EPOCH - 1)


class Tail:
    """The records of a file that grows, each parsed once."""

    def __init__(self, path):
        self.path, self.records, self._rest, self._at = Path(path), [], b"", 0

    def read(self):
        """Return the records that are new."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as stream:
            stream.seek(self._at)
            data = stream.read()
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            new = [json.loads(line) for line in lines]
            self.records += new
            return new
        return []


class Clocks:
    """Clocks that can be stepped, each its own, where there is a C compiler."""

    def __init__(self, folder):
        self.folder, self.library = Path(folder), Path(folder) / "clock.so"
        compiler = shutil.which("cc")
        if compiler is not None:
            source = self.folder / "clock.c"
            source.write_text(CLOCK)
            words = [compiler, "-shared", "-fPIC", "-O1", "-o", self.library, source, "-ldl"]
            subprocess.run(words, check=True, capture_output=True)

    @property
    def exist(self):
        return self.library.exists()

    def environment(self, name):
        if not self.exist:
            return {}
        self.step(name, 0)
        return {"LD_PRELOAD": str(self.library), "CLOCK_SHIFT": str(self._path(name))}

    def step(self, name, seconds):
        with self._path(name).open("r+b" if self._path(name).exists() else "wb") as stream:
            stream.write(struct.pack("l", seconds))

    def _path(self, name):
        return self.folder / f"{name}.shift"


class Fleet(Cluster):
    """Agents of one run, each on a machine: a namespace of a network, or this machine.

    Args:
        network: Of machines a to f; None: all share this machine, and none can be cut off.
    """

    def __init__(self, python, folder, network=None):
        arguments = [] if network is None else ["--host", network.host]
        super().__init__(python, folder, [*SCRIPT, *DELAY], lighthouse=arguments)
        self.network = network
        self.host = "127.0.0.1" if network is None else network.host
        self.machines, self.services, self.tails, self.control = {}, {}, {}, {}
        self.clocks = Clocks(folder)

    def free_machines(self):
        return [name for name in MACHINES if name not in {self.machines[n] for n in self.living()}]

    def living(self):
        return [name for name, process in self.workers.items() if process.poll() is None and name != "fixed"]

    def start_agent(self, name, machine):
        (self.folder / name).mkdir()
        self.machines[name], self.tails[name] = machine, Tail(self.folder / name / "records.jsonl")
        self.services[name] = service = Service(self.host)
        threading.Thread(target=service.serve_forever, args=(0.05,), daemon=True).start()
        host = "127.0.0.1" if self.network is None else self.network.addresses[machine]
        self.put_control(name)
        words = [self.python, "-m", "trainer.agent", "--run", RUN, "--worker", name, "--folder", name]
        words += ["--coordinator", self.host, "--port", str(self.port), "--host", host, "--workers", "1"]
        words += ["--metadata", service.url, "--margin", "4", "--last-seconds", "1", "--hash-every", "1"]
        words += ["--restarts", "1000", "--", "python3", *self.script]
        command = words if self.network is None else self.network.command(machine, words)
        self.workers[name] = self._spawn(name, command, self.clocks.environment(name), start_new_session=True)

    def put_control(self, name, **values):
        write_control_file(self.folder / name / "control.json", **self.control, **values)

    def put_all(self, **values):
        self.control |= values
        for name in self.living():
            self.put_control(name)

    def signal_all(self, name, number):
        """Send a signal to an agent and all that it started, as to a whole machine."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.workers[name].pid, number)

    def end(self, name):
        self.signal_all(name, signal.SIGKILL)
        self.workers[name].wait()
        self.services[name].shutdown()
        self.services[name].server_close()

    def replace_lighthouse(self, step):
        arguments = self.lighthouse_arguments[:2] if self.network is not None else []
        super().replace_lighthouse(step)
        self.lighthouse_arguments = [*arguments, "--step", str(step)]

    def steps(self, name):
        if name == "fixed":
            return super().steps(name)
        self.tails[name].read()
        return [record for record in self.tails[name].records[-2000:] if record["record"] == "step"]

    def events(self, name, event=None):
        self.tails[name].read()
        events = [record for record in self.tails[name].records if record["record"] == "event"]
        return [record for record in events if event in {None, record["event"]}]

    def __exit__(self, *_):
        for name in self.living():
            self.end(name)
        super().__exit__()


class Checker:
    """Checks what must hold after every event, by the records of all workers and of the coordinators."""

    def __init__(self, fleet):
        self.fleet, self.hashes, self.losses = fleet, {}, {}
        self._shares, self._positions, self._journal = {}, {}, Tail(fleet.journal)
        self._recorded = set()

    def check(self, reached):
        """Check every record that is new, and that each step up to `reached` is recorded."""
        for name, tail in self.fleet.tails.items():
            tail.read()
            start, self._positions[name] = self._positions.get(name, 0), len(tail.records)
            for record in tail.records[start:]:
                if record["record"] == "step":
                    self._check_step(record)
        assert sorted(self.hashes) == list(range(1, max(self.hashes) + 1)), "a step was left out"
        wait_until(lambda: self._recorded_steps() >= set(range(1, reached + 1)), f"{reached} records", 60)
        recorded = self._recorded_steps()
        assert recorded == set(range(1, max(recorded) + 1)), "the record has a hole"

    def _recorded_steps(self):
        if self._journal.path != self.fleet.journal:
            self._journal, self._recorded = Tail(self.fleet.journal), set()
        self._recorded |= {record["step"] for record in self._journal.read() if record["record"] == "step"}
        return self._recorded

    def _check_step(self, record):
        step = record["step"]
        assert record["run"] == RUN
        assert self.hashes.setdefault(step, record["hash"]) == record["hash"], f"step {step} has two states"
        self.losses[step] = record["loss"]
        shares = self._shares.setdefault((step, record["lineage"]), {})
        shares[record["rank"]] = record["share"]
        taken = sorted(place for share in shares.values() for place in range(*share))
        assert len(taken) == len(set(taken)), f"step {step} took a sample twice"
        assert len(shares) < record["world_size"] or taken == list(range(samples(step))), (
            f"step {step} left out"
        )


KINDS = (
    *("join", "join", "notice", "drain", "kill", "crash", "stop", "cut", "unplug"),
    *("lighthouse", "coordinator", "refuse", "clock"),
)


class LongLife:
    """One training with events at random, of which at least one worker lives at any time.

    Args:
        fleet: Its lighthouse runs.
        chance: Draws the events.
        kinds: Names of the events that are drawn; the others never happen.
    """

    def __init__(self, fleet, chance, kinds=KINDS):
        self.fleet, self.chance, self.checker = fleet, chance, Checker(fleet)
        self.kinds = [kind for kind in kinds if self._is_possible(kind)]
        self.names, self.counts, self.away = (f"w{n}" for n in itertools.count()), {}, []
        self.story = []

    def run(self, count, say=lambda _line: None, limit_s=float("inf")):
        """Live through so many events, or those of a time, and compare with an undisturbed run."""
        self.join()
        self._draw(count, say, time.monotonic() + limit_s)
        self.compare()

    def _draw(self, count, say, until):
        while sum(self.counts.values()) < count and time.monotonic() < until:
            kind = self.chance.choice(self.kinds)
            needed = 2 if kind in {"notice", "drain", "kill", "cut", "refuse", "crash"} else 1
            if len(self.fleet.living()) < needed or (kind == "join" and len(self.fleet.living()) >= 4):
                kind = "join" if len(self.fleet.living()) < 4 else "stop"
            self.story = [*self.story[-4:], kind]
            getattr(self, kind)()
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.check()
            alive = len(self.fleet.living())
            say(f"{sum(self.counts.values())}: {kind}, step {self.reached()}, {alive} alive")

    def _is_possible(self, kind):
        return (kind not in {"cut", "unplug"} or self.fleet.network is not None) and (
            kind != "clock" or self.fleet.clocks.exist
        )

    def join(self):
        name = next(self.names)
        self.fleet.start_agent(name, self.chance.choice(self.fleet.free_machines()))
        wait_until(lambda: self.fleet.steps(name), f"a step of {name}", START_S)

    def notice(self):
        name = self.pick()
        at = datetime.now(UTC) + timedelta(seconds=self.chance.choice([1, 5, 8]) + self.shift_of(name))
        self.fleet.services[name].documents[NOTICE] = json.dumps(
            {"action": "terminate", "time": at.isoformat()}
        )
        self.leave(name)

    def drain(self):
        name = self.pick()
        self.fleet.put_control(name, drain="asked to")
        self.leave(name)

    def leave(self, name):
        """Wait until a worker has left, and end its machine."""
        wait_until(lambda: self.fleet.workers[name].poll() is not None, f"{name} to leave", 120)
        assert self.fleet.workers[name].poll() in {1, 10}, self.fleet.output(name)  # 1: it was killed in time
        self.fleet.end(name)
        self.resume(self.fleet.living())

    def kill(self):
        self.fleet.end(self.pick())
        self.resume(self.fleet.living())

    def crash(self):
        """Kill a worker's process only; its agent starts it again."""
        name = self.pick()
        before = len(self.fleet.events(name, "worker_started"))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.fleet.events(name, "worker_started")[-1]["pid"], signal.SIGKILL)
        self.resume([other for other in self.fleet.living() if other != name])
        wait_until(lambda: len(self.fleet.events(name, "worker_started")) > before, "its restart", START_S)
        place = len(self.fleet.tails[name].records)
        self.take_step(name, place)

    def take_step(self, name, place):
        """Wait until a worker has recorded a step after so many records."""

        def has_step():
            self.fleet.tails[name].read()
            return any(r["record"] == "step" for r in self.fleet.tails[name].records[place:])

        wait_until(has_step, f"a step of {name}", START_S)

    def stop(self):
        name = self.pick()
        self.fleet.signal_all(name, signal.SIGSTOP)
        time.sleep(self.pause())
        self.fleet.signal_all(name, signal.SIGCONT)
        self.resume(self.fleet.living())

    def cut(self):
        one, other = (self.fleet.machines[n] for n in self.chance.sample(self.fleet.living(), 2))
        self.fleet.network.cut(one, other)
        time.sleep(self.pause())
        self.fleet.network.mend(one, other)
        self.resume(self.fleet.living())

    def unplug(self):
        machine = self.fleet.machines[self.pick()]
        self.fleet.network.unplug(machine)
        time.sleep(self.pause())
        self.fleet.network.plug(machine)
        self.resume(self.fleet.living())

    def lighthouse(self):
        self.fleet.kill_lighthouse()
        time.sleep(self.chance.choice([0, 0.5, 3]))
        self.fleet.start_lighthouse()
        self.resume(self.fleet.living())

    def coordinator(self):
        """Let another coordinator take over, which knows nothing but how far the run was."""
        self.fleet.kill_lighthouse()
        reached = self.reached()
        self.fleet.replace_lighthouse(reached)
        generation = self.fleet.control.get("generation", 0) + 1
        address = f"{self.fleet.host}:{self.fleet.port}"
        self.fleet.put_all(generation=generation, coordinator=address, least=reached)
        self.resume(self.fleet.living())

    def refuse(self):
        """Lose a worker whose replacement is refused: the others wait, until fewer are enough."""
        minimum = len(self.fleet.living())
        self.fleet.put_all(minimum=minimum)
        self.fleet.end(self.pick())
        names = self.fleet.living()
        wait_until(lambda: all(self.is_held(name, minimum) for name in names), "the others to wait", 120)
        held = {name: self.newest(name) for name in names}
        time.sleep(self.chance.choice([0.2, 1]))
        assert held == {name: self.newest(name) for name in names}, "a step below the minimum"
        self.fleet.put_all(minimum=1)
        self.resume(names)

    def is_held(self, name, minimum):
        """True if the last thing that a worker did was to begin to wait for others."""
        self.fleet.tails[name].read()
        for record in reversed(self.fleet.tails[name].records):
            if record["record"] == "step":
                return False
            if record.get("event") == "hold":
                return f"of {minimum} instances needed" in record["cause"]
        return False

    def clock(self):
        """Step the clock of one machine, in either direction."""
        name = self.pick()
        self.fleet.clocks.step(name, self.chance.choice([-86400, -600, -30, 0, 30, 600, 86400]))
        self.resume(self.fleet.living())

    def shift_of(self, name):
        if not self.fleet.clocks.exist:
            return 0
        return struct.unpack("l", (self.fleet.folder / f"{name}.shift").read_bytes())[0]

    def pick(self):
        return self.chance.choice(self.fleet.living())

    def pause(self):
        return self.chance.choice([0.2, 0.2, 1, 1, 3, 7])

    def newest(self, name):
        steps = self.fleet.steps(name)
        return steps[-1]["step"] if steps else 0

    def reached(self):
        return max(self.newest(name) for name in self.fleet.living())

    def resume(self, names):
        """Check that each of these workers takes a step soon after the end of a fault."""
        started_at, places = time.monotonic(), {}
        for name in names:
            self.fleet.tails[name].read()
            places[name] = len(self.fleet.tails[name].records)
        for name, place in places.items():
            self.take_step(name, place)
        self.away.append(time.monotonic() - started_at)
        assert self.away[-1] <= AWAY_S, f"away for {self.away[-1]:.1f} s"

    def check(self):
        """Take some steps more, then check samples, states and records."""
        goal = self.reached() + self.chance.randint(1, 6)
        wait_until(lambda: self.reached() >= goal, f"step {goal}", 120)
        self.checker.check(goal)

    def compare(self):
        """Check that state and loss of every step are those of a run without any event."""
        for name in self.fleet.living():
            self.fleet.end(name)
        self.checker.check(0)
        hashes, last = self.checker.hashes, max(self.checker.hashes)
        self.fleet.start("fixed", lighthouse=None, ledger=None, script=SCRIPT)
        tail, fixed = Tail(self.fleet.records_path("fixed")), {}

        def is_there():
            assert self.fleet.workers["fixed"].poll() is None, self.fleet.output("fixed")
            fixed.update({r["step"]: r for r in tail.read() if r["record"] == "step"})
            return last in fixed

        wait_until(is_there, f"step {last} of the undisturbed run", 7200)
        wrong = [step for step in hashes if fixed[step]["hash"] != hashes[step]]
        assert not wrong, f"other bits than undisturbed: steps {wrong[:5]}"
        assert self.checker.losses[last] == fixed[last]["loss"]

    def summary(self):
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        away = sorted(self.away) or [0.0]
        total, steps = sum(self.counts.values()), len(self.checker.hashes)
        text = f"away {away[len(away) // 2]:.1f} s (median), {away[-1]:.1f} s (longest)"
        return f"{total} events: {counts}; {steps} steps; {text}"
