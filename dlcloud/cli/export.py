"""`dlcloud export`: results for other homes and for notebooks; recipes for other schedulers."""

import json
from collections.abc import Iterable, Sequence
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
@click.argument("file", metavar="FILE|RECIPE")
@click.option(
    "--as",
    "scheduler",
    type=click.Choice(["batch"]),
    help="Instead of results, print RECIPE as a job definition of AWS Batch.",
)
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
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help="Of what it did.")
@verbose_option
def command(
    *,
    file: str,
    scheduler: str | None,
    form: str | None,
    selection: "Selection",
    samples: bool,
    commands: bool,
    output: str,
    verbose: bool,
) -> None:
    """Write what was measured to FILE (.jsonl, .csv, .parquet; - for stdout).

    JSON lines hold whole runs, one a line, for `dlcloud import` in another home; `dlcloud schema results`
    documents them. CSV and Parquet hold a row a result, as `dlcloud cost-report --all -o csv` prints it.

    With --as batch, print RECIPE, whose workload is a command, as the input of `aws batch
    register-job-definition --cli-input-json`; --setting names one of its settings.
    """
    if scheduler is not None:
        _print_job_definition(file, selection.settings)
        return
    from dlcloud.cli.context import Context
    from dlcloud.model.errors import RecipeError
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
            lines = context.transfer.export_lines(selection, samples=samples, commands=commands)
            _report(file, _write_lines(file, lines), "run(s)", output)
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
            _report(file, len(report.records), "result(s)", output)
        elif file == STDOUT:
            raise RecipeError("Parquet is not for a terminal", "name a file")
        else:
            with report_file(Path(file)) as draft:
                write_parquet(report.records, draft)
            _report(file, len(report.records), "result(s)", output)


def _print_job_definition(name: str, settings: Sequence[str]) -> None:
    """Print a recipe for AWS Batch, and on stderr what a job definition cannot say."""
    from dlcloud.cloud.catalog import Catalog
    from dlcloud.model.errors import RecipeError
    from dlcloud.recipe.batch import batch_job_definition, batch_notes
    from dlcloud.recipe.recipe import read_recipe
    from dlcloud.resources.texts import recipe_text

    text, path = recipe_text(name)
    recipe = read_recipe(text, str(path or name))
    catalog = Catalog()
    types = [hardware for name in recipe.instances.types if (hardware := catalog.hardware(name))]
    if not types:
        names = ", ".join(recipe.instances.types)
        raise RecipeError(f"the hardware of {names} is not known", "dlcloud instances lists what is")
    definition = batch_job_definition(recipe, types, settings[0] if settings else "")
    click.echo(json.dumps(definition, indent=2))
    for note in batch_notes(recipe):
        click.echo(f"# {note}", err=True)


def _write_lines(file: str, lines: Iterable[str]) -> int:
    """Write lines to a file or stdout; return their number."""
    from dlcloud.report.files import report_file

    count = 0
    if file == STDOUT:
        for line in lines:
            click.echo(line)
        return count
    with report_file(Path(file)) as draft, draft.open("w", encoding="utf-8", newline="\n") as stream:
        for count, line in enumerate(lines, 1):  # noqa: B007  the last number is the result
            stream.write(f"{line}\n")
    return count


def _report(file: str, count: int, items: str, output: str) -> None:
    """Say what was written, on stderr; as JSON on stdout. Nothing where stdout has the results."""
    from dlcloud.report.table import envelope

    if file == STDOUT:
        return
    if output == "json":
        click.echo(envelope("export", {"result": {"file": file, "count": count}}))
        return
    click.echo(f"wrote {count} {items} to {file}", err=True)
