"""`dlcloud export`: results for other homes and for notebooks; recipes for other schedulers."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.recipe_files import read_recipe_text
from dlcloud.app.results.rows import load_rows, refuse_unknown
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.batch import batch_job_definition, batch_notes
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.cost_tables import cost_report
from dlcloud.report.files import report_file, write_parquet
from dlcloud.report.table import Format, Report, envelope, render
from dlcloud.results.cost import ResultRow
from dlcloud.store.selection import Selection
from dlcloud.store.transfer import RunTransfer

STDOUT = "-"
_PRIVATE = frozenset({"fact_command", "fact_environment"})
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What `dlcloud export` was asked for."""

    file: str
    scheduler: str | None
    form: str | None
    selection: Selection
    samples: bool
    commands: bool
    output: str


def run(context: Context, options: ExportOptions) -> None:
    """Write what was measured to FILE (.jsonl, .csv, .parquet; - for stdout)."""
    if options.scheduler is not None:
        _print_job_definition(options.file, options.selection.settings)
        return

    refuse_unknown(context.measurements, options.selection)
    if options.file.startswith(("http://", "https://")):
        _send_to_tracker(context, options)
        return
    form = options.form or (
        "jsonl" if options.file == STDOUT else _FORMATS.get(Path(options.file).suffix.lower(), "")
    )
    if not form:
        raise RecipeError(
            f"{options.file}: which format?", "end it in .jsonl, .csv or .parquet, or say --format"
        )
    if form == "jsonl":
        lines = RunTransfer(context.database).export_lines(
            options.selection, samples=options.samples, commands=options.commands
        )
        _report(options.file, _write_lines(options.file, lines), "run(s)", options.output)
        return
    rows = load_rows(context.measurements, options.selection, context.clock.now())
    report = report_of_rows(rows, commands=options.commands)
    if form == "csv":
        _write_lines(options.file, render(report, Format.CSV).splitlines())
        _report(options.file, len(report.records), "result(s)", options.output)
    elif options.file == STDOUT:
        raise RecipeError("Parquet is not for a terminal", "name a file")
    else:
        with report_file(Path(options.file)) as draft:
            write_parquet(report.records, draft)
        _report(options.file, len(report.records), "result(s)", options.output)


def _send_to_tracker(context: Context, options: ExportOptions) -> None:
    """Send runs to a server of MLflow, each to the experiment of its workload's name."""
    from dlcloud.app.results.tracker_feed import send_all  # noqa: PLC0415  only for a server's address

    runs = context.measurements.runs(context.measurements.run_ids(options.selection))
    send_all(context, options.file, runs)
    _report(options.file, len(runs), "run(s)", options.output)


def report_of_rows(rows: Sequence[ResultRow], *, commands: bool = False) -> Report:
    """Return the results as they leave this home: without `commands`, no program's command or variables."""
    report = cost_report(rows, command="export")
    if commands:
        return report
    records = [
        {name: value for name, value in record.items() if name not in _PRIVATE} for record in report.records
    ]
    return replace(report, records=records)


def _print_job_definition(name: str, settings: Sequence[str]) -> None:
    """Print a recipe for AWS Batch, and on stderr what a job definition cannot say."""
    text, path = read_recipe_text(name)
    recipe = read_recipe(text, str(path or name))
    catalog = Catalog()
    types = [hardware for name in recipe.instances.types if (hardware := catalog.hardware(name))]
    if not types:
        names = ", ".join(recipe.instances.types)
        raise RecipeError(f"the hardware of {names} is not known", "dlcloud instances lists what is")
    definition = batch_job_definition(recipe, types, settings[0] if settings else "")
    say(json.dumps(definition, indent=2))
    for note in batch_notes(recipe):
        say(f"# {note}", err=True)


def _write_lines(file: str, lines: Iterable[str]) -> int:
    """Write lines to a file or stdout; return their number."""
    count = 0
    if file == STDOUT:
        for line in lines:
            say(line)
        return count
    with report_file(Path(file)) as draft, draft.open("w", encoding="utf-8", newline="\n") as stream:
        for count, line in enumerate(lines, 1):  # noqa: B007  the last number is the result
            stream.write(f"{line}\n")
    return count


def _report(file: str, count: int, items: str, output: str) -> None:
    """Say what was written, on stderr; as JSON on stdout. Nothing where stdout has the results."""
    if file == STDOUT:
        return
    if output == "json":
        say(envelope("export", {"result": {"file": file, "count": count}}))
        return
    say(f"wrote {count} {items} to {file}", err=True)
