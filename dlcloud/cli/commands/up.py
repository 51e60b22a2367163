"""`dlcloud up`: plan, launch, run, report, destroy."""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.invoke import invoke
from dlcloud.cli.notify import notify_option
from dlcloud.cli.options import cidr_option, collect_options, output_option, verbose_option
from dlcloud.cli.overrides import override_options

if TYPE_CHECKING:
    pass


@click.command("up")
@click.argument("recipe", shell_complete=complete_recipes)
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("--keep", is_flag=True, help="Keep the instances up afterwards.")
@click.option("--name", default="", help="The cluster's name; one that is up and was kept is used again.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@cidr_option("the instances")
@click.option("--detach", is_flag=True, help="Leave the work to one of its own instances.")
@click.option(
    "--on", type=click.Choice(["batch"]), default=None, help="Let AWS Batch hold an experiment's queue."
)
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted run had measured.")
@click.option(
    "--retry-failed", is_flag=True, help="Run the trials of an experiment again that were given up."
)
@click.option("--html", default="", help="Write the page of an experiment to this file; it opens offline.")
@override_options
@notify_option("up")
@output_option
@verbose_option
@collect_options("options", "dlcloud.app.clusters.up:UpOptions", apart=("detach", "verbose"))
def command(*, options: object, detach: bool, verbose: bool) -> None:
    """Run RECIPE (a file, or the name of a bundled recipe) and print what it costs.

    --type, --region, --market, --count, --setting, --env and --secret change the recipe for this `up`; with
    the same ones, the next `up` finds its cluster again.

    Launches the instances, sets them up over SSH, runs the workload, stores what it measures, and terminates
    them. Ctrl-C cleans up. An `up` that was cut off is taken up again by the next one of the same recipe;
    cases that a benchmark had finished before are not measured again.

    A recipe with an `experiment` runs its trials on the instances as these become free, and prints one table.
    However it ends, no finished trial is lost, and the next `up` runs those that are left.

    With --detach it returns once an on-demand instance of the cluster controls the work: this machine may be
    off then. `status`, `logs`, `training`, `resize` and `exec` ask that instance, from any machine with the
    account; `down` brings the results home and ends everything.
    """
    use_case = "dlcloud.app.clusters.hand_over:run" if detach else "dlcloud.app.clusters.up:run"
    invoke(use_case, "up", verbose=verbose, options=options)
