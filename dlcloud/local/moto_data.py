"""moto's tables of types, in less memory: where they are offered is read by region, when it is asked for."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from moto.utilities import utils

_TABLE, _TYPES = "instance_type_offerings", "instance_types.json"
_load: Callable[[str], Any] = utils.load_resource


def load_less() -> None:
    """Let moto import no offerings, and types that share what they have in common: 58 MiB less.

    `RegionOfferings` has the offerings. Call this before moto's EC2 is imported.
    """

    def load(resource: str) -> Any:  # noqa: ANN401 - JSON
        if _TABLE in resource:
            return []
        return _load_shared(resource) if resource.endswith(_TYPES) else _load(resource)

    utils.load_resource = load


def _load_shared(resource: str) -> Any:  # noqa: ANN401 - JSON
    """Load a file in which equal objects and lists are one; nothing changes them."""
    values: dict[bytes, Any] = {}

    def shared(value: Any) -> Any:  # noqa: ANN401 - JSON
        return values.setdefault(blake2b(repr(value).encode()).digest(), value)

    def share(pairs: list[tuple[str, Any]]) -> Any:  # noqa: ANN401 - JSON
        return shared({name: shared(value) if type(value) is list else value for name, value in pairs})

    content = gzip.decompress(utils.load_resource_as_bytes(f"{resource}.gz"))
    return json.loads(content, object_pairs_hook=share)


class RegionOfferings(Mapping[str, list[dict[str, str]]]):
    """The offerings of types by region.

    Args:
        location_type: What the locations are: availability-zone, availability-zone-id or region.
        regions: The regions that moto has.
        added: Types that are offered in every place, too.
    """

    def __init__(self, location_type: str, regions: Sequence[str], added: Sequence[str]) -> None:
        self._location_type = location_type
        self._added = added
        self._by_region: dict[str, list[dict[str, str]] | None] = dict.fromkeys(regions)

    def __getitem__(self, region: str) -> list[dict[str, str]]:
        offerings = self._by_region[region]
        if offerings is None:
            offerings = self._by_region[region] = self._read(region)
        return offerings

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_region)

    def __len__(self) -> int:
        return len(self._by_region)

    def _read(self, region: str) -> list[dict[str, str]]:
        read = _load(f"ec2/resources/{_TABLE}/{self._location_type}/{region}.json")
        pairs = [(entry["InstanceType"], entry["Location"]) for entry in read]
        places = sorted({place for _, place in pairs})
        pairs += [(name, place) for name in self._added for place in places]
        return [
            {"InstanceType": name, "Location": place, "LocationType": self._location_type}
            for name, place in pairs
        ]
