"""Connect to instances over SSH as soon as they answer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import call, not_

from dlcloud.launch.managed import ManagedCluster
from dlcloud.model.boots import boot_timeout_s, describe_slow_boot
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, HostKeyError, InstanceError, UnreachableError
from dlcloud.model.instance import Instance, InstanceState
from dlcloud.model.remote import Connection, Endpoint
from dlcloud.model.wait import wait_until
from dlcloud.planning.plan import Plan
from dlcloud.system.parallel import CallOutcome, all_or_raise, fan_out

ADDRESS_POLL_S = 1.0
UNADDRESSED_S = 30.0
"""How long a running instance may lack an address: EC2 assigns it at the launch, or never."""

DIAL_ROUND_S = 20.0
"""How long instances are dialled before EC2 is asked whether they still live."""

LostInstances = dict[str, DlcloudError]
"""Why instances cannot be used, by instance id. Where a caller passes one, instances are given up by adding
them to it, and the others go on; without it their errors are raised."""


def wait_until_reachable(
    managed: ManagedCluster,
    members: Sequence[Member],
    *,
    group_id: str,
    plan: Plan,
    lost: LostInstances | None = None,
) -> tuple[list[Member], dict[str, Connection]]:
    """Open SSH to the plan's networks, await addresses, and connect.

    Returns:
        The instances that answer, and the connections to them by instance id.

    Raises:
        UnreachableError, HostKeyError: As `connect`.
        CloudError: SSH could not be opened.
    """
    # The group's rule and the addresses do not wait for each other: a round trip less.
    steps: list[Callable[[], list[Member] | None]] = [
        lambda: await_addresses(managed, members, lost),
        *(
            partial(managed.cloud.network.allow_ssh, group_id, cidr, named=plan.names_cidrs)
            for cidr in plan.cidrs
        ),
    ]
    addressed, *allowed = fan_out(call, steps)
    for outcome in (addressed, *allowed):
        if outcome.error:
            raise outcome.error
    with_address = addressed.value or []
    connections = connect(managed, with_address, lost)
    return [member for member in with_address if member.instance.instance_id in connections], connections


def await_addresses(
    managed: ManagedCluster, members: Sequence[Member], lost: LostInstances | None = None
) -> list[Member]:
    """Poll until every instance has an address; the state `running` is not waited for, SSH answers sooner.

    Returns:
        The instances that have an address.

    Raises:
        UnreachableError: An instance ended, or has no address in `boot_timeout_s`, and no `lost` is given.
    """
    current = {member.instance.instance_id: member for member in members}
    running_since: dict[str, float] = {}

    def give_up(errors: Mapping[str, DlcloudError]) -> None:
        _lose_or_raise(errors, lost)
        for name in errors:
            del current[name]

    def without_address() -> list[str]:
        listed = managed.describe_instances()
        for name, member in current.items():
            current[name] = replace(member, instance=listed.get(name, member.instance))
        give_up(_errors_of_ended(member.instance for member in current.values()))
        waiting = [name for name, member in current.items() if not member.instance.host]
        running = [name for name in waiting if current[name].instance.state is InstanceState.RUNNING]
        now = managed.clock.monotonic()
        without = [name for name in running if now - running_since.setdefault(name, now) >= UNADDRESSED_S]
        give_up({name: _no_address(name, UNADDRESSED_S) for name in without})
        return [name for name in waiting if name not in without]

    timeout_s = _boot_timeout_s(members)
    waiting = wait_until(
        without_address,
        not_,
        clock=managed.clock,
        timeout_s=timeout_s,
        poll_s=ADDRESS_POLL_S,
    )
    give_up({name: _no_address(name, timeout_s) for name in waiting})
    managed.store.clusters.put_members(managed.cluster_id, list(current.values()))
    return list(current.values())


def connect(
    managed: ManagedCluster, members: Sequence[Member], lost: LostInstances | None = None
) -> dict[str, Connection]:
    """Connect to every instance at once, waiting for those that still boot.

    Returns:
        The connections by instance id.

    Raises:
        UnreachableError: An instance ended while booting, or did not answer in time (`boot_timeout_s`).
        HostKeyError: An instance could not prove its host key.
    """
    waiting = {
        member.instance.instance_id: member.instance.endpoint(managed.cluster.user) for member in members
    }
    connected: dict[str, Connection] = {}

    def give_up(outcomes: Sequence[CallOutcome[Endpoint, Connection]]) -> None:
        if lost is None:
            all_or_raise(outcomes)
        _lose_or_raise({one.item.instance_id: one.error for one in outcomes if one.error is not None}, lost)
        for outcome in outcomes:
            del waiting[outcome.item.instance_id]

    def dial_waiting() -> list[CallOutcome[Endpoint, Connection]]:
        """Dial those that are waited for; return the outcomes of those that may still come to answer."""
        outcomes = fan_out(
            lambda endpoint: managed.dialer.dial(endpoint, wait_s=DIAL_ROUND_S), list(waiting.values())
        )
        for outcome in outcomes:
            if outcome.value is not None:
                connected[outcome.item.instance_id] = outcome.value
                del waiting[outcome.item.instance_id]
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        give_up([outcome for outcome in failed if not isinstance(outcome.error, UnreachableError)])
        if waiting:
            listed = managed.describe_instances()
            ended = _errors_of_ended(listed[name] for name in waiting if name in listed)
            _lose_or_raise(ended, lost)
            for name in ended:
                del waiting[name]
        return [outcome for outcome in failed if outcome.item.instance_id in waiting]

    timeout_s = _boot_timeout_s(members)
    silent = wait_until(dial_waiting, not_, clock=managed.clock, timeout_s=timeout_s, poll_s=0)
    _add_prices(silent, members, timeout_s)
    give_up(silent)
    return connected


def _add_prices(
    silent: Sequence[CallOutcome[Endpoint, Connection]], members: Sequence[Member], timeout_s: float
) -> None:
    """Add to the errors of instances that are given up what waiting on, or another instance, costs."""
    prices = {member.instance.instance_id: member.hourly_usd for member in members}
    for outcome in silent:
        if outcome.error is not None:
            either = describe_slow_boot(prices[outcome.item.instance_id], timeout_s)
            outcome.error.message += f"; given up after {timeout_s:.0f} s ({either})"


def too_few_usable(usable: Sequence[Member], lost: Mapping[str, DlcloudError], minimum: int) -> InstanceError:
    """Return the error for fewer usable instances than the minimum, with the reason of each lost one."""
    first = next(iter(lost.values()))
    kind = HostKeyError if isinstance(first, HostKeyError) else UnreachableError
    lines = [f"{len(usable)} instance(s) can be used, minimum is {minimum}:"]
    lines += [f"  {error.message}" for error in lost.values()]
    return kind("\n".join(lines), first.hint)


def _lose_or_raise(errors: Mapping[str, DlcloudError], lost: LostInstances | None) -> None:
    if lost is not None:
        lost.update(errors)
    elif errors:
        first = next(iter(errors.values()))
        raise UnreachableError("\n".join(error.message for error in errors.values()), first.hint) from first


def _boot_timeout_s(members: Iterable[Member]) -> float:
    """Return the time of the slowest of the types."""
    return max((boot_timeout_s(member.instance.instance_type) for member in members), default=0.0)


def _no_address(instance_id: str, timeout_s: float) -> UnreachableError:
    return UnreachableError(
        f"{instance_id}: no public address after {timeout_s:.0f} s",
        "the default subnet must assign public addresses: dlcloud doctor",
    )


def _errors_of_ended(instances: Iterable[Instance]) -> dict[str, DlcloudError]:
    return {
        instance.instance_id: UnreachableError(
            f"an instance ended while it was booting: {instance.instance_id} is {instance.state} "
            f"({instance.state_reason or 'no reason'})",
            instance.end_hint,
        )
        for instance in instances
        if not instance.alive
    }
