"""The EC2 actions that tell where types are offered, at which spot price and with which chance."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.ec2.instances import SiteInstances
from dlcloud.local.ec2.mended_responses import MendedResponses
from dlcloud.local.ec2.services import spot_usd
from dlcloud.model.instance import FEWEST_SCORED_TYPES, Market

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
                zone_ids = {z.name: z.zone_id for z in self.ec2_backend.describe_availability_zones()}
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
