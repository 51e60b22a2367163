"""The walk of `dlcloud cost-report`: select, price, rank, show."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from dlcloud.cli.context import Context
from dlcloud.cli.cost_lines import cost_lines
from dlcloud.core.errors import RecipeError
from dlcloud.core.instance import Market
from dlcloud.core.ranking import By, Group
from dlcloud.report.cost import EMPTY, cost_report
from dlcloud.report.table import Format, render
from dlcloud.store.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How the report is shown; see the options of `dlcloud cost-report`."""

    by: By
    market: Market
    group: Group | None
    newest: bool
    details: bool
    wide: bool
    output: Format
    billed: bool = False
    html: str = ""
    plot: str = ""
    timeline: tuple[str, ...] = ()


def show(context: Context, selection: Selection, view: View) -> None:
    """Print the report.

    Raises:
        RecipeError: A run or cluster that was named is not stored.
    """
    refuse_unknown(context, selection)
    if view.html or view.plot:
        from dlcloud.cli.pictures import refuse_bad

        refuse_bad(view.plot)
    lines = cost_lines(context, selection, newest=view.newest)
    # A training without results still has a timeline, where it is named.
    named = context.measurements.run_ids(selection) if selection.bound_to_runs else []
    report = cost_report(
        lines,
        by=view.by,
        market=view.market,
        group=view.group,
        details=view.details,
        wide=view.wide,
        empty=_empty(context, named) if not lines else "",
    )
    if view.billed:
        from dlcloud.cli.billed import with_bills

        report = with_bills(context, report, lines)
    if view.html or view.plot:
        from dlcloud.cli.pictures import Pictures

        runs = [*dict.fromkeys([*(line.run.run_id for line in lines), *named])]
        Pictures(context=context, html=view.html, plot=view.plot, timeline=view.timeline, runs=runs).draw(
            lines, report, view.market
        )
    click.echo(render(report, view.output))


def refuse_unknown(context: Context, selection: Selection) -> None:
    """Refuse names of runs and clusters that are not stored."""
    wanted = {*selection.names, *selection.clusters}
    missing = wanted - context.measurements.names(wanted) if wanted else set()
    if missing:
        raise RecipeError(f"no run or cluster {', '.join(sorted(missing))} is stored", "dlcloud cost-report")


def _empty(context: Context, named: Sequence[str]) -> str:
    """Say what there is, where nothing of it was selected."""
    if named:
        return "no benchmark ran there: dlcloud training shows what a training came to"
    kinds = context.measurements.kinds()
    if not kinds:
        return EMPTY
    known = {
        "types": {kind.instance_type for kind in kinds},
        "benchmarks": {kind.workload for kind in kinds},
        "settings": {kind.setting for kind in kinds},
    }
    there = "\n".join(f"{word}: {', '.join(sorted(names))}" for word, names in known.items())
    return f"nothing that was measured fits; there are\n{there}"
