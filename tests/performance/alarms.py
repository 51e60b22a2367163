"""How often workers that live are left behind on a busy machine, by the limits of heartbeats and of lateness.

    python3 tests/performance/alarms.py                              # ten minutes of each, in slices of one
    python3 tests/performance/alarms.py --minutes 60 --busy 4        # an hour of each

Four workers train beside programs that compute, and nothing is done to them: each that is left behind once
they are together is a false alarm. The limits take turns, for the load of the machine changes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from elastic import ELASTIC  # noqa: E402

from tests.environments import python_with  # noqa: E402
from tests.fakes.training import Cluster, wait_until  # noqa: E402

WORKERS = "abcd"
LIMITS = [(300, 200), (5000, 5000)]
"""Of heartbeats and of lateness, in milliseconds: those of before, and those of today."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="of each limit (default: %(default)s)")
    parser.add_argument("--slice", type=float, default=1, help="minutes of a slice (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=4, help="programs that compute (default: %(default)s)")
    arguments = parser.parse_args()
    python = python_with(ROOT / "dlcloud" / "trainer" / "requirements" / "elastic.txt")
    totals = {limits: Counter() for limits in LIMITS}
    for number in range(round(arguments.minutes / arguments.slice)):
        for limits in LIMITS if number % 2 else LIMITS[::-1]:
            totals[limits] += watch(python, limits, 60 * arguments.slice, arguments.busy)
        show(totals)


def watch(python, limits, seconds, busy):
    """Train for a while; return the seconds, steps, and alarms."""
    heartbeat_ms, join_ms = limits
    arguments = ["--heartbeat-ms", str(heartbeat_ms), "--join-ms", str(join_ms)]
    with tempfile.TemporaryDirectory() as name, Busy(busy):
        folder = Path(name)
        (folder / "trainer").symlink_to(ROOT / "dlcloud" / "trainer")
        with Cluster(python, folder, [*ELASTIC, "--delay-ms", "30"], lighthouse=arguments) as cluster:
            for worker in WORKERS:
                # As often as the limit of before was meant for.
                cluster.start(
                    worker,
                    hash_every=0,
                    timing={"beat_s": heartbeat_ms / 6000 if heartbeat_ms < 1000 else 0.5},
                )
            wait_until(lambda: together(cluster), "all workers", 600)
            first = max(cluster.steps(worker)[-1]["step"] for worker in WORKERS) + 2
            time.sleep(seconds)
            return count(cluster, first) + Counter(seconds=round(seconds))


def together(cluster):
    return all((s := cluster.steps(worker)) and s[-1]["world_size"] == len(WORKERS) for worker in WORKERS)


def count(cluster, first):
    """Count steps, those with fewer workers, and workers that others left behind."""
    steps = {r["step"]: r for worker in WORKERS for r in cluster.steps(worker) if r["step"] >= first}
    left = [
        event for worker in WORKERS for event in cluster.events(worker, "healed") if event["step"] >= first
    ]
    small = sum(record["world_size"] < len(WORKERS) for record in steps.values())
    return Counter({"steps": len(steps), "small": small, "left behind": len(left)})


class Busy:
    """Programs that compute, beside everything else."""

    def __init__(self, count):
        self.count, self.programs = count, []

    def __enter__(self):
        command = [sys.executable, "-c", "while True: sum(range(10000))"]
        self.programs = [subprocess.Popen(command) for _ in range(self.count)]

    def __exit__(self, *_):
        for program in self.programs:
            program.kill()
            program.wait()


def show(totals):
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for (heartbeat_ms, join_ms), total in totals.items():
        hours = len(WORKERS) * total["seconds"] / 3600
        rate = total["left behind"] / hours if hours else 0.0
        print(
            f"heartbeat {heartbeat_ms} ms, lateness {join_ms} ms: {total['seconds']} s, "
            f"{total['steps']} steps, {total['small']} with fewer workers, "
            f"{total['left behind']} workers left behind: {rate:.1f} in an hour of a worker",
            flush=True,
        )


if __name__ == "__main__":
    main()
