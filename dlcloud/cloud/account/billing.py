"""The costs that AWS billed, by cluster, from Cost Explorer."""

from collections.abc import Collection
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from dlcloud.analysis.cost import BilledCost
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.api.partitions import service_region
from dlcloud.model.cluster import CLUSTER_TAG
from dlcloud.model.errors import CloudError

BILLING_REGION = "us-east-1"  # Source: Cost Explorer API reference, endpoints
BILLING_ENDPOINT = "ce"
KEPT = timedelta(days=395)
"""Cost Explorer keeps 13 months. Source: Cost Management user guide, "Exploring your data"."""
MOST_VALUES = 100
"""Clusters per request."""


def billing_region(region: str) -> str:
    """Return the region of the same partition where Cost Explorer answers, or the usual one."""
    return service_region(BILLING_ENDPOINT, region, BILLING_REGION) or BILLING_REGION


class Billing:
    """The bills of the account; a request to Cost Explorer costs 0.01 USD."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def by_cluster(
        self, cluster_ids: Collection[str], *, since: datetime, now: datetime
    ) -> dict[str, BilledCost]:
        """Return the billed costs by cluster id, today included; a cluster without costs is absent.

        Args:
            cluster_ids: Clusters of this account.
            since: The start of the first cluster; costs older than Cost Explorer keeps are left out.
            now: The end of the period.

        Raises:
            CredentialsError, ThrottledError, CloudError: Cost Explorer does not answer.
        """
        first = max(since.date(), (now - KEPT).date())
        last = now.date() + timedelta(days=1)  # the end of a period is left out
        costs: dict[str, BilledCost] = {}
        ids = sorted(cluster_ids)
        for start in range(0, len(ids), MOST_VALUES):
            self._add_costs(ids[start : start + MOST_VALUES], first, last, costs)
        return costs

    def of_month(self, now: datetime) -> Decimal | None:
        """Return the billed costs of all clusters of the account in this month, about a day behind.

        None if they are not known: Cost Explorer sees no cost of a tag that is not activated, so that a sum
        of 0 says nothing without the tag's state.

        Raises:
            CredentialsError, ThrottledError, CloudError: Cost Explorer does not answer.
        """
        first, last = now.date().replace(day=1), now.date() + timedelta(days=1)
        with translate_errors("looking up billed costs in Cost Explorer (ce:GetCostAndUsage)"):
            answer = self._clients.get("ce", billing_region(self._clients.region)).get_cost_and_usage(
                TimePeriod={"Start": first.isoformat(), "End": last.isoformat()},
                Granularity="MONTHLY",
                Metrics=["UnblendedCost"],
                Filter={"Not": {"Tags": {"Key": CLUSTER_TAG, "MatchOptions": ["ABSENT"]}}},
            )
        costs = [period["Total"]["UnblendedCost"] for period in answer["ResultsByTime"]]
        if any(cost.get("Unit", "USD") != "USD" for cost in costs):
            raise CloudError("Cost Explorer does not bill in USD, and dlcloud counts in USD")
        usd = sum((Decimal(cost["Amount"]) for cost in costs), Decimal(0))
        return usd if usd or self._is_tag_active() else None

    def _is_tag_active(self) -> bool:
        """True if the payer's account has activated the clusters' tag as a cost allocation tag.

        Raises:
            CredentialsError, ThrottledError, CloudError: That is not known.
        """
        with translate_errors("looking up the cost allocation tag (ce:ListCostAllocationTags)"):
            answer = self._clients.get("ce", billing_region(self._clients.region)).list_cost_allocation_tags(
                TagKeys=[CLUSTER_TAG], Status="Active"
            )
        return bool(answer["CostAllocationTags"])

    def _add_costs(self, ids: list[str], first: date, last: date, costs: dict[str, BilledCost]) -> None:
        """Add the costs of some clusters, page by page.

        Source: Cost Explorer API reference, GetCostAndUsage; read 2026-09.
        """
        token: dict[str, str] = {}
        while True:
            with translate_errors("looking up billed costs in Cost Explorer (ce:GetCostAndUsage)"):
                answer = self._clients.get("ce", billing_region(self._clients.region)).get_cost_and_usage(
                    TimePeriod={"Start": first.isoformat(), "End": last.isoformat()},
                    Granularity="MONTHLY",
                    Metrics=["UnblendedCost"],
                    Filter={"Tags": {"Key": CLUSTER_TAG, "Values": ids, "MatchOptions": ["EQUALS"]}},
                    GroupBy=[{"Type": "TAG", "Key": CLUSTER_TAG}],
                    **token,
                )
            for period in answer["ResultsByTime"]:
                _add_period(period, costs)
            if not answer.get("NextPageToken"):
                return
            token = {"NextPageToken": answer["NextPageToken"]}


def _add_period(period: dict[str, Any], costs: dict[str, BilledCost]) -> None:
    """Add the groups of one month; the key of a group is `TAG$VALUE`."""
    for group in period.get("Groups", []):
        cluster_id = group["Keys"][0].partition("$")[2]
        cost = group["Metrics"]["UnblendedCost"]
        if cost.get("Unit", "USD") != "USD":
            raise CloudError(f"Cost Explorer bills in {cost['Unit']}, and dlcloud counts in USD")
        before = costs.get(cluster_id) or BilledCost(usd=Decimal(0), estimated=False)
        costs[cluster_id] = BilledCost(
            usd=before.usd + Decimal(cost["Amount"]),
            estimated=before.estimated or bool(period.get("Estimated")),
        )
