"""`dlcloud policy`: the IAM policy that its user needs."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import collect_options
from dlcloud.model.cluster import DEFAULT_REGION

PARTS = ("batch", "detach", "secrets", "storage", "private", "boundary")


@click.command("policy")
@click.option("--batch", is_flag=True, help="What up --on batch needs beside it and --detach.")
@click.option("--detach", is_flag=True, help="What up --detach needs beside it.")
@click.option("--secrets", is_flag=True, help="What secrets of SSM and Secrets Manager need beside it.")
@click.option("--storage", is_flag=True, help="What data and checkpoints in S3 need beside it.")
@click.option("--private", is_flag=True, help="What endpoints and Session Manager need beside it.")
@click.option(
    "--region", default=DEFAULT_REGION, show_default=True, help="Any of the partition: China's, GovCloud's."
)
@click.option("--boundary", metavar="ARN", default="", help="Of the roles of --detach: no right beyond it.")
@collect_options("parts", "dlcloud.app.account.policy:PolicyParts", PARTS)
def command(*, parts: object, region: str) -> None:
    """Print the IAM policy that dlcloud needs: every action that it calls, and nothing else.

    \b
    dlcloud policy > dlcloud.json
    aws iam create-policy --policy-name dlcloud --policy-document file://dlcloud.json
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    invoke(
        "dlcloud.app.account.policy:run",
        None,
        parts=parts,
        region=region,
    )
