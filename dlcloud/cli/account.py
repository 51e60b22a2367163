"""The commands about an account: `doctor`, `instances`, `policy`, `budget`, `image` and `selftest`.

The use cases are in `dlcloud/app/account`.
"""

from typing import Any

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.options import (
    CLOUDS,
    Command,
    add_options,
    cidr_option,
    output_option,
    region_option,
    requirement_options,
    verbose_option,
)

FEATURES = ("batch", "detach", "secrets", "storage", "private")

commands = click.Group()


def _with_feature_flags(command: Command) -> Command:
    """Add the features of `policy` as options, as earlier versions spelled them."""
    return add_options(command, *(click.option(f"--{name}", is_flag=True, hidden=True) for name in FEATURES))


@commands.command("doctor")
@click.argument("target", default="quickstart", shell_complete=complete_recipes)
@click.option(
    "--cloud",
    type=click.Choice(CLOUDS),
    default="aws",
    show_default=True,
    help="Which cloud is asked, whatever the recipe says; local is a rehearsal.",
)
@click.option("--region", default=None, metavar="REGION", help="Use this instead of the recipe's.")
@click.option("--fix-hint", is_flag=True, help="Print the policy statements that are missing, as JSON.")
@output_option
@verbose_option
def doctor(
    *, target: str, cloud: str, region: str | None, fix_hint: bool, output: str, verbose: bool
) -> None:
    """Check whether TARGET, a recipe or an instance type, would start on AWS. Creates nothing.

    It checks credentials, zones, vCPU quota, image, network, prices and spot capacity, and does an EC2
    dry run. TARGET is the recipe quickstart by default.
    """
    from dlcloud.app.account.doctor import run
    from dlcloud.app.context import Context

    with Context("doctor", verbose=verbose) as context:
        run(context, target=target, cloud=cloud, region=region, fix_hint=fix_hint, output=output)


@commands.command("instances")
@click.argument("types", nargs=-1)
@requirement_options
@region_option
@click.option(
    "--live",
    is_flag=True,
    help="Ask AWS for prices, spot too, and for the types that the bundled table lacks.",
)
@click.option(
    "--cloud",
    type=click.Choice(CLOUDS),
    default="aws",
    show_default=True,
    help="Which cloud --live queries.",
)
@click.option("--retired", is_flag=True, help="Include retired types; a type that is named is always shown.")
@output_option
@verbose_option
def instances(
    *,
    types: tuple[str, ...],
    needs: dict[str, Any],
    region: str,
    live: bool,
    cloud: str,
    retired: bool,
    output: str,
    verbose: bool,
) -> None:
    """List instance types, the cheapest TFLOPS first; with TYPES, only those (c7i, c7*.xlarge, p3.2xlarge).

    The options are the requirements of `up` and `bench`, and mean the same.

    TFLOPS per USD is the peak of the GPUs' tensor cores, else FP32, over the on-demand price. `dlcloud
    cost-report` shows what was measured.
    """
    from dlcloud.app.account.instances import run
    from dlcloud.app.context import Context

    with Context("instances", verbose=verbose) as context:
        run(
            context,
            types=types,
            needs=needs,
            retired=retired,
            region=region,
            live=live,
            cloud=cloud,
            output=output,
        )


