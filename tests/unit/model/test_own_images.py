"""Which images are stale, and what types make a new one."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dlcloud.model.cluster import OwnImage, stale_reason
from dlcloud.model.ebs_prices import HOURS_PER_MONTH, snapshot_usd

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def image(image_id, days, **other):
    values = {"name": "dlcloud-a", "state": "available", "architecture": "x86_64", "cluster_id": "c"}
    values |= {"created_at": NOW - timedelta(days=days), "size_gib": 75, **other}
    return OwnImage(image_id=image_id, **values)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (image("ami-2", 1), "superseded by ami-2"),
        (image("ami-2", 1, state="pending"), ""),
        (image("ami-2", 1, name="dlcloud-b"), ""),
        (image("ami-2", 1, architecture="arm64"), ""),
        (image("ami-2", 9), ""),
    ],
)
def test_an_image_is_superseded_by_a_newer_one_of_its_name(other, reason):
    first = image("ami-1", 2)
    assert stale_reason(first, [first, other], NOW) == reason


def test_an_image_that_failed_is_stale():
    assert stale_reason(image("ami-1", 0, state="failed"), [], NOW) == "failed"
    assert stale_reason(image("ami-1", 0, state="pending"), [], NOW) == ""


def test_a_snapshot_costs_five_cents_a_gib_and_month():
    assert round(snapshot_usd(75) * HOURS_PER_MONTH, 6) == Decimal("3.75")
