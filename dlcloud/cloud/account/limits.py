"""An account in one region: vCPU limits and usage, default subnets, spot placement scores."""

import hashlib
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dlcloud.cloud.api.answers import Cache, KeptAnswers
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.api.partitions import COMMERCIAL, partition_of
from dlcloud.cloud.compute.dry_run import dry_run
from dlcloud.cloud.network.vpc import find_network
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.account_plan import ACCOUNT_PLAN_REGION, AccountPlan
from dlcloud.model.clock import Clock
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Market
from dlcloud.planning.fit import KnownType
from dlcloud.planning.launch_request import LaunchRequest
from dlcloud.planning.limits import FALLBACKS, Usage
from dlcloud.planning.networks import FoundNetwork, Subnet

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.network import Network

NO_QUOTA = "NoSuchResourceException"
NO_PLAN = {"ResourceNotFoundException"}
"""The answer for an account without a plan."""

ALLOWED = timedelta(hours=1)
"""How long a change that a dry run allowed is taken as allowed."""

log = logging.getLogger(__name__)


class Ec2Account:
    """The account in one region.

    Args:
        clients: The region's clients.
        catalog: The bundled table of instance types.
        cache: Keeps limits and subnets for a day, and for an hour what EC2 would allow.
        clock: Dates answers.
    """

    def __init__(self, *, clients: Clients, catalog: Catalog, cache: Cache, clock: Clock) -> None:
        self._clients = clients
        self._catalog = catalog
        self._kept = KeptAnswers(clients=clients, cache=cache, clock=clock)

    def known_types(self) -> list[KnownType]:
        """Return the bundled table with its prices."""
        region = self._clients.region
        return [
            KnownType(hardware=hardware, price=self._catalog.on_demand_price(hardware.name, region))
            for hardware in self._catalog
        ]

    def limits(self, codes: Sequence[str], *, fresh: bool = False) -> dict[str, int]:
        """Return limits in vCPUs by the codes of Service Quotas; for an unknown one, that of its fallback.

        Args:
            codes: Codes of Service Quotas.
            fresh: Ignore the cache.
        """
        limits = self._known_limits(codes, fresh=fresh)
        fallbacks = [FALLBACKS[code] for code in codes if code not in limits and code in FALLBACKS]
        return {**limits, **self._known_limits(fallbacks, fresh=fresh)}

    def _known_limits(self, codes: Sequence[str], *, fresh: bool) -> dict[str, int]:
        limits: dict[str, int] = {}
        for code in codes:
            cached = None if fresh else self._kept.get(f"limit {code}")
            limit = self._limit(code) if cached is None else int(cached)
            if limit is not None and cached is None:
                self._kept.put(f"limit {code}", limit)
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

    def account_plan(self) -> AccountPlan | None:
        """Return the account's plan; None where AWS has none for it. A Free one is asked for each time.

        Source: AWS Free Tier API reference, GetAccountPlanState; only the commercial partition has it.
        """
        if partition_of(self._clients.region).name != COMMERCIAL:
            return None
        if self._kept.get("paid plan"):
            return AccountPlan.PAID
        answer: dict[str, Any] = {}
        with translate_errors("looking up the account's plan (freetier:GetAccountPlanState)", ignore=NO_PLAN):
            answer = self._clients.get("freetier", ACCOUNT_PLAN_REGION).get_account_plan_state()
        plan = AccountPlan(answer["accountPlanType"]) if "accountPlanType" in answer else None
        if plan is AccountPlan.PAID:
            self._kept.put("paid plan", True)
        return plan

    def subnets(self, *, fresh: bool = False) -> dict[str, Subnet]:
        """Return the default subnets by zone; cached while all are fit, as faults are soon mended."""
        cached = None if fresh else self._kept.get("fit default subnets")
        if cached:
            return {zone: Subnet(zone_id=zone_id) for zone, zone_id in cached.items()}
        with translate_errors("looking up the default subnets (ec2:DescribeSubnets)"):
            answer = self._clients.get("ec2").describe_subnets(
                Filters=[{"Name": "default-for-az", "Values": ["true"]}]
            )
        isolated = self._isolated_subnets({subnet["VpcId"] for subnet in answer["Subnets"]})
        subnets = {
            subnet["AvailabilityZone"]: Subnet(
                zone_id=subnet.get("AvailabilityZoneId", ""),
                assigns_addresses=bool(subnet["MapPublicIpOnLaunch"]),
                reaches_internet=not isolated(subnet["SubnetId"]),
            )
            for subnet in answer["Subnets"]
        }
        if subnets and all(s.assigns_addresses and s.reaches_internet for s in subnets.values()):
            self._kept.put("fit default subnets", {zone: subnet.zone_id for zone, subnet in subnets.items()})
        return subnets

    def network(self, network: "Network") -> FoundNetwork:
        """Return what a recipe's network is in this account."""
        return find_network(self._clients, network, self._routes)

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

    def dry_run(self, action: str, request: LaunchRequest, *, fresh: bool = False) -> None:
        """Ask EC2 whether it would make one of the changes of a launch; see `cloud.compute.dry_run`.

        What it allowed within the last hour is not asked again, unless the answer must be `fresh`.
        """
        subject = f"allowed {action} {hashlib.sha256(repr(request).encode()).hexdigest()[:16]}"
        if fresh or not self._kept.get(subject, ALLOWED):
            dry_run(self._clients, action, request)
            self._kept.put(subject, True)

    def _routes(self, vpc_id: str) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
        """Return tests of subnets of a VPC: a default route to an internet gateway, and to another way out.

        Source: VPC user guide, "Route tables"; a subnet without a table of its own has the main one.
        """
        with translate_errors("looking up routes (ec2:DescribeRouteTables)"):
            tables = self._clients.get("ec2").describe_route_tables(
                Filters=[{"Name": "vpc-id", "Values": [vpc_id]}]
            )["RouteTables"]
        targets: dict[str, list[str]] = {}
        for table in tables:
            ways = [_target(route) for route in table["Routes"] if _is_default(route)]
            for association in table["Associations"]:
                targets[association.get("SubnetId", "")] = ways

        def of(subnet_id: str) -> list[str]:
            return targets.get(subnet_id, targets.get("", []))

        return (
            lambda subnet_id: any(way.startswith("igw-") for way in of(subnet_id)),
            lambda subnet_id: any(way and not way.startswith("igw-") for way in of(subnet_id)),
        )

    def _isolated_subnets(self, vpc_ids: Collection[str]) -> Callable[[str], bool]:
        """Return a test for subnets without a route to an internet gateway; False where routes are denied.

        A subnet without a route table of its own has the main one. Source: VPC user guide, "Route tables".
        """
        if not vpc_ids:
            return lambda _: False
        try:
            with translate_errors("looking up routes (ec2:DescribeRouteTables)"):
                tables = self._clients.get("ec2").describe_route_tables(
                    Filters=[{"Name": "vpc-id", "Values": sorted(vpc_ids)}]
                )["RouteTables"]
        except CloudError as error:
            log.warning("routes are not checked: %s", error.message)
            return lambda _: False
        gateways = {
            association.get("SubnetId", ""): any(
                route.get("GatewayId", "").startswith("igw-") and route.get("State") == "active"
                for route in table["Routes"]
            )
            for table in tables
            for association in table["Associations"]
        }
        return lambda subnet_id: not gateways.get(subnet_id, gateways.get("", True))

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


def open_account(clients: Clients, *, answers: Cache, clock: Clock) -> Ec2Account:
    """Return the account in the region of the clients."""
    return Ec2Account(clients=clients, catalog=Catalog(), cache=answers, clock=clock)


def _is_default(route: dict[str, Any]) -> bool:
    return route.get("DestinationCidrBlock") == "0.0.0.0/0" and route.get("State") == "active"


def _target(route: dict[str, Any]) -> str:
    """Return the id of what a route leads to, of whichever kind it is."""
    keys = ("GatewayId", "NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "VpcPeeringConnectionId")
    return next((str(route[key]) for key in keys if route.get(key)), "")
