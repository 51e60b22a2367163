"""What membership changes and elasticity itself cost, beside torchrun and plain DistributedDataParallel.

    python3 tests/performance/elastic.py                    # all parts, about twelve minutes on two cores
    python3 tests/performance/elastic.py --only overhead    # one of: events, overhead, accuracy

Pauses are the longest gap between two commits around an event, less a usual step. All workers are processes
of this machine, on gloo: with more of them than cores, steps are slower, and pauses too. The environment of
the tests is used, and built where it is missing.
"""

import argparse
import contextlib
import json
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
OVERHEAD_GOALS = [(2, 200, 1.03), (2, 30, 1.04), (8, 30, 1.04)]  # workers, ms of a step that pause, of plain

ELASTIC = ["-m", "trainer.examples.digits", "--epochs", "1000"]
DIGITS = ["-m", "trainer.examples.digits", "--epochs", "20"]
STEPS = 300  # of 20 epochs
PARTS = ["events", "overhead", "accuracy"]
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
        text = interval(theirs[name]) if theirs[name] else "no step after it"
        print(f"{name:<8}  {goal:4.1f} s  {interval(ours[name]):<36}  {text}   {verdict}")
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
    pauses = {name: [] for name in GOALS_S}
    with workplace() as folder, Torchrun(python, folder) as run:
        for name in "abc":
            run.start(name)
        if not run.settle(3):
            return pauses
        pauses["drain"].append(run.gap(lambda: run.leave("b", signal.SIGTERM), 2))
        pauses["join"].append(run.gap(lambda: run.start("d"), 3))
        pauses["kill -9"].append(run.gap(lambda: run.leave("c", signal.SIGKILL), 2))
    return {name: [value for value in values if value is not None] for name, values in pauses.items()}


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


def overhead(python, seconds, pairs):
    """Print the time of a step of the elastic loop over that of DistributedDataParallel, taking turns."""
    print("\ntime of a step, elastic over plain DistributedDataParallel, taking turns")
    for workers, delay_ms, goal in OVERHEAD_GOALS:
        ratios, plain_s = [], []
        for number in range(pairs):
            runs = [plain_step, elastic_step] if number % 2 else [elastic_step, plain_step]
            took = {run: run(python, workers, delay_ms, seconds) for run in runs}
            ratios.append(took[elastic_step] / took[plain_step])
            plain_s.append(took[plain_step])
        middle, usual_ms = statistics.median(ratios), 1000 * statistics.median(plain_s)
        verdict = "met" if middle <= goal else "MISSED"
        text = f"{middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}, n={pairs})"
        print(
            f"{workers} workers, steps of {usual_ms:3.0f} ms: {text}, {usual_ms * (middle - 1):+.1f} ms"
            f"  goal {goal:.2f}, {verdict}",
            flush=True,
        )


def elastic_step(python, workers, delay_ms, seconds):
    with workplace() as folder, Cluster(python, folder, [*ELASTIC, "--delay-ms", str(delay_ms)]) as cluster:
        for name in "abcdefgh"[:workers]:
            cluster.start(name, hash_every=0)
        wait_until(lambda: (s := cluster.steps("a")) and s[-1]["world_size"] == workers, "all workers", 90)
        first = len(cluster.steps("a"))
        time.sleep(seconds)
        return statistics.median(record["seconds"] for record in cluster.steps("a")[first + 3 :])


def plain_step(python, workers, delay_ms, seconds):
    port, processes = free_port(), []
    with workplace() as folder:
        for rank in range(workers):
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONDONTWRITEBYTECODE": "1",
                "DLCLOUD_TRAINER": f'{{"records": "{folder}/{rank}.jsonl"}}',
            }  # fmt: skip
            command = [str(python), *TORCHRUN, "--delay-ms", str(delay_ms)]
            processes.append(
                subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
            )
        try:
            path = folder / "0.jsonl"
            wait_until(lambda: path.exists() and '"step"' in path.read_text(), "a step", 90)
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
    calm, restless, whole = [], [], True
    for seed in range(seeds):
        calm.append(calm_run(python, seed))
        reached, suffered, sizes = restless_run(python, seed, interruptions)
        restless.append(reached)
        whole = whole and suffered == interruptions
        mean = statistics.mean(sizes)
        print(
            f"seed {seed}: {calm[-1]:.4f}  {reached:.4f}  ({suffered} interruptions, {mean:.1f} workers)",
            flush=True,
        )
    differences = [r - c for c, r in zip(calm, restless, strict=True)]
    spread, middle = max(calm) - min(calm), statistics.mean(differences)
    verdict = "met" if whole and abs(middle) <= spread else "MISSED"
    if seeds == 1:
        verdict = "one seed has no spread to judge by"
    low, high = confidence(differences)
    print(
        f"mean difference {middle:+.4f} (95 %: {low:+.4f} to {high:+.4f}); "
        f"spread over seeds without interruptions {spread:.4f}: {verdict}"
    )


