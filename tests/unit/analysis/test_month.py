"""The limit of a month: what is left, what is refused, which plans still count."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.spending import HomeMonth, MonthState, PendingPlan, month_of, still_pending

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
