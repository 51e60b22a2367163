"""`dlcloud import`: what others measured."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("import")
@click.argument("files", nargs=-1, required=True)
@output_option
@verbose_option
def command(*, files: tuple[str, ...], output: str, verbose: bool) -> None:
    """Merge FILES (JSON lines of `dlcloud export`; - for stdin) into this home.

    A run that is known already is not taken twice, so importing again, or both ways, changes nothing. If any
    line is at fault, nothing is imported.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.exchange_flow import take
    from dlcloud.report.table import Format

    with Context("import", verbose=verbose) as context:
        take(context, files, Format(output))
