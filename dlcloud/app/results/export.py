"""`dlcloud export` and `dlcloud import`: results for other dlcloud homes, notebooks and trackers.

JSON lines hold whole runs, so that importing them into another home, or twice, changes nothing that is there;
CSV and Parquet hold one result a row. The command lines and variables of the user's own programs leave this
machine only if they are asked for.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dlcloud.analysis.cost import ResultRow
from dlcloud.app.choice import with_bundled_types
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
from dlcloud.report.table import Format, Report, Section, envelope, render
from dlcloud.store.measurements import Selection
from dlcloud.store.transfer import RunTransfer

STDIN = STDOUT = "-"
_PRIVATE = frozenset({"fact_command", "fact_environment"})
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


def run(
    context: Context,
    *,
    file: str,
    form: str | None = None,
    selection: Selection,
    samples: bool = False,
    commands: bool = False,
    output: str,
) -> None:
    """Write what was measured to a file (.jsonl, .csv, .parquet; - for stdout), or to an MLflow server.

    Args:
        context: The collaborators.
        file: The path, or the server's URL.
        form: `jsonl`, `csv` or `parquet`; by default from the file's extension.
        selection: Of the results.
        samples: Include the raw samples (JSON lines).
        commands: Include the command lines and variables of the user's own programs.
        output: The format of what is printed about it.
    """
    refuse_unknown(context.measurements, selection)
    if file.startswith(("http://", "https://")):
        from dlcloud.app.results.tracking import send_all  # noqa: PLC0415  only for a server's address

        runs = context.measurements.runs(context.measurements.run_ids(selection))
        send_all(context, file, runs)
        _report(file, len(runs), "run(s)", output)
        return
    form = form or ("jsonl" if file == STDOUT else _FORMATS.get(Path(file).suffix.lower(), ""))
    if not form:
        raise RecipeError(f"{file}: which format?", "end it in .jsonl, .csv or .parquet, or say --format")
    if form == "jsonl":
        lines = RunTransfer(context.database).export_lines(selection, samples=samples, commands=commands)
        _report(file, _write_lines(file, lines), "run(s)", output)
        return
    rows = load_rows(context.measurements, selection, context.clock.now())
    report = report_of_rows(rows, commands=commands)
    if form == "csv":
        _write_lines(file, render(report, Format.CSV).splitlines())
        _report(file, len(report.records), "result(s)", output)
    elif file == STDOUT:
        raise RecipeError("Parquet is not for a terminal", "name a file")
    else:
        with report_file(Path(file)) as draft:
            write_parquet(report.records, draft)
        _report(file, len(report.records), "result(s)", output)


def report_of_rows(rows: Sequence[ResultRow], *, commands: bool = False) -> Report:
    """Return the results as they leave this home: without `commands`, no program's command or variables."""
    report = cost_report(rows, command="export")
    if commands:
        return report
    records = [
        {name: value for name, value in record.items() if name not in _PRIVATE} for record in report.records
    ]
    return replace(report, records=records)


def print_job_definition(name: str, settings: Sequence[str] = ()) -> None:
    """Print a recipe for AWS Batch, and on stderr what a job definition cannot say."""
    text, path = read_recipe_text(name)
    recipe = with_bundled_types(read_recipe(text, str(path or name)))
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


def import_files(context: Context, *, files: tuple[str, ...], output: str) -> None:
    """Merge FILES (JSON lines of `dlcloud export`; - for stdin) into this home."""
    with ExitStack() as opened:
        try:
            streams = [
                (file, sys.stdin.buffer if file == STDIN else opened.enter_context(Path(file).open("rb")))
                for file in files
            ]
            imported = RunTransfer(context.database).import_lines(streams)
        except OSError as error:
            raise RecipeError(f"{error.filename}: {error.strerror}", "nothing was imported") from error
        counts = {"added": imported.added, "completed": imported.completed, "known": imported.unchanged}
        section = Section(
            heading="", titles=("runs", "number"), rows=[(name, str(count)) for name, count in counts.items()]
        )
        report = Report(command="import", records=[counts], sections=[section], empty="")
        say(render(report, Format(output)))
