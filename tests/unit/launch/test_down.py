"""Down is down: nothing is left that costs money, or it is named."""

from dataclasses import replace

import pytest

from dlcloud.launch.down import TERMINATION_TIMEOUT_S, gc
from dlcloud.model.cluster import ClusterState, Leftover
from dlcloud.model.errors import CloudError, UnwritableError
from dlcloud.model.events import Warned
from dlcloud.model.instance import InstanceState, Market
from dlcloud.model.money import member_usd
from dlcloud.store.clusters import HAND_OVER, PLACEMENT_GROUP
from tests.fakes.cloud import Failure, Killed
from tests.fakes.disk import full_disk
from tests.fakes.samples import RECIPE, cluster, request
from tests.unit.launch.conftest import ONE_TYPE


def down(world):
    return world.launcher.destroy()


def left(world):
    return [*world.cloud.alive(), *world.cloud.groups.values(), *world.cloud.templates]


def test_everything_is_ended_and_that_is_seen(world):
    world.provision(RECIPE)
    world.clock.advance(100)
    members = down(world)
    assert left(world) == []
    assert world.state is ClusterState.DOWN
    assert {member.instance.state for member in members} == {InstanceState.TERMINATED}
    assert {member.ended_at for member in members} == {world.cluster.created_at.replace(minute=1, second=40)}
    assert all(member.hourly_usd for member in members)
    assert world.clusters.find("c0ffee").ended_at == world.clock.now()
    assert 103 <= world.clock.monotonic() < 106
    assert world.cloud.calls["roles.delete"] == 0, "only a cluster that was handed over has a role"
    world.clock.advance(50)
    assert [member.ended_at for member in down(world)] == [member.ended_at for member in members]


@pytest.mark.parametrize("refused", [False, True])
def test_a_cluster_that_never_launched_is_down_at_once(world, refused):
    if refused:
        world.cloud.failures.append(Failure("instances.launch", CloudError("InvalidParameterValue")))
        with pytest.raises(CloudError):
            world.provision()
    assert down(world) == []
    assert world.state is ClusterState.DOWN
    assert world.clock.monotonic() == 0


@pytest.mark.parametrize("lag_s", [0.0, 2.0, 8.0])
def test_an_instance_of_a_launch_without_an_answer_is_ended(world, lag_s):
    world.cloud.lag_s = lag_s
    world.cloud.failures.append(Failure("instances.launch", Killed(), after=True))
    world.killed_while_provisioning()
    assert len(world.cloud.alive()) == 2
    assert world.clusters.members("c0ffee") == []
    members = down(world)
    assert left(world) == []
    assert sorted(member.instance.instance_id for member in members) == ["i-0001", "i-0002"]
    assert all(member.ended_at and member.hourly_usd is None for member in members)


@pytest.mark.parametrize("text", [ONE_TYPE, RECIPE])
def test_instances_that_are_not_listed_yet_are_ended_too(world, text):
    world.cloud.lag_s = 8.0
    world.provision(text)
    assert world.cloud.instances.find("c0ffee") == []
    members = down(world)
    assert left(world) == []
    assert {member.instance.state for member in members} == {InstanceState.TERMINATED}


@pytest.mark.parametrize(
    ("method", "lag_s"), [("network.create_group", 8.0), ("fleets.create_template", 0.0)]
)
def test_what_was_made_when_the_launch_was_killed_is_awaited_and_deleted(world, method, lag_s):
    world.cloud.lag_s = lag_s
    world.cloud.failures.append(Failure(method, Killed(), after=True))
    with pytest.raises(Killed):
        world.launcher.launch(world.plan(RECIPE))
    down(world)
    assert left(world) == []


