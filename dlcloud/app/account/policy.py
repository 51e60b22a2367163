"""`dlcloud policy`: the IAM policy that its user needs, and those for further features."""

from dlcloud.app.terminal.screen import say
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.model.errors import RecipeError
from dlcloud.planning.policies import with_boundary
from dlcloud.resources.texts import iam_policy


def run(*, feature: str = "", region: str, boundary: str = "") -> None:
    """Print an IAM policy: every action that dlcloud calls, and nothing else.

    Args:
        feature: Empty for the policy that every user needs; else the additional one of a feature: `batch`,
            `detach`, `secrets`, `storage` or `private`.
        region: Any region of the partition.
        boundary: The ARN of a permissions boundary for the roles that `detach` creates.
    """
    if boundary and feature != "detach":
        raise RecipeError("--boundary limits the roles of --detach", "dlcloud policy detach --boundary ARN")
    partition = partition_of(region)
    name = f"iam_policy_{feature}.json" if feature else "iam_policy.json"
    text = iam_policy(name, partition=partition.name, dns_suffix=partition.dns_suffix)
    say(with_boundary(text, boundary) if boundary else text, end="")
