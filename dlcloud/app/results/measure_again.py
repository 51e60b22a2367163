"""The command that measures a run's workload again, to be pasted."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Market
from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import recipe_names
from dlcloud.results.result_row import ResultRow
from dlcloud.runs.matrix import sweepable_benchmarks


def commands_again(context: Context, rows: Iterable[ResultRow]) -> Mapping[str, str]:
    """Return the beginning of the command for each run, by run id; none where its workload is not known.

    A run's recipe file may have changed since; a bundled one is named, or its benchmark.
    """
    runs = {row.run.run_id: row.run for row in rows}
    commands = {}
    for run in runs.values():
        cluster = context.clusters.find(run.cluster_id)
        source = _benchmark(run.workload) or (_recipe(cluster.recipe_text) if cluster else ())
        if cluster and cluster.recipe_path and Path(cluster.recipe_path).exists():
            source = ("--recipe", cluster.recipe_path)
        if source:
            options = ["--cloud", "aws"] if run.rehearsal else ["--region", run.region]
            options += ["--spot"] if run.market is Market.SPOT else []
            words = ["dlcloud", "bench", *source, *options]
            commands[run.run_id] = shlex.join(words)
    return commands


def _benchmark(name: str) -> tuple[str, ...]:

    return ("-b", name) if name in sweepable_benchmarks() else ()


def _recipe(text: str) -> tuple[str, ...]:
    """Return the bundled recipe of that name."""
    try:
        name = read_recipe(text, "stored").name
    except RecipeError:
        return ()
    return ("--recipe", name) if name in recipe_names() else ()