def test_a_shutdown_of_twenty_minutes_is_billed_no_more_and_is_a_warning(world):
    members = world.provision()
    world.cloud.capacity.create_placement_group("c0ffee", world.cluster.tags)
    world.clusters.begin_intent("c0ffee", PLACEMENT_GROUP, "", world.clock.now())
    world.cloud.shutdown_s = 1200.0
    members = down(world)
    assert world.state is ClusterState.DOWN
    assert {member.ended_at for member in members} == {world.cluster.created_at}
    assert TERMINATION_TIMEOUT_S < world.clock.monotonic() < TERMINATION_TIMEOUT_S + 10
    (warning,) = [event.message for event in world.events if isinstance(event, Warned)]
    assert "i-0001, i-0002: still shutting down, which is not billed; dlcloud gc" in warning
    assert (list(world.cloud.groups), list(world.cloud.placement_groups)) == (["c0ffee"], ["dlcloud-c0ffee"])


def test_what_does_not_end_is_named_and_the_next_down_goes_on(world):
    world.provision()
    world.cloud.protected.add("i-0002")
    with pytest.raises(CloudError, match=r"still not terminated: i-0002 \(") as caught:
        down(world)
    assert "dlcloud down sample-1a2b" in caught.value.hint
    assert world.state is ClusterState.STOPPING
    assert TERMINATION_TIMEOUT_S < world.clock.monotonic() < TERMINATION_TIMEOUT_S + 10
    world.cloud.protected.clear()
    world.cloud.interrupt("i-0002")
    down(world)
    assert left(world) == []
    assert world.state is ClusterState.DOWN


@pytest.mark.parametrize("lag_s", [0.0, 2.0, 25.0])
def test_a_group_that_is_listed_late_is_not_overlooked(world, lag_s):
    world.cloud.lag_s = lag_s
    world.cloud.failures.append(Failure("instances.launch", CloudError("no")))
    with pytest.raises(CloudError, match="no"):
        world.launcher.launch(world.plan())
    assert world.cloud.groups
    down(world)
    assert left(world) == []
    assert world.clock.monotonic() <= lag_s + 1


def test_a_group_that_stays_in_use_is_named(world):
    world.provision()
    always = [["sg-c0ffee"]]
    world.cloud.network.delete_groups = lambda _: always[0]
    with pytest.raises(CloudError, match="security group sg-c0ffee is still in use"):
        down(world)
    assert world.cloud.alive() == []
    assert world.state is ClusterState.STOPPING


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("instances.find", 1),
        ("instances.find", 2),
        ("instances.terminate", 1),
        ("network.delete_groups", 1),
        ("fleets.delete_templates", 1),
        ("network.revoke_ssh", 1),
        ("fleets.delete", 1),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_down_that_fails_at_any_call_is_finished_by_the_next(world, method, number, after):
    world.provision(RECIPE)
    already = world.cloud.calls[method]
    world.cloud.failures.append(Failure(method, CloudError("no"), already + number, after=after))
    with pytest.raises(CloudError, match="no"):
        down(world)
    assert world.state is ClusterState.STOPPING
    down(world)
    assert left(world) == []
    assert world.state is ClusterState.DOWN


def test_instances_of_other_clusters_are_left_alone(world):
    world.provision()
    mine = set(world.cloud.alive())
    world.cloud.instances.launch(request(tags=cluster(cluster_id="other").tags, client_token="other"))
    down(world)
    assert set(world.cloud.alive()).isdisjoint(mine)
    assert len(world.cloud.alive()) == 1


@pytest.mark.parametrize(("capacity", "too_old"), [(0, False), (1, False), (2, True)])
def test_a_fleet_whose_answer_was_lost_is_found_by_its_tag_and_deleted(world, capacity, too_old):
    """Also where its request was too old to be repeated by the next command."""
    pools = [(name, zone) for name in ("c7i.xlarge", "c6i.xlarge") for zone in ("us-east-1a", "us-east-1b")]
    world.cloud.pools |= {(*pool, Market.ON_DEMAND): 0 for pool in pools}
    world.cloud.pools[*pools[0], Market.ON_DEMAND] = capacity
    world.cloud.failures.append(Failure("fleets.launch", Killed(), after=True))
    world.killed_while_provisioning(RECIPE)
    assert world.cloud.fleets_made
    if too_old:
        world.clock.advance(3600)
        world.provision(RECIPE)
    down(world)
    assert not world.cloud.fleets_made
    assert left(world) == []


