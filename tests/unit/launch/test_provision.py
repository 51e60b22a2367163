"""Instances are had from whichever pool has them, once, also where the command is killed in between."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal

import pytest

from dlcloud.launch.acquire import write_user_data
from dlcloud.model.cluster import ClusterState
from dlcloud.model.errors import CapacityError, CloudError, CredentialsError, QuotaError, ThrottledError
from dlcloud.model.events import Info, Warned
from dlcloud.model.instance import Market
from dlcloud.planning.reservations import CapacityReservation
from tests.fakes.cloud import Failure, Killed
from tests.fakes.samples import RECIPE, open_intents
from tests.unit.launch.conftest import ONE_TYPE

A, B = "us-east-1a", "us-east-1b"
RESERVED = "cr-0000000000000000a"
TAKES_RESERVED = ONE_TYPE.replace("  count: 2\n", "  count: 2\n  reservations: open\n")
ON_DEMAND, SPOT = Market.ON_DEMAND, Market.SPOT
SPOT_FIRST = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot-then-on-demand\n")

TRAINS = RECIPE.replace("count: 2", "count: 4\n  market: spot\n  on_demand_base: 1").replace(
    "benchmark: quantization", "command: ./train\n  elastic: {}"
)


def ids(members):
    return sorted(member.instance.instance_id for member in members)


def where(members):
    return Counter((member.instance.instance_type, member.instance.zone) for member in members)


def lack(world, *pools):
    world.cloud.pools |= dict.fromkeys(pools, 0)


def test_one_request_gives_all_where_there_is_capacity(world):
    members = world.provision()
    assert ids(members) == world.cloud.alive() == ["i-0001", "i-0002"]
    assert ids(world.clusters.members("c0ffee")) == ids(members)
    assert {member.hourly_usd for member in members} == {Decimal("0.1785")}
    assert {member.price_source for member in members} == {"bundled table"}
    (request,) = world.cloud.requests
    assert (request.min_count, request.max_count) == (1, 2)
    assert request.user_data == write_user_data(world.cluster, life_minutes=240, paths=world.paths)
    assert request.tags == world.cluster.tags
    assert len(request.client_token) == 64
    assert open_intents(world.clusters, "c0ffee") == []


def test_on_demand_completes_what_spot_lacks(world):
    lack(world, *((name, zone, SPOT) for name in ("c7i.xlarge", "c6i.xlarge") for zone in (A, B)))
    world.cloud.pools[("c7i.xlarge", B, SPOT)] = 1
    members = world.provision(SPOT_FIRST)
    assert Counter(member.instance.market for member in members) == {SPOT: 1, ON_DEMAND: 1}


def test_fewer_than_the_minimum_are_an_error_with_every_refusal(world):
    lack(world, ("c7i.xlarge", B, ON_DEMAND), ("c6i.xlarge", A, ON_DEMAND), ("c6i.xlarge", B, ON_DEMAND))
    world.cloud.pools[("c7i.xlarge", A, ON_DEMAND)] = 1
    with pytest.raises(CapacityError) as caught:
        world.provision(RECIPE)
    first, *refusals = caught.value.message.splitlines()
    assert first == "launched 1 instance(s), minimum is 2:"
    assert all(word in "\n".join(refusals) for word in ("c7i.xlarge", "c6i.xlarge", A, B))
    assert caught.value.exit_code == 3
    assert "region" in caught.value.hint


def test_a_quota_is_never_asked_for_twice(world):
    world.cloud.quota = 0
    with pytest.raises(QuotaError) as caught:
        world.provision()
    assert len(world.cloud.requests) == 1
    assert "VcpuLimitExceeded" in caught.value.message
    assert "limit" in caught.value.hint


@pytest.mark.parametrize("error", [ThrottledError("slow down"), CredentialsError("no")])
def test_a_refusal_of_another_kind_is_raised_and_its_intent_is_ended(world, error):
    world.cloud.failures.append(Failure("instances.launch", error))
    with pytest.raises(type(error)):
        world.provision()
    assert open_intents(world.clusters, "c0ffee") == []
    assert len(world.provision()) == 2


def final(kind, message):
    error = kind(message, "mend it")
    error.is_final = True
    return error


@pytest.mark.parametrize("kind", [CredentialsError, CloudError])
def test_a_denied_spot_request_never_becomes_an_on_demand_one(world, kind):
    world.cloud.denied[SPOT] = final(kind, "it is not authorized")
    with pytest.raises(CloudError, match=r"minimum is 2:\n  c7i.xlarge spot in .*: it is not auth") as caught:
        world.provision(SPOT_FIRST)
    assert type(caught.value) is kind
    assert caught.value.is_final
    assert caught.value.hint == "mend it"
    assert caught.value.message.count("it is not authorized") == 1
    assert world.cloud.alive() == []
    assert len(world.cloud.requests) == 1


def test_spot_that_lacks_its_role_leaves_the_rest_to_on_demand_or_says_how_to_make_it(world):
    world.cloud.denied[SPOT] = CapacityError("no service-linked role", "make the role")
    with pytest.raises(CapacityError) as caught:
        world.provision(SPOT_FIRST.replace("spot-then-on-demand", "spot"))
    assert caught.value.hint == "make the role"
    assert {member.instance.market for member in world.provision(SPOT_FIRST)} == {ON_DEMAND}


def test_a_placement_group_is_never_asked_for_in_another_zone(world):
    text = ONE_TYPE.replace("count: 2", "count: {min: 1, max: 3}\n  placement_group: cluster")
    world.cloud.pools[("c7i.xlarge", A, ON_DEMAND)] = 1
    assert where(world.provision(text)) == {("c7i.xlarge", A): 1}
    assert len(world.cloud.requests) == 1


def test_a_denial_beside_enough_instances_is_a_warning(world):
    world.cloud.denied[SPOT] = final(CloudError, "it is invalid")
    based = SPOT_FIRST.replace("count: 2", "count: {min: 1, max: 2}\n  on_demand_base: 1")
    assert [member.instance.market for member in world.provision(based)] == [ON_DEMAND]
    assert any(isinstance(event, Warned) and "it is invalid" in event.message for event in world.events)


@pytest.mark.parametrize(("appears_s", "requests"), [(5.0, 4), (60.0, 10)])
def test_a_group_that_pools_do_not_know_yet_is_awaited(world, appears_s, requests):
    world.cloud.denied[SPOT] = final(CloudError, "InvalidGroup.NotFound")
    world.cloud.denied_until = appears_s
    if appears_s < 30:
        assert {member.instance.market for member in world.provision(SPOT_FIRST)} == {SPOT}
    else:
        with pytest.raises(CloudError, match="InvalidGroup"):
            world.provision(SPOT_FIRST)
    assert len(set(world.tokens)) == len(world.tokens) == requests


@pytest.mark.parametrize("lag_s", [0.0, 60.0])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("text", "method"), [(ONE_TYPE, "instances.launch"), (RECIPE, "fleets.launch")])
def test_a_request_repeated_after_a_crash_makes_no_second_instance(world, lag_s, after, text, method):
    world.cloud.lag_s = lag_s
    world.cloud.failures.append(Failure(method, Killed(), after=after))
    world.killed_while_provisioning(text)
    assert len(world.cloud.alive()) == (2 if after else 0)
    assert open_intents(world.clusters, "c0ffee") == ["launch"]
    world.clock.advance(3)
    members = world.provision(text)
    assert ids(members) == world.cloud.alive()
    assert len(members) == 2
    assert len(set(world.tokens)) == 1
    assert open_intents(world.clusters, "c0ffee") == []


@pytest.mark.parametrize("crashes", [1, 2, 3, 4])
def test_however_often_it_is_killed_there_are_two_instances_in_the_end(world, crashes):
    world.cloud.lag_s = 30.0
    lack(world, ("c7i.xlarge", B, ON_DEMAND))
    world.cloud.pools[("c7i.xlarge", A, ON_DEMAND)] = 1
    for number in range(1, crashes + 1):
        world.cloud.failures.append(Failure("fleets.launch", Killed(), number, after=bool(number % 2)))
        world.killed_while_provisioning(RECIPE)
        world.clock.advance(1)
    assert ids(world.provision(RECIPE)) == world.cloud.alive()
    assert len(world.cloud.alive()) == 2


@pytest.mark.parametrize("text", [ONE_TYPE, RECIPE])
def test_instances_that_are_not_listed_yet_are_not_launched_again(world, text):
    world.cloud.lag_s = 20.0
    first = world.provision(text)
    assert ids(world.provision(text)) == ids(first) == world.cloud.alive()
    assert len(world.cloud.requests) == 1


def test_an_old_request_is_not_repeated_for_by_then_the_lists_tell(world):
    world.cloud.failures.append(Failure("instances.launch", Killed(), after=True))
    world.killed_while_provisioning()
    world.clock.advance(3600)
    members = world.provision()
    assert ids(members) == world.cloud.alive() == ["i-0001", "i-0002"]
    assert len(world.cloud.requests) == 1
    assert open_intents(world.clusters, "c0ffee") == []


def test_a_later_request_has_a_token_of_its_own(world):
    world.provision()
    world.clock.advance(10)
    world.cloud.interrupt("i-0001")
    members = world.provision()
    assert ids(members) == world.cloud.alive() == ["i-0002", "i-0003"]
    assert len(set(world.tokens)) == 2


def places(members):
    return Counter((member.instance.market, member.instance.zone) for member in members)


def messages(world):
    return [event.message for event in world.events if isinstance(event, Info) and "zone" in event.message]


def test_a_training_is_launched_where_all_its_spot_instances_are(world):
    world.cloud.pools |= {("c7i.xlarge", A, SPOT): 1, ("c6i.xlarge", A, SPOT): 1}
    assert places(world.provision(TRAINS)) == {(SPOT, B): 3, (ON_DEMAND, B): 1}
    assert messages(world) == []
    assert len(world.cloud.requests) == 2


def test_what_the_zone_of_a_training_lacks_comes_from_all_with_the_reason(world):
    world.cloud.pools |= {("c7i.xlarge", zone, SPOT): count for zone, count in ((A, 2), (B, 1))}
    lack(world, *(("c6i.xlarge", zone, SPOT) for zone in (A, B)))
    assert places(world.provision(TRAINS)) == {(SPOT, A): 2, (ON_DEMAND, A): 1, (SPOT, B): 1}
    traffic = "traffic between zones costs 0.02 USD per GB"
    assert messages(world) == [f"{A} lacks 1 instance(s), asking all zones: {traffic}"]


def test_a_replacement_joins_the_coordinator_wherever_spot_is_cheaper(world):
    lack(world, *((name, A, market) for name in ("c7i.xlarge", "c6i.xlarge") for market in (SPOT, ON_DEMAND)))
    first = world.provision(TRAINS)
    world.cloud.pools.clear()
    world.cloud.interrupt(next(m.instance.instance_id for m in first if m.instance.market is SPOT))
    world.clock.advance(5)
    assert places(world.provision(TRAINS)) == {(SPOT, B): 3, (ON_DEMAND, B): 1}


def test_a_training_without_spot_capacity_still_has_its_base(world):
    lack(world, *((name, zone, SPOT) for name in ("c7i.xlarge", "c6i.xlarge") for zone in (A, B)))
    assert places(world.provision(TRAINS.replace("count: 4", "count: {min: 1, max: 4}"))) == {
        (ON_DEMAND, A): 1
    }


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_training_killed_at_any_request_goes_on_with_that_one(world, number, after):
    world.cloud.pools |= {("c7i.xlarge", zone, SPOT): count for zone, count in ((A, 2), (B, 1))}
    lack(world, *(("c6i.xlarge", zone, SPOT) for zone in (A, B)))
    world.cloud.failures.append(Failure("fleets.launch", Killed(), number, after=after))
    world.killed_while_provisioning(TRAINS)
    world.cloud.lag_s = 30.0
    members = world.provision(TRAINS)
    assert ids(members) == world.cloud.alive()
    assert places(members) == {(SPOT, A): 2, (ON_DEMAND, A): 1, (SPOT, B): 1}


@pytest.mark.parametrize(("text", "minimum", "expected"), [(SPOT_FIRST, 2, 2), (TRAINS, 1, 1)])
def test_a_market_without_a_pool_is_left_to_the_next(world, text, minimum, expected):
    plan = replace(world.plan(text), pools=world.plan().pools)
    members = world.provisioner(plan=plan).provision(minimum=minimum).members
    assert {member.instance.market for member in members} == {ON_DEMAND}
    assert len(members) == expected


def test_nothing_is_launched_once_the_cluster_is_being_terminated(world):
    world.clusters.set_state("c0ffee", ClusterState.STOPPING)
    with pytest.raises(CloudError, match="is being terminated"):
        world.provision()
    assert world.cloud.requests == []
    assert open_intents(world.clusters, "c0ffee") == []


def reserve(world, **other):
    values = {"instance_type": "c7i.xlarge", "zone": B, "total": 2, "available": 2, "is_open": True, **other}
    world.cloud.capacity_reservations = [CapacityReservation(reservation_id=RESERVED, **values)]


def test_reserved_instances_come_first_and_cost_nothing_more(world):
    reserve(world, total=1)
    members = world.provision(TAKES_RESERVED.replace("count: 2", "count: 3"))
    assert [member.instance.reservation_id for member in members] == [RESERVED, "", ""]
    assert [member.hourly_usd for member in members] == [Decimal(0), Decimal("0.1785"), Decimal("0.1785")]
    first, second = world.cloud.requests
    assert (first.reservation_id, first.zone) == (RESERVED, B)
    assert (second.reservation_id, second.machine.outside_reservations) == ("", True)
    assert world.clusters.members("c0ffee")[0].price_source == f"marginal: {RESERVED} is paid for anyway"


def test_reservation_that_filled_up_since_the_plan_is_not_bought_instead(world):
    reserve(world)
    provisioner = world.provisioner(TAKES_RESERVED)
    reserve(world, total=0)
    with pytest.raises(CapacityError, match=f"c7i.xlarge {RESERVED} in {B}"):
        provisioner.provision(minimum=2)
    assert world.cloud.alive() == []


def test_request_for_reserved_instances_without_answer_is_repeated(world):
    reserve(world)
    world.cloud.failures = [Failure("instances.launch", Killed(), after=True)]
    world.killed_while_provisioning(TAKES_RESERVED)
    members = world.provision(TAKES_RESERVED)
    assert [member.hourly_usd for member in members] == [Decimal(0)] * 2
    assert len(set(world.tokens)) == 1


def test_burstable_types_share_a_fleet_with_others_by_a_template_of_their_own(world):
    world.provision(SPOT_FIRST.replace("[c7i.xlarge, c6i.xlarge]", "[t3.xlarge, c7i.xlarge]"))
    asked = world.cloud.requests[0]
    assert (asked.template, asked.burstable_template) == ("dlcloud-c0ffee", "dlcloud-c0ffee-burstable")
