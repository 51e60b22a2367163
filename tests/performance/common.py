"""What the programs of this folder share: verdicts, intervals, pairs, processes, and a home with a local EC2.

Importing it lets a program import dlcloud and tests, wherever it was started.
"""

import argparse
import csv
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PYTHON, DLCLOUD = sys.executable, str(Path(sys.executable).with_name("dlcloud"))
RESAMPLES = 2000


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a program's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def verdict(is_met: object) -> str:
    """Return in a word whether a goal is met."""
    return "met" if is_met else "MISSED"


def interval(
    values: Sequence[float], middle: Callable[[Sequence[float]], float] = statistics.median
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median, or of another middle."""
    chance = random.Random(1)
    return bounds(middle(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))


def bounds(resampled: Iterator[float]) -> tuple[float, float]:
    """Return where 95 % of `RESAMPLES` resampled values lie."""
    ordered = sorted(resampled)
    return ordered[int(RESAMPLES * 0.025)], ordered[int(RESAMPLES * 0.975)]


def span(values: Sequence[float]) -> str:
    """Return median and whole range of seconds that are too few for more."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f}, n={len(values)})"


def in_turn(ours: Callable[[], Any], others: Callable[[], Any], pairs: int) -> list[tuple[Any, Any]]:
    """Call both in alternating order, so that a drift of the machine affects them alike; return the pairs."""
    results = []
    for number in range(pairs):
        if number % 2:
            first = ours()
            results.append((first, others()))
        else:
            second = others()
            results.append((ours(), second))
    return results


def compare(
    name: str, ours: Callable[[], float], floor: Callable[[], float], *, goal: float, pairs: int
) -> None:
    """Time both in turn, after one that does not count, and print the median ratio next to its goal."""
    ours()
    floor()
    timed = in_turn(ours, floor, pairs)
    ratios = [mine / theirs for mine, theirs in timed]
    ratio, (low, high) = statistics.median(ratios), interval(ratios)
    mine, theirs = (statistics.median(times) for times in zip(*timed, strict=True))
    print(
        f"{name:<44} {mine * 1e3:8.1f} ms over {theirs * 1e3:8.1f} ms"
        f"  {ratio:5.2f} ({low:.2f} to {high:.2f})  goal {goal}  {verdict(ratio <= goal)}",
        flush=True,
    )


def seconds(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    """Run a command to its end and return how long it took."""
    started = time.perf_counter()
    subprocess.run(command, env=os.environ | (environment or {}), check=True, capture_output=True)
    return time.perf_counter() - started


@contextmanager
def local_home() -> Iterator[tuple[Path, Any]]:
    """Give a home with a running local EC2, and its control; commands of this process use them."""
    from dlcloud.local.site import LocalSite  # noqa: PLC0415  the Python of an engine lacks its packages
    from dlcloud.store.home import Paths  # noqa: PLC0415
    from tests.fakes.control import control_of  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        site = LocalSite(Paths(Path(home)).local_site)
        control = control_of(site.start())
        try:
            yield Path(home), control
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=False, capture_output=True)
            site.stop()


@contextmanager
def trainer_folder() -> Iterator[tuple[Path, Path]]:
    """Give the Python of elastic training, and a folder with the package `trainer` alone."""
    from tests.environments import python_with  # noqa: PLC0415

    package = ROOT / "dlcloud" / "trainer"
    python = python_with(package / "requirements" / "elastic.txt")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "trainer").symlink_to(package)
        yield python, Path(folder)


def family(pid: int) -> list[Any]:
    """Return a process and all that it has started, those in other sessions, too; none if it is gone."""
    import psutil  # noqa: PLC0415

    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def kill_family(pid: int) -> None:
    """Kill a process and all that it has started."""
    for process in family(pid):
        with suppress(ProcessLookupError):
            os.kill(process.pid, 9)


def cpu_s(processes: Sequence[Any]) -> float:
    """Return the CPU seconds of processes that run, and of their ended children."""
    return sum(sum(one.cpu_times()[:4]) for one in processes if one.is_running())


def memory_mib(processes: Sequence[Any]) -> float:
    """Return the proportional set size of processes that run, in MiB."""
    return sum(one.memory_full_info().pss for one in processes if one.is_running()) / (1 << 20)


def hook_variables(folder: Path, checkpoints: Path) -> dict[str, str]:
    """Lay the import hook of `resume: auto` into a folder; return the variables by which programs find it."""
    from dlcloud.benchmarks.command import reporting  # noqa: PLC0415
    from dlcloud.benchmarks.resume import install  # noqa: PLC0415

    install(folder)
    shutil.copy(reporting.__file__, folder / reporting.MODULE)
    variables = {"PYTHONPATH": folder, "DLCLOUD_CHECKPOINTS": checkpoints, "DLCLOUD_RESUME": "auto"}
    return {name: str(value) for name, value in variables.items()}


def usd_by_type() -> dict[str, float]:
    """Return the on-demand prices of us-east-1, in USD an hour."""
    with (ROOT / "dlcloud" / "cloud" / "offers" / "on_demand.csv").open() as file:
        return {row["instance_type"]: float(row["usd_hr_us_east_1"]) for row in csv.DictReader(file)}


def part_of(family_name: str, parts: int) -> int:
    """Return which of so many parts a family of types belongs to, by the SHA-256 of its name."""
    return int(hashlib.sha256(family_name.encode()).hexdigest(), 16) % parts


def python_of(benchmark: str) -> str:
    """Return the Python with a bundled benchmark's pinned packages, built where it is missing."""
    from tests.environments import python_with  # noqa: PLC0415

    return str(python_with(ROOT / f"dlcloud/benchmarks/requirements/{benchmark}.txt"))


def records_of(python: str, benchmark: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """Run a bundled benchmark as on an instance, and return its records."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        command = [python, "-m", f"benchmarks.{benchmark}", "--output", path, *words]
        done = subprocess.run(command, cwd=ROOT / "dlcloud", check=False, stdout=sys.stderr)
        if done.returncode:
            print(f"{benchmark}: status {done.returncode}; what it could not measure is missing below")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
