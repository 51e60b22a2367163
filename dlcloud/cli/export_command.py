"""`dlcloud export`: what was measured, for others and for notebooks."""

from datetime import datetime

import click

from dlcloud.cli.options import selection_options, verbose_option


@click.command("export")
@click.argument("file")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    default=None,
    help="By default what FILE ends in.",
)
@click.option("--run", "names", multiple=True, help="Of this run or cluster.")
@selection_options
@click.option("--samples", is_flag=True, help="JSON lines: the raw samples, too.")
@click.option("--commands", is_flag=True, help="Your own programs' command lines and variables, too.")
@verbose_option
def command(
    *,
    file: str,
    form: str | None,
    names: tuple[str, ...],
    types: tuple[str, ...],
    benchmarks: tuple[str, ...],
    cases: tuple[str, ...],
    settings: tuple[str, ...],
    clusters: tuple[str, ...],
    clouds: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    samples: bool,
    commands: bool,
    verbose: bool,
) -> None:
    """Write what was measured to FILE (.jsonl, .csv, .parquet; - for stdout).

    JSON lines hold whole runs, one a line, for `dlcloud import` in another home; `dlcloud schema results`
    documents them. CSV and Parquet hold a row a result, as `dlcloud cost-report --all -o csv` prints it.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.exchange_flow import export
    from dlcloud.store.selection import Selection

    selection = Selection(
        names=names,
        types=types,
        benchmarks=benchmarks,
        cases=cases,
        settings=settings,
        clusters=clusters,
        clouds=clouds,
        since=since,
        until=until,
    )
    with Context("export", verbose=verbose) as context:
        export(context, selection, file, form or "", samples=samples, commands=commands)
