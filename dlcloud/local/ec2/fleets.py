"""CreateFleet of type instant: one call over all pools, with the errors of each pool.

`create_fleet` lists the offers of every launch template and override, sets aside those that cannot be
launched (with EC2's error for each), allocates the target of each market by its strategy
(`capacity/pools.py`), and launches each grant as RunInstances would (`_Config.launch`). What a pool refuses
is an error in the reply and never one of the call. All of it happens under one lock, so that no other launch
takes the capacity meanwhile.
"""

import json
from decimal import Decimal
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import convert_tag_spec

from dlcloud.local.capacity.pools import (
    OVER_QUOTA,
    Allocation,
    Grant,
    Offer,
    Pool,
    SharedLimit,
    Strategy,
    allocate,
)
from dlcloud.local.ec2.launch import NO_CAPACITY, PRICE_TOO_LOW, LocalResponses
from dlcloud.local.ec2.launch_checks import block_devices, check_free_tier, check_launch
from dlcloud.local.ec2.network import check_network
from dlcloud.local.ec2.record import StateReason, template_version
from dlcloud.local.ec2.reservations import ReservationChoice
from dlcloud.local.ec2.services import on_demand_price, spot_usd
from dlcloud.model.instance import Market

FLEET_TAG = "aws:ec2:fleet-id"
POOL_ERROR_HEADER = "X-Dlcloud-Pool-Error"
"""In JSON, the code and the message of the error of every pool, by market."""
_OF_CALL = "InvalidLaunchTemplate"
_OF_POOLS = ("AuthFailure.", "Insufficient", "Invalid", "Max", "Unauthorized", "Unfulfillable", "Vcpu")
_NOT_OFFERED = "InvalidFleetConfiguration"
_NO_FLEET = {"Code": "fleetIdDoesNotExist", "Message": "There is no such fleet."}
_NO_TARGETS = {"TotalTargetCapacity": 0, "SpotTargetCapacity": 0, "OnDemandTargetCapacity": 0}