def test_the_end_that_ec2_states_goes_before_the_time_of_the_call(world):
    world.provision()
    world.clock.advance(1000)
    record = world.cloud._records["i-0001"]
    ended_at = world.cluster.created_at.replace(minute=7)
    record.instance = replace(record.instance, ended_at=ended_at)
    world.cloud.interrupt("i-0001")
    ends = {member.instance.instance_id: member.ended_at for member in down(world)}
    assert ends["i-0001"] == ended_at
    assert ends["i-0002"] > ended_at


def test_the_role_of_a_detached_cluster_goes_before_its_instances(world):
    (first, *_) = world.provision()
    world.clusters.begin_intent("c0ffee", HAND_OVER, first.instance.instance_id, world.clock.now())
    world.cloud.roles.put_control("c0ffee", world.cluster.tags)
    down(world)
    assert not world.cloud.roles_made
    assert left(world) == []


def test_a_sweep_takes_first_what_could_launch_more(world):
    world.provision()
    world.cloud.roles.put_control("c0ffee", world.cluster.tags)
    world.cloud.failures.append(Failure("instances.terminate", Killed()))
    role = Leftover(
        kind="iam-role", resource_id="dlcloud-c0ffee", cluster_id="c0ffee", name="", region="us-east-1"
    )
    with pytest.raises(Killed):
        gc([role], cloud=world.cloud, clock=world.clock, emit=world.events.append)
    assert not world.cloud.roles_made


def test_an_instance_that_ec2_took_back_is_remembered_as_interrupted(world):
    world.provision()
    world.cloud.interrupt("i-0002", "Server.SpotInstanceTermination: Spot instance termination")
    world.clock.advance(30)
    world.launcher.reconcile()
    world.launcher.destroy()
    members = world.clusters.members("c0ffee")
    assert {member.instance.instance_id: member.interrupted for member in members} == {
        "i-0001": False,
        "i-0002": True,
    }
    first, second = (member_usd(member, 50, world.clock.now()) for member in members)
    assert second < first / 10


def test_a_living_instance_that_ec2_does_not_list_is_never_down(world):
    world.provision(RECIPE)
    world.clock.advance(100)
    gone = world.cloud.alive()[0]
    world.cloud.forget(gone)
    with pytest.raises(CloudError, match=f"does not list {gone}, not even as terminated") as caught:
        down(world)
    assert "--discard" in caught.value.hint
    assert world.state is ClusterState.STOPPING
    ended = {member.instance.instance_id: member.ended_at for member in world.clusters.members("c0ffee")}
    assert ended.pop(gone) is None
    assert all(ended.values())
    world.launcher.destroy(discard=True)
    assert world.state is ClusterState.DOWN


def test_an_instance_whose_time_was_over_an_hour_ago_is_down_without_being_listed(world):
    world.provision(RECIPE)
    world.clock.advance(5 * 3600 + 60)
    for gone in world.cloud.alive():
        world.cloud.forget(gone)
    down(world)
    assert world.state is ClusterState.DOWN


def test_down_on_a_full_disk_terminates_and_says_what_is_not_stored(world):
    world.provision(RECIPE)
    with (
        full_disk(),
        pytest.raises(UnwritableError, match="every instance of sample-1a2b is") as caught,
    ):
        world.launcher.destroy()
    assert world.cloud.alive() == []
    assert caught.value.hint.endswith("dlcloud down sample-1a2b")
    world.launcher.destroy()
    assert world.state is ClusterState.DOWN


def test_down_stores_the_ends_when_the_disk_has_space_again(world):
    world.provision(RECIPE)
    terminate = world.cloud.instances.terminate

    def terminate_on_full_disk(ids):
        with full_disk():
            world.clusters.set_disk("c0ffee", 60)
            return terminate(ids)

    world.cloud.instances.terminate = terminate_on_full_disk
    members = world.launcher.destroy()
    assert all(member.ended_at for member in members)
    assert world.state is ClusterState.DOWN