def confidence(values):
    """Return the interval of a mean at 95 %, by resampling."""
    chance = random.Random(0)
    means = sorted(statistics.mean(chance.choices(values, k=len(values))) for _ in range(2000))
    return means[50], means[-50]


def calm_run(python, seed):
    with workplace() as folder:
        command = [str(python), *DIGITS, "--seed", str(seed)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return float(done.stdout.rpartition(" ")[2])


def restless_run(python, seed, interruptions):
    """Kill or drain a worker every few steps, and replace it, until so many have gone.

    Returns:
        The accuracy, how many interruptions there were, and the number of workers at each step.
    """
    chance, gone = random.Random(seed), []
    script = [*DIGITS, "--seed", str(seed), "--delay-ms", "60"]
    with workplace() as folder, Nursery(python, folder, script) as cluster:
        for name in ["a", *(f"w{number}" for number in range(1, 4 + interruptions))]:
            # One alone waits for others: a busy machine must not end the run before its time.
            cluster.write_control(name, minimum=2)
        for name in ["a", "w1", "w2", "w3"]:
            cluster.start(name, hash_every=0)
        wait_until(lambda: cluster.steps("a"), "a step")
        while cluster.workers["a"].poll() is None:
            done = cluster.steps("a")[-1]["step"]
            present = [name for name in others(cluster) if name not in gone and cluster.steps(name)]
            due = done >= (len(gone) + 1) * (STEPS - 20) // interruptions
            if len(gone) < interruptions and present and due:
                gone.append(chance.choice(present))
                cluster.signal(gone[-1], chance.choice([signal.SIGTERM, signal.SIGKILL]))
                cluster.start(f"w{3 + len(gone)}", hash_every=0)
            time.sleep(0.05)
        steps = cluster.steps("a")
        assert sorted(lineage_of([steps])) == [record["step"] for record in steps]
        # Rank 0 prints, whichever worker it is.
        accuracies = [
            line
            for log in folder.glob("*.log")
            for line in log.read_text().splitlines()
            if "accuracy" in line
        ]
        return float(accuracies[-1].rpartition(" ")[2]), len(gone), [record["world_size"] for record in steps]


class Nursery(Cluster):
    """A cluster whose workers are forked from a process that has imported all they need.

    A worker on its way costs three seconds of a core for imports alone: thirty of them would leave two cores
    no time to train.
    """

    def __enter__(self):
        super().__enter__()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.folder)}
        self.mother = subprocess.Popen(
            [self.python, "-c", MOTHER],
            cwd=self.folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *exit_arguments):
        super().__exit__(*exit_arguments)
        self.mother.kill()
        self.mother.wait()

    def _spawn(self, name, command, extra):
        if command[1:3] != DIGITS[:2]:
            return super()._spawn(name, command, extra)
        asked = {"module": command[2], "arguments": command[3:], "environment": extra}
        self.mother.stdin.write(json.dumps({**asked, "log": str(self.folder / f"{name}.log")}) + "\n")
        self.mother.stdin.flush()
        return Child(int(self.mother.stdout.readline()))


class Child:
    """A process that another one started, and buries."""

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self):
        wait_until(lambda: self.poll() is not None, f"the end of {self.pid}", 60)


MOTHER = """
import json, os, runpy, signal, sys
import sklearn.datasets, torch, trainer.quorum_engine, trainer.training
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.update(asked["environment"])
    sys.argv = [asked["module"], *asked["arguments"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
    sys.exit(0)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=PARTS, help="one part (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of events (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="of each overhead run (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="of accuracy (default: %(default)s)")
    parser.add_argument("--interruptions", type=int, default=30, help="of a run (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="of overhead runs (default: %(default)s)")
    arguments = parser.parse_args()
    parts = [arguments.only] if arguments.only else PARTS
    python = python_with(ROOT / "dlcloud" / "trainer" / "requirements" / "elastic.txt")
    print(f"load of this machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if "events" in parts:
        events(python, arguments.rounds)
    if "overhead" in parts:
        overhead(python, arguments.seconds, arguments.pairs)
    if "accuracy" in parts:
        accuracy(python, arguments.seeds, arguments.interruptions)


if __name__ == "__main__":
    main()