@commands.command("policy")
@click.argument("feature", type=click.Choice(FEATURES), required=False, default=None)
@_with_feature_flags
@region_option
@click.option(
    "--boundary",
    metavar="ARN",
    default="",
    help="Permissions boundary for the roles that --detach creates.",
)
def policy(*, feature: str | None, region: str, boundary: str, **flags: bool) -> None:
    """Print the IAM policy that dlcloud needs: every action that it calls, and nothing else.

    With FEATURE, print the additional policy of `up --on batch` (batch), `up --detach` (detach), secrets
    of SSM and Secrets Manager (secrets), data and checkpoints in S3 (storage), or endpoints and Session
    Manager (private).

    \b
    dlcloud policy > dlcloud.json
    aws iam create-policy --policy-name dlcloud \\
      --policy-document file://dlcloud.json
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.app.account.policy import run
    from dlcloud.model.errors import RecipeError

    named = [*([feature] if feature else []), *(name for name in FEATURES if flags[name])]
    if len(named) > 1:
        message = f"{' and '.join(named)} are separate policies"
        raise RecipeError(message, "print and create one after the other")
    run(feature=named[0] if named else "", region=region, boundary=boundary)


@commands.command("budget")
@click.argument("amount", required=False, default="", metavar="[AMOUNT/month|none]")
@click.option(
    "--shared",
    default="",
    metavar="s3://BUCKET/PREFIX",
    help="Share the budget with everyone who uses this bucket.",
)
@click.option(
    "--rehearsals/--no-rehearsals", default=None, help="Count rehearsals too, to try the limit out."
)
@output_option
@verbose_option
def budget(*, amount: str, shared: str, rehearsals: bool | None, output: str, verbose: bool) -> None:
    """Print what the month has cost and what is left; with AMOUNT, set its limit in the configuration file.

    A plan that could exceed it is refused. With --shared, the limit holds for everybody who names the
    same bucket. A notification comes at 50, 80 and 100 %.
    """
    from dlcloud.app.budget import run
    from dlcloud.app.context import Context

    with Context("budget", verbose=verbose) as context:
        run(context, amount=amount, shared=shared, rehearsals=rehearsals, output=output)


@commands.command("image")
@click.argument("recipe", default="", shell_complete=complete_recipes)
@click.option("--list", "listed", is_flag=True, help="Print the images that were made, and what they cost.")
@region_option
@click.option("--cloud", type=click.Choice(CLOUDS), default="aws", show_default=True, help="Cloud of --list.")
@click.option(
    "--from", "base", default="", metavar="IMAGE", help="Image to begin with; default: the recipe's."
)
@click.option(
    "-t",
    "--type",
    "instance_type",
    default="",
    metavar="TYPE",
    help="Type that makes the image; default: the cheapest.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("-y", "--yes", is_flag=True, help="Spend money without asking.")
@cidr_option
@output_option
@verbose_option
def image(
    *,
    recipe: str,
    listed: bool,
    region: str,
    cloud: str,
    base: str,
    instance_type: str,
    dry_run: bool,
    yes: bool,
    cidrs: tuple[str, ...],
    output: str,
    verbose: bool,
) -> None:
    """Make an image with the environment of RECIPE in it, which instances.image then names.

    Launch one instance, run the recipe's set-up commands, install its packages, remove keys and secrets,
    make the image, and terminate the instance. Commands that do not survive a reboot belong to the
    workload: they are not repeated. Run it again after a change of the packages.
    """
    from dlcloud.app.account.image import list_images, run
    from dlcloud.app.context import Context

    with Context("image", verbose=verbose) as context:
        if listed:
            list_images(context, region=region, cloud=cloud, output=output)
            return
        run(
            context,
            recipe=recipe,
            base=base,
            instance_type=instance_type,
            dry_run=dry_run,
            yes=yes,
            cidrs=cidrs,
            output=output,
        )


@commands.command("selftest")
@click.option(
    "--cloud",
    type=click.Choice(CLOUDS),
    default="aws",
    show_default=True,
    help="Which cloud is tested; local is a rehearsal.",
)
@region_option
@click.option(
    "-t",
    "--type",
    "instance_type",
    default="t3.micro",
    show_default=True,
    metavar="TYPE",
    help="Instance type; t4g.micro tests arm64.",
)
@click.option(
    "--part",
    type=click.Choice(("round-trip", "switch", "policy", "detach", "batch", "gpu")),
    default="round-trip",
    show_default=True,
    help="Check to run: docs/selftest.md lists rows, minutes and prices.",
)
@click.option(
    "--results", default="", metavar="s3://BUCKET/FOLDER", help="Folder for the results of --part batch."
)
@click.option("-y", "--yes", is_flag=True, help="Spend money without asking.")
@output_option
def selftest(
    *, cloud: str, region: str, instance_type: str, part: str, results: str, yes: bool, output: str
) -> int | None:
    """Launch, resize and terminate the cheapest instances to check that dlcloud works with your account.

    It launches one on-demand and one spot instance, runs a command on each, adds an instance, terminates all
    and looks for what is left. --part chooses another check. The most that it may cost is shown before
    anything is launched. Exits with 5 if a row of the table has FAILED.
    """
    from dlcloud.app.account.selftest import run
    from dlcloud.app.context import Context

    with Context("selftest") as context:
        return run(
            context,
            cloud=cloud,
            region=region,
            instance_type=instance_type,
            part=part,
            results=results,
            yes=yes,
            output=output,
        )
