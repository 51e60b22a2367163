"""Output in quantity: 60 MB in 4.3 million lines, followed by dlcloud and by OpenSSH's client into a file.

Both follow the same command on the same instance of the local EC2, in turn: whole commands, then without what
each needs for `true`, which is the speed of following. The last line is the command of a recipe, measured by
`dlcloud up`: one run of it, beside `ssh`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pairs import compare, heading

from dlcloud.local.site import LocalSite
from dlcloud.store.home import Paths

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
LINES = 4_300_000
FLOOD = f"seq 1000000000000 {1000000000000 + LINES}"
RECIPE = """
name: {name}
cloud: local
instances: {{types: [c5.large]}}
workload: {{command: "{command}", repeats: {repeats}}}
"""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        try:
            measure(Path(home))
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=False, capture_output=True)
            site.stop()


def measure(home: Path) -> None:
    """Print the ratio of each way to follow output to `ssh host command > file`."""
    up(home, "flood", "true", 1)
    target = home / "output"
    host = json.loads(capture(["ssh", "flood", "-o", "json"]))["result"]["command"]

    def by_ssh() -> float:
        return follow([*host, FLOOD], target)

    heading()
    by_exec = [DLCLOUD, "exec", "flood", "--"]
    compare("dlcloud exec", lambda: follow([*by_exec, FLOOD], target), by_ssh, goal=2.0, pairs=7)
    compare(
        "  without its start",
        lambda: following(by_exec, target),
        lambda: following(host, target),
        goal=2.0,
        pairs=7,
    )
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"memory of any process of dlcloud: {peak_kib / 1024:.0f} MiB at most")
    compare("a run of dlcloud up", lambda: measured_run(home), by_ssh, goal=2.0, pairs=1)


def measured_run(home: Path) -> float:
    """Return the seconds of one run of the command, as `up` reports them."""
    up(home, "measured", FLOOD, 2)
    records = json.loads(capture(["cost-report", "-o", "json"]))["result"]["records"]
    return float(next(record["duration"] for record in records if record["workload"] == "measured"))


def up(home: Path, name: str, command: str, repeats: int) -> None:
    """Run a command on one instance, which is kept."""
    recipe = home / f"{name}.yaml"
    recipe.write_text(RECIPE.format(name=name, command=command, repeats=repeats))
    subprocess.run([DLCLOUD, "up", str(recipe), "--keep", "--name", name], check=True, capture_output=True)


def follow(command: Sequence[str], target: Path) -> float:
    """Write the output of a command to a file; return the seconds it took."""
    started = time.perf_counter()
    with target.open("wb") as output:
        subprocess.run(command, check=True, stdout=output)
    return time.perf_counter() - started


def following(prefix: Sequence[str], target: Path) -> float:
    """Return the seconds that following the output took, without those of the command's start."""
    return follow([*prefix, FLOOD], target) - follow([*prefix, "true"], target)


def capture(arguments: Sequence[str]) -> str:
    """Return what a dlcloud command prints."""
    return subprocess.run([DLCLOUD, *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
