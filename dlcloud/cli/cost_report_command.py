"""`dlcloud cost-report`: what was measured, and what it costs."""

from datetime import datetime

import click

from dlcloud.cli.options import output_option, selection_options, verbose_option


@click.command("cost-report")
@click.argument("runs", nargs=-1)
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
    help="What a table's lines share; by default what suits them.",
)
@selection_options
@click.option("--latest/--all", "newest", default=True, help="The newest result of each kind, or all.")
@click.option("--details", is_flag=True, help="Latency, size, memory, agreement, every price and bill, too.")
@click.option("--wide", is_flag=True, help="Everything in one table, wider than a terminal.")
@click.option("--billed", is_flag=True, help="Beside it what AWS billed (Cost Explorer: 0.01 USD a request).")
@click.option("--html", default="", help="Write a page with charts to this file; it opens offline.")
@click.option("--plot", default="", help="Write the charts to this file, .png or .svg, for a paper.")
@click.option("--timeline", multiple=True, help="Draw a trainer's records (JSON lines) of this file, too.")
@output_option
@verbose_option
def command(
    *,
    runs: tuple[str, ...],
    by: str,
    market: str,
    group: str | None,
    types: tuple[str, ...],
    benchmarks: tuple[str, ...],
    cases: tuple[str, ...],
    settings: tuple[str, ...],
    clusters: tuple[str, ...],
    clouds: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    newest: bool,
    details: bool,
    wide: bool,
    billed: bool,
    html: str,
    plot: str,
    timeline: tuple[str, ...],
    output: str,
    verbose: bool,
) -> None:
    """Print throughput, speed-up and cost of what was measured, or of RUNS (run or cluster names).

    The newest result of each instance type, benchmark, case and setting is shown, the cheapest first; --all
    shows all. Intervals are of 95 %: the best is named only where its interval overlaps with no other's.
    What was only rehearsed is marked with *, what did not settle with ~.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.cost_report_flow import View, show
    from dlcloud.core.instance import Market
    from dlcloud.core.ranking import By, Group
    from dlcloud.report.table import Format
    from dlcloud.store.selection import Selection

    selection = Selection(
        names=runs,
        types=types,
        benchmarks=benchmarks,
        cases=cases,
        settings=settings,
        clusters=clusters,
        clouds=clouds,
        since=since,
        until=until,
    )
    view = View(
        by=By(by),
        market=Market(market),
        group=Group(group) if group else None,
        # What was asked for by name is shown whole.
        newest=newest and not runs,
        details=details,
        wide=wide,
        output=Format(output),
        billed=billed,
        html=html,
        plot=plot,
        timeline=timeline,
    )
    with Context("cost-report", verbose=verbose) as context:
        show(context, selection, view)
