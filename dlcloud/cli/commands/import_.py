"""`dlcloud import`: results that were exported elsewhere."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option, verbose_option


@click.command("import")
@click.argument("files", nargs=-1, required=True)
@output_option
@verbose_option
def command(*, files: tuple[str, ...], output: str, verbose: bool) -> None:
    """Merge FILES (JSON lines of `dlcloud export`; - for stdin) into this home.

    A run that is stored already is skipped, so importing again, or both ways, changes nothing. If any line is
    at fault, nothing is imported.
    """
    invoke("dlcloud.app.results.import_:run", "import", verbose=verbose, files=files, output=output)
