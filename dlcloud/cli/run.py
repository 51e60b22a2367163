"""The commands that run work: `up`, `plan` and `bench`.

`up` and `plan` take the same options and the same way as far as the plan; `up --detach` leaves the work to an
instance. The use cases are in `dlcloud/app/clusters` and `dlcloud/app/bench`.
"""

from typing import TYPE_CHECKING, Any

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.options import (
    CLOUDS,
    REGIONS,
    Hours,
    NodeCounts,
    cidr_option,
    description_options,
    job_options,
    market_options,
    notify_option,
    output_option,
    override_options,
    requirement_options,
    type_options,
    verbose_option,
)
from dlcloud.model.errors import RecipeError

if TYPE_CHECKING:
    from dlcloud.analysis.user_job import UserJob
    from dlcloud.prediction.measured_types import Reference
    from dlcloud.recipe.overrides import Overrides

commands = click.Group()


@commands.command("up")
@click.argument("recipe", shell_complete=complete_recipes)
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("--keep", is_flag=True, help="Keep the instances up afterwards.")
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="The cluster's name; a kept cluster of that name is used again.",
)
@click.option("-y", "--yes", is_flag=True, help="Spend money without asking.")
@cidr_option
@click.option("--detach", is_flag=True, help="Leave the work to one of its own instances.")
@click.option(
    "--on",
    type=click.Choice(["batch"]),
    default=None,
    help="Run the trials of an experiment as an AWS Batch array job.",
)
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted run had measured.")
@click.option("--retry-failed", is_flag=True, help="Run given-up trials of an experiment again.")
@click.option(
    "--html",
    default="",
    metavar="FILE",
    help="Write the page of an experiment to this file; it opens offline.",
)
@override_options
@notify_option("up")
@output_option
@verbose_option
def up(
    *,
    recipe: str,
    overrides: "Overrides",
    name: str,
    cidrs: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    keep: bool,
    detach: bool,
    on: str | None,
    fresh: bool,
    retry_failed: bool,
    html: str,
    output: str,
    verbose: bool,
) -> None:
    """Run RECIPE (a file, or the name of a bundled recipe) and print what it costs.

    --type, --region, --market, --count, --setting, --env and --secret override the recipe for this run. Pass
    the same options again to resume the same cluster.

    Launch the instances, set them up over SSH, run the workload, store what it measures, and terminate
    them. Ctrl-C terminates them, too. An interrupted `up` resumes when the same command runs again.

    A recipe with an `experiment` runs its trials and prints one table. The next `up` runs the trials that
    are left.

    With --detach it returns once an on-demand instance of the cluster controls the work: this machine may
    be off then. `status`, `logs`, `training`, `resize` and `exec` ask that instance, from any machine
    with the account. `down` downloads the results and terminates everything.
    """
    from dlcloud.app.context import Context
    from dlcloud.app.terminal.screen import printing

    if detach and on:
        raise RecipeError("--on batch and --detach exclude each other", "Batch needs no machine of yours")
    if detach and html:
        raise RecipeError("--html and --detach exclude each other", "the next up writes it, without --detach")
    with Context("up", verbose=verbose) as context:
        if detach:
            from dlcloud.app.clusters.hand_over import run as run_detached

            run_detached(
                context,
                recipe=recipe,
                overrides=overrides,
                name=name,
                cidrs=cidrs,
                dry_run=dry_run,
                yes=yes,
                keep=keep,
                fresh=fresh,
                retry_failed=retry_failed,
                output=output,
            )
            return
        from dlcloud.app.clusters.up import run

        run(
            context,
            recipe=recipe,
            overrides=overrides,
            name=name,
            cidrs=cidrs,
            dry_run=dry_run,
            yes=yes,
            keep=keep,
            fresh=fresh,
            retry_failed=retry_failed,
            on_batch=on == "batch",
            html=html,
            show=printing(output),
        )


@commands.command("plan")
@click.argument("recipe", shell_complete=complete_recipes)
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="The cluster's name; a kept cluster of that name is used again.",
)
@cidr_option
@override_options
@output_option
@verbose_option
def plan(
    *, recipe: str, overrides: "Overrides", name: str, cidrs: tuple[str, ...], output: str, verbose: bool
) -> None:
    """Show what `dlcloud up RECIPE` would launch, and its price; create nothing.

    The same as `dlcloud up RECIPE --dry-run`. `dlcloud deadlines` compares the costs of deadlines.
    """
    from dlcloud.app.clusters.up import run
    from dlcloud.app.context import Context
    from dlcloud.app.terminal.screen import printing

    with Context("up", verbose=verbose) as context:
        run(
            context,
            recipe=recipe,
            overrides=overrides,
            name=name,
            cidrs=cidrs,
            dry_run=True,
            show=printing(output),
        )


