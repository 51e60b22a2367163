"""The EC2 actions where moto differs from EC2: launches, ends, spot prices and placement scores."""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, cast

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError, OperationNotPermitted4
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from dlcloud.core.instance import Market
from dlcloud.local.capacity import Pool
from dlcloud.local.catalogue import Catalogue
from dlcloud.local.machines import Machines
from dlcloud.local.quotas import OVER_QUOTA, VcpuQuotas
from dlcloud.local.record import End, Record

NO_CAPACITY = "InsufficientInstanceCapacity"
# What a launch template may say and moto reads from the request alone.
_FROM_TEMPLATE = (
    "BlockDeviceMappings",
    "InstanceInitiatedShutdownBehavior",
    "InstanceMarketOptions",
    "MetadataOptions",
    "NetworkInterfaces",
    "Placement",
)
# EC2 shows terminated instances for about an hour.
_REMEMBERED = timedelta(hours=1)
_LINUX = {"Linux/UNIX", "Linux/UNIX (Amazon VPC)"}
_BEST_SCORE = 9


class LocalResponses(EC2Response):
    """moto's EC2 answers with these actions in place of its own; bound to one site by a subclass."""

    machines: ClassVar[Machines]
    catalogue: ClassVar[Catalogue]
    quotas: ClassVar[VcpuQuotas]
    offerings: ClassVar[dict[str, dict[str, set[str]]]]

    def run_instances(self) -> ActionResult:
        """Launch as many instances as MaxCount asks for and one zone can give, at least MinCount."""
        self.error_on_dryrun()
        template = self.template_data(self.params.get("LaunchTemplate"))
        self.params |= {
            name: template[name] for name in _FROM_TEMPLATE if name in template and name not in self.params
        }
        with self.machines.launching:
            self._forget_old()
            kind = self.params.get("InstanceType") or template.get("InstanceType") or "m1.small"
            self.params["MinCount"] = self._grant(kind, self._zones(kind))
            result = super().run_instances()
            self.enter(cast("Any", result.result).instances, template)
        return result

    def terminate_instances(self) -> ActionResult:
        """Begin to end instances."""
        self.error_on_dryrun()
        found = self._instances()
        for instance in found:
            if instance.disable_api_termination is True:
                raise OperationNotPermitted4(instance.id)
        before = [(instance, instance.state, instance.state_code) for instance in found]
        self.machines.terminate([instance.id for instance in found], End.USER)
        return _changed("TerminatingInstances", before)

    def stop_instances(self) -> ActionResult:
        """Begin to stop on-demand instances."""
        self.error_on_dryrun()
        found = self._instances()
        for instance in found:
            if instance.lifecycle == "spot":
                message = f"The spot instance {instance.id} cannot be stopped."
                raise EC2ClientError("UnsupportedOperation", message)
        before = [(instance, instance.state, instance.state_code) for instance in found]
        self.machines.stop([instance.id for instance in found], End.USER)
        return _changed("StoppingInstances", before)

    def start_instances(self) -> ActionResult:
        """Begin to start stopped instances."""
        self.error_on_dryrun()
        found = self._instances()
        for instance in found:
            if instance.state not in ("stopped", "pending", "running"):
                message = f"The instance '{instance.id}' is not in a state from which it can be started."
                raise EC2ClientError("IncorrectInstanceState", message)
        before = [(instance, instance.state, instance.state_code) for instance in found]
        self.machines.start([instance.id for instance in found])
        return _changed("StartingInstances", before)

    def reboot_instances(self) -> ActionResult:
        """Accept a reboot; nothing on an instance would be different after it."""
        self.error_on_dryrun()
        self._instances()
        return EmptyResult()

    def associate_iam_instance_profile(self) -> ActionResult:
        """Give an instance a profile; refuse as EC2 does what it cannot have."""
        self.error_on_dryrun()
        wanted = self.params.get("IamInstanceProfile") or {}
        (instance,) = self.ec2_backend.get_multi_instances_by_id([self.params["InstanceId"]])
        try:
            filter_iam_instance_profiles(
                self.current_account, self.partition, wanted.get("Arn"), wanted.get("Name")
            )
        except NotFoundException as error:
            name = wanted.get("Arn") or wanted.get("Name")
            message = f"Value ({name}) for parameter iamInstanceProfile is invalid."
            raise EC2ClientError("InvalidParameterValue", message) from error
        if instance.state not in ("running", "stopped"):
            message = f"The instance '{instance.id}' is not in the 'running' or 'stopped' states."
            raise EC2ClientError("IncorrectInstanceState", message)
        return super().associate_iam_instance_profile()

    def request_spot_instances(self) -> ActionResult:
        """Refuse the old way to ask for spot instances."""
        raise EC2ClientError("UnsupportedOperation", "The local cloud takes RunInstances and CreateFleet.")

    def request_spot_fleet(self) -> ActionResult:
        """Refuse the old way to ask for spot instances."""
        return self.request_spot_instances()

    def describe_spot_price_history(self) -> ActionResult:
        """Return the catalogue's price of each type in each zone that offers it."""
        products = set(self.params.get("ProductDescriptions") or _LINUX)
        filters = self._filters_from_querystring()
        products &= set(filters.get("product-description", products))
        kinds = (
            self.params.get("InstanceTypes") or filters.get("instance-type") or sorted(self.catalogue.rows)
        )
        zone = self.params.get("AvailabilityZone")
        zones = {zone} if zone else set(filters.get("availability-zone", ())) or None
        hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        history = [
            {
                "InstanceType": kind,
                "AvailabilityZone": place,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": str(price),
                "Timestamp": hour,
            }
            for kind in kinds
            for place in sorted(self.offered(kind))
            if (zones is None or place in zones)
            and (price := self.catalogue.spot_usd(kind, place)) is not None
        ]
        return ActionResult({"SpotPriceHistory": history if products & _LINUX else [], "NextToken": ""})

    def get_spot_placement_scores(self) -> ActionResult:
        """Score regions, or their zones, by how much of the target the capacity allows: 1 to 9."""
        self.error_on_dryrun()
        kinds = self.params.get("InstanceTypes") or []
        target = int(self.params.get("TargetCapacity") or 1)
        by_zone = bool(self.params.get("SingleAvailabilityZone"))
        scores = []
        for region in self.params.get("RegionNames") or [self.region]:
            lefts = self._lefts(kinds, region)
            if by_zone:
                scores += [
                    {
                        "Region": region,
                        "AvailabilityZoneId": self._zone_id(zone),
                        "Score": _score(left, target),
                    }
                    for zone, left in sorted(lefts.items())
                ]
            elif lefts:
                scores.append({"Region": region, "Score": _score(sum(lefts.values()), target)})
        return ActionResult({"SpotPlacementScores": scores})

    def template_data(self, specification: dict[str, Any] | None) -> dict[str, Any]:
        """Return the data of the launch template that a request names; empty for none."""
        if not specification:
            return {}
        version = self.ec2_backend._get_template_from_args(specification)  # noqa: SLF001 - no public way
        data: dict[str, Any] = version.data
        return data

    def offered(self, kind: str, region: str | None = None) -> set[str]:
        """Return the zones of the region that offer a type."""
        return self.offerings.get(region or self.region, {}).get(kind, set())

    def left(self, kind: str, zone: str) -> int:
        """Return how many more instances of a type a zone can take."""
        return self.machines.capacity.left(Pool(instance_type=kind, zone=zone))

    def enter(self, instances: list[Any], template: dict[str, Any]) -> None:
        """Boot instances that moto has just made; without an address for each there is none."""
        try:
            self.machines.launch([Record(instance, template) for instance in instances])
        except OSError as error:
            for instance in instances:
                instance.terminate()
            raise EC2ClientError("InsufficientAddressCapacity", str(error)) from error

    def _instances(self) -> list[Any]:
        found: list[Any] = self.ec2_backend.get_multi_instances_by_id(self.params.get("InstanceIds") or [])
        return found

    def _zones(self, kind: str) -> list[str]:
        """Return the zones a request allows: the one it names, its subnet's, or all that offer the type."""
        subnet_id = self.params.get("SubnetId") or next(
            (card["SubnetId"] for card in self.params.get("NetworkInterfaces", ()) if card.get("SubnetId")),
            None,
        )
        zone = self._get_param("Placement.AvailabilityZone")
        if subnet_id:
            zone = self.ec2_backend.get_subnet(subnet_id).availability_zone
        if zone is None:
            defaults = self.ec2_backend.get_default_subnets()
            return sorted(self.offered(kind) & set(defaults)) or sorted(defaults)
        known = any(zone in zones for zones in self.offerings.get(self.region, {}).values())
        if known and kind in self.offerings.get(self.region, {}) and zone not in self.offered(kind):
            message = f"The instance type {kind} is not offered in {zone}."
            raise EC2ClientError("Unsupported", message)
        return [zone]

    def _grant(self, kind: str, zones: list[str]) -> int:
        """Choose the zone that gives most and return how many it gives."""
        low = int(self.params.get("MinCount") or 1)
        high = int(self.params.get("MaxCount") or low)
        if not 1 <= low <= high:
            message = f"MinCount {low} and MaxCount {high} do not fit together."
            raise EC2ClientError("InvalidParameterValue", message)
        high = self._within_quota(kind, low, high)
        if not zones:
            return high
        zone = max(zones, key=lambda each: min(self.left(kind, each), high))
        granted = min(self.left(kind, zone), high)
        if granted < low:
            message = f"There is not enough capacity of {kind} in {', '.join(zones)} for {low} instances."
            raise EC2ClientError(NO_CAPACITY, message)
        if len(zones) > 1:
            self.params["Placement"] = {**self.params.get("Placement", {}), "AvailabilityZone": zone}
        return granted

    def _within_quota(self, kind: str, low: int, high: int) -> int:
        """Return how many of `high` the account's quota allows, at least `low`."""
        options = self.params.get("InstanceMarketOptions") or {}
        market = Market.SPOT if options.get("MarketType") == "spot" else Market.ON_DEMAND
        code = self.quotas.code(kind, market)
        if code is None:
            return high
        room = self.quotas.left(code) // self.quotas.each(kind)
        if room < low:
            message = (
                f"You have requested more vCPU capacity than your current vCPU limit of "
                f"{self.quotas.limits()[code]} allows for the instance bucket that {kind} belongs to."
            )
            raise EC2ClientError(OVER_QUOTA[market], message)
        return min(high, room)

    def _forget_old(self) -> None:
        ended = self.machines.forget(datetime.now(UTC) - _REMEMBERED)
        books = self.ec2_backend.reservations
        for reservation_id, reservation in list(books.items()) if ended else ():
            if all(instance.id in ended for instance in reservation.instances):
                del books[reservation_id]

    def _lefts(self, kinds: list[str], region: str) -> dict[str, int]:
        lefts: dict[str, int] = {}
        for kind in kinds:
            for zone in self.offered(kind, region):
                lefts[zone] = lefts.get(zone, 0) + self.left(kind, zone)
        return lefts

    def _zone_id(self, zone: str) -> str:
        zones = self.ec2_backend.describe_availability_zones()
        return next((str(each.zone_id) for each in zones if each.name == zone), zone)


def index_offerings() -> dict[str, dict[str, set[str]]]:
    """Return the zones that offer a type, by region and type, out of moto's lists."""
    offered: dict[str, dict[str, set[str]]] = {}
    for region, offerings in INSTANCE_TYPE_OFFERINGS["availability-zone"].items():
        by_kind = offered.setdefault(region, {})
        for offering in offerings:
            by_kind.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return offered


def _score(left: int, target: int) -> int:
    return max(1, _BEST_SCORE * min(left, target) // max(1, target))


def _changed(name: str, before: list[tuple[Any, str, int]]) -> ActionResult:
    """Return the answer of an action that changes states: what each was, and what it is now."""
    changes = [
        {
            "InstanceId": instance.id,
            "CurrentState": {"Name": instance.state, "Code": instance.state_code},
            "PreviousState": {"Name": state, "Code": code},
        }
        for instance, state, code in before
    ]
    return ActionResult({name: changes})
