"""`dlcloud doctor`: every check that `up` makes before it creates anything, alone."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("doctor")
@click.argument("target", default="quickstart")
@click.option("--cloud", type=click.Choice(["aws", "local"]), default=None, help="Instead of the recipe's.")
@click.option("--region", default=None, help="Instead of the recipe's.")
@output_option
@verbose_option
def command(*, target: str, cloud: str | None, region: str | None, output: str, verbose: bool) -> None:
    """Check whether TARGET, a recipe or an instance type, would start. Creates nothing.

    Who the credentials belong to, which zones offer the type, how much of the vCPU quota is left, which
    image, network and prices there are, and how likely spot capacity is.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.doctor_flow import examine

    with Context("doctor", verbose=verbose) as context:
        examine(context, target, cloud=cloud, region=region, output=output)
