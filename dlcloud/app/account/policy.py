"""`dlcloud policy`: the IAM policy that its user needs."""

from dataclasses import dataclass

from dlcloud.app.terminal.screen import say
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.model.errors import RecipeError
from dlcloud.planning.controller_policy import with_boundary
from dlcloud.resources.texts import iam_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyParts:
    """Which policy is printed, of those beside the usual one; `boundary` is of the roles of `detach`."""

    batch: bool
    detach: bool
    secrets: bool
    storage: bool
    private: bool
    boundary: str


def run(parts: PolicyParts, *, region: str) -> None:
    """Print the IAM policy that dlcloud needs: every action that it calls, and nothing else."""
    chosen = [name for name in ("batch", "detach", "secrets", "storage", "private") if getattr(parts, name)]
    if len(chosen) > 1:
        named = " and ".join(f"--{name}" for name in chosen)
        raise RecipeError(f"{named} are separate policies", "print and create one after the other")
    name = f"iam_policy_{chosen[0]}.json" if chosen else "iam_policy.json"
    if parts.boundary and chosen != ["detach"]:
        raise RecipeError("--boundary bounds the roles of --detach", "dlcloud policy --detach --boundary ARN")
    partition = partition_of(region)
    text = iam_policy(name, partition=partition.name, dns_suffix=partition.dns_suffix)
    say(with_boundary(text, parts.boundary) if parts.boundary else text, end="")
