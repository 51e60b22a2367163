"""An `up` that leaves a Region: what the others may still cost, in which order, and how long it waits."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest

from dlcloud.app.clusters.moves import Moves
from dlcloud.model.cluster import ClusterState
from dlcloud.model.instance import Market
from dlcloud.planning.plan import RegionOffer
from dlcloud.scheduling.deadline_scaling import RETURN_S
from dlcloud.store.clusters import DEADLINE
from tests.fakes.clock import FakeClock
from tests.fakes.samples import RECIPE, cluster, plan, price, recipe

WIDE = f"{RECIPE}region: [us-east-1, us-west-2]\n".replace("region: us-east-1\n", "")


class FakeClusters:
    """Clusters that are down, and what was stored of them."""

    def __init__(self):
        self.stored = {}

    def find(self, cluster_id):
        return cluster(cluster_id=cluster_id, state=ClusterState.DOWN)

    def intents(self, cluster_id, action):
        return [one for one in self.stored.get(cluster_id, []) if one.action == action]

    def begin_intent(self, cluster_id, action, detail, begun_at):
        one = SimpleNamespace(action=action, detail=detail, begun_at=begun_at, intent_id=len(self.stored))
        self.stored.setdefault(cluster_id, []).append(one)
        return one.intent_id

    def end_intent(self, *_):
        pass


@pytest.fixture
def moves():
    events = []
    context = SimpleNamespace(clock=FakeClock(), emit=events.append, clusters=FakeClusters(), events=events)
    return Moves(context=context)


def in_region(name):
    return replace(plan(), region=name, hourly_usd=Decimal(2))


def lose(moves, cluster_id="lost", hours=1.0):
    moves.begin(cluster(cluster_id=cluster_id))
    moves.context.clock.advance(hours * 3600)
    return moves.can_leave(cluster(cluster_id=cluster_id), in_region("us-east-1"), recipe(WIDE))


def test_a_recipe_of_one_region_is_never_left(moves):
    moves.begin(cluster())
    assert not moves.can_leave(cluster(), in_region("us-east-1"), recipe())
    assert moves.remaining(recipe()) == recipe()


def test_the_budget_of_the_next_cluster_is_what_the_lost_one_left(moves):
    own = recipe(WIDE)
    own = own.model_copy(update={"budget": own.budget.model_copy(update={"max_usd": Decimal(10)})})
    assert moves.remaining(own) is own
    assert lose(moves)
    rest = moves.remaining(own).budget
    assert (rest.max_hours, rest.max_usd) == (own.budget.max_hours - 1, Decimal(8))
    assert moves.remaining(own).hash != own.hash, "it is a value for plans, not the stored recipe"


def test_the_region_just_lost_comes_last_and_no_plan_of_before_is_used(moves):
    moves.elsewhere = [in_region("eu-west-1")]
    assert lose(moves)
    again = [in_region(name) for name in ("us-east-1", "us-west-2", "eu-west-1")]
    assert moves.following(in_region("us-east-1"), lambda: again).region == "us-west-2"
    assert [one.region for one in moves.elsewhere] == ["eu-west-1", "us-east-1"]


def test_the_region_for_which_a_training_left_comes_first(moves):
    assert lose(moves)
    moves.preferred = "eu-west-1"
    again = [in_region(name) for name in ("us-east-1", "us-west-2", "eu-west-1")]
    assert moves.following(in_region("us-east-1"), lambda: again).region == "eu-west-1"
    assert [one.region for one in moves.elsewhere] == ["us-west-2", "us-east-1"]


def test_a_training_may_move_to_the_regions_of_its_plan_that_it_has_not_left_lately(moves):
    spot, on_demand = price("c7i.xlarge", "0.05", market=Market.SPOT), price("c7i.xlarge", "0.18")
    offers = [
        RegionOffer(region=name, price=usd)
        for name, usd in (
            ("us-east-1", spot),
            ("us-west-2", spot),
            ("eu-west-1", spot),
            ("eu-west-2", on_demand),
        )
    ]
    wide = replace(in_region("us-west-2"), regions=tuple(offers))
    assert moves.spot_elsewhere(wide) == {"us-east-1": 0.05, "eu-west-1": 0.05}
    assert lose(moves)  # a cluster of us-east-1
    assert moves.spot_elsewhere(wide) == {"eu-west-1": 0.05}
    assert moves.spot_elsewhere(in_region("us-west-2")) == {}
    moves.context.clock.advance(RETURN_S)
    assert moves.spot_elsewhere(wide) == {"us-east-1": 0.05, "eu-west-1": 0.05}


def test_while_no_region_has_capacity_it_waits_longer_each_time(moves):
    assert lose(moves)
    left = in_region("us-east-1")
    for _ in range(4):
        moves.following(left, lambda: [in_region("us-west-2")])
        assert moves.can_leave(cluster(), left, recipe(WIDE))
    assert moves.context.clock.slept == [15, 30, 60]


def test_the_deadline_of_a_lost_training_holds_for_the_one_that_continues_it(moves):
    clusters, now = moves.context.clusters, moves.context.clock.now()
    ends_at = (now + timedelta(hours=5)).isoformat()
    clusters.begin_intent("lost", DEADLINE, ends_at, now)
    assert lose(moves)
    moves.begin(cluster(cluster_id="next"))
    assert [(one.detail, one.begun_at) for one in clusters.intents("next", DEADLINE)] == [(ends_at, now)]
