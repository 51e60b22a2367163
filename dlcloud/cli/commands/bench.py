"""`dlcloud bench`: the same work on several instance types at once, then one table of costs."""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.complete import complete_recipes, complete_types
from dlcloud.cli.invoke import invoke
from dlcloud.cli.node_counts import NodeCounts
from dlcloud.cli.notify import notify_option
from dlcloud.cli.options import (
    cidr_option,
    collect_options,
    description_options,
    job_options,
    output_option,
    verbose_option,
)

if TYPE_CHECKING:
    pass


@click.command("bench")
@click.option(
    "-i",
    "--instance",
    "types",
    multiple=True,
    metavar="TYPE",
    shell_complete=complete_types,
    help="An instance type; repeat it. Default: those of --recipe.",
)
@click.option(
    "-b",
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="NAME",
    help="A bundled benchmark; default: all.",
)
@click.option(
    "--recipe",
    default="",
    shell_complete=complete_recipes,
    help="Run the workload of this recipe instead (a file, or a bundled one).",
)
@click.option(
    "--nodes",
    type=NodeCounts(),
    default=(),
    metavar="N,N,…",
    help="How --recipe scales: on each of these numbers of instances, with workload.nodes: all.",
)
@click.option("--cloud", type=click.Choice(["aws", "local"]), default=None, help="Default: aws.")
@click.option("--region", default=None, help="Default: us-east-1.")
@click.option("--spot", is_flag=True, help="Spot instances instead of on-demand ones.")
@click.option("--max-hours", default=None, metavar="H", help="Each instance ends itself then; default: 4.")
@click.option("--max-usd", default=None, metavar="USD", help="The most that each type may cost.")
@click.option("--tiny", is_flag=True, help="The tiny form of each benchmark: real engines, seconds.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=None,
    help="Samples of each setting, at least; default: the recipe's, or the benchmark's.",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Measure at most three types, chosen of TYPE or of all CPU types; predict the others.",
)
@click.option(
    "--race",
    is_flag=True,
    help="End each TYPE as soon as it cannot be the cheapest; without TYPE, of those that --predict leaves.",
)
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted bench had measured.")
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@cidr_option("the instances")
@description_options
@job_options
@notify_option("bench")
@output_option
@verbose_option
@collect_options(
    "keys", "dlcloud.app.bench.bench_matrix:recipe_keys", ("cloud", "region", "spot", "max_hours", "max_usd")
)
@collect_options("view", "dlcloud.report.cost_tables:View", ("job", "summary"))
@collect_options("options", "dlcloud.app.bench.run:BenchOptions")
def command(*, options: object, verbose: bool) -> None:
    """Run the benchmarks that fit on every TYPE at once, and print throughput and cost side by side.

    A benchmark that does not fit a type (no GPU, no AVX512_BF16) is left out, with its reason. Each instance
    is terminated as soon as it is done. A refused type does not stop the others. The same command resumes an
    interrupted or incomplete bench: what is measured is not repeated.

    With --nodes, the largest cluster runs first; the instances that the next number does not need are then
    terminated. Efficiency is against the smallest number.

    With --predict, at most three types are measured, those that tell most of all others; throughput and USD
    per million items of the other CPU types of the region are predicted, with 90 % intervals, also from your
    earlier results of the same job.

    With --race, one job runs on all types at once until the cheapest is known: a type is ended as soon as it
    cannot be the cheapest any more, with an error of 5 % over the whole race. Types that differ by less than
    2 % are named as a tie; with --job, no sample is taken that costs more than it can save. --repeats is the
    most samples of each setting; default: 1,000.

    It ends with the answer: the cheapest and the fastest, with --job for your own work. Where no winner can
    be named, it says what would settle it, and on a terminal offers to measure again.
    """
    invoke("dlcloud.app.bench.run:run", "bench", verbose=verbose, options=options)
