"""`elastic` next to the policies that language models wrote, in the simulator of FrontierCS/Frontier-CS.

    python tests/performance/frontier.py FRONTIER_CS_FOLDER [--tasks NAME...] [--windows N] [--files N]

The folder is a clone of that repository. The tasks of its evaluators are run with its traces, simulator and
bill: 12 in one zone and 8 over several. NAME is a part of a task's folder, such as `cant_be_late/low`. In
one zone N windows of each are run, evenly spaced as the evaluators space their 30; over several the first N
of each scenario. `--files N` runs all files on the first window of each, and only the best N on all
windows. Files that fail, or take longer than `--limit` seconds for a window, are left out and counted.
Those that are late in a window count in a ratio that is printed apart. The simulator takes over from a
policy that has less than a tick to spare, and then loses a tick if spot is lost; `elastic` keeps a tick.
Needs NumPy and tqdm.

Over several zones the policies get the paths of the traces that they will live through. Here they cannot
open them, except with `--ahead`. The simulator bills all of such a run at the prices of the zone where it
ends; the second ratio bills every tick at those of its own zone. A move from spot that is to be had to that
of another zone is free there; `elastic` is charged a restart.
"""

import argparse
import io
import json
import logging
import multiprocessing
import os
import runpy
import signal
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import fmean
from types import FrameType
from typing import Any

from common import RESAMPLES, bounds, parser_of

from dlcloud.elastic.deadline_scaler import PoolHistory
from dlcloud.model.instance import Market
from dlcloud.scheduling.policies.elastic import elastic
from dlcloud.scheduling.policies.situation import PoolState, Situation

SINGLE, SEVERAL = "cant_be_late", "cant_be_late_multi"
ELASTIC = Path("elastic")
BEGIN = datetime(2000, 1, 1, tzinfo=UTC)

Groups = dict[str, list[list[str]]]
"""By zone or scenario: the files of each window, one a zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What one window cost: as the simulator bills it, and with every tick at its own zone's prices."""

    usd: float
    zoned_usd: float
    is_late: bool


Bills = dict[str, list[Bill]]


def make_strategy(base: type, kinds: Any) -> type:
    """Return `elastic` as a strategy of the simulator; `kinds` is its enumeration of what may run."""

    class Elastic(base):  # type: ignore[misc]
        NAME = "dlcloud-elastic"

        def solve(self, _spec_path: str) -> "Elastic":
            return self

        def reset(self, env: Any, task: Any) -> None:
            super().reset(env, task)
            self.histories = [PoolHistory() for _ in getattr(env, "envs", [env])]

        def _step(self, last: Any, has_spot: bool) -> Any:  # noqa: FBT001  the simulator calls it
            env, runs_spot = self.env, last == kinds.SPOT and has_spot
            home = env.get_current_region() if len(self.histories) > 1 else 0
            pools = [self._look(zone, runs=runs_spot and zone == home) for zone in range(len(self.histories))]
            if len(self.histories) > 1:
                env.switch_region(home)
            usd, running = env.get_constant_cost_map()[kinds.ON_DEMAND], int(last == kinds.ON_DEMAND)
            fixed = PoolState(
                market=Market.ON_DEMAND, name="on-demand", hourly_usd=usd, obtainable=1, running=running
            )
            situation = Situation(
                work_s=self.task_duration,
                work_left_s=self.task_duration - sum(self.task_done_time),
                allowed_s=self.deadline,
                time_left_s=(self.deadline - env.elapsed_seconds) // env.gap_seconds * env.gap_seconds,
                pools=(*pools, fixed),
                changeover_s=self.restart_overhead,
                refusal_s=env.gap_seconds,
                changing_s=self.remaining_restart_overhead if runs_spot or running else 0.0,
            )
            targets = elastic(situation).targets
            for zone, pool in enumerate(pools):
                if targets.get(pool.key):
                    if zone != home:
                        env.switch_region(zone)
                    if runs_spot and zone != home:
                        self.remaining_restart_overhead = self.restart_overhead
                    return kinds.SPOT
            return kinds.ON_DEMAND if targets.get(fixed.key) else kinds.NONE

        def _look(self, zone: int, *, runs: bool) -> PoolState:
            env, history = self.env, self.histories[zone]
            if len(self.histories) > 1:
                env.switch_region(zone)
            now, obtainable = BEGIN + timedelta(seconds=env.elapsed_seconds), env.spot_available()
            (history.hold if obtainable else history.refuse)(now)
            return PoolState(
                market=Market.SPOT,
                name=str(zone),
                hourly_usd=env.get_constant_cost_map()[kinds.SPOT],
                obtainable=int(obtainable),
                running=int(runs),
                availability=history.availability(now),
            )

    return Elastic


