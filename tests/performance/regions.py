"""Preflight over ten Regions against one Region: wall time in alternating pairs, and calls for each Region.

Each API call takes 100 ms longer. A preflight is what `dlcloud plan` states of itself; the start of Python is
not in it. The local EC2 is one process that answers all Regions: what it computes for ten is in the ratio.
Round trips are the calls in series: how often the time of a call fits into a preflight if each takes 4 s.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import compare, heading

from dlcloud.local.site import LocalSite
from dlcloud.store.home import Paths

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.fakes.control import HarnessControl, control_of

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
REGIONS = (
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1"),
    *("eu-west-1", "eu-west-2", "eu-central-1", "ap-northeast-1", "ap-southeast-2"),
)
RECIPE = """
name: regions
cloud: local
region: [{regions}]
instances: {{types: [c5.large, m5.large, c5.xlarge], market: spot-then-on-demand}}
workload: {{command: 'true', repeats: 1}}
"""
LATENCIES_S = (0.1, 1.0)
SLOW_S = 4.0
GOAL, MOST_CALLS = 1.5, 12
PAIRS = 7


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        control = control_of(site.start())
        try:
            for count in (1, len(REGIONS)):
                path = Path(home, f"{count}.yaml")
                path.write_text(RECIPE.format(regions=", ".join(REGIONS[:count])))
                report_calls(home, control, count)
            heading()
            for latency_s in LATENCIES_S:
                control.set_latency(latency_s)
                name = f"ten Regions over one, {latency_s * 1000:.0f} ms a call"
                compare(
                    name,
                    lambda: preflight_s(home, len(REGIONS)),
                    lambda: preflight_s(home, 1),
                    goal=GOAL,
                    pairs=PAIRS,
                )
        finally:
            site.stop()


def report_calls(home: str, control: HarnessControl, count: int) -> None:
    """Print the calls and round trips of the first plan and of the next one."""
    control.set_latency(SLOW_S)
    for which in ("first", "next"):
        control.reset_calls()
        round_trips = preflight_s(home, count) // SLOW_S
        calls = control.calls()
        each = sum(calls.values()) / count
        verdict = "met" if each <= MOST_CALLS else "MISSED"
        listed = ", ".join(f"{name} {number}" for name, number in sorted(calls.items()))
        title = f"{count:3} Region(s), {which} plan"
        print(
            f"{title}: {each:.1f} calls each, goal {MOST_CALLS} {verdict}; "
            f"{round_trips:.0f} round trips ({listed})",
            flush=True,
        )
    control.set_latency(0)


def preflight_s(home: str, count: int) -> float:
    """Plan, and return the seconds that the preflight took."""
    command = [DLCLOUD, "plan", str(Path(home, f"{count}.yaml"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    match = re.search(r"done in ([0-9.]+) s", done.stderr)
    if match is None:
        sys.exit(done.stderr)
    return float(match[1])


if __name__ == "__main__":
    main()
