"""What an hour of an instance type costs now in both markets, asked once a type, however many run."""

import logging
from threading import Lock

from dlcloud.core.errors import CloudError
from dlcloud.core.instance import Market, Price
from dlcloud.core.protocols import Cloud

log = logging.getLogger(__name__)


class PriceLookup:
    """Prices for the record.

    Args:
        cloud: Whom to ask.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._asked: dict[str, list[Price]] = {}
        self._lock = Lock()

    def of(self, instance_type: str, zone: str) -> list[Price]:
        """Return the on-demand price and the spot price of the zone, as far as they can be had.

        A price that cannot be had is no reason to stop a run: the report then says that it is unknown.
        """
        with self._lock:
            if instance_type not in self._asked:
                self._asked[instance_type] = self._ask(instance_type)
            prices = self._asked[instance_type]
        return [price for price in prices if price.zone in {"", zone}]

    def _ask(self, instance_type: str) -> list[Price]:
        try:
            return self._cloud.prices([instance_type], [*Market])
        except CloudError as error:
            log.warning("the prices of %s stay unknown: %s", instance_type, error.message)
            return []