def is_pool_error(code: str) -> bool:
    """True for an error that EC2 reports for each pool of an instant fleet instead of refusing the call.

    Those are the refusals of the launches that a fleet makes in the caller's name.
    Source: karpenter-provider-aws, pkg/errors and issues 1488, 3302 and 5850.
    """
    return code.startswith(_OF_POOLS) and not code.startswith(_OF_CALL)


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
        with self.instances.launching:
            return ActionResult(self._launch_fleet(configs))

    def delete_fleets(self) -> ActionResult:
        """Delete fleets and, as EC2 always does for instant ones, terminate their instances."""
        self.error_on_dryrun()
        fleet_ids = self.params.get("FleetIds") or []
        deleted = [fleet_id for fleet_id in fleet_ids if self.ec2_backend.get_fleet(fleet_id)]
        if deleted:
            # moto's filters of instances ignore tags.
            tags = self.ec2_backend.tags
            instance_ids = [instance.id for instance in self.ec2_backend.all_instances()]
            members = [name for name in instance_ids if tags.get(name, {}).get(FLEET_TAG) in deleted]
            self.instances.terminate(members, StateReason.USER)
        for fleet_id in deleted:
            self.ec2_backend.fleets.pop(fleet_id, None)
        states = {"CurrentFleetState": "deleted_terminating", "PreviousFleetState": "active"}
        unknown = [fleet_id for fleet_id in fleet_ids if fleet_id not in deleted]
        return ActionResult(
            {
                "SuccessfulFleetDeletions": [{**states, "FleetId": fleet_id} for fleet_id in deleted],
                "UnsuccessfulFleetDeletions": [
                    {"FleetId": fleet_id, "Error": _NO_FLEET} for fleet_id in unknown
                ],
            }
        )

    def _launch_fleet(self, configs: list["_Config"]) -> dict[str, Any]:
        fleet = self._create_fleet_record()
        instances: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for market, target in _targets(self.params["TargetCapacitySpecification"]).items():
            named = [offer for index, config in enumerate(configs) for offer in config.offers(index, market)]
            faults = [
                (offer, self._injected(market) or configs[offer.config].fault(offer, market))
                for offer in named
            ]
            errors += [configs[offer.config].error(offer, market, fault) for offer, fault in faults if fault]
            offers = [offer for offer, fault in faults if fault is None]
            allocation = self._allocate(offers, target, market)
            errors += [
                configs[offer.config].error(offer, market, self._refusal(offer, market, allocation))
                for offer in allocation.refused
            ]
            for grant in allocation.grants:
                config = configs[grant.offer.config]
                try:
                    instances.append(config.launch(grant, market, fleet.id))
                except EC2ClientError as error:
                    errors.append(config.error(grant.offer, market, error))
                else:
                    fleet.fulfilled_capacity += grant.count
        return {"FleetId": fleet.id, "Instances": instances, "Errors": errors}

    def _injected(self, market: Market) -> EC2ClientError | None:
        """Return the error that the layer before moto decided for every pool of a market."""
        errors = json.loads(self.headers.get(POOL_ERROR_HEADER) or "{}")
        return EC2ClientError(*errors[market]) if market in errors else None

    def _allocate(self, offers: list[Offer], target: int, market: Market) -> Allocation:
        options = self.params.get("SpotOptions" if market is Market.SPOT else "OnDemandOptions") or {}
        name = options.get("AllocationStrategy") or Strategy.LOWEST_PRICE
        unknown = {"MinTargetCapacity", "SingleInstanceType"} & set(options)
        if name not in list(Strategy) or unknown:
            message = f"The local cloud has no {', '.join(unknown) or f'allocation strategy {name}'}."
            raise EC2ClientError("UnsupportedOperation", message)
        one_zone = bool(options.get("SingleAvailabilityZone"))
        return allocate(offers, target=target, strategy=Strategy(name), one_zone=one_zone)

    def _refusal(self, offer: Offer, market: Market, allocation: Allocation) -> EC2ClientError:
        """Return the error of a pool: its quota's if that leaves no room for one more instance."""
        code = self.quotas.code(offer.pool.instance_type, market)
        for limit in offer.shared:
            granted = sum(
                grant.count * shared.per_instance
                for grant in allocation.grants
                for shared in grant.offer.shared
                if shared.name == code
            )
            if limit.name == code and limit.left - granted < limit.per_instance:
                return _pool_error(offer, OVER_QUOTA[market])
        return _pool_error(offer, NO_CAPACITY)

    def _create_fleet_record(self) -> Any:  # noqa: ANN401 - moto's object
        """Create moto's fleet, for DescribeFleets, without letting moto launch its instances."""
        specification = self.params["TargetCapacitySpecification"]
        fleet = self.ec2_backend.create_fleet(
            on_demand_options=self.params.get("OnDemandOptions", {}),
            spot_options=self.params.get("SpotOptions", {}),
            target_capacity_specification={**specification, **_NO_TARGETS},
            launch_template_configs=[],
            excess_capacity_termination_policy="",
            replace_unhealthy_instances=False,
            terminate_instances_with_expiration=False,
            fleet_type="instant",
            valid_from=None,
            valid_until=None,
            tag_specifications=self.params.get("TagSpecifications", []),
        )
        fleet.target_capacity_specification = specification
        fleet.target_capacity = int(specification.get("TotalTargetCapacity") or 0)
        return fleet


