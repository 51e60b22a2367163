"""How well an experiment keeps its instances busy, and how long one of 10,000 takes to list.

    python tests/performance/experiments.py [--only busy|many]

busy: trials of one second on 4 instances of the local EC2. A trial prints when it began and ended; what
lies between two trials on an instance is the launcher's. Prints the share of the time in which instances
ran trials, and the seconds between two trials.

many: a store with 10,000 trials, half of them done. Prints how long `up` takes to list them when all are
done, and to plan what is left, beside the same with 10 trials.
"""

import argparse
import json
import math
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Self

from pairs import interval, seconds

DLCLOUD = str(Path(sys.executable).with_name("dlcloud"))
PARTS = ("busy", "many")
BUSY_GOAL, OVERHEAD_GOAL_S, LIST_GOAL_S = 0.90, 0.15, 2.0
FEW, MANY, COLUMNS = 10, 10_000, 100
TABLES = ("records", "results", "run_prices", "runs")
COMMAND = "sh -c 'echo began $(date +%s.%N); sleep 1; echo ended $(date +%s.%N)'"
RECIPE = """\
name: {name}
cloud: local
instances: {{types: [c5.xlarge], count: {instances}}}
workload:
  command: {command}
  facts: {{began: 'began (.*)', ended: 'ended (.*)'}}
experiment:
  matrix: {{x: [{x}], y: [{y}]}}
  arguments: false
  metric: time
  goal: minimize
"""


class Home:
    """A home of its own with a local EC2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"DLCLOUD_HOME": str(folder / "dlcloud"), "HOME": str(folder)}

    def write_recipe(self, name: str, trials: int, instances: int) -> str:
        path = self.folder / f"{name}.yaml"
        columns = math.gcd(trials, COLUMNS)
        x, y = (", ".join(map(str, range(count))) for count in (trials // columns, columns))
        path.write_text(RECIPE.format(name=name, instances=instances, command=COMMAND, x=x, y=y))
        return str(path)

    def run(self, *words: str) -> None:
        environment = os.environ | self.environment
        done = subprocess.run([DLCLOUD, *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"dlcloud {' '.join(words)}: {done.returncode}\n{done.stderr[-3000:]}")

    def store(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "dlcloud/store.sqlite")

    def __enter__(self) -> Self:
        self.run("local", "start")
        return self

    def __exit__(self, *_: object) -> None:
        self.run("local", "stop")


def measure_busy(home: Home, trials: int, instances: int) -> None:
    """Run short trials, and print how much of the time instances ran none."""
    begun = time.perf_counter()
    home.run("up", home.write_recipe("busy", trials, instances))
    took_s = time.perf_counter() - begun
    spans = read_spans(home)
    gaps = [after[0] - before[1] for of_instance in spans.values() for before, after in pairwise(of_instance)]
    first = min(span[0] for of_instance in spans.values() for span in of_instance)
    last = max(span[1] for of_instance in spans.values() for span in of_instance)
    ran = [ended - began for of_instance in spans.values() for began, ended in of_instance]
    ideal_s = sum(ran) / instances
    share = sum(ran) / (instances * (last - first))
    overhead_s = statistics.mean(gaps)
    low, high = interval(gaps)
    count = sum(map(len, spans.values()))
    print(
        f"{count} trials of {statistics.median(ran):.2f} s on {len(spans)} instances,"
        f" load {os.getloadavg()[0]:.1f}"
    )
    print(f"  first to last trial {last - first:.1f} s, {ideal_s:.1f} s without gaps; up took {took_s:.1f} s")
    print(
        verdict(
            f"  instances ran trials {100 * share:.1f} % of the time", BUSY_GOAL, is_met=share >= BUSY_GOAL
        )
    )
    text = f"  between two trials {overhead_s:.3f} s on average, median {statistics.median(gaps):.3f}"
    text += f" ({low:.3f} to {high:.3f}), at most {max(gaps):.3f} s"
    print(verdict(text, OVERHEAD_GOAL_S, is_met=overhead_s <= OVERHEAD_GOAL_S), flush=True)


def read_spans(home: Home) -> dict[str, list[tuple[float, float]]]:
    """Return when trials began and ended, by instance, in their order."""
    spans = defaultdict(list)
    query = "SELECT instance_id, line FROM records JOIN runs USING (run_id) WHERE kind = 'result'"
    with closing(home.store()) as store:
        for instance_id, line in store.execute(query):
            printed = json.loads(line)["facts"]["printed"]
            spans[instance_id].append((float(printed["began"]), float(printed["ended"])))
    return {instance_id: sorted(of_instance) for instance_id, of_instance in spans.items()}


def measure_many(home: Home, pairs: int) -> None:
    """Print how long few and many trials take to list, and to plan when half of them are done."""
    homes = {}
    for count in (FEW, MANY):
        name = f"many{count}"
        home.run("up", home.write_recipe(name, 1, 1))
        path = home.write_recipe(name, count, 4)
        homes[count] = (name, path)
    for kind, share in (("list all", 1.0), ("plan what is left", 0.5)):
        took = {}
        for count, (name, path) in homes.items():
            repeat(home, name, round(count * share), math.gcd(count, COLUMNS))
            words = ["up", path, *(["--dry-run"] if share < 1 else [])]
            home.run(*words)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            took[count] = [seconds([DLCLOUD, *words], home.environment) for _ in range(pairs)]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / pairs
        few, many = (statistics.median(took[count]) for count in (FEW, MANY))
        low, high = interval(took[MANY])
        text = f"{kind}: {many:.2f} s ({low:.2f} to {high:.2f}) with {MANY} trials, {few:.2f} s with {FEW}"
        text += f"; {cpu_s:.2f} CPU s, load {os.getloadavg()[0]:.1f}"
        print(verdict(text, LIST_GOAL_S, is_met=many <= LIST_GOAL_S), flush=True)


def repeat(home: Home, name: str, count: int, columns: int) -> None:
    """Let the store have the first trial's run so many times, each with the values of another trial."""
    changes = {
        "run_id": "'{name}-' || printf('%08x', n)",
        "trial": "n + 1",
        "trial_values": f"""'{{"x": "' || (n / {columns}) || '", "y": "' || (n % {columns}) || '"}}'""",
    }
    with closing(home.store()) as store, store:
        (first,) = store.execute(
            "SELECT run_id FROM runs WHERE workload = ? AND trial = 1", (name,)
        ).fetchone()
        others = "run_id <> ? AND run_id IN (SELECT run_id FROM runs WHERE workload = ?)"
        for table in TABLES:
            store.execute(f"DELETE FROM {table} WHERE {others}", (first, name))
        for table in TABLES:
            names = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
            values = ", ".join(
                changes[column].replace("{name}", name) if column in changes else column for column in names
            )
            store.execute(
                f"INSERT INTO {table} WITH RECURSIVE numbers(n) AS"
                f" (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count - 1})"
                f" SELECT {values} FROM {table}, numbers WHERE run_id = ?",
                (first,),
            )


def verdict(text: str, goal: float, *, is_met: bool) -> str:
    return f"{text}  goal {goal:g}  {'met' if is_met else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Home(Path(name)) as home:
        if options.only != "many":
            measure_busy(home, options.trials, options.instances)
        if options.only != "busy":
            measure_many(home, options.pairs)


if __name__ == "__main__":
    main()
