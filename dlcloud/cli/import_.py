"""`dlcloud import`: results that were exported elsewhere."""

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from dlcloud.cli.options import output_option, verbose_option

STDIN = "-"


@click.command("import")
@click.argument("files", nargs=-1, required=True)
@output_option
@verbose_option
def command(*, files: tuple[str, ...], output: str, verbose: bool) -> None:
    """Merge FILES (JSON lines of `dlcloud export`; - for stdin) into this home.

    A run that is stored already is skipped, so importing again, or both ways, changes nothing. If any line is
    at fault, nothing is imported.
    """
    from dlcloud.cli.context import Context
    from dlcloud.model.errors import RecipeError
    from dlcloud.report.table import Format, Report, Section, render

    with Context("import", verbose=verbose) as context, ExitStack() as opened:
        try:
            streams = [
                (file, sys.stdin.buffer if file == STDIN else opened.enter_context(Path(file).open("rb")))
                for file in files
            ]
            imported = context.transfer.import_lines(streams)
        except OSError as error:
            raise RecipeError(f"{error.filename}: {error.strerror}", "nothing was imported") from error
        counts = {"added": imported.added, "completed": imported.completed, "known": imported.unchanged}
        section = Section(
            heading="", titles=("runs", "number"), rows=[(name, str(count)) for name, count in counts.items()]
        )
        report = Report(command="import", records=[counts], sections=[section], empty="")
        click.echo(render(report, Format(output)))
