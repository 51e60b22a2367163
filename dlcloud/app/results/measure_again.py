"""The command that measures a run's workload again, to be pasted."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.model.instance import Market
from dlcloud.results.result_row import ResultRow
from dlcloud.runs.matrix import sweepable_benchmarks


def commands_again(context: Context, rows: Iterable[ResultRow]) -> Mapping[str, str]:
    """Return the beginning of the command for each run, by run id; none where its workload is not known.

    A run's recipe file may have changed since; what remains is the benchmark of a bundled one.
    """
    runs = {row.run.run_id: row.run for row in rows}
    commands = {}
    for run in runs.values():
        cluster = context.clusters.find(run.cluster_id)
        path = cluster.recipe_path if cluster else ""
        source = ("--recipe", path) if path and Path(path).exists() else _benchmark(run.workload)
        if source:
            options = ["--cloud", "aws"] if run.rehearsal else ["--region", run.region]
            options += ["--spot"] if run.market is Market.SPOT else []
            words = ["dlcloud", "bench", *source, *options]
            commands[run.run_id] = shlex.join(words)
    return commands


def _benchmark(name: str) -> tuple[str, ...]:

    return ("-b", name) if name in sweepable_benchmarks() else ()
