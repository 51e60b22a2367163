"""Random lives of a run: joins, drains, kills, stops, cuts, and lighthouses that end, one after the other."""

import itertools
import os
import random
import signal
import sys
import time
from datetime import datetime

import pytest

from tests.fakes.agents import Proxy
from tests.fakes.training import Cluster, check_exactly_once, read_records, wait_until

BATCH, STEPS_PER_EPOCH, SAMPLES = 96, 15, 1437
FOREVER = ["-m", "trainer.examples.digits", "--delay-ms", "30", "--shards", "4", "--epochs", "100000"]
AWAY_S = 10.0
"""A worker takes a step so long after the end of its fault, at the latest."""

MOST_WORKERS = 4


def samples(step):
    return BATCH if step % STEPS_PER_EPOCH else SAMPLES - BATCH * (STEPS_PER_EPOCH - 1)


@pytest.mark.skipif("DLCLOUD_ELASTIC_ROUNDS" not in os.environ, reason="minutes: set DLCLOUD_ELASTIC_ROUNDS")
@pytest.mark.timeout(6 * 3600)
def test_random_lives(trainer_python, alone):
    """DLCLOUD_ELASTIC_ROUNDS=N tries N lives, from DLCLOUD_ELASTIC_SEED on; a failure says its seed.

    DLCLOUD_ELASTIC_EVENTS is the number of events in each.
    """
    first = int(os.environ.get("DLCLOUD_ELASTIC_SEED", "0"))
    count = int(os.environ.get("DLCLOUD_ELASTIC_EVENTS", "10"))
    for seed in range(first, first + int(os.environ["DLCLOUD_ELASTIC_ROUNDS"])):
        folder = alone / f"life-{seed}"
        folder.mkdir()
        (folder / "trainer").symlink_to(alone / "trainer")
        with Cluster(trainer_python, folder, FOREVER) as cluster, Proxy(cluster.port) as proxy:
            life = Life(cluster, proxy, random.Random(seed))
            try:
                life.run(count)
            except AssertionError as error:
                raise AssertionError(
                    f"DLCLOUD_ELASTIC_SEED={seed}, {life.events[-3:]}: {error}\n{cluster.story()}"
                ) from error
        sys.stdout.write(life.summary(seed) + "\n")


