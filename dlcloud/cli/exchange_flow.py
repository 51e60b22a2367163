"""The walks of `dlcloud export` and `dlcloud import`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from dlcloud.cli.context import Context
from dlcloud.cli.cost_lines import cost_lines
from dlcloud.cli.cost_report_flow import refuse_unknown
from dlcloud.core.errors import RecipeError
from dlcloud.report.cost import cost_report
from dlcloud.report.parquet import write_parquet
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.store.selection import Selection
from dlcloud.system.files import replace_file

STDIO = "-"
_PRIVATE = frozenset({"fact_command", "fact_environment"})
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


def export(
    context: Context, selection: Selection, file: str, form: str, *, samples: bool, commands: bool
) -> None:
    """Write what is selected.

    Raises:
        RecipeError: The format is not known, a name is not stored, or the file cannot be written.
    """
    refuse_unknown(context, selection)
    form = form or ("jsonl" if file == STDIO else _FORMATS.get(Path(file).suffix.lower(), ""))
    if not form:
        raise RecipeError(f"{file}: which format?", "end it in .jsonl, .csv or .parquet, or say --format")
    if form == "jsonl":
        lines = context.exchange.lines(selection, samples=samples, commands=commands)
        _write_lines(file, lines)
        return
    report = cost_report(cost_lines(context, selection))
    if not commands:
        kept = [{name: each[name] for name in each if name not in _PRIVATE} for each in report.records]
        report = replace(report, records=kept)
    if form == "csv":
        _write_lines(file, render(report, Format.CSV).splitlines())
    elif file == STDIO:
        raise RecipeError("Parquet is not for a terminal", "name a file")
    else:
        written(Path(file), lambda path: write_parquet(report.records, path))


def take(context: Context, files: Sequence[str], output: Format) -> None:
    """Import files, all of them or none.

    Raises:
        RecipeError: A file cannot be read, or a line is at fault.
    """
    with ExitStack() as opened:
        try:
            streams = [
                (file, sys.stdin.buffer if file == STDIO else opened.enter_context(Path(file).open("rb")))
                for file in files
            ]
            taken = context.exchange.take(streams)
        except OSError as error:
            raise RecipeError(f"{error.filename}: {error.strerror}", "nothing was imported") from error
    counts = {"added": taken.added, "completed": taken.completed, "known": taken.known}
    section = Section(
        heading="", titles=("runs", "number"), rows=[(name, str(count)) for name, count in counts.items()]
    )
    click.echo(render(Report(command="import", records=[counts], sections=[section], empty=""), output))


def written(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file whole, or leave what was there.

    Raises:
        RecipeError: It cannot be written.
    """
    try:
        with replace_file(path, mode=0o644) as draft:  # exported files are meant to be shared
            write(draft)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be written: {error.strerror}", "name another file") from error


def _write_lines(file: str, lines: Iterable[str]) -> None:
    if file == STDIO:
        for line in lines:
            click.echo(line)
        return

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(_ended(lines))

    written(Path(file), write)


def _ended(lines: Iterable[str]) -> Iterator[str]:
    return (f"{line}\n" for line in lines)