@commands.command("bench")
@click.argument("recipe", default="", shell_complete=complete_recipes)
@type_options("Instance type, or g6.*; repeat it for several. Default: those of RECIPE.")
@requirement_options
@click.option(
    "-b",
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="NAME",
    help="A bundled benchmark. Default: all but the language models, which run only if named.",
)
@click.option("--recipe", "recipe_option", default="", hidden=True, shell_complete=complete_recipes)
@click.option(
    "--nodes",
    type=NodeCounts(),
    default=(),
    metavar="N,N,…",
    help="Measure how RECIPE scales: on each of these numbers of instances, with workload.nodes: all.",
)
@click.option("--cloud", type=click.Choice(CLOUDS), default=None, help="Where to run. [default: aws]")
@click.option(
    "--region",
    default=None,
    metavar="REGION",
    help=REGIONS,
)
@market_options("The market of the instances. [default: on-demand]")
@click.option(
    "--max-hours",
    type=Hours(),
    default=None,
    metavar="H",
    help="Time after which each instance terminates itself. [default: 4]",
)
@click.option("--max-usd", default=None, metavar="USD", help="The most that each type may cost.")
@click.option(
    "--tiny", is_flag=True, help="Run the tiny form of each benchmark: real engines, a minute or two."
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=None,
    metavar="N",
    help="Least number of samples of each setting; default: the recipe's, or the benchmark's.",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Measure at most three types, the ones that predict the others best; predict the others.",
)
@click.option(
    "--race",
    is_flag=True,
    help="Terminate each TYPE as soon as it cannot be the cheapest; without TYPE, race those that --predict "
    "leaves.",
)
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted bench had measured.")
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("-y", "--yes", is_flag=True, help="Spend money without asking.")
@cidr_option
@description_options
@job_options
@notify_option("bench")
@output_option
@verbose_option
def bench(
    *,
    recipe: str,
    recipe_option: str,
    types: tuple[str, ...],
    needs: dict[str, Any],
    benchmarks: tuple[str, ...],
    nodes: tuple[int, ...],
    cloud: str | None,
    region: str | None,
    market: str | None,
    max_hours: float | None,
    max_usd: str | None,
    tiny: bool,
    repeats: int | None,
    predict: bool,
    race: bool,
    fresh: bool,
    dry_run: bool,
    yes: bool,
    cidrs: tuple[str, ...],
    reference: "Reference | None",
    job: "UserJob | None",
    summary: bool,
    output: str,
    verbose: bool,
) -> None:
    """Run RECIPE or the bundled benchmarks on every TYPE in parallel; print throughput and cost side by side.

    A benchmark that does not fit a type is left out, with its reason. Each instance terminates as soon as
    it is done. The same command resumes an interrupted or incomplete bench.

    With --gpu, --vcpus and so on, it runs on the ten cheapest types of the Region that have it. With
    --nodes, the largest number runs first; efficiency is relative to the smallest.

    With --race, the cheapest type is found with an error of 5 % over the whole race. Types that differ by
    less than 2 % are a tie. With --job, no sample is taken that costs more than it can save. --repeats is
    then the most samples of each setting; default: 1,000.

    It ends with the cheapest and the fastest, with --job for your own work, or with what would settle it.
    """
    from dlcloud.app.bench.run import run
    from dlcloud.app.context import Context
    from dlcloud.report.cost_tables import View

    if recipe and recipe_option:
        raise click.UsageError("RECIPE and --recipe are the same: give one of them")
    with Context("bench", verbose=verbose) as context:
        run(
            context,
            types=types,
            needs=needs,
            benchmarks=benchmarks,
            recipe=recipe or recipe_option,
            nodes=nodes,
            cloud=cloud,
            region=region,
            market=market,
            max_hours=None if max_hours is None else f"{max_hours:g}",
            max_usd=max_usd,
            repeats=repeats,
            view=View(job=job, summary=summary),
            tiny=tiny,
            predict=predict,
            reference=reference,
            race=race,
            fresh=fresh,
            dry_run=dry_run,
            yes=yes,
            cidrs=cidrs,
            output=output,
        )
