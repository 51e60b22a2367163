"""`dlcloud gc`: find, price and remove what is left of clusters that no command manages."""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import collect_options, output_option, verbose_option
from dlcloud.model.errors import RecipeError

if TYPE_CHECKING:
    from dlcloud.app.account.gc import SearchScope


@click.command("gc")
@click.argument("clusters", nargs=-1)
@click.option("--region", "regions", multiple=True, help="Only there; default: every region of the account.")
@click.option(
    "--cloud",
    type=click.Choice(["aws", "local"]),
    default=None,
    help="Where to look; default: AWS, and the local EC2 if it runs.",
)
@click.option("--all-owners", is_flag=True, help="What other people, and other homes, launched, too.")
@click.option("--cache", is_flag=True, help="Instead, what can be made again in this home: see below.")
@click.option("--dry-run", is_flag=True, help="Show; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@output_option
@verbose_option
@collect_options(
    "scope", "dlcloud.app.account.gc:SearchScope", ("clusters", "regions", "cloud", "all_owners")
)
def command(
    *, scope: "SearchScope", cache: bool, dry_run: bool, yes: bool, output: str, verbose: bool
) -> None:
    """Find by tag what no cluster of this machine's store accounts for, price it, and remove it.

    It removes what this home launched. What another home launched with the same credentials is listed, and
    removed by its id: after the laptop is lost, any machine does. What other people launched is listed, and
    removed with --all-owners only. A cluster that one of its own instances controls is left alone while that
    lives. With CLUSTERS (ids), only what belongs to them is removed, detached ones included. Regions that a
    policy denies are named and passed over. Images that `dlcloud image` made are removed, with their
    snapshots, once they are superseded by a newer one, or not launched for 30 days, or their cluster is
    named. Unfinished clusters of this home, whose launcher is gone, are listed with their price and the
    command that ends them.

    With --cache it shows what environments, models, packages and container images of the local EC2 take on
    this machine, and removes what no cluster uses; each is made again when it is needed.
    """
    if cache:
        if scope != type(scope)():
            raise RecipeError("--cache is of this machine alone", "dlcloud gc --cache")
        invoke(
            "dlcloud.app.account.cache:run", "gc", verbose=verbose, dry_run=dry_run, yes=yes, output=output
        )
        return
    invoke(
        "dlcloud.app.account.gc:run",
        "gc",
        verbose=verbose,
        scope=scope,
        dry_run=dry_run,
        yes=yes,
        output=output,
    )
