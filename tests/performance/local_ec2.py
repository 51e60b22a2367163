"""What the local EC2 costs: start, boots of 1, 16, 64 and 256 instances, memory, idle share of a core.

    PYTHONPATH=. python tests/performance/local_ec2.py [--isolation namespaces|user|none] [SIZE ...]

Each size has a daemon of its own. A boot lasts from the request until every instance is `running` and an SSH
login to each has succeeded. Memory is the proportional share of all processes, the daemon's before the launch
apart. Idle CPU is that of the daemon and the instances' processes over 20 s, while nothing is asked of them.
Goal: less than 0.5 % of a core, at every size.
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlcloud.local.site import LocalSite
from tests.fakes.local_ec2 import Rig, wait_for

SIZES = (1, 16, 64, 256)
WIDTH = 16
IDLE_S = 20.0
GOAL = 0.005
MOST_S = 900.0


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", default="namespaces", help="highest level of isolation")
    parser.add_argument("sizes", nargs="*", type=int, metavar="SIZE")
    arguments = parser.parse_args()
    os.environ["DLCLOUD_LOCAL_ISOLATION"] = arguments.isolation
    print("instances  isolation   start  daemon CPU   boot  MiB daemon  MiB per instance  idle CPU  goal")
    for size in arguments.sizes or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(LocalSite(Path(folder) / "site"), size), flush=True)


def measure(site: LocalSite, size: int) -> str:
    """Start a daemon, boot instances, leave them alone, and return the figures as a line."""
    begun = time.perf_counter()
    rig = Rig(site, site.start())
    start_s = time.perf_counter() - begun
    try:
        pid = rig.endpoint.pid
        start_cpu_s, daemon_mib = cpu_s([pid]), memory_mib([pid])
        boot_s = boot(rig, size)
        time.sleep(5.0)  # the last stages of the boots
        pids = [pid, *children(pid)]
        instance_mib = (memory_mib(pids) - daemon_mib) / size
        before = cpu_s(pids)
        time.sleep(IDLE_S)
        share = (cpu_s(pids) - before) / IDLE_S
        level = rig.control.status()["isolation"]["level"]
    finally:
        site.stop()
    verdict = "met" if share < GOAL else "MISSED"
    return (
        f"{size:9d}  {level:10s}  {start_s:4.1f} s  {start_cpu_s:8.1f} s  {boot_s:3.1f} s  {daemon_mib:10.0f}"
        f"  {instance_mib:16.2f}  {share:8.2%}  {verdict}"
    )


def boot(rig: Rig, size: int) -> float:
    """Launch instances and return the seconds until a command has run on each."""
    begun = time.perf_counter()
    instance_ids = set(rig.run(count=size))

    def running() -> list:
        pages = rig.ec2.get_paginator("describe_instances").paginate()
        instances = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
        return instances if all(i["State"]["Name"] == "running" for i in instances) else []

    instances = wait_for(running, f"{len(instance_ids)} instances run", MOST_S)
    with ThreadPoolExecutor(WIDTH) as pool:
        statuses = list(pool.map(lambda instance: rig.on(instance, "true")[0], instances))
    assert statuses == [0] * size, statuses
    return time.perf_counter() - begun


def children(pid: int) -> list[int]:
    """Return the ids of all processes that a process has started, and of theirs."""
    offspring, parents = [], {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    todo = [pid]
    while todo:
        parent = todo.pop()
        own = [child for child, its_parent in parents.items() if its_parent == parent]
        offspring += own
        todo += own
    return offspring


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of processes and of their ended children."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib(pids: list[int]) -> float:
    """Return the proportional set size of processes."""
    kib = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024


if __name__ == "__main__":
    main()
