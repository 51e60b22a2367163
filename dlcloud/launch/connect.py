"""Reach instances over SSH as soon as they answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import DlcloudError, UnreachableError
from dlcloud.core.instance import Instance
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.core.remote import Connection, Dial, Endpoint
from dlcloud.store.clusters import Clusters
from dlcloud.system.parallel import Outcome, all_or_raise, fan_out

BOOT_TIMEOUT_S = 300.0
ADDRESS_POLL_S = 1.0
DIAL_ROUND_S = 20.0
"""How long instances are dialled before EC2 is asked whether they still live."""


Lost = Mapping[str, DlcloudError]
"""Why instances that were launched cannot be used, by instance id."""


def wait_until_reachable(
    cluster: Cluster,
    members: Sequence[Member],
    *,
    group_id: str,
    cidr: str,
    cloud: Cloud,
    clusters: Clusters,
    dial: Dial,
    clock: Clock,
    lose: Callable[[Lost], None] | None = None,
) -> tuple[list[Member], dict[str, Connection]]:
    """Let the caller in, await addresses, connect: what lies between a launch and work; `lose` as below.

    Raises:
        UnreachableError, HostKeyError: As `connect`.
        CloudError: The caller could not be let in.
    """
    # The group's rule and the addresses do not wait for each other: a round trip less.
    steps: list[Callable[[], list[Member] | None]] = [
        lambda: await_addresses(cluster, members, cloud=cloud, clusters=clusters, clock=clock, lose=lose),
        lambda: cloud.allow_ssh(group_id, cidr),
    ]
    addressed, allowed = fan_out(lambda step: step(), steps)
    for outcome in (addressed, allowed):
        if outcome.error is not None:
            raise outcome.error
    there = addressed.value or []
    connections = connect(cluster, there, cloud=cloud, dial=dial, clock=clock, lose=lose)
    return [member for member in there if member.instance.instance_id in connections], connections


def await_addresses(
    cluster: Cluster,
    members: Sequence[Member],
    *,
    cloud: Cloud,
    clusters: Clusters,
    clock: Clock,
    lose: Callable[[Lost], None] | None = None,
) -> list[Member]:
    """Ask EC2 until every instance has an address; the state `running` is not waited for, SSH tells sooner.

    Args:
        cluster: Whose instances.
        members: Which.
        cloud: Whom to ask.
        clusters: Where addresses are remembered.
        clock: Ends it after five minutes.
        lose: Is told of instances that are given up, so that the others go on; without it they are raised.

    Returns:
        The instances that have an address.

    Raises:
        UnreachableError: An instance ended, or has no address after five minutes, and `lose` is not given.
    """
    deadline = clock.monotonic() + BOOT_TIMEOUT_S
    current = list(members)
    while True:
        seen = {each.instance_id: each for each in cloud.instances(cluster.cluster_id)}
        current = [
            replace(member, instance=seen.get(member.instance.instance_id, member.instance))
            for member in current
        ]
        lost = _dead([member.instance for member in current])
        waiting = [each.instance.instance_id for each in current if not each.instance.host]
        if clock.monotonic() > deadline:
            lost = {name: _without_address(name) for name in waiting} | lost
        if lost:
            _give_up(lost, lose)
        current = [member for member in current if member.instance.instance_id not in lost]
        if all(member.instance.host for member in current):
            clusters.put_members(cluster.cluster_id, current)
            return current
        clock.sleep(ADDRESS_POLL_S)


def connect(
    cluster: Cluster,
    members: Sequence[Member],
    *,
    cloud: Cloud,
    dial: Dial,
    clock: Clock,
    lose: Callable[[Lost], None] | None = None,
) -> dict[str, Connection]:
    """Connect to every instance at once, waiting for those that still boot; `lose` as above.

    Returns:
        The connections by instance id.

    Raises:
        UnreachableError: An instance ended while booting, or did not answer within five minutes.
        HostKeyError: An instance could not prove its host key.
    """
    deadline = clock.monotonic() + BOOT_TIMEOUT_S
    waiting = {member.instance.instance_id: member.instance.endpoint(cluster.user) for member in members}
    connected: dict[str, Connection] = {}
    while waiting:
        outcomes = _dial_all(dial, waiting)
        connected |= {each.item.instance_id: each.value for each in outcomes if each.value is not None}
        failed = {each.item.instance_id: each.error for each in outcomes if each.error is not None}
        given_up = clock.monotonic() > deadline
        hopeless = {
            name: error
            for name, error in failed.items()
            if given_up or not isinstance(error, UnreachableError)
        }
        if hopeless:
            if lose is None:
                all_or_raise(outcomes)
            _give_up({name: _ours(error) for name, error in hopeless.items()}, lose)
        waiting = {name: each for name, each in waiting.items() if name in failed and name not in hopeless}
        if waiting:
            seen = [each for each in cloud.instances(cluster.cluster_id) if each.instance_id in waiting]
            dead = _dead(seen)
            if dead:
                _give_up(dead, lose)
            waiting = {name: each for name, each in waiting.items() if name not in dead}
    return connected


def _dial_all(dial: Dial, waiting: Mapping[str, Endpoint]) -> list[Outcome[Endpoint, Connection]]:
    return fan_out(lambda endpoint: dial.dial(endpoint, wait_s=DIAL_ROUND_S), list(waiting.values()))


def _give_up(lost: Lost, lose: Callable[[Lost], None] | None) -> None:
    if lose is not None:
        lose(lost)
        return
    first = next(iter(lost.values()))
    raise UnreachableError("\n".join(each.message for each in lost.values()), first.hint) from first


def _ours(error: Exception) -> DlcloudError:
    """Return an error of the tree; another one is a bug and is raised as it is."""
    if isinstance(error, DlcloudError):
        return error
    raise error


def _without_address(instance_id: str) -> UnreachableError:
    return UnreachableError(
        f"{instance_id}: no public address after {BOOT_TIMEOUT_S:.0f} s",
        "the default subnet must assign public addresses",
    )


def _dead(instances: Sequence[Instance]) -> dict[str, DlcloudError]:
    return {
        each.instance_id: UnreachableError(
            f"an instance ended while it was booting: {each.instance_id} is {each.state} "
            f"({each.state_reason or 'no reason'})"
        )
        for each in instances
        if not each.alive
    }
