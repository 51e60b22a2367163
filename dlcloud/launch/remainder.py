"""What of a cluster may still be up where EC2 could not end it: as the store knows it, with its price."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal

from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.members import LAUNCH, life_minutes
from dlcloud.model.cluster import Intent, Member
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market, Price
from dlcloud.model.money import money, total_usd
from dlcloud.planning.attempts import LaunchAttempt


def describe_remainder(managed: ManagedCluster) -> str:
    """Return what may still be up, the price of an hour of it, and when it ends itself.

    Instances without a known end count, and those of a request whose answer was lost. EC2 is not asked: it
    does not answer, or refuses. Prices are those of the plan, and of on-demand instances for lost requests.
    """
    clusters, cluster_id = managed.store.clusters, managed.cluster_id
    members = [member for member in clusters.members(cluster_id) if member.ended_at is None]
    lost = [intent for intent in clusters.intents(cluster_id, LAUNCH) if intent.outcome is None]
    requests = [LaunchAttempt.from_text(intent.detail) for intent in lost]
    counts = [f"{len(members)} instance(s)"] if members else []
    if requests:
        counts.append(f"up to {sum(request.count for request in requests)} of a launch without an answer")
    if not counts:
        return "no instance is up, but its security group may be left, at no cost"
    hourly_usd = total_usd([*(member.hourly_usd for member in members), *_most_usd(managed, requests)])
    price = "at an unknown price" if hourly_usd is None else f"for {money(hourly_usd)} USD/h"
    end = _latest_end(members, life_minutes(cluster_id, clusters), zip(lost, requests, strict=True))
    until = f" until they end themselves, at {end:%Y-%m-%d %H:%M} UTC at the latest" if end else ""
    return f"{' and '.join(counts)} may still be up {price}{until}"


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
    """Return when the last one ends itself; None where that is not known of one."""
    lives = [(m.instance.launched_at, minutes.get(m.instance.instance_id, 0)) for m in members]
    lives += [(intent.begun_at, request.life_minutes) for intent, request in requests]
    if not all(life for _, life in lives):
        return None
    return max(began + timedelta(minutes=life) for began, life in lives)
