"""CreateFleet of type instant: one call over all pools, with what each pool refused."""

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import convert_tag_spec

from dlcloud.core.instance import Market
from dlcloud.local.allocation import Allocation, Grant, Offer, Same, Shared, Strategy, allocate
from dlcloud.local.capacity import Pool
from dlcloud.local.quotas import OVER_QUOTA
from dlcloud.local.record import End
from dlcloud.local.responses import NO_CAPACITY, LocalResponses

FLEET_TAG = "aws:ec2:fleet-id"
POOL_ERROR_HEADER = "X-Dlcloud-Pool-Error"
# Errors that EC2 reports for each pool of a fleet and not for the call.
POOL_ERRORS = frozenset(
    {
        NO_CAPACITY,
        "VcpuLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "UnfulfillableCapacity",
        "InsufficientAddressCapacity",
    }
)
_NOT_OFFERED = "InvalidFleetConfiguration"
_SPELLINGS = {
    "lowestPrice": Strategy.LOWEST_PRICE,
    "capacityOptimized": Strategy.CAPACITY,
    "capacityOptimizedPrioritized": Strategy.CAPACITY_PRIORITIZED,
    "priceCapacityOptimized": Strategy.PRICE_CAPACITY,
}


class LocalFleetResponses(LocalResponses):
    """The EC2 answers of one site, fleets included."""

    def create_fleet(self) -> ActionResult:
        """Launch an instant fleet: spot and on-demand parts of the target, each by its strategy."""
        self.error_on_dryrun()
        if self.params.get("Type", "maintain") != "instant":
            raise EC2ClientError("UnsupportedOperation", "The local cloud takes fleets of type instant.")
        configs = [_Config(self, config) for config in self.params.get("LaunchTemplateConfigs") or []]
        if not configs:
            raise EC2ClientError("MissingParameter", "The request must contain LaunchTemplateConfigs.")
        with self.machines.launching:
            return ActionResult(self._launch_fleet(configs))

    def delete_fleets(self) -> ActionResult:
        """Delete fleets and, for instant ones always, begin to end their instances."""
        self.error_on_dryrun()
        fleet_ids = self.params.get("FleetIds") or []
        known = [fleet_id for fleet_id in fleet_ids if self.ec2_backend.get_fleet(fleet_id)]
        if known:
            # By hand: moto's filters of instances know nothing of tags, and let all of them pass.
            tags = self.ec2_backend.tags
            every = [instance.id for instance in self.ec2_backend.all_instances()]
            members = [each for each in every if tags.get(each, {}).get(FLEET_TAG) in known]
            self.machines.terminate(members, End.USER)
        deleted = [
            {"CurrentFleetState": "deleted_terminating", "PreviousFleetState": "active", "FleetId": fleet_id}
            for fleet_id in known
        ]
        for fleet_id in known:
            self.ec2_backend.fleets.pop(fleet_id, None)
        unknown = [
            {"FleetId": fleet_id, "Error": _NO_FLEET} for fleet_id in fleet_ids if fleet_id not in known
        ]
        return ActionResult({"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": unknown})

    def _launch_fleet(self, configs: list["_Config"]) -> dict[str, Any]:
        fleet = self._book_fleet()
        instances: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for lifecycle, target in _targets(self.params["TargetCapacitySpecification"]).items():
            offers, not_offered = self._offers(configs, lifecycle)
            errors += [configs[bad.config].error(bad, lifecycle, _NOT_OFFERED) for bad in not_offered]
            allocation = self._allocate(offers, target, lifecycle)
            errors += [
                configs[offer.config].error(offer, lifecycle, self._why(offer, lifecycle, allocation))
                for offer in allocation.refused
            ]
            instances += [
                configs[grant.offer.config].launch(grant, lifecycle, fleet.id) for grant in allocation.grants
            ]
            fleet.fulfilled_capacity += allocation.fulfilled
        return {"FleetId": fleet.id, "Instances": instances, "Errors": errors}

    def _allocate(self, offers: list[Offer], target: float, lifecycle: str) -> Allocation:
        """Allocate, or refuse all below the least target that the request accepts."""
        if self.headers.get(POOL_ERROR_HEADER):
            return Allocation(grants=(), refused=tuple(offers))
        options = self.params.get("SpotOptions" if lifecycle == "spot" else "OnDemandOptions") or {}
        name = options.get("AllocationStrategy") or Strategy.LOWEST_PRICE
        try:
            strategy = _SPELLINGS.get(name) or Strategy(name)
        except ValueError as error:
            message = f"The allocation strategy {name} is not known."
            raise EC2ClientError("InvalidParameterValue", message) from error
        same = Same.ZONE if options.get("SingleAvailabilityZone") else Same.NOTHING
        same = Same.TYPE if options.get("SingleInstanceType") else same
        allocation = allocate(offers, target=target, strategy=strategy, same=same)
        if allocation.fulfilled < float(options.get("MinTargetCapacity") or 0):
            return Allocation(grants=(), refused=allocation.refused)
        return allocation

    def _why(self, offer: Offer, lifecycle: str, allocation: Allocation) -> str:
        """Return the code with which a pool refuses: its quota's, if that leaves no room for one more."""
        code = self.quotas.code(offer.pool.instance_type, Market(lifecycle))
        quota = next((shared for shared in offer.shared if shared.name == code), None)
        given = sum(
            grant.count * shared.each
            for grant in allocation.grants
            for shared in grant.offer.shared
            if shared.name == code
        )
        if self.headers.get(POOL_ERROR_HEADER):
            return str(self.headers[POOL_ERROR_HEADER])
        over = quota is not None and quota.left - given < quota.each
        return OVER_QUOTA[Market(lifecycle)] if over else NO_CAPACITY

    def _offers(self, configs: list["_Config"], lifecycle: str) -> tuple[list[Offer], list[Offer]]:
        """Return the offers of all overrides, and those that name a type where it is not offered."""
        named = [offer for index, config in enumerate(configs) for offer in config.offers(index, lifecycle)]
        good = [offer for offer in named if offer.pool.zone in self.offered(offer.pool.instance_type)]
        return good, [offer for offer in named if offer not in good]

    def _book_fleet(self) -> Any:  # noqa: ANN401 - moto's object
        """Enter the fleet into moto's books, for DescribeFleets; its instances are launched by us."""
        wanted = self.params["TargetCapacitySpecification"]
        fleet = self.ec2_backend.create_fleet(
            on_demand_options=self.params.get("OnDemandOptions", {}),
            spot_options=self.params.get("SpotOptions", {}),
            target_capacity_specification={**wanted, "TotalTargetCapacity": 0, **_NO_TARGETS},
            launch_template_configs=[],
            excess_capacity_termination_policy="",
            replace_unhealthy_instances=False,
            terminate_instances_with_expiration=False,
            fleet_type="instant",
            valid_from=None,
            valid_until=None,
            tag_specifications=self.params.get("TagSpecifications", []),
        )
        fleet.target_capacity_specification = wanted
        fleet.target_capacity = int(wanted.get("TotalTargetCapacity") or 0)
        return fleet


