"""What was spent, by cluster and by day, and the limit of a month."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.spending import (
    HomeMonth,
    MonthState,
    PendingPlan,
    costs_by_day,
    costs_of_clusters,
    month_of,
    still_pending,
)
from dlcloud.model.cluster import Member
from dlcloud.report.cost_tables import spending_sections, total_section
from dlcloud.report.table import Format, Report, render
from tests.fakes.samples import cluster, instance

EVENING = datetime(2026, 9, 1, 22, tzinfo=UTC)


def member(usd="1", hours=4, launched_at=EVENING):
    made = instance(launched_at=launched_at)
    return Member(
        instance=made, hourly_usd=usd and Decimal(usd), ended_at=launched_at + timedelta(hours=hours)
    )


def costs():
    clusters = [
        cluster("trained", cluster_id="a", disk_gib=0, created_at=EVENING),
        cluster("failed", cluster_id="b", disk_gib=0, created_at=EVENING + timedelta(days=1)),
        cluster("empty", cluster_id="c"),
        cluster("rehearsed", cluster_id="d", disk_gib=0, cloud="local"),
    ]
    members = {"a": [member()], "b": [member(None)], "d": [member("10", hours=1)]}
    return costs_of_clusters(clusters, members, EVENING)


def test_a_night_is_split_between_its_days():
    days = costs_by_day(costs(), rehearsal=False)
    assert [(day.day, round(usd, 2)) for day, usd in days.items()] == [
        (1, Decimal("2.01")),
        (2, Decimal("2.01")),
    ]


def test_the_total_is_one_line_and_the_tables_name_clusters_and_days():
    def shown(sections):
        return render(Report(command="x", records=[], sections=sections, empty=""), Format.TABLE, 120)

    assert shown(total_section(costs())) == (
        "in all: 4.02 USD spent (2 clusters and 1 at an unknown price); 10.0 USD* rehearsed, not billed (1"
        " cluster); by cluster\n  and day: dlcloud cost-report --spending"
    )
    tables = shown(spending_sections(costs()))
    assert [
        line.split()[0] for line in tables.splitlines() if line.startswith(("failed", "trained", "2026"))
    ] == [
        "failed",
        "trained",
        "2026-09-01",
        "2026-09-02",
    ]
    assert total_section([]) == []


NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def home(spent, committed=0, pending=()):
    return HomeMonth(spent=Decimal(spent), committed=Decimal(committed), pending=pending, as_of=NOW)


def state(*homes, limit=100, billed=None):
    named = {str(number): one for number, one in enumerate(homes)}
    return MonthState(month="2026-11", limit=Decimal(limit), homes=named, billed=billed)


def test_what_is_left_counts_all_homes_and_the_larger_of_store_and_bill():
    assert state(home(10, 20), home(5)).left == 65
    assert state(home(10, 20), home(5), billed=Decimal(50)).left == 30
    assert state(home(10, 20), billed=Decimal(3)).left == 70
    assert state(home(90, 20)).left == 0


def test_a_plan_is_refused_with_what_is_left():
    month = state(home(60, 30))
    assert month.refusal(Decimal(10)) == ""
    reason = month.refusal(Decimal("10.01"))
    assert "10.0 USD of 100 are left" in reason
    assert "2026-11" in reason
    assert "price is unknown" in month.refusal(None)


@pytest.mark.parametrize(
    ("spent", "before", "passed"), [(49, 0, 0), (50, 0, 50), (85, 50, 80), (85, 80, 0), (130, 80, 100)]
)
def test_each_threshold_is_notified_of_once(spent, before, passed):
    assert state(home(spent)).passed(before) == passed


def test_a_plan_counts_until_its_cluster_is_stored_or_an_hour_has_passed():
    plan = PendingPlan(name="sweep-a", usd=Decimal(1), at=NOW)
    assert still_pending([plan], [], NOW) == [plan]
    assert still_pending([plan], [("sweep-a", NOW + timedelta(seconds=1))], NOW) == []
    assert still_pending([plan], [("sweep-a", NOW - timedelta(1)), ("sweep", NOW)], NOW) == [plan]
    assert still_pending([plan], [], NOW + timedelta(hours=2)) == []
    assert HomeMonth.from_json(home(1, 2, (plan,)).to_json()) == home(1, 2, (plan,))


def test_months_are_those_of_utc():
    assert month_of(datetime.fromisoformat("2026-12-01T00:30:00+02:00")) == "2026-11"
