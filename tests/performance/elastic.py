"""What membership changes and elasticity itself cost, beside torchrun and plain DistributedDataParallel.

    python3 tests/performance/elastic.py              # all parts, about ten minutes on two cores
    python3 tests/performance/elastic.py events       # one of: events, overhead, accuracy

Pauses are the longest gap between two commits around an event, less a usual step. All workers are processes
of this machine, on gloo: with more of them than cores, steps are slower, and pauses too. The environment of
the tests is used, and built where it is missing.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.environments import python_with  # noqa: E402
from tests.fakes.training import Cluster, free_port, lineage_of, read_records, wait_until  # noqa: E402

GOALS_S = {"drain": 0.3, "kill -9": 0.5, "join": 0.1}
OVERHEAD_GOAL = 0.03
ELASTIC = ["-m", "trainer.examples.digits", "--epochs", "1000"]
TORCHRUN = ["-m", "trainer.examples.torchrun_digits", "--epochs", "1000"]


@contextlib.contextmanager
def workplace():
    """Give a folder with the package alone."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "dlcloud" / "trainer", Path(folder) / "trainer")
        yield Path(folder)


def interval(values):
    """Return median and the whole range: there are too few for more."""
    return f"{statistics.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f}, n={len(values)})"


def events(python, rounds):
    """Print the pauses of drain, kill and join, elastic and under torchrun."""
    ours = {name: [] for name in GOALS_S}
    redone = []
    with workplace() as folder, Cluster(python, folder, [*ELASTIC, "--delay-ms", "30"]) as cluster:
        for name in "abc":
            cluster.start(name, hash_every=0)
        settle(cluster, 3)
        names = iter("defghijklmnopqrstuvwxyz")
        for _ in range(rounds):
            victim = others(cluster)[0]
            ours["drain"].append(
                pause(cluster, lambda victim=victim: cluster.signal(victim, signal.SIGTERM), 2)
            )
            ours["join"].append(joined(cluster, next(names)))
            victim = others(cluster)[0]
            before = attempts(cluster)
            ours["kill -9"].append(pause(cluster, lambda victim=victim: cluster.kill(victim), 2))
            redone.append(attempts(cluster) - before)
            ours["join"].append(joined(cluster, next(names)))
        step_s = usual(cluster)
    theirs = torchrun_events(python)
    print(f"\npauses of the others, three workers, steps of about {step_s:.2f} s on this machine")
    print(f"{'event':<8}  {'goal':>6}  {'elastic':<36}  torchrun")
    for name, goal in GOALS_S.items():
        verdict = "met" if statistics.median(ours[name]) <= goal else "MISSED"
        told = interval(theirs[name]) if theirs[name] else "no step after it"
        print(f"{name:<8}  {goal:4.1f} s  {interval(ours[name]):<36}  {told}   {verdict}")
    print(f"steps redone per kill: {redone}")


def others(cluster):
    return [name for name, process in cluster.workers.items() if name != "a" and process.poll() is None]


def attempts(cluster):
    return sum(record["attempts"] - 1 for record in cluster.steps("a"))


def usual(cluster):
    return statistics.median(record["seconds"] for record in cluster.steps("a")[5:])


def settle(cluster, size):
    try:
        wait_until(lambda: (s := cluster.steps("a")) and s[-1]["world_size"] == size, f"{size} workers")
    except AssertionError as error:
        raise SystemExit(f"{error}\n{cluster.story()}") from error
    cluster.wait_for_step("a", cluster.steps("a")[-1]["step"] + 25)


def pause(cluster, act, size):
    """Do something and return the longest step from then until the workers have settled, less a usual one."""
    first = cluster.steps("a")[-1]["step"]
    act()
    settle(cluster, size)
    return excess(cluster, first, size)


def joined(cluster, name):
    """Start a worker; what counts is the step in which it first takes part."""
    first = cluster.steps("a")[-1]["step"]
    cluster.start(name, hash_every=0)
    settle(cluster, 3)
    grown = next(r["step"] for r in cluster.steps("a") if r["step"] > first and r["world_size"] == 3)
    return excess(cluster, grown - 1, 3, last=grown)


