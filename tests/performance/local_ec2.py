"""What the local EC2 costs: start, boots of 1, 16, 64 and 256 instances, memory, idle share of a core.

    python tests/performance/local_ec2.py [--isolation namespaces|user|none] [SIZE ...]

Each size has a daemon of its own. A boot lasts from the request until every instance is `running` and an SSH
login to each has succeeded. Memory is the proportional share of all processes, the daemon's before the launch
apart. Idle CPU is that of the daemon and the instances' processes over 20 s, while nothing is asked of them.
Goal: less than 0.5 % of a core, at every size.
"""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import cpu_s, family, memory_mib, parser_of, verdict

from dlcloud.local.site import LocalSite
from tests.fakes.local_ec2 import Rig, wait_for

IDLE_S, GOAL = 20.0, 0.005


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--isolation", default="namespaces", help="highest level of isolation")
    parser.add_argument("sizes", nargs="*", type=int, metavar="SIZE", default=[1, 16, 64, 256])
    arguments = parser.parse_args()
    os.environ["DLCLOUD_LOCAL_ISOLATION"] = arguments.isolation
    print("instances  isolation   start  daemon CPU   boot  MiB daemon  MiB per instance  idle CPU  goal")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(LocalSite(Path(folder) / "site"), size), flush=True)


def measure(site: LocalSite, size: int) -> str:
    """Start a daemon, boot instances, leave them alone, and return the figures as a line."""
    begun = time.perf_counter()
    rig = Rig(site, site.start())
    start_s = time.perf_counter() - begun
    try:
        daemon = family(rig.endpoint.pid)[:1]
        start_cpu_s, daemon_mib = cpu_s(daemon), memory_mib(daemon)
        boot_s = boot(rig, size)
        time.sleep(5.0)  # the last stages of the boots
        processes = family(rig.endpoint.pid)
        instance_mib = (memory_mib(processes) - daemon_mib) / size
        before = cpu_s(processes)
        time.sleep(IDLE_S)
        share = (cpu_s(processes) - before) / IDLE_S
        level = rig.control.status()["isolation"]["level"]
    finally:
        site.stop()
    return (
        f"{size:9d}  {level:10s}  {start_s:4.1f} s  {start_cpu_s:8.1f} s  {boot_s:3.1f} s  {daemon_mib:10.0f}"
        f"  {instance_mib:16.2f}  {share:8.2%}  {verdict(share < GOAL)}"
    )


def boot(rig: Rig, size: int) -> float:
    """Launch instances and return the seconds until a command has run on each."""
    begun = time.perf_counter()
    rig.run(count=size)

    def running() -> list:
        pages = rig.ec2.get_paginator("describe_instances").paginate()
        instances = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
        return instances if all(i["State"]["Name"] == "running" for i in instances) else []

    instances = wait_for(running, f"{size} instances run")
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda instance: rig.on(instance, "true")[0], instances))
    assert statuses == [0] * size, statuses
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
