"""`dlcloud cost-report`: throughput, speed-up and cost of what was measured."""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import (
    collect_options,
    job_options,
    output_option,
    selection_options,
    verbose_option,
)

if TYPE_CHECKING:
    from dlcloud.report.cost_tables import View
    from dlcloud.store.selection import Selection


@click.command("cost-report")
@click.argument("names", metavar="[RUNS]...", nargs=-1)
@click.option(
    "--by",
    type=click.Choice(["cost", "throughput", "latency"]),
    default="cost",
    show_default=True,
    help="What is shown first, and what is best.",
)
@click.option(
    "--market",
    type=click.Choice(["on-demand", "spot"]),
    default="on-demand",
    show_default=True,
    help="Whose price --by cost takes.",
)
@click.option(
    "--group",
    type=click.Choice(["case", "benchmark", "type", "cluster", "run"]),
    default=None,
    help="What the rows of a table share; by default what suits them.",
)
@selection_options
@job_options
@click.option("--latest/--all", "newest", default=True, help="The newest result of each kind, or all.")
@click.option("--details", is_flag=True, help="Latency, size, memory, agreement, every price and bill, too.")
@click.option("--wide", is_flag=True, help="Everything in one table, wider than a terminal.")
@click.option("--spending", is_flag=True, help="What all clusters cost, by cluster and by day.")
@click.option("--billed", is_flag=True, help="Beside it what AWS billed (Cost Explorer: 0.01 USD a request).")
@click.option("--html", default="", help="Write a page with charts to this file; it opens offline.")
@click.option("--plot", default="", help="Write the charts to this file, .png or .svg, for a paper.")
@click.option("--timeline", multiple=True, help="Draw a trainer's records (JSON lines) of this file, too.")
@output_option
@verbose_option
@collect_options(
    "view",
    "dlcloud.app.results.cost_report:view_of_options",
    ("by", "market", "group", "job", "summary", "newest", "details", "wide"),
)
@collect_options("drawings", "dlcloud.app.results.cost_report:Drawings", ("html", "plot", "timeline"))
def command(
    *,
    selection: "Selection",
    view: "View",
    drawings: object,
    billed: bool,
    spending: bool,
    output: str,
    verbose: bool,
) -> None:
    """Print throughput, speed-up and cost of what was measured, or of RUNS (run or cluster names).

    The newest result of each instance type, benchmark, case and setting is shown, the cheapest first; --all
    shows all. Intervals are of 95 %: the best is named only where that of its ratio to each other excludes 1.
    What was only rehearsed is marked with *, what did not settle with ~. The answer comes last: the cheapest
    and the fastest of each case, with --job what they take for your own work, and where no winner can be
    named, the command that would settle it.
    """
    invoke(
        "dlcloud.app.results.cost_report:run",
        "cost-report",
        verbose=verbose,
        selection=selection,
        view=view,
        drawings=drawings,
        billed=billed,
        spending=spending,
        output=output,
    )
