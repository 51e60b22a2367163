"""What of a cluster may still be up where EC2 could not end it: as the store knows it, with its price."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.members import LAUNCH, life_minutes
from dlcloud.model.cluster import Intent, Member
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market, Price
from dlcloud.model.money import hourly_price, instance_usd, money, total_usd
from dlcloud.planning.attempts import LaunchAttempt

NOTHING_UP = "no instance is up, but its security group may be left, at no cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """What may still be up.

    Args:
        count: Instances without a known end.
        requested: Instances of launches whose answer was lost.
        hourly_usd: The price of an hour of all; None if it is unknown.
        ends_at: When the last one terminates itself; None if that is unknown.
    """

    count: int
    requested: int
    hourly_usd: Decimal | None
    ends_at: datetime | None

    def describe(self) -> str:
        """Return what may still be up, the price of an hour of it, and when it terminates itself."""
        counts = [f"{self.count} instance(s)"] if self.count else []
        if self.requested:
            counts.append(f"up to {self.requested} of a launch without an answer")
        if not counts:
            return NOTHING_UP
        until = ""
        if self.ends_at is not None:
            until = f" until they terminate themselves, at {self.ends_at:%Y-%m-%d %H:%M} UTC at the latest"
        return f"{' and '.join(counts)} may still be up {self._price()}{until}"

    def describe_leaving(self, now: datetime) -> str:
        """Return what leaving means: "to leave them until they terminate themselves at 14:05 UTC, …"."""
        if not self.count and not self.requested:
            return "to leave its security group, at no cost"
        if self.ends_at is None:
            return f"to leave them up {self._price()}"
        day = "" if self.ends_at.date() == now.date() else f"{self.ends_at:%Y-%m-%d} "
        seconds = max(0.0, (self.ends_at - now).total_seconds())
        usd = None if self.hourly_usd is None else instance_usd(self.hourly_usd, seconds)
        most = "at an unknown price" if usd is None else f"{money(usd)} USD at most"
        return f"to leave them until they terminate themselves at {day}{self.ends_at:%H:%M} UTC, {most}"

    def _price(self) -> str:
        return hourly_price([self.hourly_usd])


def find_remainder(managed: ManagedCluster, keeping: Collection[str] = ()) -> Remainder:
    """Return what of a cluster may still be up, without the instances that are to stay.

    Instances without a known end count, and those of a request whose answer was lost. EC2 is not asked: it
    does not answer, or refuses. Prices are those of the plan, and of on-demand instances for lost requests.
    """
    clusters, cluster_id = managed.store.clusters, managed.cluster_id
    living = [member for member in clusters.members(cluster_id) if member.ended_at is None]
    members = [member for member in living if member.instance.instance_id not in keeping]
    lost = [intent for intent in clusters.intents(cluster_id, LAUNCH) if intent.outcome is None]
    requests = [LaunchAttempt.from_text(intent.detail) for intent in lost]
    has_any = bool(members or requests)
    usd = [*(member.hourly_usd for member in members), *_most_usd(managed, requests)]
    lives = life_minutes(cluster_id, clusters) if has_any else {}
    return Remainder(
        count=len(members),
        requested=sum(request.count for request in requests),
        hourly_usd=total_usd(usd),
        ends_at=_latest_end(members, lives, zip(lost, requests, strict=True)) if has_any else None,
    )


def _most_usd(managed: ManagedCluster, requests: Sequence[LaunchAttempt]) -> list[Decimal | None]:
    """Return the most that an hour of each request costs; None at an unknown price.

    Source: EC2 user guide, "Spot Instances": the maximum price defaults to the on-demand price.
    """
    types = sorted({name for request in requests for name, _ in request.pools})
    prices: list[Price] = []
    with suppress(CloudError):
        prices = managed.cloud.prices.find(types, [Market.ON_DEMAND]) if types else []
    by_type = {price.instance_type: price.hourly_usd for price in prices}
    most: list[Decimal | None] = []
    for request in requests:
        usd = [by_type[name] for name, _ in request.pools if name in by_type]
        most.append(max(usd) * request.count if len(usd) == len(request.pools) else None)
    return most


def _latest_end(
    members: Sequence[Member], minutes: dict[str, int], requests: Iterable[tuple[Intent, LaunchAttempt]]
) -> datetime | None:
    """Return when the last one terminates itself; None where that is not known of one."""
    lives = [(m.instance.launched_at, minutes.get(m.instance.instance_id, 0)) for m in members]
    lives += [(intent.begun_at, request.life_minutes) for intent, request in requests]
    if not all(life for _, life in lives):
        return None
    return max(began + timedelta(minutes=life) for began, life in lives)
