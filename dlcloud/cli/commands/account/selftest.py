"""`dlcloud selftest`: the cheapest round trip on an account, and what it proves."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import output_option
from dlcloud.model.cluster import DEFAULT_REGION


@click.command("selftest")
@click.option("--cloud", type=click.Choice(["aws", "local"]), default="local", show_default=True)
@click.option("--region", default=DEFAULT_REGION, show_default=True)
@click.option(
    "--type", "instance_type", default="t3.micro", show_default=True, help="t4g.micro proves arm64."
)
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@output_option
def command(*, cloud: str, region: str, instance_type: str, yes: bool, output: str) -> int | None:
    """Prove that dlcloud works on an account: launch, run, grow and terminate the cheapest instances.

    It checks the account, launches one on-demand and one spot instance, runs a command on each, adds an
    instance, takes all down and looks for what is left. The most that it may cost is shown before anything is
    launched. Ends with 5 if a row of the table has FAILED.
    """
    return invoke(
        "dlcloud.app.account.selftest:run",
        None,
        cloud=cloud,
        region=region,
        instance_type=instance_type,
        yes=yes,
        output=output,
    )
