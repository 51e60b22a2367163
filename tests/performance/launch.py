"""What a launch costs: API calls and round trips of `up` until the first SSH command.

On a warm account (the price table is bundled on the local EC2). Round trips are found by making each API call
take three seconds longer: what `up` then takes longer is the number of calls in series.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dlcloud.local.site import LocalSite
from dlcloud.store.home import Paths

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.fakes.control import HarnessControl, control_of

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
SIZES = (1, 4, 16, 64)
RECIPE = """
name: size{count}
cloud: local
instances: {{types: [c5.large], count: {count}}}
workload: {{command: sleep 2, repeats: 1}}
"""
REACHED = "proving their host keys"
SLOW_S = 3.0
MOST_CALLS, MOST_ROUND_TRIPS = 8, 4
"""Of a launch that EC2 allowed within the last hour; another makes two dry runs in the same round trips."""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        control = control_of(site.start())
        try:
            print(f"API calls of up until the first SSH command, goal: {MOST_CALLS} in {MOST_ROUND_TRIPS}")
            for count in SIZES:
                report(home, control, count)
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=False, capture_output=True)
            site.stop()


def report(home: str, control: HarnessControl, count: int) -> None:
    """Print the calls and round trips of one size."""
    took = {}
    for latency_s in (0.0, SLOW_S, 0.15):
        control.set_latency(latency_s)
        took[latency_s], calls = reach(home, control, count)
    control.set_latency(0)
    round_trips = (took[SLOW_S] - took[0.0]) / SLOW_S
    met = sum(calls.values()) <= MOST_CALLS and round(round_trips) <= MOST_ROUND_TRIPS
    listed = ", ".join(f"{name} {number}" for name, number in sorted(calls.items()))
    print(
        f"{count:4} instances: {sum(calls.values())} calls in {round_trips:.1f} round trips,"
        f" {'met' if met else 'MISSED'}; {took[0.15]:.2f} s at 150 ms a call, {took[0.0]:.2f} s at none"
        f" ({listed})"
    )
    sys.stdout.flush()


def reach(home: str, control: HarnessControl, count: int) -> tuple[float, dict[str, int]]:
    """Run `up` and return the seconds from its first call to its first SSH command, and the calls made."""
    recipe = Path(home, f"size{count}.yaml")
    recipe.write_text(RECIPE.format(count=count))
    control.reset_calls()
    process = subprocess.Popen(
        [DLCLOUD, "up", str(recipe)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    started = ended = 0.0
    for line in process.stderr:
        if not started:
            started = time.perf_counter()
        if REACHED in line and "done in" in line:
            ended = time.perf_counter()
            calls = dict(control.calls())
            break
    process.send_signal(signal.SIGINT)  # the calls are counted: it cleans up
    process.stderr.read()
    process.wait()
    if not ended:
        sys.exit(f"up failed with {process.returncode}")
    return ended - started, calls


if __name__ == "__main__":
    main()
