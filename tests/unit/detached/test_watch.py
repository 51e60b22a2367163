"""Which instances watch the controller, and when they take over."""

from dataclasses import replace

from dlcloud.detached.standby import WATCH_S, choose_watchers, wait_until_lost
from dlcloud.launch.managed import ManagedCluster
from dlcloud.model.cluster import CONTROLLER_TAG, Member
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import InstanceState, Market
from tests.fakes.clock import FakeClock
from tests.fakes.samples import cluster, instance


def member(name, market=Market.ON_DEMAND):
    return Member(instance=instance(name, market=market))


def test_on_demand_instances_stand_by_first_and_earlier_ones_go_on():
    members = [member("i-1"), member("i-2", Market.SPOT), member("i-3"), member("i-4")]
    assert [m.instance.instance_id for m in choose_watchers(members, "i-1", set())] == ["i-3", "i-4"]
    assert [m.instance.instance_id for m in choose_watchers(members, "i-1", {"i-2"})] == ["i-2", "i-3"]


class Answers:
    """EC2's lists of the instances, one after the other; an error is raised."""

    def __init__(self, *answers):
        self.answers = [*answers]

    def find(self, _cluster_id):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Cloud:
    def __init__(self, *answers):
        self.instances = Answers(*answers)


def test_an_instance_waits_while_one_controls_or_ec2_does_not_say():
    up = instance("i-1", tags=cluster().tags | {CONTROLLER_TAG: "ubuntu"})
    down = replace(up, state=InstanceState.TERMINATED)
    cloud, clock = Cloud([up], CloudError("no answer"), [down]), FakeClock()
    managed = ManagedCluster(
        cluster=cluster(), cloud=cloud, store=None, dialer=None, clock=clock, emit=lambda _: None
    )
    begun = clock.monotonic()
    wait_until_lost(managed, "i-2")
    assert clock.monotonic() - begun == 3 * WATCH_S
    assert cloud.instances.answers == []
