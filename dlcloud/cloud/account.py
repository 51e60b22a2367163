"""An account in one region: vCPU limits and usage, default subnets, spot placement scores."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from dlcloud.cloud.catalog import Catalog
from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import translate_errors
from dlcloud.core.instance import Market
from dlcloud.core.protocols import Clock
from dlcloud.core.quota import Usage
from dlcloud.core.successors import KnownType

FRESH = timedelta(days=1)
NO_QUOTA = "NoSuchResourceException"


class Cache(Protocol):
    """Keeps answers between commands."""

    def get(self, subject: str) -> tuple[str, datetime] | None:
        """Return the answer on a subject, and its date."""

    def put(self, subject: str, content: str, as_of: datetime) -> None: ...


class Account:
    """The account in one region.

    Args:
        clients: The region's clients.
        catalog: The bundled table of instance types.
        cache: Keeps limits and subnets for a day.
        clock: Dates answers.
    """

    def __init__(self, *, clients: Clients, catalog: Catalog, cache: Cache, clock: Clock) -> None:
        self._clients = clients
        self._catalog = catalog
        self._cache = cache
        self._clock = clock

    def known_types(self) -> list[KnownType]:
        """Return the bundled table with its prices."""
        region = self._clients.region
        return [
            KnownType(hardware=hardware, price=self._catalog.on_demand_price(hardware.name, region))
            for hardware in self._catalog
        ]

    def limits(self, codes: Sequence[str], *, fresh: bool = False) -> dict[str, int]:
        """Return limits in vCPUs by the codes of Service Quotas; unknown codes are absent.

        Args:
            codes: Codes of Service Quotas.
            fresh: Ignore the cache.
        """
        limits: dict[str, int] = {}
        for code in codes:
            cached = None if fresh else self._cached(f"limit {code}")
            limit = self._limit(code) if cached is None else int(cached)
            if limit is not None and cached is None:
                self._put(f"limit {code}", limit)
            if limit is not None:
                limits[code] = limit
        return limits

    def usage(self) -> list[Usage]:
        """Return every instance of the account that counts against its limits, dlcloud's or not."""
        with translate_errors("counting the vCPUs in use (ec2:DescribeInstances)"):
            reservations = self._clients.pages(
                "ec2",
                "describe_instances",
                "Reservations",
                Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}],
            )
        return [self._usage(answer) for some in reservations for answer in some["Instances"]]

    def subnet_zones(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the zones that have a default subnet, with their ids."""
        cached = None if fresh else self._cached("default subnets")
        if cached:
            return dict(cached)
        with translate_errors("looking up the default subnets (ec2:DescribeSubnets)"):
            answer = self._clients.get("ec2").describe_subnets(
                Filters=[{"Name": "default-for-az", "Values": ["true"]}]
            )
        zones = {
            subnet["AvailabilityZone"]: subnet.get("AvailabilityZoneId", "") for subnet in answer["Subnets"]
        }
        if zones:
            self._put("default subnets", zones)
        return zones

    def spot_scores(self, instance_types: Sequence[str], count: int) -> dict[str, int]:
        """Return the spot placement score, 1 to 10, by zone id; a zone without a score is absent.

        Source: EC2 API reference, GetSpotPlacementScores.
        """
        with translate_errors("looking up spot placement scores (ec2:GetSpotPlacementScores)"):
            answer = self._clients.get("ec2").get_spot_placement_scores(
                InstanceTypes=list(instance_types),
                TargetCapacity=count,
                SingleAvailabilityZone=True,
                RegionNames=[self._clients.region],
            )
        return {score["AvailabilityZoneId"]: int(score["Score"]) for score in answer["SpotPlacementScores"]}

    def _limit(self, code: str) -> int | None:
        quota = None
        with translate_errors(
            f"looking up the limit {code} (servicequotas:GetServiceQuota)", ignore={NO_QUOTA}
        ):
            answer = self._clients.get("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)
            quota = answer["Quota"]
        return None if quota is None else int(quota["Value"])

    def _usage(self, answer: dict[str, Any]) -> Usage:
        cpu = answer.get("CpuOptions") or {}
        vcpus = cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 0)
        hardware = self._catalog.hardware(answer["InstanceType"])
        return Usage(
            instance_type=answer["InstanceType"],
            market=Market.SPOT if answer.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
            vcpus=hardware.vcpus if hardware else vcpus,
        )

    def _cached(self, subject: str) -> Any:  # noqa: ANN401  of the type that was put
        answer = self._cache.get(self._subject(subject))
        if answer is None or self._clock.now() - answer[1] > FRESH:
            return None
        return json.loads(answer[0])

    def _put(self, subject: str, content: object) -> None:
        self._cache.put(self._subject(subject), json.dumps(content), self._clock.now())

    def _subject(self, subject: str) -> str:
        """Return a name that no other account, region or local EC2 shares."""
        return f"{self._clients.identity()} {self._clients.region} {subject}"
