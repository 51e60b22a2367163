"""`dlcloud doctor`: every check that `up` makes before it creates anything, alone."""

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option, verbose_option


@click.command("doctor")
@click.argument("target", default="quickstart", shell_complete=complete_recipes)
@click.option("--cloud", type=click.Choice(["aws", "local"]), default=None, help="Instead of the recipe's.")
@click.option("--region", default=None, help="Instead of the recipe's.")
@click.option("--fix-hint", is_flag=True, help="Print the policy statements that are missing, as JSON.")
@output_option
@verbose_option
def command(
    *, target: str, cloud: str | None, region: str | None, fix_hint: bool, output: str, verbose: bool
) -> None:
    """Check whether TARGET, a recipe or an instance type, would start. Creates nothing.

    Who the credentials belong to, which zones offer the type, how much of the vCPU quota is left, which
    image, network and prices there are, how likely spot capacity is, and whether EC2 would take the launch
    (dry run).
    """
    invoke(
        "dlcloud.app.account.doctor:run",
        "doctor",
        verbose=verbose,
        target=target,
        cloud=cloud,
        region=region,
        fix_hint=fix_hint,
        output=output,
    )
