"""What was spent: by cluster and by day, whether or not anything was measured."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from dlcloud.analysis.spending import costs_by_day, costs_of_clusters
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
