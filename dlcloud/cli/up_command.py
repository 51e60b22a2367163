"""`dlcloud up`: launch, run, store, report, terminate."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("up")
@click.argument("recipe")
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("--keep", is_flag=True, help="Keep the instances up afterwards.")
@click.option("--name", default="", help="The cluster's name; one that is up and was kept is used again.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@click.option(
    "--cidr", default="", help="The network that may reach the instances; default: your own address."
)
@click.option("--detach", is_flag=True, help="Leave an elastic training to its own coordinator.")
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted run had measured.")
@output_option
@verbose_option
def command(
    *,
    recipe: str,
    dry_run: bool,
    keep: bool,
    name: str,
    yes: bool,
    cidr: str,
    detach: bool,
    fresh: bool,
    output: str,
    verbose: bool,
) -> None:
    """Run RECIPE (a file, or the name of a bundled recipe) and print what it costs.

    Launches the instances, sets them up over SSH, runs the workload, stores what it measures, and terminates
    them. Ctrl-C cleans up. An `up` that was cut off is taken up again by the next one of the same recipe;
    cases that a benchmark had finished before are not measured again.

    With --detach it returns once the on-demand instance that coordinates a training controls it, too: this
    machine may be off then. `status`, `logs`, `training`, `resize` and `exec` ask that instance, from any
    machine with the account; `down` brings the results home and ends everything.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.up_flow import Up

    with Context("up", verbose=verbose) as context:
        flow = Up(
            context=context,
            recipe=recipe,
            keep=keep,
            name=name,
            cidr=cidr,
            output=output,
            fresh=fresh,
            detach=detach,
        )
        if not dry_run and flow.detached_already():
            return
        plan = flow.plan()
        if dry_run:
            flow.show(plan)
        else:
            flow.go(plan, yes=yes)
