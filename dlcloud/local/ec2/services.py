"""What capacity costs and where it is offered: prices, quotas, scores, and services that moto lacks.

The endpoint calls the `answer_…` functions for the price list, the quotas, the account's plan and EC2
Instance Connect; `MarketResponses` has EC2's own actions on the same facts. Prices are the catalog's, or
those of a trace.
"""

import json
import re
import uuid
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, ClassVar

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.capacity.pools import LocalAccountPlan
from dlcloud.local.ec2.differences import MendedResponses
from dlcloud.local.ec2.instances import NotRunningError, SiteInstances
from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.instance import FEWEST_SCORED_TYPES, InstanceType, Market, Price
from dlcloud.planning.quotas import CODES

ACCOUNT_PLAN_SERVICE = "freetier"
_CENT_OF_A_CENT = Decimal("0.0001")
_CONNECT_KEY_S = 60.0


class ServiceError(Exception):
    """The service refuses a request; carries its error code and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def on_demand_price(catalog: Catalog, instance_type: str, region: str) -> Price | None:
    """Return the hourly price; a region that the catalog has no prices of is quoted at Virginia's."""
    return catalog.on_demand_price(instance_type, region) or catalog.on_demand_price(
        instance_type, DEFAULT_REGION
    )


def spot_usd(
    catalog: Catalog, instance_type: str, zone: str, instances: SiteInstances | None = None
) -> Decimal | None:
    """Return an hourly spot price: that of a trace, else 30 to 45 % of on-demand, by zone, always the same.

    The catalog has no spot prices: these rehearse choosing by price and are no market data.
    """
    traced = None if instances is None else instances.spot_market.price(instance_type, zone)
    if traced is not None:
        return traced
    price = on_demand_price(catalog, instance_type, zone[:-1])
    if price is None:
        return None
    share = Decimal(30 + zlib.crc32(f"{instance_type}/{zone}".encode()) % 16) / 100
    return (price.hourly_usd * share).quantize(_CENT_OF_A_CENT)


