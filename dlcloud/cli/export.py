"""`dlcloud export`: results for other homes and for notebooks."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import selection_options, verbose_option

if TYPE_CHECKING:
    from dlcloud.store.selection import Selection

STDOUT = "-"
_PRIVATE = frozenset({"fact_command", "fact_environment"})
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


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
    *, file: str, form: str | None, selection: "Selection", samples: bool, commands: bool, verbose: bool
) -> None:
    """Write what was measured to FILE (.jsonl, .csv, .parquet; - for stdout).

    JSON lines hold whole runs, one a line, for `dlcloud import` in another home; `dlcloud schema results`
    documents them. CSV and Parquet hold a row a result, as `dlcloud cost-report --all -o csv` prints it.
    """
    from dlcloud.cli.context import Context
    from dlcloud.core.errors import RecipeError
    from dlcloud.report.cost import cost_report
    from dlcloud.report.files import report_file, write_parquet
    from dlcloud.report.rows import load_rows, refuse_unknown
    from dlcloud.report.table import Format, render

    with Context("export", verbose=verbose) as context:
        refuse_unknown(context.measurements, selection)
        form = form or ("jsonl" if file == STDOUT else _FORMATS.get(Path(file).suffix.lower(), ""))
        if not form:
            raise RecipeError(f"{file}: which format?", "end it in .jsonl, .csv or .parquet, or say --format")
        if form == "jsonl":
            _write_lines(file, context.transfer.export_lines(selection, samples=samples, commands=commands))
            return
        report = cost_report(load_rows(context.measurements, selection, context.clock.now()))
        if not commands:
            records = [
                {name: value for name, value in record.items() if name not in _PRIVATE}
                for record in report.records
            ]
            report = replace(report, records=records)
        if form == "csv":
            _write_lines(file, render(report, Format.CSV).splitlines())
        elif file == STDOUT:
            raise RecipeError("Parquet is not for a terminal", "name a file")
        else:
            with report_file(Path(file)) as draft:
                write_parquet(report.records, draft)


def _write_lines(file: str, lines: Iterable[str]) -> None:
    from dlcloud.report.files import report_file

    if file == STDOUT:
        for line in lines:
            click.echo(line)
        return
    with report_file(Path(file)) as draft, draft.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{line}\n" for line in lines)
