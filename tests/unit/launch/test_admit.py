"""A kept cluster is reached from a machine that has moved."""

import pytest

from dlcloud.launch.admit import AdmittingDialer
from dlcloud.model.errors import CloudError, UnreachableError
from dlcloud.model.events import Info
from tests.fakes.cloud import Failure

HOME, ROAD = "198.51.100.9/32", "203.0.113.7/32"


class Guarded:
    """Connections that time out unless the security group has the caller's address."""

    def __init__(self, world, *, error=TimeoutError):
        self.world, self.error, self.dialled = world, error, 0

    def dial(self, endpoint, *, wait_s=0.0):
        self.dialled += 1
        if ("sg-c0ffee", ROAD) not in self.world.cloud.rules:
            raise UnreachableError(f"{endpoint.instance_id}: no SSH connection") from self.error()
        return self.world.dial.dial(endpoint, wait_s=wait_s)

    def close(self):
        """Nothing is open."""


@pytest.fixture
def endpoint(world):
    members = world.launcher.launch(world.plan()).members
    world.cloud.rules = {("sg-c0ffee", HOME)}
    world.events.clear()
    return members[0].instance.endpoint("ubuntu")


def admitting(world, **other):
    return AdmittingDialer(
        dialer=Guarded(world, **other),
        cloud=lambda: world.cloud,
        cluster_id="c0ffee",
        emit=world.events.append,
    )


def test_a_time_out_admits_the_present_address_once_and_says_so(world, endpoint):
    dialer = admitting(world)
    for _ in range(2):
        assert dialer.dial(endpoint).endpoint == endpoint
    assert world.cloud.rules == {("sg-c0ffee", ROAD)}
    assert [event.message for event in world.events if isinstance(event, Info)] == [
        f"this machine's address has changed: SSH is allowed from {ROAD}, no longer from {HOME}"
    ]
    assert (dialer.dialer.dialled, world.cloud.calls["network.move_ssh"]) == (3, 1)


def test_a_refused_connection_changes_no_rule(world, endpoint):
    with pytest.raises(UnreachableError):
        admitting(world, error=ConnectionRefusedError).dial(endpoint)
    assert world.cloud.rules == {("sg-c0ffee", HOME)}


@pytest.mark.parametrize("method", ["caller.cidr", "network.move_ssh"])
def test_where_the_address_cannot_be_admitted_the_time_out_is_raised(world, endpoint, method):
    number = world.cloud.calls[method] + 1
    world.cloud.failures.append(Failure(method, CloudError("denied"), number))
    with pytest.raises(UnreachableError, match="no SSH connection"):
        admitting(world).dial(endpoint)
    assert "denied" in world.events[-1].message