def answer_pricing(action: str, request: Mapping[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Answer GetProducts for AmazonEC2 by instance type and region, with the catalog's prices.

    Raises:
        ServiceError: It is another action or service.
    """
    if action != "GetProducts" or request.get("ServiceCode") != "AmazonEC2":
        raise ServiceError("NotFoundException", "The local price list knows GetProducts of AmazonEC2.")
    filters = {term["Field"]: term["Value"] for term in request.get("Filters", [])}
    region = filters.get("regionCode", DEFAULT_REGION)
    name = filters.get("instanceType")
    types = list(catalog) if name is None else [catalog.hardware(name)]
    products = [_product(hardware, region, catalog) for hardware in types if hardware]
    matching = [product for product in products if product and _matches(product, filters)]
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product) for product in matching]}


def answer_quotas(action: str, request: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Answer GetServiceQuota; `limits` are vCPUs by code.

    Raises:
        ServiceError: It is another action, service or quota.
    """
    code = str(request.get("QuotaCode"))
    named = {of_family: key for key, of_family in CODES.items()}.get(code)
    if action != "GetServiceQuota" or request.get("ServiceCode") != "ec2" or named is None:
        raise ServiceError("NoSuchResourceException", "The local cloud has the vCPU quotas of ec2.")
    family, market = named
    spot, on_demand = f"All {family} Spot Instance Requests", f"Running On-Demand {family} instances"
    return {
        "Quota": {
            "ServiceCode": "ec2",
            "QuotaCode": code,
            "QuotaName": spot if market is Market.SPOT else on_demand,
            "Value": float(limits[code]),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
    }


def answer_account_plan(action: str, plan: LocalAccountPlan) -> dict[str, Any]:
    """Answer GetAccountPlanState.

    Raises:
        ServiceError: It is another action.
    """
    if action != "GetAccountPlanState":
        raise ServiceError("ValidationException", f"The local cloud does not answer {action}.")
    return plan.state(DEFAULT_ACCOUNT_ID)


def answer_instance_connect(
    action: str, request: Mapping[str, Any], instances: SiteInstances, account: str
) -> dict[str, Any]:
    """Answer SendSSHPublicKey: the key may log in for a minute, under any user name.

    Source: EC2 Instance Connect API reference, SendSSHPublicKey.

    Raises:
        ServiceError: The instance does not exist, does not run or is in another zone; or the key is none.
    """
    if action != "SendSSHPublicKey":
        raise ServiceError("InvalidArgsException", f"The local cloud does not answer {action}.")
    instance_id, key = str(request.get("InstanceId") or ""), str(request.get("SSHPublicKey") or "")
    try:
        zone = instances.zone(instance_id, account)
        if request.get("AvailabilityZone") not in (None, zone):
            raise ServiceError("InvalidArgsException", f"{instance_id} is not in this zone.")
        instances.admit_key(instance_id, key, seconds=_CONNECT_KEY_S)
    except LookupError as error:
        raise ServiceError("EC2InstanceNotFoundException", f"There is no instance {instance_id}.") from error
    except NotRunningError as error:
        raise ServiceError("EC2InstanceStateInvalidException", str(error)) from error
    except ValueError as error:
        raise ServiceError("InvalidArgsException", str(error)) from error
    return {"RequestId": str(uuid.uuid4()), "Success": True}


def _product(hardware: InstanceType, region: str, catalog: Catalog) -> dict[str, Any] | None:
    price = on_demand_price(catalog, hardware.name, region)
    if price is None:
        return None
    attributes = {
        "instanceType": hardware.name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "vcpu": str(hardware.vcpus),
        "memory": f"{hardware.memory_gib:g} GiB",
        "gpu": str(hardware.gpu.count if hardware.gpu else 0),
    }
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price.hourly_usd:.10f}"}}
    term = {
        "effectiveDate": f"{price.as_of:%Y-%m-%dT%H:%M:%SZ}",
        "priceDimensions": {f"{hardware.name}.hour": dimension},
    }
    product = {"sku": hardware.name, "productFamily": "Compute Instance", "attributes": attributes}
    return {
        "product": product,
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{hardware.name}.on-demand": term}},
    }


def _matches(product: dict[str, Any], filters: Mapping[str, str]) -> bool:
    attributes = product["product"]["attributes"]
    return all(attributes.get(field, value).lower() == value.lower() for field, value in filters.items())


_LINUX = {"Linux/UNIX", "Linux/UNIX (Amazon VPC)"}
_BEST_SCORE = 9
_LOW_SCORE = 3
_LOCAL_DISKS = re.compile(r"(?<=\d)([a-z]*)d(?=\.)")


class MarketResponses(MendedResponses):
    """The answers on prices and offers; bound to one site by a subclass."""

    instances: ClassVar[SiteInstances]
    catalog: ClassVar[Catalog]

    def describe_spot_price_history(self) -> ActionResult:
        """Return the spot price of each type in each zone that offers it."""
        products = set(self.params.get("ProductDescriptions") or _LINUX)
        filters = self._filters_from_querystring()
        products &= set(filters.get("product-description", products))
        names = self.params.get("InstanceTypes") or filters.get("instance-type")
        zone = self.params.get("AvailabilityZone")
        zones = {zone} if zone else set(filters.get("availability-zone", ())) or None
        hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        history = [
            {
                "InstanceType": name,
                "AvailabilityZone": place,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": str(price),
                "Timestamp": hour,
            }
            for name in names or sorted(hardware.name for hardware in self.catalog)
            for place in sorted(self.offered(name))
            if (zones is None or place in zones)
            and (price := spot_usd(self.catalog, name, place, self.instances)) is not None
        ]
        return ActionResult({"SpotPriceHistory": history if products & _LINUX else [], "NextToken": ""})

    def get_spot_placement_scores(self) -> ActionResult:
        """Score regions, or their zones, by how much of the target the capacity allows: 1 to 9.

        With fewer than three types the score is low. Source: EC2 API reference, GetSpotPlacementScores.
        """
        self.error_on_dryrun()
        names = self.params.get("InstanceTypes") or []
        best = _BEST_SCORE if len(_distinct(names)) >= FEWEST_SCORED_TYPES else _LOW_SCORE
        target = int(self.params.get("TargetCapacity") or 1)
        by_zone = bool(self.params.get("SingleAvailabilityZone"))
        scores: list[dict[str, Any]] = []
        for region in self.params.get("RegionNames") or [self.region]:
            left: dict[str, int] = {}
            for name in names:
                for zone in self.offered(name, region):
                    left[zone] = left.get(zone, 0) + self.instances.left(name, zone, Market.SPOT)
            if by_zone:
                zone_ids = {z.name: z.zone_id for z in RegionsAndZonesBackend.zones.get(region, ())}
                scores += [
                    {
                        "Region": region,
                        "AvailabilityZoneId": str(zone_ids.get(zone, zone)),
                        "Score": _score(count, target, best),
                    }
                    for zone, count in sorted(left.items())
                ]
            elif left:
                scores.append({"Region": region, "Score": _score(sum(left.values()), target, best)})
        return ActionResult({"SpotPlacementScores": scores})

    def offered(self, instance_type: str, region: str | None = None) -> set[str]:
        """Return the zones of the region that offer a type."""
        return _zones_of_types(region or self.region).get(instance_type, set())

    def zones_with_types(self) -> set[str]:
        """Return the zones of the region that offer any type."""
        return set().union(*_zones_of_types(self.region).values())


@cache
def _zones_of_types(region: str) -> dict[str, set[str]]:
    """Return the zones of a region that offer a type, by the type."""
    by_type: dict[str, set[str]] = {}
    for offering in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ()):
        by_type.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return by_type


def _distinct(names: Sequence[str]) -> set[str]:
    """Return the types without their variants with local disks, which EC2 counts as one."""
    return {_LOCAL_DISKS.sub(r"\1", name) for name in names}


def _score(left: int, target: int, best: int) -> int:
    return max(1, best * min(left, target) // max(1, target))
