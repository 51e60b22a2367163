"""What the account may launch: who calls, the vCPUs of its quotas, and the types of AWS's Free plan.

`launch.preflight` asks for the limits and for all that runs, and joins them with `quotas`. For each pool, the
plan asks `find_shortage` and leaves the pool out if EC2 would only refuse it; if no pool is left,
`least_remedy` says what to ask AWS for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dlcloud.model.account import UPGRADE_HINT, AccountPlan
from dlcloud.model.instance import InstanceType, Market

STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"
G = "G and VT"
P = "P"
P5 = "P5"
INF = "Inf"
TRN = "Trn"

# Source: EC2 user guide, "On-Demand Instance quotas" and "Spot Instance quotas", and the console of Service
# Quotas; the codes are those of dlcloud.local, unverified on an account.
CODES: Mapping[tuple[str, Market], str] = {
    (STANDARD, Market.ON_DEMAND): "L-1216C47A",
    (STANDARD, Market.SPOT): "L-34B43A08",
    (G, Market.ON_DEMAND): "L-DB2E81BA",
    (G, Market.SPOT): "L-3819A6DF",
    (P, Market.ON_DEMAND): "L-417A185B",
    (P, Market.SPOT): "L-7212CCBC",
    (P5, Market.SPOT): "L-C4BD4855",  # sources differ, see FALLBACKS
    (INF, Market.ON_DEMAND): "L-1945791B",
    (INF, Market.SPOT): "L-B5D1601B",
    (TRN, Market.ON_DEMAND): "L-2C3B7624",
    (TRN, Market.SPOT): "L-6B0D517C",
}
FALLBACKS: Mapping[str, str] = {"L-C4BD4855": "L-7212CCBC"}
"""The limit of types that an account does not list: P5 and P6 spot count with the other P."""
_FAMILIES = {"g": G, "gr": G, "vt": G, "p": P, "inf": INF, "trn": TRN}
_FAMILIES |= dict.fromkeys(("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"), STANDARD)
"""Families by the letters before a type's generation; dl, f, hpc, mac, u and x have their own limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerIdentity:
    """The caller's identity, by its credentials."""

    account: str
    arn: str

    @property
    def partition(self) -> str:
        """Return `aws`, or that of China or of GovCloud, whose accounts are others."""
        return self.arn.split(":")[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """An instance that runs in the account, of dlcloud or not."""

    instance_type: str
    market: Market
    vcpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One limit of the account in a region; `limit` and `used` count vCPUs."""

    family: str
    market: Market
    code: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)

    def describe(self) -> str:
        return f"{self.family} {self.market}: {self.used} of {self.limit} vCPUs in use, {self.left} left"

    def increase(self, vcpus: int, region: str) -> str:
        """Return the command that asks AWS for enough to start `vcpus` more."""
        return (
            f"aws service-quotas request-service-quota-increase --region {region} --service-code ec2 "
            f"--quota-code {self.code} --desired-value {self.used + vcpus}"
        )


def quota_key(instance_type: str, market: Market) -> tuple[str, Market] | None:
    """Return the family and market whose limit a type counts against; None where the limit is not known."""
    series = "".join(takewhile(str.isalpha, instance_type))
    family = _FAMILIES.get(series)
    if family == P and market is Market.SPOT and instance_type.startswith(("p5", "p6")):
        family = P5
    key = (family, market) if family else None
    return key if key in CODES else None


def quotas(limits: Mapping[str, int], usage: Iterable[Usage]) -> dict[tuple[str, Market], Quota]:
    """Join the limits, by their codes, with what runs; types without a limit of their own share another."""
    codes = {key: code if code in limits else FALLBACKS.get(code, code) for key, code in CODES.items()}
    used: dict[str, int] = {}
    for instance in usage:
        key = quota_key(instance.instance_type, instance.market)
        if key is not None:
            used[codes[key]] = used.get(codes[key], 0) + instance.vcpus
    return {
        key: Quota(family=key[0], market=key[1], code=code, limit=limits[code], used=used.get(code, 0))
        for key, code in codes.items()
        if code in limits
    }


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
