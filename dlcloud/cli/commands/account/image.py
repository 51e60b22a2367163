"""`dlcloud image`: make an image with a recipe's environment in it, or list those that were made."""

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import cidr_option, collect_options, output_option, verbose_option
from dlcloud.model.cluster import DEFAULT_REGION


@click.command("image")
@click.argument("recipe", default="", shell_complete=complete_recipes)
@click.option("--list", "listed", is_flag=True, help="Print the images that were made, and what they cost.")
@click.option("--region", default=DEFAULT_REGION, show_default=True, help="Of --list.")
@click.option(
    "--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Of --list."
)
@click.option("--from", "base", default="", help="The image to begin with; default: the recipe's.")
@click.option("--type", "instance_type", default="", help="The type that makes it; default: the cheapest.")
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@cidr_option("the instance")
@output_option
@verbose_option
@collect_options("options", "dlcloud.app.account.image:ImageOptions")
def command(*, options: object, verbose: bool) -> None:
    """Make an image with the environment of RECIPE in it, which instances.image then names.

    Launches one instance, runs the recipe's set-up commands, installs its packages, removes keys and secrets,
    makes the image, and terminates the instance. Instances of the image are set up at once. Commands whose
    effect does not survive a reboot belong to the workload, as they are not repeated. Run it again after a
    change of the packages; `dlcloud gc` removes images that are superseded or unused.
    """
    invoke("dlcloud.app.account.image:run", "image", verbose=verbose, options=options)
