"""`dlcloud budget`: the limit of a month."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option, verbose_option


@click.command("budget")
@click.argument("amount", required=False, default="", metavar="[AMOUNT/month|none]")
@click.option("--shared", default="", metavar="s3://BUCKET/PREFIX", help="Share it with all who name this.")
@click.option(
    "--rehearsals/--no-rehearsals", default=None, help="Count rehearsals too, to try the limit out."
)
@output_option
@verbose_option
def command(*, amount: str, shared: str, rehearsals: bool | None, output: str, verbose: bool) -> None:
    """Print what the month has cost and what is left; with AMOUNT, set its limit in the configuration file.

    No plan starts that could pass it. What clusters cost counts, what running ones may yet cost by their own
    budgets, and what Cost Explorer has billed, where it may be asked. With --shared, the limit holds for
    everybody who names the same bucket. A notification comes at 50, 80 and 100 %.
    """
    invoke(
        "dlcloud.app.account.budget:run",
        "budget",
        verbose=verbose,
        amount=amount,
        shared=shared,
        rehearsals=rehearsals,
        output=output,
    )
