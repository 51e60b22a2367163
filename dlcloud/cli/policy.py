"""`dlcloud policy`: the IAM policy that its user needs."""

import click

from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import RecipeError


@click.command("policy")
@click.option("--detach", is_flag=True, help="What up --detach needs beside it.")
@click.option("--secrets", is_flag=True, help="What secrets of SSM and Secrets Manager need beside it.")
@click.option("--storage", is_flag=True, help="What data and checkpoints in S3 need beside it.")
@click.option("--private", is_flag=True, help="What endpoints and Session Manager need beside it.")
@click.option(
    "--region", default=DEFAULT_REGION, show_default=True, help="Any of the partition: China's, GovCloud's."
)
def command(*, detach: bool, secrets: bool, storage: bool, private: bool, region: str) -> None:
    """Print the IAM policy that dlcloud needs: every action that it calls, and nothing else.

    \b
    dlcloud policy > dlcloud.json
    aws iam create-policy --policy-name dlcloud --policy-document file://dlcloud.json
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.cloud.partitions import partition_of
    from dlcloud.resources.texts import iam_policy

    parts = {"detach": detach, "secrets": secrets, "storage": storage, "private": private}
    chosen = [name for name, is_chosen in parts.items() if is_chosen]
    if len(chosen) > 1:
        named = " and ".join(f"--{name}" for name in chosen)
        raise RecipeError(f"{named} are separate policies", "print and create one after the other")
    name = f"iam_policy_{chosen[0]}.json" if chosen else "iam_policy.json"
    partition = partition_of(region)
    click.echo(iam_policy(name, partition=partition.name, dns_suffix=partition.dns_suffix), nl=False)
