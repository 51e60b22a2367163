"""How many vCPUs the account may have running, by family and market; see `core.quota` for what those are."""

import threading
from collections.abc import Callable, Iterable, Mapping

from dlcloud.core.instance import Market
from dlcloud.core.quota import CODES, quota_key

DEFAULT_VCPUS = 100_000
OVER_QUOTA = {Market.ON_DEMAND: "VcpuLimitExceeded", Market.SPOT: "MaxSpotInstanceCountExceeded"}
"""What EC2 answers to a launch beyond a quota."""


class VcpuQuotas:
    """The quotas, held against the instances that live right now; those of all regions count together.

    Args:
        living: Returns the type and market of each living instance.
        vcpus: The vCPUs of each instance type.
    """

    def __init__(
        self, *, living: Callable[[], Iterable[tuple[str, Market]]], vcpus: Mapping[str, int]
    ) -> None:
        self._living = living
        self._vcpus = vcpus
        self._lock = threading.Lock()
        self._limits = dict.fromkeys(CODES.values(), DEFAULT_VCPUS)

    def limit(self, instance_type: str, market: Market, vcpus: int | None) -> str:
        """Set the quota that a type counts against, None for the default; return its code.

        Raises:
            LookupError: The type counts against none that is known.
        """
        code = self.code(instance_type, market)
        if code is None:
            raise LookupError(f"the vCPU quota of {instance_type} {market}")
        with self._lock:
            self._limits[code] = DEFAULT_VCPUS if vcpus is None else vcpus
        return code

    def limits(self) -> dict[str, int]:
        """Return every quota in vCPUs by its code."""
        with self._lock:
            return dict(self._limits)

    def code(self, instance_type: str, market: Market) -> str | None:
        """Return the code of the quota that a type counts against; None if it counts against none."""
        key = quota_key(instance_type, market)
        return None if key is None or instance_type not in self._vcpus else CODES[key]

    def each(self, instance_type: str) -> int:
        """Return what one instance of a type takes."""
        return self._vcpus.get(instance_type, 0)

    def left(self, code: str) -> int:
        """Return how many vCPUs may still be started."""
        used = sum(self._vcpus[kind] for kind, market in self._living() if self.code(kind, market) == code)
        return max(0, self.limits()[code] - used)
