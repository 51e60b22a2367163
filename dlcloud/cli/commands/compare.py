"""`dlcloud compare`: two runs, types, settings or dates side by side."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option, verbose_option


@click.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@output_option
@verbose_option
def command(*, first: str, second: str, output: str, verbose: bool) -> None:
    """Say how many times as fast B is as A, with an interval and a verdict, and what else differs.

    A and B are each a run, a cluster, an instance type or family, a setting, a benchmark, a case or a day, or
    several of them with commas: `c5.large,int8`. Where a word may mean several things, say which:
    `type:c5`, `setting:int8`, `run:…`, `cluster:…`, `benchmark:…`, `case:…`, `date:2026-09-01`. Of each side
    the newest results are taken; what both have measured is compared.

    \b
    dlcloud compare fp32 int8
    dlcloud compare c5.large c7i.large
    dlcloud compare 2026-09-01 2026-10-01
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    invoke(
        "dlcloud.app.results.compare:run",
        "compare",
        verbose=verbose,
        first=first,
        second=second,
        output=output,
    )
