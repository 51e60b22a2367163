"""How long reports take over a store of 100,000 runs, beside one of 100 of the same types and settings.

Prints, for each command, both medians, their ratio and their difference with its 95 % interval; the goal is
on the difference. The stores are made here, in a temporary folder: about 500 MB.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from pairs import interval

from dlcloud.analysis.result import Run, RunState
from dlcloud.model.instance import Market
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
GOAL_S = 1.0
FEW, MANY = 100, 100_000
PERIOD = 80
"""So many runs differ in more than name and time: types, benchmarks and speeds repeat."""
TYPES = (
    "c5.large",
    "c5.xlarge",
    "c6i.large",
    "c7i.large",
    "c7i.xlarge",
    "m7i.large",
    "g4dn.xlarge",
    "g5.xlarge",
)
BENCHMARKS = ("quantization", "tensorflow")
BEGUN = datetime(2020, 1, 1, tzinfo=UTC)
COMMANDS = {
    "cost-report": ["cost-report"],
    "cost-report --until 2020-01-01T01:40 (the first 100)": ["cost-report", "--until", "2020-01-01T01:40"],
    "cost-report --type c7i -o json": ["cost-report", "--type", "c7i", "-o", "json"],
    "cost-report of one cluster": ["cost-report", "cluster-7"],
    "compare c5.large c7i.large": ["compare", "c5.large", "c7i.large"],
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=MANY)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder, "few"), Path(folder, "many")
        for home, count in ((few, FEW), (many, options.runs)):
            started = time.perf_counter()
            fill(home, count)
            size = sum(path.stat().st_size for path in home.iterdir()) / 1e6
            print(f"made a store of {count} runs, {size:.0f} MB, in {time.perf_counter() - started:.0f} s")
        print(f"{'':<50}{FEW:>12}{options.runs:>12}   ratio  difference (95 % interval)")
        for name, words in COMMANDS.items():
            compare(name, [DLCLOUD, *words], few, many, options.pairs)


def compare(name: str, command: Sequence[str], few: Path, many: Path, pairs: int) -> None:
    """Time a command over both stores in turn and print how they differ."""
    for home in (few, many):
        seconds(command, home)
    timed = []
    for number in range(pairs):
        order = (few, many) if number % 2 else (many, few)
        took = {home: seconds(command, home) for home in order}
        timed.append((took[few], took[many]))
    one, other = (statistics.median(column) for column in zip(*timed, strict=True))
    differences = [theirs - ours for ours, theirs in timed]
    low, high = interval(differences)
    middle = statistics.median(differences)
    print(
        f"{name:<50}{one * 1e3:>9.0f} ms{other * 1e3:>9.0f} ms{other / one:>8.2f}"
        f"  {middle:+.3f} s ({low:+.3f} to {high:+.3f})  goal {GOAL_S} s"
        f"  {'met' if high <= GOAL_S else 'MISSED'}"
    )
    sys.stdout.flush()


def seconds(command: Sequence[str], home: Path) -> float:
    """Run a command to its end and return how long it took."""
    started = time.perf_counter()
    subprocess.run(command, env=os.environ | {"DLCLOUD_HOME": str(home)}, check=True, capture_output=True)
    return time.perf_counter() - started


def fill(home: Path, count: int) -> None:
    """Make a store of so many runs, a minute apart, of two settings of three cases each."""
    home.mkdir(mode=0o700)
    database = Database(home / "store.sqlite")
    runs = Runs(database)
    with database.transaction():
        for number in range(min(count, PERIOD)):
            runs.add(run(number))
            runs.add_records(f"run-{number}", 0, records(1 + number % 10))
        for table in ("runs", "records", "results"):
            repeat(database, table, count)
    database.close()


def repeat(database: Database, table: str, count: int) -> None:
    """Let SQLite copy the first runs under other names and times, which takes seconds."""
    time = f"strftime('%Y-%m-%dT%H:%M:%S+00:00', '{BEGUN:%Y-%m-%d}', n || ' minutes')"
    ended = time.replace("n ||", "(n + 1) ||")
    changed = {
        "run_id": "'run-' || n",
        "cluster_id": "CAST(n / 10 AS TEXT)",
        "cluster_name": "'cluster-' || (n / 10)",
        "instance_id": "'i-' || n",
        "started_at": time,
        "setup_at": time,
        "ended_at": ended,
    }
    columns = [row["name"] for row in database.read(f"PRAGMA table_info({table})")]
    values = ", ".join(changed.get(name, f"pattern.{name}") for name in columns)
    database.write(
        "WITH RECURSIVE numbers(n) AS (SELECT ? UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?)"
        f" INSERT INTO {table} SELECT {values} FROM numbers"
        f" JOIN {table} AS pattern ON pattern.run_id = 'run-' || (n % ?) WHERE n < ?",
        PERIOD,
        count,
        PERIOD,
        count,
    )


def run(number: int) -> Run:
    """Return the run of a number."""
    started = BEGUN + timedelta(minutes=number)
    return Run(
        run_id=f"run-{number}",
        cluster_id=str(number // 10),
        cluster_name=f"cluster-{number // 10}",
        instance_id=f"i-{number}",
        workload=BENCHMARKS[number // len(TYPES) % len(BENCHMARKS)],
        cloud="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type=TYPES[number % len(TYPES)],
        market=Market.SPOT if number % 3 else Market.ON_DEMAND,
        image_id="ami-0123",
        hourly_usd=Decimal("0.085"),
        price_source="bundled table",
        price_as_of=started,
        state=RunState.DONE,
        started_at=started,
        ended_at=started + timedelta(minutes=1),
        setup_at=started,
    )


def records(factor: int) -> bytes:
    """Return records as a program writes them: a start, samples, results of three cases, comparisons."""
    content: list[dict[str, object]] = [
        {"record": "start", "hardware": {"cpu_model": "Xeon", "physical_cores": 4}}
    ]
    for case in ("vgg16 batch 1", "resnet50 batch 1", "ssd300 batch 1"):
        content += [{"record": "sample", "case": case, "value": 10.0 * factor} for _ in range(2)]
        for setting, speed in (("fp32", 10.0 * factor), ("int8", 33.0 * factor)):
            metric = {
                "value": speed,
                "low": speed * 0.98,
                "high": speed * 1.02,
                "unit": "images/s",
                "samples": 9,
            }
            result = {"record": "result", "case": case, "setting": setting, "baseline": setting == "fp32"}
            content.append({**result, "metrics": {"throughput": metric}})
        compared = {"record": "comparison", "case": case, "baseline": "fp32", "candidate": "int8"}
        content.append({**compared, "ratio": 3.3, "low": 3.2, "high": 3.4, "verdict": "faster"})
    return "".join(json.dumps(record) + "\n" for record in content).encode()


if __name__ == "__main__":
    main()
