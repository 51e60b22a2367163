"""`dlcloud policy`: the IAM policy that its user needs."""

from dlcloud.app.terminal.screen import say
from dlcloud.cloud.partitions import partition_of
from dlcloud.model.errors import RecipeError
from dlcloud.resources.texts import iam_policy


def run(*, detach: bool, secrets: bool, storage: bool, private: bool, region: str) -> None:
    """Print the IAM policy that dlcloud needs: every action that it calls, and nothing else."""
    parts = {"detach": detach, "secrets": secrets, "storage": storage, "private": private}
    chosen = [name for name, is_chosen in parts.items() if is_chosen]
    if len(chosen) > 1:
        named = " and ".join(f"--{name}" for name in chosen)
        raise RecipeError(f"{named} are separate policies", "print and create one after the other")
    name = f"iam_policy_{chosen[0]}.json" if chosen else "iam_policy.json"
    partition = partition_of(region)
    say(iam_policy(name, partition=partition.name, dns_suffix=partition.dns_suffix), end="")
