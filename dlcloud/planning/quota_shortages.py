"""What an account may not launch: beyond the vCPUs of its quotas, and beyond the types of its Free plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlcloud.model.account_plan import UPGRADE_HINT, AccountPlan
from dlcloud.model.instance import InstanceType
from dlcloud.planning.quota import Quota


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why an account cannot launch a type in a market.

    Attributes:
        needs_upgrade: The account's Free plan does not launch the type.
        quota: The quota that is too small; None if it suffices.
        vcpus: How many more vCPUs the launch asks of it; 0 if it suffices.
        reason: Both in words.
    """

    needs_upgrade: bool
    quota: Quota | None
    vcpus: int
    reason: str


def find_shortage(
    hardware: InstanceType,
    quota: Quota | None,
    *,
    account_plan: AccountPlan | None,
    least: int,
    instances: int,
) -> Shortage | None:
    """Return what an account lacks to launch a type; None if nothing is known to be missing.

    Args:
        hardware: The type.
        quota: The quota that it counts against; None if unknown.
        account_plan: AWS's plan of the account; None if unknown.
        least: How many instances there must be room for.
        instances: How many instances an increase of the quota asks for.
    """
    needs_upgrade = account_plan is AccountPlan.FREE and hardware.free_tier is False
    short = quota if quota is not None and hardware.vcpus * least > quota.left else None
    reasons = ["an account of AWS's Free plan may not launch it"] if needs_upgrade else []
    if short is not None:
        reasons.append(f"{least} of {hardware.vcpus} vCPUs are needed; {short.describe()}")
    if not reasons:
        return None
    return Shortage(
        needs_upgrade=needs_upgrade,
        quota=short,
        vcpus=hardware.vcpus * instances if short is not None else 0,
        reason="; ".join(reasons),
    )


def least_remedy(shortages: Sequence[Shortage], region: str) -> str:
    """Return what to ask AWS for, in order: for a type without an upgrade, if any, and of few vCPUs."""
    least = min(shortages, key=lambda shortage: (shortage.needs_upgrade, shortage.vcpus))
    steps = [UPGRADE_HINT] if least.needs_upgrade else []
    if least.quota is not None:
        steps.append(least.quota.increase(least.vcpus, region))
    return "; then ".join(steps)
