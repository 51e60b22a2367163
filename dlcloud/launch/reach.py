"""Reach instances over SSH as soon as they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import UnreachableError
from dlcloud.core.instance import Instance
from dlcloud.core.ports import Clock, Cloud
from dlcloud.core.remote import Connection, Dial, Endpoint
from dlcloud.ssh.fanout import Outcome, all_or_raise, fan_out
from dlcloud.store.clusters import Clusters

BOOT_TIMEOUT_S = 300.0
ADDRESS_POLL_S = 1.0
DIAL_ROUND_S = 20.0
"""How long instances are dialled before EC2 is asked whether they still live."""


def await_addresses(
    cluster: Cluster, members: Sequence[Member], *, cloud: Cloud, clusters: Clusters, clock: Clock
) -> list[Member]:
    """Ask EC2 until every instance has an address; the state `running` is not waited for, SSH tells sooner.

    Raises:
        UnreachableError: An instance ended, or has no address after five minutes.
    """
    deadline = clock.monotonic() + BOOT_TIMEOUT_S
    while True:
        seen = {each.instance_id: each for each in cloud.instances(cluster.cluster_id)}
        current = [
            replace(member, instance=seen.get(member.instance.instance_id, member.instance))
            for member in members
        ]
        _refuse_dead([member.instance for member in current])
        if all(member.instance.host for member in current):
            clusters.put_members(cluster.cluster_id, current)
            return current
        if clock.monotonic() > deadline:
            missing = [member.instance.instance_id for member in current if not member.instance.host]
            raise UnreachableError(
                f"{', '.join(missing)}: no public address after {BOOT_TIMEOUT_S:.0f} s",
                "the default subnet must assign public addresses",
            )
        clock.sleep(ADDRESS_POLL_S)


def connect(
    cluster: Cluster, members: Sequence[Member], *, cloud: Cloud, dial: Dial, clock: Clock
) -> dict[str, Connection]:
    """Connect to every instance at once, waiting for those that still boot.

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
        for outcome in outcomes:
            if outcome.value is not None:
                connected[outcome.item.instance_id] = outcome.value
                del waiting[outcome.item.instance_id]
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        given_up = clock.monotonic() > deadline
        if any(given_up or not isinstance(outcome.error, UnreachableError) for outcome in failed):
            all_or_raise(outcomes)
        if failed:
            _refuse_dead(
                [each for each in cloud.instances(cluster.cluster_id) if each.instance_id in waiting]
            )
    return connected


def _dial_all(dial: Dial, waiting: Mapping[str, Endpoint]) -> list[Outcome[Endpoint, Connection]]:
    return fan_out(lambda endpoint: dial.dial(endpoint, wait_s=DIAL_ROUND_S), list(waiting.values()))


def _refuse_dead(instances: Sequence[Instance]) -> None:
    dead = [each for each in instances if not each.alive]
    if dead:
        told = "; ".join(
            f"{each.instance_id} is {each.state} ({each.state_reason or 'no reason'})" for each in dead
        )
        raise UnreachableError(f"an instance ended while it was booting: {told}")
