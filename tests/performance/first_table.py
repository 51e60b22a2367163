"""The first table: seconds from a fresh clone in an empty home to the quickstart's table, by phase.

By README's two ways, uv and pip, which brings uv, one after the other. With new caches of packages where
`--cold` is given; else those of this machine are used, as a download takes what the network takes.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from common import PYTHON, ROOT, parser_of, verdict

GOAL_S = 60.0
PHASES = (
    ("start", "looking at credentials"),
    ("launch", "launching 1"),
    ("environment", "building the environment"),
    ("start of the program", "running quantization"),
    ("models", "building the models"),
    ("warm-up", r"about \d+ s left: \w+ batch 1$"),
    ("rounds", r"measuring \w+, round 1$"),
    ("table", "1 of 1: done"),
)
"""What a phase is called, and what the line shows that begins it."""


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--by", choices=("pip", "uv"), nargs="+", default=("pip", "uv"))
    parser.add_argument("--cold", action="store_true")
    arguments = parser.parse_args()
    for tool in arguments.by:
        if tool == "uv" and shutil.which("uv") is None:
            print("uv: there is none")
            continue
        with tempfile.TemporaryDirectory(prefix="first-table-") as folder:
            report(tool, Path(folder), cold=arguments.cold)


def report(tool: str, folder: Path, *, cold: bool) -> None:
    """Measure one way and print its phases."""
    home = folder / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DLCLOUD")}
    environment |= {"HOME": str(home), "COLUMNS": "100"}
    if not cold:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        environment |= {"PIP_CACHE_DIR": str(cache / "pip"), "UV_CACHE_DIR": str(cache / "uv")}
    began = time.monotonic()
    phases = install(tool, folder, environment)
    phases |= run_quickstart(folder / "clone", environment)
    total = time.monotonic() - began
    print(f"{tool}{', new caches' if cold else ''}, load {os.getloadavg()[0]:.1f} at the end")
    for phase, seconds in phases.items():
        print(f"  {phase:22}{seconds:7.1f} s")
    print(f"  {'in all':22}{total:7.1f} s   goal {GOAL_S:.0f} s: {verdict(total <= GOAL_S)}")


def install(tool: str, folder: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Clone and install; return the seconds of each."""
    clone = folder / "clone"
    python, uv = str(clone / ".venv/bin/python"), "uv"
    commands = {"clone": ["git", "clone", "-q", str(ROOT), str(clone)]}
    if tool == "uv":
        commands["venv"] = ["uv", "venv", "-q", "--python", PYTHON, str(clone / ".venv")]
    else:
        uv = str(clone / ".venv/bin/uv")
        commands["venv"] = [PYTHON, "-m", "venv", str(clone / ".venv")]
        commands["uv"] = [python, "-m", "pip", "install", "-q", "uv"]
    commands["install"] = [uv, "pip", "install", "-q", "--python", python, f"{clone}[local]"]
    phases = {}
    for phase, command in commands.items():
        began = time.monotonic()
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        phases[phase] = time.monotonic() - began
    return phases


def run_quickstart(clone: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Run the quickstart and show its table; return the seconds of each phase."""
    process = subprocess.Popen(
        [str(clone / ".venv/bin/dlcloud"), "up", "quickstart"],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    began = time.monotonic()
    begins = {"imports": 0.0}
    for line in process.stdout:
        waiting = [phase for phase in PHASES if phase[0] not in begins]
        for phase, pattern in waiting:
            if re.search(pattern, line.rstrip()):
                begins[phase] = time.monotonic() - began
        if "what an hour costs" in line:
            break
        if re.match(r"setting|\w+ (~ )? +[\d.]+ |~ ", line):
            print(f"    {line.rstrip()}")
    ended = time.monotonic() - began
    process.communicate()
    times = pairwise([*begins.values(), ended])
    return {phase: end - start for phase, (start, end) in zip(begins, times, strict=True)}


if __name__ == "__main__":
    main()
