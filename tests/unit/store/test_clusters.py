"""What is remembered of clusters comes back as it was stored, and the right one is found."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.model.cluster import ClusterState, Member
from dlcloud.model.errors import StoreError
from dlcloud.model.instance import InstanceState, Market
from dlcloud.scheduling.outlook import Outlook
from dlcloud.store.cache import PriceCache
from dlcloud.store.clusters import DEADLINE, DEADLINE_SET, DECISION
from dlcloud.store.clusters import OUTLOOK as OUTLOOK_INTENT
from tests.fakes.samples import PRICE_DATE, THEN, cluster, instance, open_intents, price

OUTLOOK = Outlook(
    at=THEN,
    deadline=THEN + timedelta(hours=52),
    time_left_s=187_200,
    work_left_s=7200,
    probability=0.9,
    is_measured=False,
    reason="why",
    targets={},
)


def later(minutes):
    return THEN + timedelta(minutes=minutes)


def member(instance_id="i-0001", ended_at=None, **other):
    return Member(
        instance=instance(instance_id, **other),
        hourly_usd=Decimal("0.10"),
        price_source="bundled table",
        price_as_of=PRICE_DATE,
        ended_at=ended_at,
    )


def test_a_cluster_is_remembered_once(clusters):
    clusters.add(cluster())
    with pytest.raises(StoreError, match="UNIQUE"):
        clusters.add(cluster())


def test_clusters_that_are_down_are_not_active(clusters):
    clusters.add(cluster("b", cluster_id="2", created_at=later(1)))
    clusters.add(cluster("a", cluster_id="1"))
    clusters.add(cluster("c", cluster_id="3", state=ClusterState.DOWN))
    assert [each.name for each in clusters.active()] == ["a", "b"]
    assert [each.name for each in clusters.all()] == ["a", "c", "b"]


def test_an_active_cluster_is_found_before_one_down_then_the_newest(clusters):
    clusters.add(cluster("x", cluster_id="old", created_at=later(0)))
    clusters.add(cluster("x", cluster_id="new", created_at=later(1)))
    clusters.add(cluster("x", cluster_id="down", created_at=later(2), state=ClusterState.DOWN))
    assert clusters.find("x").cluster_id == "new"
    clusters.set_state("new", ClusterState.DOWN, later(3))
    assert clusters.find("x").cluster_id == "old"
    clusters.set_state("old", ClusterState.DOWN, later(4))
    assert clusters.find("x").cluster_id == "down"
    assert clusters.find("old").cluster_id == "old"
    assert clusters.find("y") is None


def test_an_end_once_known_stays(clusters):
    clusters.add(cluster())
    clusters.set_state("c0ffee", ClusterState.DOWN, later(1))
    clusters.set_state("c0ffee", ClusterState.DOWN)
    assert clusters.find("c0ffee").ended_at == later(1)
    clusters.put_members("c0ffee", [member(ended_at=later(1))])
    clusters.put_members("c0ffee", [member(ended_at=later(5), state=InstanceState.TERMINATED)])
    clusters.put_members("c0ffee", [member(ended_at=None, state=InstanceState.TERMINATED)])
    (known,) = clusters.members("c0ffee")
    assert known.ended_at == later(1)
    assert known.instance.state is InstanceState.TERMINATED


def test_members_are_put_all_or_none(clusters):
    clusters.add(cluster())
    broken = replace(member("i-0002"), price_source=None)
    with pytest.raises(StoreError):
        clusters.put_members("c0ffee", [member("i-0001"), broken])
    assert clusters.members("c0ffee") == []


def test_an_intent_is_open_until_its_outcome_is_known(clusters):
    clusters.add(cluster())
    assert not clusters.has_intents("c0ffee")
    first = clusters.begin_intent("c0ffee", "launch", "2 c7i.xlarge", THEN)
    second = clusters.begin_intent("c0ffee", "launch", "1 c6i.xlarge", THEN)
    assert first != second
    assert open_intents(clusters, "c0ffee") == ["launch", "launch"]
    assert [intent.outcome for intent in clusters.intents("c0ffee", "launch")] == [None, None]
    clusters.end_intent(first, "i-0001", later(1))
    assert open_intents(clusters, "c0ffee") == ["launch"]
    assert [intent.outcome for intent in clusters.intents("c0ffee", "launch")] == ["i-0001", None]
    assert clusters.intents("c0ffee", "other") == []
    assert clusters.has_intents("c0ffee")
    assert open_intents(clusters, "another") == []


def test_the_newest_price_is_returned_exactly(database):
    prices = PriceCache(database)
    assert prices.get("c7i.xlarge", "us-east-1", Market.ON_DEMAND) is None
    old = price(usd="0.1700000001")
    new = replace(price(usd="0.20"), as_of=PRICE_DATE + timedelta(days=1))
    prices.put(new)
    prices.put(old)
    prices.put(price(usd="0.05", market=Market.SPOT))
    assert prices.get("c7i.xlarge", "us-east-1", Market.ON_DEMAND) == new
    assert prices.get("c7i.xlarge", "us-east-1", Market.SPOT).hourly_usd == Decimal("0.05")
    assert prices.get("c7i.xlarge", "eu-west-1", Market.ON_DEMAND) is None
    prices.put(new)


def test_an_outlook_is_shown_until_the_deadline_is_met_or_missed(clusters):
    clusters.add(cluster())
    name, text = cluster().cluster_id, OUTLOOK.to_text()
    assert clusters.outlook(name) is None
    deadline = clusters.begin_intent(name, DEADLINE, OUTLOOK.deadline.isoformat(), THEN)
    clusters.end_intent(deadline, DEADLINE_SET, THEN)
    seen = clusters.begin_intent(name, OUTLOOK_INTENT, "", THEN)
    clusters.end_intent(seen, text, THEN)
    decision = clusters.begin_intent(name, DECISION, text, THEN)
    clusters.end_intent(decision, "decided", THEN)
    assert clusters.outlook(name) == OUTLOOK
    clusters.end_intent(deadline, "met", THEN)
    assert clusters.outlook(name) is None
    assert clusters.decisions(name) == [OUTLOOK]
