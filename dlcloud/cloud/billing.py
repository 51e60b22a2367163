"""What AWS billed, by our tag, as Cost Explorer tells it."""

from collections.abc import Collection
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from dlcloud.cloud.clients import Clients
from dlcloud.cloud.faults import translate_errors
from dlcloud.core.cluster import CLUSTER_TAG
from dlcloud.core.cost import BilledCost
from dlcloud.core.errors import CloudError

BILLING_REGION = "us-east-1"  # Source: Cost Explorer API reference, endpoints
KEPT = timedelta(days=395)
"""Cost Explorer tells of the last 13 months. Source: Cost Management user guide, "Exploring your data"."""
MOST_VALUES = 100
"""Clusters asked for in one request."""


class Billing:
    """The bills of the account; each request of Cost Explorer costs 0.01 USD.

    Args:
        clients: The account's clients.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def by_cluster(
        self, cluster_ids: Collection[str], *, since: datetime, now: datetime
    ) -> dict[str, BilledCost]:
        """Return what was billed for clusters, by their ids; one of which nothing is billed is absent.

        Args:
            cluster_ids: Which.
            since: The begin of the first of them; what is older than Cost Explorer tells of is left out.
            now: Today counts, as far as it is known.

        Raises:
            CredentialsError, ThrottledError, CloudError: Cost Explorer does not answer.
        """
        first = max(since.date(), (now - KEPT).date())
        last = now.date() + timedelta(days=1)  # the end of a period is left out
        found: dict[str, BilledCost] = {}
        wanted = sorted(cluster_ids)
        for start in range(0, len(wanted), MOST_VALUES):
            self._ask(wanted[start : start + MOST_VALUES], first, last, found)
        return found

    def _ask(self, wanted: list[str], first: date, last: date, found: dict[str, BilledCost]) -> None:
        """Ask page after page.

        Source: Cost Explorer API reference, GetCostAndUsage; read 2026-09.
        """
        token: dict[str, str] = {}
        while True:
            with translate_errors("asking Cost Explorer what was billed (ce:GetCostAndUsage)"):
                answer = self._clients.read("ce", BILLING_REGION).get_cost_and_usage(
                    TimePeriod={"Start": first.isoformat(), "End": last.isoformat()},
                    Granularity="MONTHLY",
                    Metrics=["UnblendedCost"],
                    Filter={"Tags": {"Key": CLUSTER_TAG, "Values": wanted, "MatchOptions": ["EQUALS"]}},
                    GroupBy=[{"Type": "TAG", "Key": CLUSTER_TAG}],
                    **token,
                )
            for period in answer["ResultsByTime"]:
                _add(period, found)
            if not answer.get("NextPageToken"):
                return
            token = {"NextPageToken": answer["NextPageToken"]}


def _add(period: dict[str, Any], found: dict[str, BilledCost]) -> None:
    """Add one month's groups: a group's key is `TAG$VALUE`."""
    for group in period.get("Groups", []):
        cluster_id = group["Keys"][0].partition("$")[2]
        cost = group["Metrics"]["UnblendedCost"]
        if cost.get("Unit", "USD") != "USD":
            raise CloudError(f"Cost Explorer bills in {cost['Unit']}, and dlcloud counts in USD")
        before = found.get(cluster_id) or BilledCost(usd=Decimal(0), estimated=False)
        found[cluster_id] = BilledCost(
            usd=before.usd + Decimal(cost["Amount"]),
            estimated=before.estimated or bool(period.get("Estimated")),
        )