def excess(cluster, first, size, last=None):
    steps = [r for r in cluster.steps("a") if r["step"] > first and r["step"] <= (last or r["step"])]
    calm = [r["seconds"] for r in cluster.steps("a")[5:] if r["world_size"] == size]
    return max(0.0, max(r["seconds"] for r in steps) - statistics.median(calm))


def torchrun_events(python):
    """Return the gaps that the same events leave under torchrun, with the settings that it survives by."""
    found = {name: [] for name in GOALS_S}
    with workplace() as folder, Torchrun(python, folder) as run:
        for name in "abc":
            run.start(name)
        if not run.settle(3):
            return found
        found["drain"].append(run.gap(lambda: run.leave("b", signal.SIGTERM), 2))
        found["join"].append(run.gap(lambda: run.start("d"), 3))
        found["kill -9"].append(run.gap(lambda: run.leave("c", signal.SIGKILL), 2))
    return {name: [value for value in values if value is not None] for name, values in found.items()}


class Torchrun:
    """Agents of torchrun on this machine."""

    def __init__(self, python, folder):
        self.python, self.folder, self.port, self.agents = str(python), folder, free_port(), {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent in self.agents.values():
            # Torchrun's workers are in sessions of their own: to kill the agent's group would leave them.
            kill_tree(agent.pid)
            agent.wait()

    def start(self, name):
        command = [
            self.python,
            "-m",
            "trainer.agent",
            "--run",
            "t",
            "--worker",
            name,
            "--coordinator",
            "127.0.0.1",
        ]
        command += ["--port", str(self.port), "--folder", str(self.folder / name), "--engine", "torchrun"]
        command += ["--metadata", "http://127.0.0.1:1", *(["--lighthouse"] if name == "a" else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.agents[name] = subprocess.Popen(
                [*command, "--", "python3", *TORCHRUN, "--delay-ms", "30", "--checkpoint-seconds", "1"],
                cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def leave(self, name, number):
        """Signal an agent alone to leave; kill all of it, as a machine that is gone."""
        agent = self.agents[name]
        if number == signal.SIGKILL:
            kill_tree(agent.pid)
        else:
            agent.send_signal(number)

    def steps(self):
        with contextlib.suppress(FileNotFoundError):
            return [r for r in read_records(self.folder / "a" / "records.jsonl") if r["record"] == "step"]
        return []

    def settle(self, size):
        with contextlib.suppress(AssertionError):
            wait_until(lambda: (s := self.steps()) and s[-1]["world_size"] == size, f"{size} workers", 90)
            count = len(self.steps())
            wait_until(lambda: len(self.steps()) >= count + 15, "steps", 60)
            return True
        return False

    def gap(self, act, size):
        before = len(self.steps())
        act()
        if not self.settle(size):
            return None
        times = [moment(record) for record in self.steps()[before - 1 :]]
        return max(later - sooner for sooner, later in pairwise(times))


def kill_tree(pid):
    """Kill a process and all that it started: a torchrun's workers are in groups of their own."""
    children = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in children:
        kill_tree(int(child))


def moment(record):
    return datetime.fromisoformat(record["time"]).timestamp()


def overhead(python, seconds):
    """Print the time of a step of the elastic loop over that of DistributedDataParallel, taking turns."""
    print("\ntime of a step, elastic over plain DistributedDataParallel, two workers")
    for delay_ms in (200, 30):
        ratios = []
        for _ in range(3):
            plain, elastic = plain_step(python, delay_ms, seconds), elastic_step(python, delay_ms, seconds)
            ratios.append(elastic / plain)
        low, high = min(ratios), max(ratios)
        middle = statistics.median(ratios)
        goal = f"goal {1 + OVERHEAD_GOAL:.2f}, {'met' if middle <= 1 + OVERHEAD_GOAL else 'MISSED'}"
        note = goal if delay_ms >= 200 else "no goal"
        print(f"steps of {delay_ms + 10:3d} ms or more: {middle:.3f} ({low:.3f} to {high:.3f}, n=3)  {note}")


def elastic_step(python, delay_ms, seconds):
    with workplace() as folder, Cluster(python, folder, [*ELASTIC, "--delay-ms", str(delay_ms)]) as cluster:
        for name in "ab":
            cluster.start(name, hash_every=0)
        wait_until(lambda: (s := cluster.steps("a")) and s[-1]["world_size"] == 2, "two workers")
        first = len(cluster.steps("a"))
        time.sleep(seconds)
        return statistics.median(record["seconds"] for record in cluster.steps("a")[first + 3 :])


def plain_step(python, delay_ms, seconds):
    port, processes = free_port(), []
    with workplace() as folder:
        for rank in range(2):
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONDONTWRITEBYTECODE": "1",
                "DLCLOUD_TRAINER": f'{{"records": "{folder}/{rank}.jsonl"}}',
            }  # fmt: skip
            command = [str(python), *TORCHRUN, "--delay-ms", str(delay_ms)]
            processes.append(
                subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
            )
        try:
            path = folder / "0.jsonl"
            wait_until(lambda: path.exists() and '"step"' in path.read_text(), "a step")
            time.sleep(seconds)
            steps = [r["seconds"] for r in read_records(path) if r["record"] == "step"]
            return statistics.median(steps[3:])
        finally:
            for process in processes:
                process.kill()
                process.wait()


def accuracy(python, seeds, interruptions):
    """Print the accuracy on the digits with and without interruptions."""
    print(f"\ndigits: accuracy without and with {interruptions} interruptions, over {seeds} seeds")
    pairs = [(calm_run(python, seed), restless_run(python, seed, interruptions)) for seed in range(seeds)]
    for seed, (calm, (restless, suffered)) in enumerate(pairs):
        print(f"seed {seed}: {calm:.4f}  {restless:.4f}  ({suffered} interruptions)")
    calm, restless = [pair[0] for pair in pairs], [pair[1][0] for pair in pairs]
    differences = [r - c for c, r in zip(calm, restless, strict=True)]
    spread = max(calm) - min(calm)
    verdict = "met" if abs(statistics.mean(differences)) <= max(spread, 1 / 360) else "MISSED"
    print(
        f"mean difference {statistics.mean(differences):+.4f} "
        f"({min(differences):+.4f} to {max(differences):+.4f}); spread over seeds {spread:.4f}: {verdict}"
    )


def calm_run(python, seed):
    with workplace() as folder:
        command = [str(python), "-m", "trainer.examples.digits", "--epochs", "20", "--seed", str(seed)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return float(done.stdout.rpartition(" ")[2])


def restless_run(python, seed, interruptions):
    """Kill or drain a worker every few steps, and replace it, until so many have gone."""
    chance, suffered = random.Random(seed), 0
    script = ["-m", "trainer.examples.digits", "--epochs", "20", "--seed", str(seed), "--delay-ms", "30"]
    with workplace() as folder, Cluster(python, folder, script) as cluster:
        cluster.start("a", hash_every=0)
        for number in range(4):
            cluster.start(f"w{number}", hash_every=0)
        number = 4
        while cluster.workers["a"].poll() is None:
            steps = cluster.steps("a")
            done = steps[-1]["step"] if steps else 0
            present = [name for name in others(cluster) if cluster.steps(name)]
            if suffered < interruptions and present and done >= suffered * 300 // interruptions:
                cluster.signal(chance.choice(present), chance.choice([signal.SIGTERM, signal.SIGKILL]))
                suffered += 1
                cluster.start(f"w{number}", hash_every=0)
                number += 1
            time.sleep(0.05)
        assert lineage_of([cluster.steps("a")])
        # Rank 0 prints; whoever that is.
        said = [
            line
            for log in folder.glob("*.log")
            for line in log.read_text().splitlines()
            if "accuracy" in line
        ]
        return float(said[-1].rpartition(" ")[2]), suffered


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", default=["events", "overhead", "accuracy"], help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="of events (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="of each overhead run (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="of accuracy (default: %(default)s)")
    parser.add_argument("--interruptions", type=int, default=30, help="of a run (default: %(default)s)")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - {"events", "overhead", "accuracy"}
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    python = python_with(ROOT / "dlcloud" / "trainer" / "requirements" / "elastic.txt")
    print(f"load of this machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if "events" in arguments.parts:
        events(python, arguments.rounds)
    if "overhead" in arguments.parts:
        overhead(python, arguments.seconds)
    if "accuracy" in arguments.parts:
        accuracy(python, arguments.seeds, arguments.interruptions)


if __name__ == "__main__":
    main()
