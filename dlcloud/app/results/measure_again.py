"""The command that measures a run's workload again, to be pasted."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.model.instance import Market
from dlcloud.resources.texts import recipe_names
from dlcloud.results.cost import ResultRow
from dlcloud.runs.matrix import sweepable_benchmarks


def commands_again(context: Context, rows: Iterable[ResultRow]) -> Mapping[str, str]:
    """Return the beginning of the command for each run, by run id; none where its workload is not known.

    A run's recipe file may have changed since; a bundled one is named, or its benchmark.
    """
    runs = {row.run.run_id: row.run for row in rows}
    commands = {}
    for run in runs.values():
        cluster = context.clusters.find(run.cluster_id)
        source = _bundled(run.workload)
        if cluster and cluster.recipe_path and Path(cluster.recipe_path).exists():
            source = ("--recipe", cluster.recipe_path)
        if source:
            options = ["--cloud", "aws"] if run.rehearsal else ["--region", run.region]
            options += ["--spot"] if run.market is Market.SPOT else []
            words = ["dlcloud", "bench", *source, *options]
            commands[run.run_id] = shlex.join(words)
    return commands


def _bundled(name: str) -> tuple[str, ...]:
    """Return the options that name a bundled benchmark or recipe."""
    if name in sweepable_benchmarks():
        return ("-b", name)
    return ("--recipe", name) if name in recipe_names() else ()