_NO_FLEET = {"Code": "fleetIdDoesNotExist", "Message": "There is no such fleet."}
_NO_TARGETS = {"SpotTargetCapacity": 0, "OnDemandTargetCapacity": 0}


class _Config:
    """One launch template of a fleet with its overrides."""

    def __init__(self, responses: LocalFleetResponses, config: dict[str, Any]) -> None:
        self._responses = responses
        self._backend = responses.ec2_backend
        asked = config["LaunchTemplateSpecification"]
        version = self._backend._get_template_from_args(asked)  # noqa: SLF001 - no public way
        self._template: dict[str, Any] = version.data
        template_id = version.template.id
        self._specification = {"LaunchTemplateId": template_id, "Version": str(version.number)}
        self._overrides: list[dict[str, Any]] = config.get("Overrides") or [{}]

    def offers(self, config: int, lifecycle: str) -> list[Offer]:
        """Return an offer per override and zone."""
        return [
            self._offer(index, zone, config, lifecycle)
            for index, override in enumerate(self._overrides)
            for zone in self._zones(override)
        ]

    def error(self, offer: Offer, lifecycle: str, code: str) -> dict[str, Any]:
        """Return what the reply says of a pool that refused."""
        pool = offer.pool
        return {
            "LaunchTemplateAndOverrides": self._echo(offer),
            "Lifecycle": lifecycle,
            "ErrorCode": code,
            "ErrorMessage": f"{pool.instance_type} in {pool.zone} refused the launch ({code}).",
        }

    def launch(self, grant: Grant, lifecycle: str, fleet_id: str) -> dict[str, Any]:
        """Launch what a pool granted and return what the reply says of it."""
        reservation = self._backend.run_instances(
            self._overrides[grant.offer.override].get("ImageId") or self._template.get("ImageId"),
            grant.count,
            self._template.get("UserData"),
            self._template.get("SecurityGroups", []),
            **self._keywords(grant.offer, lifecycle, fleet_id),
        )
        self._responses.enter(reservation.instances, self._template)
        return {
            "LaunchTemplateAndOverrides": self._echo(grant.offer),
            "Lifecycle": lifecycle,
            "InstanceIds": [instance.id for instance in reservation.instances],
            "InstanceType": grant.offer.pool.instance_type,
        }

    def _offer(self, index: int, zone: str, config: int, lifecycle: str) -> Offer:
        override = self._overrides[index]
        kind = str(override.get("InstanceType") or self._template.get("InstanceType"))
        catalogue = self._responses.catalogue
        spot = lifecycle == "spot"
        price = catalogue.spot_usd(kind, zone) if spot else catalogue.on_demand_usd(kind, zone[:-1])
        return Offer(
            pool=Pool(instance_type=kind, zone=zone),
            left=self._responses.left(kind, zone),
            price=price,
            weight=float(override.get("WeightedCapacity") or 1.0),
            priority=float(override.get("Priority", "inf")),
            subnet_id=override.get("SubnetId") or self._template.get("SubnetId"),
            config=config,
            override=index,
            shared=self._shared(kind, lifecycle),
        )

    def _shared(self, kind: str, lifecycle: str) -> tuple[Shared, ...]:
        """Return what limits a type in all its zones, and its family: capacity and quota."""
        machines, quotas = self._responses.machines, self._responses.quotas
        limits = [Shared(name=f"type {kind}", left=machines.capacity.left_of_type(kind))]
        code = quotas.code(kind, Market(lifecycle))
        if code is not None:
            limits.append(Shared(name=code, left=quotas.left(code), each=quotas.each(kind)))
        return tuple(limits)

    def _zones(self, override: dict[str, Any]) -> list[str]:
        subnet_id = override.get("SubnetId") or self._template.get("SubnetId")
        if subnet_id:
            return [self._backend.get_subnet(subnet_id).availability_zone]
        zone = override.get("AvailabilityZone") or override.get("Placement", {}).get("AvailabilityZone")
        zone = zone or self._template.get("Placement", {}).get("AvailabilityZone")
        return [zone] if zone else sorted(self._backend.get_default_subnets())

    def _keywords(self, offer: Offer, lifecycle: str, fleet_id: str) -> dict[str, Any]:
        """Return what moto's run_instances takes, as its own RunInstances would call it."""
        asked = convert_tag_spec(self._responses.params.get("TagSpecifications") or [])
        tags = {**convert_tag_spec(self._template.get("TagSpecifications") or []), **asked}
        instance_tags = {**tags.get("instance", {}), FLEET_TAG: fleet_id}
        keywords: dict[str, Any] = {
            "instance_type": offer.pool.instance_type,
            "is_instance_type_default": False,
            "region_name": self._responses.region,
            "placement": None if offer.subnet_id else offer.pool.zone,
            "subnet_id": offer.subnet_id,
            "associate_public_ip": None,
            "key_name": self._template.get("KeyName"),
            "security_group_ids": list(self._template.get("SecurityGroupIds", [])),
            "nics": self._template.get("NetworkInterfaces", []),
            "tags": {**tags, "instance": instance_tags},
            "instance_market_options": "spot" if lifecycle == "spot" else {},
            "launch_template": self._specification,
            "instance_initiated_shutdown_behavior": self._template.get("InstanceInitiatedShutdownBehavior"),
            "metadata_options": self._template.get("MetadataOptions", {}),
            "client_token": self._responses.params.get("ClientToken"),
        }
        if mappings := self._template.get("BlockDeviceMappings"):
            keywords["block_device_mappings"] = [{"Ebs": {}, **mapping} for mapping in mappings]
        return keywords

    def _echo(self, offer: Offer) -> dict[str, Any]:
        pool = {"InstanceType": offer.pool.instance_type, "AvailabilityZone": offer.pool.zone}
        shown = {**self._overrides[offer.override], **pool}
        return {"LaunchTemplateSpecification": self._specification, "Overrides": shown}


def _targets(wanted: dict[str, Any]) -> dict[str, float]:
    """Return the capacity wanted of each lifecycle; what neither names goes to the default one."""
    targets = {
        "on-demand": float(wanted.get("OnDemandTargetCapacity") or 0),
        "spot": float(wanted.get("SpotTargetCapacity") or 0),
    }
    rest = float(wanted.get("TotalTargetCapacity") or 0) - sum(targets.values())
    targets[wanted.get("DefaultTargetCapacityType") or "on-demand"] += max(0.0, rest)
    return {lifecycle: target for lifecycle, target in targets.items() if target > 0}
