"""How often workers that live are left behind on a busy machine, by the limits of heartbeats and of lateness.

    python tests/performance/alarms.py                              # ten minutes of each, in slices of one
    python tests/performance/alarms.py --minutes 60 --busy 4        # an hour of each

Four workers train next to programs that compute, and nothing is done to them: each that is left behind once
they are together is a false alarm. The limits take turns, for the load of the machine changes.
"""

import contextlib
import os
import subprocess
import time
from collections import Counter

from common import PYTHON, parser_of, trainer_folder

from tests.fakes.training import Cluster, wait_until

WORKERS = "abcd"
LIMITS = [(300, 200), (5000, 5000)]
"""Of heartbeats and of lateness, in milliseconds: those of before, and those of today."""
DIGITS = ["-m", "trainer.examples.digits", "--epochs", "1000", "--delay-ms", "30"]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of each limit (default: %(default)s)")
    parser.add_argument("--slice", type=float, default=1, help="minutes of a slice (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=4, help="programs that compute (default: %(default)s)")
    arguments = parser.parse_args()
    totals = {limits: Counter() for limits in LIMITS}
    for number in range(round(arguments.minutes / arguments.slice)):
        for limits in LIMITS if number % 2 else LIMITS[::-1]:
            with busy(arguments.busy):
                totals[limits] += watch(*limits, 60 * arguments.slice)
        show(totals)


def watch(heartbeat_ms: int, join_ms: int, seconds: float) -> Counter[str]:
    """Train for a while; return the seconds, steps, and alarms."""
    limits = ["--heartbeat-ms", str(heartbeat_ms), "--join-ms", str(join_ms)]
    # As often as the limit of before was meant for.
    timing = {"beat_s": heartbeat_ms / 6000 if heartbeat_ms < 1000 else 0.5}
    with (
        trainer_folder() as (python, folder),
        Cluster(python, folder, DIGITS, lighthouse=limits) as cluster,
    ):
        for worker in WORKERS:
            cluster.start(worker, hash_every=0, timing=timing)
        wait_until(lambda: together(cluster), "all workers", 600)
        first = max(cluster.steps(worker)[-1]["step"] for worker in WORKERS) + 2
        time.sleep(seconds)
        return count(cluster, first) + Counter(seconds=round(seconds))


def together(cluster: Cluster) -> bool:
    return all((s := cluster.steps(worker)) and s[-1]["world_size"] == len(WORKERS) for worker in WORKERS)


def count(cluster: Cluster, first: int) -> Counter[str]:
    """Count steps, those with fewer workers, and workers that others left behind."""
    steps = {r["step"]: r for worker in WORKERS for r in cluster.steps(worker) if r["step"] >= first}
    left = sum(event["step"] >= first for worker in WORKERS for event in cluster.events(worker, "healed"))
    small = sum(record["world_size"] < len(WORKERS) for record in steps.values())
    return Counter({"steps": len(steps), "small": small, "left behind": left})


@contextlib.contextmanager
def busy(count: int):
    """Let so many programs compute."""
    command = [PYTHON, "-c", "while True: sum(range(10000))"]
    programs = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def show(totals: dict[tuple[int, int], Counter[str]]) -> None:
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