class Simulator:
    """The simulator of one of the two problems. Modules of both share names: a process has one of them.

    Attributes:
        ends: What the windows of this run cost.
        tries: How often a policy opened a trace.
    """

    def __init__(self, common: Path, limit_s: float, *, ahead: bool) -> None:
        sys.modules["configargparse"] = argparse  # for annotations only
        sys.path.insert(0, str(common))
        self.worker, self.limit_s, self.ahead = import_module("sim_worker"), limit_s, ahead
        self.several = hasattr(self.worker, "MultiTraceEnv")
        base = self.worker.MultiRegionStrategy if self.several else self.worker.strategy_lib.Strategy
        kinds = import_module("sky_spot.utils").ClusterType
        self.worker._STRATEGY_CACHE[str(ELASTIC.absolute())] = make_strategy(base, kinds)
        self.simulate_one = self.worker.simulate._simulate_one
        self.worker.simulate._simulate_one = self._simulate_one
        trace = import_module("sky_spot.trace").Trace
        self.read_trace, trace.from_file = trace.from_file, self._read_trace
        self.ends: list[Bill] = []
        self.tries, self.guarded = 0, frozenset[str]()
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGALRM, stop)

    def _read_trace(self, path: str) -> Any:
        guarded, self.guarded = self.guarded, frozenset()
        try:
            return self.read_trace(path)
        finally:
            self.guarded = guarded

    def _audit(self, event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and str(values[0]) in self.guarded:
            self.tries += 1
            if not self.ahead:
                raise PermissionError(values[0])

    def _simulate_one(self, env: Any, strategy: Any) -> tuple[list[dict[str, Any]], int]:
        """Run it, and note the price of each tick. Two more are simulated once the work is done."""
        hourly_usd: list[float] = []
        step = env.step

        def noted(kind: Any) -> Any:
            hourly_usd.append(env.get_constant_cost_map()[kind])
            return step(kind)

        env.step = noted
        history, ticks = self.simulate_one(env, strategy)
        bill = Bill(
            usd=history[-1]["Cost"],
            zoned_usd=sum(hourly_usd[:-2]) * env.gap_seconds / 3600,
            is_late=(ticks - 3) * env.gap_seconds >= strategy.deadline,
        )
        self.ends.append(bill)
        return history, ticks

    def run(self, program: str, traces: list[str], config: dict[str, float]) -> Bill | None:
        """Return what a window cost; None if the policy failed."""
        self.ends, self.guarded = [], frozenset(traces)
        signal.setitimer(signal.ITIMER_REAL, self.limit_s)
        try:
            ran = self.worker.run_single_simulation(program, traces if self.several else traces[0], config)
        except (Exception, SystemExit):  # noqa: BLE001  any file's code
            return None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self.ends[0] if ran[0] and self.ends else None


def stop(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError


simulators: list[Simulator] = []
"""That of this process."""


def start(common: Path, limit_s: float, ahead: bool) -> None:  # noqa: FBT001  initializers have no keywords
    logging.disable(logging.CRITICAL)
    simulators.append(Simulator(common, limit_s, ahead=ahead))


def run_all(program: Path, groups: Groups, config: dict[str, float]) -> tuple[Bills | None, Counter[str]]:
    """Return a file's bills, None if it does not count, and what happened to it."""
    simulator, bills = simulators[0], {group: list[Bill]() for group in groups}
    simulator.tries, happened = 0, Counter[str]()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for group, windows in groups.items():
            for traces in windows:
                bill = simulator.run(str(program), traces, config)
                if bill is None:
                    happened["failed"] += 1
                    return None, happened
                bills[group].append(bill)
    happened["opened the traces"] += simulator.tries > 0
    return bills, happened


def plan_task(common: Path, traces: Path, task: str, count: int) -> tuple[Groups, dict[str, float]]:
    """Return the windows of a task, and its hours: the work, the deadline and a restart."""
    given = runpy.run_path(str(common / "__init__.py"))
    availability, deadline, overhead = task.upper().split("_")[::2]
    if "TASK_DURATION_HOURS" in given:
        hours = given["TASK_DURATION_HOURS"], given[f"{deadline}_DEADLINE"], given[f"{overhead}_OVERHEAD"]
        config = dict(zip(("duration", "deadline", "overhead"), hours, strict=True))
        scenarios = given[f"{availability}_AVAILABILITY_SCENARIOS"]
        root = traces / "converted_multi_region_aligned"
        groups = {
            one["name"]: [
                [str(root / zone / file) for zone in one["regions"]] for file in one["traces"][:count]
            ]
            for one in scenarios
        }
        return groups, config
    config = given[f"{deadline}_DEADLINE_CONFIG"][0] | {"overhead": given[f"{overhead}_OVERHEAD"][0]}
    zones = given["ALL_REGIONS" if availability == "MIXED" else f"{availability}_AVAILABILITY_REGIONS"]
    root = traces / "real/ddl=search+task=48+overhead=0.02/real"
    return {zone: spaced(root / zone, config["deadline"], count) for zone in zones}, config


def spaced(folder: Path, hours: float, count: int) -> list[list[str]]:
    """Return windows of a zone that are long enough, evenly spaced in the order of the evaluators."""
    files = []
    for file in sorted(folder.glob("traces/random_start/[0-9]*.json"), key=str):
        trace = json.loads(file.read_text())
        if len(trace["data"]) * trace["metadata"]["gap_seconds"] >= hours * 3600:
            files.append([str(file)])
    if len(files) <= count:
        return files
    return [files[round(place * (len(files) - 1) / max(1, count - 1))] for place in range(count)]


def mean_usd(bills: Bills, usd: Callable[[Bill], float]) -> float:
    return fmean(fmean(map(usd, windows)) for windows in bills.values())


def times_late(bills: Bills) -> int:
    return sum(bill.is_late for windows in bills.values() for bill in windows)


def ratio(ours: Bills, theirs: dict[Path, Bills], usd: Callable[[Bill], float]) -> str:
    """Return our mean bill over the best file's, with the 95 % bootstrap interval over windows."""
    best = min(theirs, key=lambda file: mean_usd(theirs[file], usd))
    chance = Random(1)

    def resampled() -> float:
        places = {group: chance.choices(range(len(w)), k=len(w)) for group, w in ours.items()}
        drawn = [{g: [of[g][p] for p in places[g]] for g in of} for of in (ours, theirs[best])]
        return mean_usd(drawn[0], usd) / mean_usd(drawn[1], usd)

    low, high = bounds(resampled() for _ in range(RESAMPLES))
    mean_ratio = mean_usd(ours, usd) / mean_usd(theirs[best], usd)
    return f"{mean_ratio:.3f} ({low:.3f} to {high:.3f}) of {best.name}"


def compare(pool: ProcessPoolExecutor, files: Sequence[Path], task: str, most: int, *plan: Any) -> None:
    """Print a task's line: `elastic` over the best of the files."""
    groups, config = plan
    happened: Counter[str] = Counter()

    def run_files(some: Sequence[Path], windows: Groups) -> dict[Path, Bills]:
        ran = list(pool.map(run_all, some, [windows] * len(some), [config] * len(some)))
        happened.update(event for _, one in ran for event in one.elements())
        return {file: bills for file, (bills, _) in zip(some, ran, strict=True) if bills is not None}

    if most:
        first = run_files(files, {group: windows[:1] for group, windows in groups.items()})
        files = sorted(first, key=lambda file: mean_usd(first[file], lambda bill: bill.usd))[:most]
        happened.pop("opened the traces", None)
    theirs = run_files([*files, ELASTIC], groups)
    ours = theirs.pop(ELASTIC)
    in_time = {file: bills for file, bills in theirs.items() if not times_late(bills)}
    happened["late"] = len(theirs) - len(in_time)
    parts = [f"{task}: {ratio(ours, in_time, lambda bill: bill.usd)}"]
    if len(theirs) > len(in_time):
        parts.append(f"with late files {ratio(ours, theirs, lambda bill: bill.usd)}")
    if SEVERAL in task:
        parts.append(f"by the zone of each tick {ratio(ours, in_time, lambda bill: bill.zoned_usd)}")
    windows = sum(map(len, ours.values()))
    parts.append(f"elastic late in {times_late(ours)} of {windows} windows; files: {len(in_time)} in time")
    print(", ".join([*parts, *(f"{count} {event}" for event, count in sorted(happened.items()))]), flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="a clone of FrontierCS/Frontier-CS")
    parser.add_argument("--tasks", nargs="+", default=[""], help="parts of the tasks' folders")
    parser.add_argument("--windows", type=int, default=30, help="of each zone or scenario")
    parser.add_argument("--files", type=int, default=0, help="only so many of each task; 0: all")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one window of a file")
    parser.add_argument("--ahead", action="store_true", help="let files open the traces")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    research = options.folder.absolute() / "research"
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["GEPA_EVAL_TMPDIR"] = scratch  # where the simulator writes
        for problem in (SINGLE, SEVERAL):
            common, traces = research / "problems" / problem / "common", Path(scratch, problem)
            with tarfile.open(common / "real_traces.tar.gz") as archive:
                archive.extractall(traces, filter="data")
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(
                options.processes, spawn, initializer=start, initargs=(common, options.limit, options.ahead)
            ) as pool:
                for folder in sorted((research / "solutions" / problem).iterdir()):
                    task = f"{problem}/{folder.name}"
                    if any(part in task for part in options.tasks):
                        plan = plan_task(common, traces, folder.name, options.windows)
                        compare(pool, sorted(folder.glob("*.py")), task, options.files, *plan)


if __name__ == "__main__":
    main()
