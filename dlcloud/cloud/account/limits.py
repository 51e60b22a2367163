"""What the account allows in one Region: quotas and usage, its plan, placement scores, dry runs.

`launch.preflight` asks all of it in parallel before a plan is made; limits and subnets are kept for a day,
what a dry run allowed for an hour. A refusal here never stops a launch by itself: the plan notes what is
unknown.
"""

import hashlib
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dlcloud.cloud.api.answers import Cache, KeptAnswers
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.api.partitions import COMMERCIAL, partition_of
from dlcloud.cloud.compute.dry_run import dry_run
from dlcloud.cloud.network.vpc import default_subnets, find_network
from dlcloud.cloud.offers.catalog import BUNDLED, Catalog
from dlcloud.model.account import ACCOUNT_PLAN_REGION, AccountPlan
from dlcloud.model.clock import Clock
from dlcloud.model.instance import Market
from dlcloud.planning.fit import KnownType
from dlcloud.planning.launch_request import LaunchRequest
from dlcloud.planning.networks import FoundNetwork, Subnet
from dlcloud.planning.quotas import FALLBACKS, Usage

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
        subnets = default_subnets(self._clients)
        if subnets and all(s.assigns_addresses and s.reaches_internet for s in subnets.values()):
            self._kept.put("fit default subnets", {zone: subnet.zone_id for zone, subnet in subnets.items()})
        return subnets

    def network(self, network: "Network") -> FoundNetwork:
        """Return what a recipe's network is in this account."""
        return find_network(self._clients, network)

    def spot_scores(
        self, instance_types: Sequence[str], count: int, regions: Sequence[str] = ()
    ) -> dict[str, dict[str, int]]:
        """Return the spot placement score, 1 to 10, by Region and zone id; a zone without one is absent.

        Of several Regions it is one call; without any, the scores are those of the account's own.
        Source: EC2 API reference, GetSpotPlacementScores.
        """
        names = list(regions) or [self._clients.region]
        with translate_errors("looking up spot placement scores (ec2:GetSpotPlacementScores)"):
            listed = self._clients.pages(
                "ec2",
                "get_spot_placement_scores",
                "SpotPlacementScores",
                InstanceTypes=list(instance_types),
                TargetCapacity=count,
                SingleAvailabilityZone=True,
                RegionNames=names,
            )
        scores: dict[str, dict[str, int]] = {name: {} for name in names}
        for score in listed:
            scores.setdefault(score["Region"], {})[score["AvailabilityZoneId"]] = int(score["Score"])
        return scores

    def dry_run(self, action: str, request: LaunchRequest, *, fresh: bool = False) -> None:
        """Ask EC2 whether it would make one of the changes of a launch; see `cloud.compute.dry_run`.

        What it allowed within the last hour is not asked again, unless the answer must be `fresh`.
        """
        # What is allowed is allowed to these credentials; others of the account may have other policies.
        asked = (repr(request), self._clients.credentials().access_key)
        subject = f"allowed {action} {hashlib.sha256(repr(asked).encode()).hexdigest()[:16]}"
        if fresh or not self._kept.get(subject, ALLOWED):
            dry_run(self._clients, action, request)
            self._kept.put(subject, True)

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
    return Ec2Account(clients=clients, catalog=BUNDLED, cache=answers, clock=clock)
