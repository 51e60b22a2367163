"""What membership changes and elasticity itself cost, next to torchrun and plain DistributedDataParallel.

    python tests/performance/elastic.py                    # both parts, about ten minutes on two cores
    python tests/performance/elastic.py --only overhead    # or: events

Pauses are the longest gap between two commits around an event, less a usual step. All workers are processes
of this machine, on gloo: with more of them than cores, steps are slower, and pauses too. The environment of
the tests is used, and built where it is missing.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import time
from datetime import datetime
from itertools import pairwise

from common import in_turn, kill_family, parser_of, span, trainer_folder, verdict

from tests.fakes.agents import Agents
from tests.fakes.training import Cluster, free_port, read_records, wait_until

GOALS_S = {"drain": 0.3, "kill -9": 0.5, "join": 0.1}
OVERHEAD_GOALS = [(2, 200, 1.03), (2, 30, 1.04), (8, 30, 1.04)]  # workers, ms of a step that pause, of plain
ELASTIC = ["-m", "trainer.examples.digits", "--epochs", "1000", "--delay-ms"]
TORCHRUN = ["-m", "trainer.examples.torchrun_digits", "--epochs", "1000", "--delay-ms"]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=["events", "overhead"])
    parser.add_argument("--rounds", type=int, default=3, help="of events (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="of overhead runs (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of each of them (default: %(default)s)")
    options = parser.parse_args()
    print(f"load of this machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with trainer_folder():  # so that no measurement builds the environment
        if options.only != "overhead":
            events(options.rounds)
        if options.only != "events":
            overhead(options.pairs, options.seconds)


def events(rounds):
    """Print the pauses of drain, kill and join, elastic and under torchrun."""
    ours, redone = {name: [] for name in GOALS_S}, []
    with trainer_folder() as (python, folder), Cluster(python, folder, [*ELASTIC, "30"]) as cluster:
        for name in "abc":
            cluster.start(name, hash_every=0)
        settle(cluster, 3)
        names = iter("defghijklmnopqrstuvwxyz")
        for _ in range(rounds):
            victim = some_other(cluster)
            ours["drain"].append(pause(cluster, lambda one=victim: cluster.signal(one, signal.SIGTERM)))
            ours["join"].append(joined(cluster, next(names)))
            victim, before = some_other(cluster), attempts(cluster)
            ours["kill -9"].append(pause(cluster, lambda one=victim: cluster.kill(one)))
            redone.append(attempts(cluster) - before)
            ours["join"].append(joined(cluster, next(names)))
        step_s = statistics.median(record["seconds"] for record in cluster.steps("a")[5:])
    theirs = torchrun_events()
    print(f"\npauses of the others, three workers, steps of about {step_s:.2f} s on this machine")
    print(f"{'event':<8}  {'goal':>6}  {'elastic':<36}  torchrun")
    for name, goal in GOALS_S.items():
        is_met = statistics.median(ours[name]) <= goal
        text = span(theirs[name]) if theirs[name] else "no step after it"
        print(f"{name:<8}  {goal:4.1f} s  {span(ours[name]):<36}  {text}   {verdict(is_met)}")
    print(f"steps redone per kill: {redone}")


def some_other(cluster):
    return next(name for name, one in cluster.workers.items() if name != "a" and one.poll() is None)


def attempts(cluster):
    return sum(record["attempts"] - 1 for record in cluster.steps("a"))


def settle(cluster, size):
    try:
        wait_until(lambda: (s := cluster.steps("a")) and s[-1]["world_size"] == size, f"{size} workers")
    except AssertionError as error:
        raise SystemExit(f"{error}\n{cluster.story()}") from error
    cluster.wait_for_step("a", cluster.steps("a")[-1]["step"] + 25)


def pause(cluster, act):
    """Do something that leaves two; return the longest step until they have settled, less a usual one."""
    first = cluster.steps("a")[-1]["step"]
    act()
    settle(cluster, 2)
    return excess(cluster, first, 2)


def joined(cluster, name):
    """Start a worker; what counts is the step in which it first takes part."""
    first = cluster.steps("a")[-1]["step"]
    cluster.start(name, hash_every=0)
    settle(cluster, 3)
    grown = next(r["step"] for r in cluster.steps("a") if r["step"] > first and r["world_size"] == 3)
    return excess(cluster, grown - 1, 3, last=grown)


def excess(cluster, first, size, last=float("inf")):
    steps = [record["seconds"] for record in cluster.steps("a") if first < record["step"] <= last]
    calm = [record["seconds"] for record in cluster.steps("a")[5:] if record["world_size"] == size]
    return max(0.0, max(steps) - statistics.median(calm))


def torchrun_events():
    """Return the gaps that the same events leave under torchrun, with the settings that it survives by."""
    pauses = {name: [] for name in GOALS_S}
    script = [*TORCHRUN, "30", "--checkpoint-seconds", "1"]
    with trainer_folder() as (python, folder), Torchrun(python, folder, script) as run:
        for name in "abc":
            run.begin(name)
        if run.settle(3):
            pauses["drain"] += run.gap(lambda: run.agents["b"].send_signal(signal.SIGTERM), 2)
            pauses["join"] += run.gap(lambda: run.begin("d"), 3)
            pauses["kill -9"] += run.gap(lambda: run.kill("c"), 2)
    return pauses


class Torchrun(Agents):
    """Agents of torchrun on this machine."""

    def begin(self, name):
        self.start(name, "--engine", "torchrun", *(["--lighthouse"] if name == "a" else []))

    def kill(self, name):
        """Kill an agent and its workers, which are in sessions of their own."""
        kill_family(self.agents[name].pid)
        self.agents[name].wait()

    def settle(self, size):
        with contextlib.suppress(AssertionError):
            wait_until(lambda: (s := self.steps("a")) and s[-1]["world_size"] == size, f"{size} workers", 90)
            count = len(self.steps("a"))
            wait_until(lambda: len(self.steps("a")) >= count + 15, "steps", 60)
            return True
        return False

    def gap(self, act, size):
        """Do something and return the longest time between two steps since; none if there was none."""
        before = len(self.steps("a"))
        act()
        if not self.settle(size):
            return []
        times = [datetime.fromisoformat(one["time"]).timestamp() for one in self.steps("a")[before - 1 :]]
        return [max(later - sooner for sooner, later in pairwise(times))]


def overhead(pairs, seconds):
    """Print the time of a step of the elastic loop over that of DistributedDataParallel, taking turns."""
    print("\ntime of a step, elastic over plain DistributedDataParallel, taking turns")
    for workers, delay_ms, goal in OVERHEAD_GOALS:
        run = (workers, str(delay_ms), seconds)
        took = in_turn(lambda run=run: elastic_step(*run), lambda run=run: plain_step(*run), pairs)
        ratios = [ours / plain for ours, plain in took]
        middle, usual_ms = statistics.median(ratios), 1000 * statistics.median(plain for _, plain in took)
        print(
            f"{workers} workers, steps of {usual_ms:3.0f} ms: {middle:.3f} ({min(ratios):.3f} to"
            f" {max(ratios):.3f}, n={pairs}), {usual_ms * (middle - 1):+.1f} ms"
            f"  goal {goal:.2f}, {verdict(middle <= goal)}",
            flush=True,
        )


def elastic_step(workers, delay_ms, seconds):
    with trainer_folder() as (python, folder), Cluster(python, folder, [*ELASTIC, delay_ms]) as cluster:
        for name in "abcdefgh"[:workers]:
            cluster.start(name, hash_every=0)
        wait_until(lambda: (s := cluster.steps("a")) and s[-1]["world_size"] == workers, "all workers", 90)
        first = len(cluster.steps("a"))
        time.sleep(seconds)
        return statistics.median(record["seconds"] for record in cluster.steps("a")[first + 3 :])


def plain_step(workers, delay_ms, seconds):
    port = str(free_port())
    with trainer_folder() as (python, folder), contextlib.ExitStack() as ends:
        for rank in range(workers):
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                "DLCLOUD_TRAINER": json.dumps({"records": f"{folder}/{rank}.jsonl"}),
            }  # fmt: skip
            command = [str(python), *TORCHRUN, delay_ms]
            process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
            ends.callback(process.wait)
            ends.callback(process.kill)
        path = folder / "0.jsonl"
        wait_until(lambda: path.exists() and '"step"' in path.read_text(), "a step", 90)
        time.sleep(seconds)
        steps = [record["seconds"] for record in read_records(path) if record["record"] == "step"]
        return statistics.median(steps[3:])


if __name__ == "__main__":
    main()
