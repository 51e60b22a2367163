"""`dlcloud import`: results that were exported elsewhere."""

import sys
from contextlib import ExitStack
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.model.errors import RecipeError
from dlcloud.report.table import Format, Report, Section, render
from dlcloud.store.transfer import RunTransfer

STDIN = "-"


def run(context: Context, *, files: tuple[str, ...], output: str) -> None:
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