class _Config:
    """One launch template of a fleet with its overrides."""

    def __init__(self, responses: LocalFleetResponses, config: dict[str, Any]) -> None:
        self._responses = responses
        self._backend = responses.ec2_backend
        version = template_version(self._backend, config["LaunchTemplateSpecification"])
        self._template: dict[str, Any] = version.data
        self._specification = {"LaunchTemplateId": version.template.id, "Version": str(version.number)}
        self._overrides: list[dict[str, Any]] = config.get("Overrides") or [{}]

    def offers(self, config: int, market: Market) -> list[Offer]:
        """Return an offer per override and zone."""
        return [
            self._offer(index, zone, config, market)
            for index, override in enumerate(self._overrides)
            for zone in self._zones(override)
        ]

    def fault(self, offer: Offer, market: Market) -> EC2ClientError | None:
        """Return the error of a pool that no instance can be launched into; None for a usable one."""
        if offer.pool.zone not in self._responses.offered(offer.pool.instance_type):
            return _pool_error(offer, _NOT_OFFERED)
        limit = self._max_price(offer) if market is Market.SPOT else None
        if limit and offer.price is not None and offer.price > Decimal(str(limit)):
            return _pool_error(offer, PRICE_TOO_LOW)
        for hidden in self._responses.visibility.not_found(self._template.get("SecurityGroupIds") or ()):
            return EC2ClientError(hidden.code, hidden.message)
        try:
            if self._responses.quotas.account_plan.is_free:
                check_free_tier(offer.pool.instance_type)
            block_devices(self._image(offer), self._template.get("BlockDeviceMappings") or ())
            self._placement(offer, market).zones([offer.pool.zone])
        except EC2ClientError as error:
            return error
        return None

    def error(self, offer: Offer, market: Market, error: EC2ClientError) -> dict[str, Any]:
        """Return the reply's error of a pool."""
        return {
            "LaunchTemplateAndOverrides": self._echo(offer),
            "Lifecycle": market.value,
            "ErrorCode": error.code,
            "ErrorMessage": error.message,
        }

    def launch(self, grant: Grant, market: Market, fleet_id: str) -> dict[str, Any]:
        """Launch the instances of a grant and return the reply's entry of them."""
        keywords = self._keywords(grant.offer, market, fleet_id)
        image = self._image(grant.offer)
        mappings = block_devices(image, self._template.get("BlockDeviceMappings") or ())
        check_network(self._backend, self._template)
        reservation = self._backend.run_instances(
            image.id,
            grant.count,
            self._template.get("UserData"),
            self._template.get("SecurityGroups", []),
            block_device_mappings=mappings,
            **keywords,
        )
        placement = self._placement(grant.offer, market)
        self._responses.boot(reservation, self._template, self._template.get("NetworkInterfaces") or ())
        placement.assign(reservation.instances)
        return {
            "LaunchTemplateAndOverrides": self._echo(grant.offer),
            "Lifecycle": market.value,
            "InstanceIds": [instance.id for instance in reservation.instances],
            "InstanceType": grant.offer.pool.instance_type,
        }

    def _placement(self, offer: Offer, market: Market) -> ReservationChoice:
        """Return the reservations and the placement group that a pool's instances run in.

        A spot instance runs in no reservation; one that is named is not for fleets here.
        """
        specification = self._template.get("CapacityReservationSpecification") or {}
        if specification.get("CapacityReservationTarget"):
            message = "The local EC2 takes reservations by their ids in RunInstances only."
            raise EC2ClientError("UnsupportedOperation", message)
        request = {**self._template, "InstanceMarketOptions": {"MarketType": market.value}}
        if market is Market.ON_DEMAND:
            del request["InstanceMarketOptions"]
        return self._responses.read_placement(request, offer.pool.instance_type)

    def _max_price(self, offer: Offer) -> str | None:
        """Return the most that an hour of a spot instance may cost, in USD; None without a limit."""
        options = (self._template.get("InstanceMarketOptions") or {}).get("SpotOptions") or {}
        return self._overrides[offer.override].get("MaxPrice") or options.get("MaxPrice")

    def _image(self, offer: Offer) -> Any:  # noqa: ANN401 - moto's object
        override = self._overrides[offer.override].get("ImageId")
        request = {**self._template, **({"ImageId": override} if override else {})}
        return check_launch(self._backend, request, offer.pool.instance_type)

    def _offer(self, index: int, zone: str, config: int, market: Market) -> Offer:
        override = self._overrides[index]
        if "WeightedCapacity" in override:
            raise EC2ClientError("UnsupportedOperation", "The local cloud has no weighted capacity.")
        name = str(override.get("InstanceType") or self._template.get("InstanceType"))
        catalog, instances = self._responses.catalog, self._responses.instances
        on_demand = on_demand_price(catalog, name, zone[:-1])
        open_to = instances.reservations.open_to(name, zone) if self._takes_open(market) else ()
        room = sum(instances.reservations.available(one) for one in open_to)
        hourly_usd = None if on_demand is None else on_demand.hourly_usd
        return Offer(
            pool=Pool(instance_type=name, zone=zone),
            left=instances.left(name, zone, market) + room,
            price=spot_usd(catalog, name, zone, instances) if market is Market.SPOT else hourly_usd,
            priority=float(override.get("Priority", "inf")),
            subnet_id=override.get("SubnetId") or self._template.get("SubnetId"),
            config=config,
            override=index,
            shared=self._shared_limits(name, market),
        )

    def _takes_open(self, market: Market) -> bool:
        """True if on-demand instances run in open reservations where there is room."""
        specification = self._template.get("CapacityReservationSpecification") or {}
        return market is Market.ON_DEMAND and specification.get("CapacityReservationPreference") != "none"

    def _shared_limits(self, name: str, market: Market) -> tuple[SharedLimit, ...]:
        """Return the limits of a type everywhere and in the region, and of its quota."""
        quotas, region = self._responses.quotas, self._responses.region
        left = min(
            self._responses.instances.left(name, None, market),
            self._responses.instances.capacity.left(name, region),
        )
        limits = [SharedLimit(name=f"type {name}", left=left)]
        code = quotas.code(name, market)
        if code is not None:
            left = quotas.vcpus_left(code, region)
            limits.append(SharedLimit(name=code, left=left, per_instance=quotas.vcpus(name)))
        return tuple(limits)

    def _zones(self, override: dict[str, Any]) -> list[str]:
        subnet_id = override.get("SubnetId") or self._template.get("SubnetId")
        if subnet_id:
            return [self._backend.get_subnet(subnet_id).availability_zone]
        zone = override.get("AvailabilityZone") or override.get("Placement", {}).get("AvailabilityZone")
        zone = zone or self._template.get("Placement", {}).get("AvailabilityZone")
        return [zone] if zone else sorted(self._backend.get_default_subnets())

    def _keywords(self, offer: Offer, market: Market, fleet_id: str) -> dict[str, Any]:
        """Return the keywords of moto's run_instances, as its own RunInstances would pass them."""
        requested = convert_tag_spec(self._responses.params.get("TagSpecifications") or [])
        tags = {**convert_tag_spec(self._template.get("TagSpecifications") or []), **requested}
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
            "instance_market_options": "spot" if market is Market.SPOT else {},
            "launch_template": self._specification,
            "instance_initiated_shutdown_behavior": self._template.get("InstanceInitiatedShutdownBehavior"),
            "metadata_options": self._template.get("MetadataOptions", {}),
            "client_token": self._responses.params.get("ClientToken"),
        }
        return keywords

    def _echo(self, offer: Offer) -> dict[str, Any]:
        pool = {"InstanceType": offer.pool.instance_type, "AvailabilityZone": offer.pool.zone}
        overrides = {**self._overrides[offer.override], **pool}
        return {"LaunchTemplateSpecification": self._specification, "Overrides": overrides}


def _pool_error(offer: Offer, code: str) -> EC2ClientError:
    pool = offer.pool
    return EC2ClientError(code, f"{pool.instance_type} in {pool.zone} refused the launch.")


def _targets(specification: dict[str, Any]) -> dict[Market, int]:
    """Return the target of each market; the default market gets the part that neither target names."""
    targets = {
        Market.ON_DEMAND: int(specification.get("OnDemandTargetCapacity") or 0),
        Market.SPOT: int(specification.get("SpotTargetCapacity") or 0),
    }
    rest = int(specification.get("TotalTargetCapacity") or 0) - sum(targets.values())
    targets[Market(specification.get("DefaultTargetCapacityType") or "on-demand")] += max(0, rest)
    return {market: target for market, target in targets.items() if target > 0}
