"""What an account may and has: vCPU limits, what runs, default subnets, spot placement scores."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from botocore.exceptions import ClientError

from dlcloud.cloud.catalog import Catalog
from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import error_code, translate_errors
from dlcloud.core.instance import Market
from dlcloud.core.protocols import Clock
from dlcloud.core.quota import Usage
from dlcloud.core.successors import KnownType

FRESH = timedelta(days=1)
NO_QUOTA = "NoSuchResourceException"


class Memory(Protocol):
    """Keeps answers between commands."""

    def get(self, subject: str) -> tuple[str, datetime] | None:
        """Return what was remembered of a subject, and of when it is."""

    def put(self, subject: str, content: str, as_of: datetime) -> None:
        """Keep an answer."""


class Account:
    """The account in one region.

    Args:
        clients: The region's clients.
        catalog: Tells how many vCPUs a type has.
        memory: Keeps what changes rarely: limits and subnets, for a day.
        clock: Tells how old that is.
    """

    def __init__(self, *, clients: Clients, catalog: Catalog, memory: Memory, clock: Clock) -> None:
        self._clients = clients
        self._catalog = catalog
        self._memory = memory
        self._clock = clock

    def known_types(self) -> list[KnownType]:
        """Return the bundled table with its prices."""
        region = self._clients.region
        return [
            KnownType(hardware=each, price=self._catalog.on_demand_price(each.name, region))
            for each in self._catalog
        ]

    def limits(self, codes: Sequence[str], *, fresh: bool = False) -> dict[str, int]:
        """Return limits in vCPUs by the codes of Service Quotas; those that it does not know are absent.

        Args:
            codes: Which.
            fresh: Ask, though an answer of the last day is kept.
        """
        found: dict[str, int] = {}
        for code in codes:
            kept = None if fresh else self._kept(f"limit {code}")
            limit = self._limit(code) if kept is None else int(kept)
            if limit is not None and kept is None:
                self._keep(f"limit {code}", limit)
            if limit is not None:
                found[code] = limit
        return found

    def usage(self) -> list[Usage]:
        """Return every instance of the account that counts against its limits, whoever started it."""
        with translate_errors("counting the vCPUs in use (ec2:DescribeInstances)"):
            pages = (
                self._clients.read("ec2")
                .get_paginator("describe_instances")
                .paginate(Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}])
            )
            return [
                self._usage(each)
                for page in pages
                for reservation in page["Reservations"]
                for each in reservation["Instances"]
            ]

    def subnet_zones(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the zones that have a default subnet, with their ids."""
        kept = None if fresh else self._kept("default subnets")
        if kept:
            return dict(kept)
        with translate_errors("looking up the default subnets (ec2:DescribeSubnets)"):
            answer = self._clients.read("ec2").describe_subnets(
                Filters=[{"Name": "default-for-az", "Values": ["true"]}]
            )
        zones = {
            subnet["AvailabilityZone"]: subnet.get("AvailabilityZoneId", "") for subnet in answer["Subnets"]
        }
        if zones:
            self._keep("default subnets", zones)
        return zones

    def spot_scores(self, instance_types: Sequence[str], count: int) -> dict[str, int]:
        """Return by zone id how likely spot capacity for so many is: 1 to 10, zones without a score absent.

        Source: EC2 API reference, GetSpotPlacementScores.
        """
        with translate_errors("asking for spot placement scores (ec2:GetSpotPlacementScores)"):
            answer = self._clients.read("ec2").get_spot_placement_scores(
                InstanceTypes=list(instance_types),
                TargetCapacity=count,
                SingleAvailabilityZone=True,
                RegionNames=[self._clients.region],
            )
        return {each["AvailabilityZoneId"]: int(each["Score"]) for each in answer["SpotPlacementScores"]}

    def _limit(self, code: str) -> int | None:
        with translate_errors(f"looking up the limit {code} (servicequotas:GetServiceQuota)"):
            try:
                answer = self._clients.read("service-quotas").get_service_quota(
                    ServiceCode="ec2", QuotaCode=code
                )
            except ClientError as error:
                if error_code(error) == NO_QUOTA:
                    return None
                raise
        return int(answer["Quota"]["Value"])

    def _usage(self, answer: dict[str, Any]) -> Usage:
        cpu = answer.get("CpuOptions") or {}
        vcpus = cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 0)
        hardware = self._catalog.hardware(answer["InstanceType"])
        return Usage(
            instance_type=answer["InstanceType"],
            market=Market.SPOT if answer.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
            vcpus=hardware.vcpus if hardware else vcpus,
        )

    def _kept(self, subject: str) -> Any:  # noqa: ANN401  whatever was kept
        known = self._memory.get(self._subject(subject))
        if known is None or self._clock.now() - known[1] > FRESH:
            return None
        return json.loads(known[0])

    def _keep(self, subject: str, content: object) -> None:
        self._memory.put(self._subject(subject), json.dumps(content), self._clock.now())

    def _subject(self, subject: str) -> str:
        """Return a name that no other account, region or local EC2 shares."""
        return f"{self._clients.identity()} {self._clients.region} {subject}"
