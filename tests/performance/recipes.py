"""Each bundled recipe by `dlcloud up NAME --cloud local`: wall seconds, and CPU seconds of all its processes.

Twice, in a home of its own: the first run builds the environment, the second has it. CPU seconds over two
cores are the least that a run takes there; they hold on a busy machine, too. They are read from /proc twice a
second (Linux), so that processes of less than that are missed. Names choose recipes. Packages come from this
machine's index; caches of pip and uv are this machine's.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from dlcloud.resources.texts import recipe_names

DLCLOUD = Path(sys.executable).with_name("dlcloud")
GOAL_S = 180.0
POLL_S = 0.5
TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=recipe_names(), metavar="NAME")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="runs of each recipe (default: 2)")
    arguments = parser.parse_args()
    print(
        f"{'recipe':24} {'run':>3} {'wall':>7} {'CPU':>7} {'CPU / 2':>8}   goal {GOAL_S:.0f} s on two cores"
    )
    for name in arguments.names:
        with tempfile.TemporaryDirectory(prefix="recipes-", ignore_cleanup_errors=True) as home:
            for number in range(1, arguments.runs + 1):
                report(name, number, Path(home))


def report(name: str, number: int, home: Path) -> None:
    """Run a recipe and print what it took, or how it failed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    caches = {"PIP_CACHE_DIR": str(cache / "pip"), "UV_CACHE_DIR": str(cache / "uv")}
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    environment = {**os.environ, **caches, **environment}
    began = time.monotonic()
    with CpuSeconds(home) as cpu:
        done = subprocess.run(
            [DLCLOUD, "up", name, "--cloud", "local"],
            env=environment, cwd=home, capture_output=True, text=True, check=False,
        )  # fmt: skip
    wall_s, cpu_s = time.monotonic() - began, cpu.total_s
    subprocess.run([DLCLOUD, "local", "stop"], env=environment, capture_output=True, check=False)
    verdict = "met" if wall_s <= GOAL_S else "MISSED" if cpu_s / 2 > GOAL_S else "missed by a busy machine"
    status = verdict if done.returncode == 0 else f"FAILED with {done.returncode}"
    print(f"{name:24} {number:3d} {wall_s:7.1f} {cpu_s:7.1f} {cpu_s / 2:8.1f}   {status}", flush=True)
    if done.returncode:
        print("\n".join(done.stderr.splitlines()[-12:]), flush=True)


class CpuSeconds:
    """Sums the CPU seconds of all processes that have a home in their environment, while its block runs."""

    def __init__(self, home: Path) -> None:
        self._mark = str(home).encode()
        self._used: dict[tuple[str, str], float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    @property
    def total_s(self) -> float:
        """The CPU seconds of the processes, each as it was last read."""
        return sum(self._used.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stop.wait(POLL_S):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    self._read(process)

    def _read(self, process: Path) -> None:
        # After the name, which may hold blanks: utime 11, stime 12, the start 19. Source: proc(5).
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        key = (process.name, fields[19])
        if key in self._used or self._mark in (process / "environ").read_bytes():
            self._used[key] = (int(fields[11]) + int(fields[12])) * TICKS_S


if __name__ == "__main__":
    main()
