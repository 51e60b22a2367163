"""What AWS billed, out of recorded answers of Cost Explorer."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.cost import BilledCost
from dlcloud.cloud.account.billing import Billing
from dlcloud.model.errors import CloudError, CredentialsError

NOW = datetime(2026, 9, 20, 15, 0, tzinfo=UTC)
SINCE = datetime(2026, 8, 30, 9, 0, tzinfo=UTC)


def asked(*ids, start="2026-08-30", **more):
    return {
        "TimePeriod": {"Start": start, "End": "2026-09-21"},
        "Granularity": "MONTHLY",
        "Metrics": ["UnblendedCost"],
        "Filter": {"Tags": {"Key": "dlcloud:cluster", "Values": [*ids], "MatchOptions": ["EQUALS"]}},
        "GroupBy": [{"Type": "TAG", "Key": "dlcloud:cluster"}],
        **more,
    }


def month(groups, *, estimated=False, unit="USD"):
    return {
        "TimePeriod": {"Start": "2026-09-01", "End": "2026-09-21"},
        "Estimated": estimated,
        "Total": {},
        "Groups": [
            {"Keys": [f"dlcloud:cluster${name}"], "Metrics": {"UnblendedCost": {"Amount": usd, "Unit": unit}}}
            for name, usd in groups.items()
        ],
    }


@pytest.fixture
def explorer(clients, stub):
    return stub(clients.get("ce", "us-east-1"))


def ask(clients, *ids, since=SINCE):
    return Billing(clients).by_cluster(ids, since=since, now=NOW)


def test_months_and_pages_add_up_exactly(clients, explorer):
    explorer.add_response(
        "get_cost_and_usage",
        {"ResultsByTime": [month({"a": "0.1000000001", "b": "2"})], "NextPageToken": "more"},
        asked("a", "b"),
    )
    explorer.add_response(
        "get_cost_and_usage",
        {"ResultsByTime": [month({"a": "0.2"}, estimated=True)]},
        asked("a", "b", NextPageToken="more"),
    )
    assert ask(clients, "b", "a") == {
        "a": BilledCost(usd=Decimal("0.3000000001"), estimated=True),
        "b": BilledCost(usd=Decimal(2), estimated=False),
    }


def test_many_clusters_are_asked_for_in_parts_and_for_no_more_days_than_there_are(clients, explorer):
    ids = [f"{number:03}" for number in range(150)]
    for part in (ids[:100], ids[100:]):
        answer = {"ResultsByTime": [month({})]}
        explorer.add_response("get_cost_and_usage", answer, asked(*part, start="2025-08-21"))
    assert ask(clients, *ids, since=NOW - timedelta(days=1000)) == {}


@pytest.mark.parametrize(
    ("code", "kind"),
    [("AccessDeniedException", CredentialsError), ("DataUnavailableException", CloudError)],
)
def test_a_refusal_names_the_permission_it_needs(clients, explorer, code, kind):
    explorer.add_client_error("get_cost_and_usage", code, "not for you", http_status_code=400)
    with pytest.raises(kind, match="ce:GetCostAndUsage"):
        ask(clients, "a")


def test_another_currency_is_not_taken_for_dollars(clients, explorer):
    answer = {"ResultsByTime": [month({"a": "7"}, unit="CNY")]}
    explorer.add_response("get_cost_and_usage", answer, asked("a"))
    with pytest.raises(CloudError, match="bills in CNY"):
        ask(clients, "a")


@pytest.mark.parametrize(
    ("amount", "is_active", "usd"), [("12.5", None, "12.5"), ("0", True, "0"), ("0", False, None)]
)
def test_a_month_is_that_of_all_clusters_and_nothing_only_if_the_tag_is_activated(
    clients, explorer, amount, is_active, usd
):
    total = {"UnblendedCost": {"Amount": amount, "Unit": "USD"}}
    expected = {
        "TimePeriod": {"Start": "2026-09-01", "End": "2026-09-21"},
        "Granularity": "MONTHLY",
        "Metrics": ["UnblendedCost"],
        "Filter": {"Not": {"Tags": {"Key": "dlcloud:cluster", "MatchOptions": ["ABSENT"]}}},
    }
    explorer.add_response("get_cost_and_usage", {"ResultsByTime": [{**month({}), "Total": total}]}, expected)
    if is_active is not None:
        tag = {"TagKey": "dlcloud:cluster", "Type": "UserDefined", "Status": "Active"}
        explorer.add_response(
            "list_cost_allocation_tags",
            {"CostAllocationTags": [tag] if is_active else []},
            {"TagKeys": ["dlcloud:cluster"], "Status": "Active"},
        )
    assert Billing(clients).of_month(NOW) == (usd and Decimal(usd))