class Life:
    """One run, of which at least one worker lives at any time."""

    def __init__(self, cluster, proxy, chance):
        self.cluster, self.proxy, self.chance = cluster, proxy, chance
        self.names, self.events, self.away = (f"w{n}" for n in itertools.count()), [], []
        self.generation, self.proxied = 0, set()

    def run(self, count):
        self.join()
        while len(self.events) < count:
            event = self.chance.choice(
                [self.join, self.join, self.kill, self.drain, self.stop, self.cut, self.restart, self.replace]
            )
            if event in {self.kill, self.drain} and len(self.living()) < 2:
                event = self.join
            if event is self.join and len(self.living()) >= MOST_WORKERS:
                continue
            event()
            self.check()
        self.compare()

    def living(self):
        workers = self.cluster.workers.items()
        return [name for name, process in workers if process.poll() is None and name != "fixed"]

    def join(self):
        name = next(self.names)
        self.note("join", name)
        self.start(name)
        wait_until(lambda: self.cluster.steps(name), f"a step of {name}")

    def start(self, name):
        """Start a worker; every other one reaches the lighthouse through a network that can be cut."""
        if not self.generation and int(name[1:]) % 2:
            self.proxied.add(name)
            self.cluster.start(name, lighthouse=f"127.0.0.1:{self.proxy.port}")
        else:
            self.cluster.start(name)

    def kill(self):
        name = self.note("kill", self.chance.choice(self.living()))
        self.cluster.kill(name)
        self.resume(self.living(), time.time())

    def drain(self):
        name = self.note("drain", self.chance.choice(self.living()))
        self.cluster.signal(name, signal.SIGTERM)
        self.resume([other for other in self.living() if other != name], time.time())
        assert self.cluster.wait(name) == 10

    def stop(self):
        name = self.note("stop", self.chance.choice(self.living()))
        self.cluster.signal(name, signal.SIGSTOP)
        time.sleep(self.chance.choice([0.2, 1, 3, 8]))
        self.cluster.signal(name, signal.SIGCONT)
        self.resume(self.living(), time.time())

    def cut(self):
        """Cut the network between some of the workers and the lighthouse."""
        self.note("cut", "")
        self.proxy.cut()
        time.sleep(self.chance.choice([0.2, 1, 3, 8]))
        self.proxy.mend()
        self.resume(self.living(), time.time())

    def restart(self):
        self.note("lighthouse", "")
        self.cluster.kill_lighthouse()
        time.sleep(self.chance.choice([0, 1, 4]))
        self.cluster.start_lighthouse()
        self.resume(self.living(), time.time())

    def replace(self):
        """Let another coordinator take over, which knows nothing; the network through the proxy is gone."""
        self.note("coordinator", "")
        self.cluster.kill_lighthouse()
        self.generation += 1
        reached = max(self.newest(name) for name in self.living())
        self.cluster.replace_lighthouse(reached)
        control = {"generation": self.generation, "coordinator": f"127.0.0.1:{self.cluster.port}"}
        for name in self.living():
            self.cluster.write_control(name, **control, least=reached)
        self.resume(self.living(), time.time())

    def note(self, kind, name):
        self.events.append((kind, name))
        return name

    def newest(self, name):
        steps = self.cluster.steps(name)
        return steps[-1]["step"] if steps else 0

    def resume(self, names, since):
        """Check that each of these workers takes a step soon after the end of a fault."""

        def taken(name):
            times = [datetime.fromisoformat(r["time"]).timestamp() for r in self.cluster.steps(name)[-3:]]
            return next((moment for moment in times if moment > since), None)

        wait_until(lambda: all(taken(name) for name in names), f"steps of {names}", 2 * AWAY_S)
        self.away.append(max((taken(name) - since for name in names), default=0.0))
        assert self.away[-1] <= AWAY_S, f"away for {self.away[-1]:.1f} s"

    def check(self):
        """Check what must hold after each event: samples, states, records."""
        reached = max(self.newest(name) for name in self.living())
        wait_until(
            lambda: max(self.newest(name) for name in self.living()) >= reached + self.chance.randint(1, 8),
            f"steps after {reached}",
        )
        check_exactly_once([self.cluster.steps(name) for name in self.cluster.workers], samples)
        wait_until(lambda: recorded(self.cluster) >= set(range(1, reached + 1)), f"{reached} records", 30)

    def compare(self):
        """Check that the state of every step is that of a run without any event."""
        taken = {r["step"]: r["hash"] for name in self.cluster.workers for r in self.cluster.steps(name)}
        for name in self.living():
            self.cluster.kill(name)
        script = [*FOREVER[:2], "--shards", "4", "--epochs", "100000"]
        self.cluster.start("fixed", lighthouse=None, ledger=None, script=script)
        self.cluster.wait_for_step("fixed", max(taken), timeout_s=1800)
        fixed = {record["step"]: record["hash"] for record in self.cluster.steps("fixed")}
        assert all(fixed[step] == digest for step, digest in taken.items())

    def summary(self, seed):
        kinds = sorted({kind for kind, _ in self.events})
        counts = ", ".join(f"{kind} {sum(k == kind for k, _ in self.events)}" for kind in kinds)
        away = sorted(self.away) or [0.0]
        middle, worst = away[len(away) // 2], away[-1]
        return f"life {seed}: {counts}; away {middle:.1f} s (median), {worst:.1f} s (longest)"


def recorded(cluster):
    return {record["step"] for record in read_records(cluster.journal)}
