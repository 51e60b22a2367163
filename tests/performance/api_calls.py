"""What commands ask of EC2: API calls and round trips of `up` and of `plan`, and the time of ten Regions.

`up` counts until its first SSH command, on a warm account (the price table is bundled on the local EC2); a
launch that EC2 did not allow within the hour makes two dry runs more, in the same round trips. `plan` is over
one Region and over ten, the first time and again. Then the preflight of ten is compared with that of one, as
`plan` states it, with calls that take 100 ms or a second longer. The local EC2 is one process that answers
all Regions: what it computes for ten is in that ratio. Round trips are calls in series: how often the time of
a call fits into what is measured if each takes some seconds longer.
"""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import DLCLOUD, compare, local_home, parser_of, verdict

REGIONS = (
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1"),
    *("eu-west-1", "eu-west-2", "eu-central-1", "ap-northeast-1", "ap-southeast-2"),
)
PLANNED = """
name: regions
cloud: local
region: [{regions}]
instances: {{types: [c5.large, m5.large, c5.xlarge], market: spot-then-on-demand}}
workload: {{command: 'true', repeats: 1}}
"""
LAUNCHED = """
name: size{count}
cloud: local
instances: {{types: [c5.large], count: {count}}}
workload: {{command: sleep 2, repeats: 1}}
"""
SIZES = (1, 4, 16, 64)
REACHED = "proving their host keys"
SLOW_S = 4.0
MOST_LAUNCHING, MOST_ROUND_TRIPS, MOST_IN_REGION = 8, 4, 12


def main() -> None:
    parser_of(__doc__).parse_args()
    with local_home() as (home, control):
        for count in SIZES:
            report_launch(home, control, count)
        for count in (1, len(REGIONS)):
            (home / f"{count}.yaml").write_text(PLANNED.format(regions=", ".join(REGIONS[:count])))
            report_plan(home, control, count)
        for latency_s in (0.1, 1.0):
            control.set_latency(latency_s)
            name = f"ten Regions over one, {latency_s * 1000:.0f} ms a call"
            compare(
                name, lambda: preflight_s(home, len(REGIONS)), lambda: preflight_s(home, 1), goal=1.5, pairs=7
            )


def listed(calls: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(calls.items()))


def report_launch(home: Path, control: Any, count: int) -> None:
    took = {}
    for latency_s in (0.0, SLOW_S, 0.15):
        control.set_latency(latency_s)
        took[latency_s], calls = reach(home, control, count)
    control.set_latency(0)
    round_trips, number = (took[SLOW_S] - took[0.0]) / SLOW_S, sum(calls.values())
    is_met = number <= MOST_LAUNCHING and round(round_trips) <= MOST_ROUND_TRIPS
    print(
        f"up of {count} instances: {number} calls in {round_trips:.1f} round trips, goal {MOST_LAUNCHING} in"
        f" {MOST_ROUND_TRIPS} {verdict(is_met)}; {took[0.15]:.2f} s at 150 ms a call, {took[0.0]:.2f} s at"
        f" none ({listed(calls)})",
        flush=True,
    )


def reach(home: Path, control: Any, count: int) -> tuple[float, dict[str, int]]:
    """Run `up` and return the seconds from its first call to its first SSH command, and the calls made."""
    recipe = home / f"size{count}.yaml"
    recipe.write_text(LAUNCHED.format(count=count))
    control.reset_calls()
    process = subprocess.Popen(
        [DLCLOUD, "up", str(recipe)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    started = 0.0
    for line in process.stderr:
        started = started or time.perf_counter()
        if REACHED in line and "done in" in line:
            took_s, calls = time.perf_counter() - started, dict(control.calls())
            process.send_signal(signal.SIGINT)  # the calls are counted: it cleans up
            process.communicate()
            return took_s, calls
    sys.exit(f"up failed with {process.wait()}")


def report_plan(home: Path, control: Any, count: int) -> None:
    control.set_latency(SLOW_S)
    for which in ("first", "next"):
        control.reset_calls()
        round_trips = preflight_s(home, count) // SLOW_S
        calls = control.calls()
        mean = sum(calls.values()) / count
        print(
            f"{which} plan over {count} Region(s): {mean:.1f} calls each, goal {MOST_IN_REGION}"
            f" {verdict(mean <= MOST_IN_REGION)}; {round_trips:.0f} round trips ({listed(calls)})",
            flush=True,
        )
    control.set_latency(0)


def preflight_s(home: Path, count: int) -> float:
    """Plan, and return the seconds that the preflight took."""
    command = [DLCLOUD, "plan", str(home / f"{count}.yaml")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    match = re.search(r"done in ([0-9.]+) s", done.stderr)
    return float(match[1]) if match else sys.exit(done.stderr)


if __name__ == "__main__":
    main()
