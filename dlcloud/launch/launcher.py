"""Plan, launch, grow and destroy one cluster; undo on failure.

`Launcher.launch` requests instances (`provision`), waits for their addresses while the security group is
opened, dials them as soon as they answer, and proves their host keys. An instance that cannot be used is
terminated and replaced once, with the time to live that it had left. `grow` does the same for what is
missing, while the other instances work.

What must never happen: that an instance that was requested is forgotten, or that it costs more than the plan
allows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from operator import call, not_

from dlcloud.analysis.result import RunState
from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.launch.acquire import remove_secrets
from dlcloud.launch.data_access import describe_storage
from dlcloud.launch.down import terminate_cluster
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.preflight import Questions, check_launch, run_preflight
from dlcloud.launch.provision import Provisioner
from dlcloud.model.clock import wait_until
from dlcloud.model.cluster import NEW_GROUP, ClusterState, Member
from dlcloud.model.errors import (
    CloudError,
    DlcloudError,
    HostKeyError,
    InstanceError,
    UnreachableError,
    UnwritableError,
)
from dlcloud.model.events import Info, Warned, stage
from dlcloud.model.instance import Instance, InstanceState, Market, boot_timeout_s, describe_slow_boot
from dlcloud.model.money import billed_seconds
from dlcloud.model.remote import Connection
from dlcloud.planning.launch_request import PoolRefusal
from dlcloud.planning.plan import Plan, make_plan
from dlcloud.planning.resize import decide_size
from dlcloud.planning.storage import describe_room
from dlcloud.recipe.recipe import Recipe
from dlcloud.store.clusters import GROUP, PLACEMENT_GROUP
from dlcloud.system.parallel import fan_out


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedMembers:
    """The instances of a cluster after `launch` or `grow`.

    Args:
        members: All that can be used, those that were there before included.
        connections: To each of them that the caller was not connected to before, by instance id.
        refusals: Each pool's answer that it gives none, or too few.
        lost: Why instances cannot be used, by id; those that were launched here have been ended.
    """

    members: list[Member]
    connections: dict[str, Connection]
    refusals: tuple[PoolRefusal, ...] = ()
    lost: Mapping[str, DlcloudError] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Launcher(ManagedCluster):
    """A cluster that this command manages, and everything that can be done with its instances.

    Args:
        account: Knows limits, subnets and placement scores; None: plans are made without.
    """

    account: Ec2Account | None = None

    def plan(
        self,
        recipe: Recipe,
        *,
        cidrs: Sequence[str] = (),
        size: int | None = None,
        members: Sequence[Member] | None = None,
        shared: Questions | None = None,
    ) -> Plan:
        """Ask everything that can be asked before anything is created, and decide what to launch.

        Args:
            recipe: The cluster's.
            cidrs: The networks that may reach the instances; the caller's own address if there are none.
            size: How many instances in all; by default as many as a resize said last, else the recipe.
            members: The living instances, where the caller has listed them.
            shared: As for `run_preflight`; EC2 is not asked by dry runs then: see `check`.

        Raises:
            CredentialsError, CloudError: A question was refused.
            CapacityError, QuotaError, BudgetError: The recipe cannot be launched.
        """
        clusters = self.store.clusters
        storage, size_of_data, traffic_usd = (
            ([], 0, Decimal(0)) if members is not None else describe_storage(self.cloud.buckets, recipe)
        )
        size = size or clusters.size(self.cluster_id)
        resized = (recipe if size is None else recipe.resized(size)).keeping_free(
            clusters.keep_free(self.cluster_id)
        )
        # A cluster that has launched may launch.
        is_new = not clusters.has_intents(self.cluster_id)
        facts = run_preflight(
            resized,
            cloud=self.cloud,
            account=self.account,
            cidrs=cidrs,
            dry_run=is_new and shared is None,
            shared=shared,
        ).facts()
        facts = replace(facts, asked_at=self.clock.now())
        if members is None:
            members = self.members() if clusters.has_intents(self.cluster_id) else []
        plan = make_plan(resized, facts, self.existing_capacity(resized, members, facts.prices))
        room = describe_room(size_of_data, plan, facts.hardware)
        return replace(plan, reasons=(*plan.reasons, *storage, *room), traffic_usd=traffic_usd)

    def check(self, plan: Plan, recipe: Recipe) -> Plan:
        """Return a plan with what EC2 says to dry runs of its launch.

        Raises:
            CloudError: EC2 would refuse the launch.
        """
        if self.account is None or self.store.clusters.has_intents(self.cluster_id):
            return plan
        checks = check_launch(recipe, self.account, lambda: plan.machine.image, planned=plan.machine)
        if checks.refusal is not None:
            raise checks.refusal
        return replace(plan, reasons=(*plan.reasons, *(error.message for error in checks.errors)))

    def launch(self, plan: Plan) -> LaunchedMembers:
        """Launch the plan's instances, or what is missing of them, and connect to all that can be used.

        An instance that cannot be used is ended and replaced once, unless none of them answers. The caller
        destroys the cluster if this raises: by tag, so that nothing is missed.

        Raises:
            CapacityError, QuotaError, CloudError: Fewer instances than the plan's minimum were launched.
            UnreachableError, HostKeyError: Fewer than that came up and proved their host keys, although what
                was lost has been replaced once.
        """
        with stage(self.emit, self.clock, _name_launch(plan)):
            provisioner = self._provisioner(plan)
            self._connect_closely(plan, provisioner)
            provisioned = provisioner.provision(minimum=plan.min_count)
        # An interrupted resize may have left more than the plan's.
        surplus = decide_size(
            provisioned.members, plan.max_count, base=plan.on_demand_base, rounds=plan.rounds
        ).end
        self.shrink(surplus)
        members = [member for member in provisioned.members if member not in surplus]
        launched = self._connect(plan, provisioner.security_group_id, members, refusals=provisioned.refusals)
        # What a kept cluster holds is the user's; it may answer again.
        spared = provisioned.earlier_ids if self.cluster.state is ClusterState.READY else frozenset()
        ended = self._end_lost(members, launched.lost.keys() - spared)
        if ended and launched.members:
            launched = self._replace_lost(plan, launched, ended)
        if len(launched.members) < plan.min_count:
            raise too_few_usable(launched.members, launched.lost, plan.min_count)
        self.store.clusters.set_state(self.cluster_id, ClusterState.RUNNING)
        return launched

    def grow(self, plan: Plan, *, connected: Collection[str] = ()) -> LaunchedMembers:
        """Launch what is missing of the plan's instances while the others work; fewer are no error here.

        Args:
            plan: With the number of instances in all (`max_count`).
            connected: The ids of the instances that the caller works with already; they are left alone.

        Raises:
            CloudError: EC2 refused in another way than for want of capacity or quota. What was launched
                carries the cluster's tag, and the next `grow`, `up` or `down` finds it.
        """
        name = self.cluster.name
        with stage(self.emit, self.clock, f"launching what {name} lacks of {plan.max_count} instance(s)"):
            provisioner = self._provisioner(plan)
            provisioned = provisioner.provision(minimum=0)
        new = [member for member in provisioned.members if member.instance.instance_id not in connected]
        grown = self._connect(plan, provisioner.security_group_id, new, refusals=provisioned.refusals)
        self._end_lost(new, grown.lost.keys() - provisioned.earlier_ids)
        kept = [member for member in provisioned.members if member.instance.instance_id in connected]
        return replace(grown, members=kept + grown.members)

    def destroy(self, *, discard: bool = False) -> list[Member]:
        """Terminate the cluster, with its keys and its unfinished runs; returns its instances as they ended.

        `discard` as for `terminate_cluster`. A full disk does not keep an instance alive: first all is
        terminated, then it is stored.

        Raises:
            CloudError: Something is left; the message names it. Running it again continues.
            UnwritableError: Nothing is left, and the store could not record it.
        """
        try:
            with self.store.clusters.postpone_failures():
                members = terminate_cluster(self, discard=discard)
                for run in self.store.runs.of_cluster(self.cluster_id):
                    if run.state is RunState.RUNNING:
                        self.store.runs.end_lost(run.run_id, self.clock.now())
        except UnwritableError as error:
            name = self.cluster.name
            message = f"every instance of {name} is terminated, but {error.message}"
            raise UnwritableError(message, f"{error.hint}: dlcloud down {name}") from error
        remove_secrets(self.cluster, paths=self.store.paths)
        return members

    def _provisioner(self, plan: Plan) -> Provisioner:
        """Return what requests the plan's instances, its security group made."""
        self.set_disk(plan.machine.disk_gib)
        group_id = self.create_group(plan.machine.network.vpc_id)
        return Provisioner(managed=self, plan=plan, security_group_id=group_id)

    def _connect_closely(self, plan: Plan, provisioner: Provisioner) -> None:
        """Make the placement group, and allow EFA's traffic, where the plan has them."""
        if plan.machine.efa_interfaces:
            self.cloud.network.allow_fabric(provisioner.security_group_id)
        if plan.machine.placement_group == NEW_GROUP:
            clusters, now = self.store.clusters, self.clock.now()
            intent_id = clusters.begin_intent(self.cluster_id, PLACEMENT_GROUP, "", now)
            name = self.cloud.capacity.create_placement_group(self.cluster_id, self.cluster.tags)
            clusters.end_intent(intent_id, name, self.clock.now())

    def create_group(self, vpc_id: str) -> str:
        """Return the id of the security group, made if it is missing; the intent of the first is stored."""
        clusters = self.store.clusters
        intents = clusters.intents(self.cluster_id, GROUP)
        if any(intent.outcome for intent in intents):
            return self.cloud.network.create_group(self.cluster_id, self.cluster.tags, vpc_id=vpc_id)
        unfinished = next((intent.intent_id for intent in intents if intent.outcome is None), None)
        intent_id = unfinished or clusters.begin_intent(self.cluster_id, GROUP, "", self.clock.now())
        try:
            group_id = self.cloud.network.create_group(self.cluster_id, self.cluster.tags, vpc_id=vpc_id)
        except CloudError as error:
            if error.answered:
                clusters.end_intent(intent_id, "", self.clock.now())
            raise
        clusters.end_intent(intent_id, group_id, self.clock.now())
        return group_id

    def _connect(
        self, plan: Plan, group_id: str, members: Sequence[Member], *, refusals: tuple[PoolRefusal, ...]
    ) -> LaunchedMembers:
        """Connect to instances; name those that are lost."""
        if not members:
            return LaunchedMembers(members=[], connections={}, refusals=refusals)
        for member in members:
            instance = member.instance
            message = f"{instance.instance_type} {instance.market} in {instance.zone}"
            self.emit(Info(message=message, instance_id=instance.instance_id))
        lost: dict[str, DlcloudError] = {}
        with stage(
            self.emit, self.clock, f"connecting to {len(members)} instance(s), proving their host keys"
        ):
            usable, connections = wait_until_reachable(self, members, group_id=group_id, plan=plan, lost=lost)
        for instance_id, error in lost.items():
            self.emit(Warned(message=f"giving up on this instance: {error.message}", instance_id=instance_id))
        return LaunchedMembers(members=usable, connections=connections, refusals=refusals, lost=lost)

    def _end_lost(self, members: Sequence[Member], lost_ids: Collection[str]) -> list[Member]:
        return self.shrink([member for member in members if member.instance.instance_id in lost_ids])

    def _replace_lost(
        self, plan: Plan, launched: LaunchedMembers, ended: Sequence[Member]
    ) -> LaunchedMembers:
        """Request once more what the plan lacks, with the time to live that the ended instances had left.

        An instance and its replacement then cost no more than the plan allows for one.
        """
        oldest = min(member.instance.launched_at for member in ended)
        rest = plan.shortened(billed_seconds(oldest, self.clock.now()))
        if rest is None:
            self.emit(Warned(message="lost instances are not replaced: the budget leaves no time for it"))
            return launched
        try:
            grown = self.grow(rest, connected=[member.instance.instance_id for member in launched.members])
        except CloudError as error:
            self.emit(Warned(message=f"lost instances are not replaced: {error.message}"))
            return launched
        return LaunchedMembers(
            members=grown.members,
            connections={**launched.connections, **grown.connections},
            refusals=(*launched.refusals, *grown.refusals),
            lost={**launched.lost, **grown.lost},
        )


def _name_launch(plan: Plan) -> str:
    """Return what is launched; which of several pools gives the instances shows only then."""
    first = plan.pools[0]
    pool = f"{first.instance_type} ({first.market})"
    if len(plan.pools) == 1:
        return f"launching {plan.max_count} {pool}"
    is_choice = sum(one.market is Market.SPOT for one in plan.pools) > 1
    which = "spot" if is_choice else pool
    return f"launching {plan.max_count} instance(s), of {len(plan.pools)} pools {which} first"


ADDRESS_POLL_S = 1.0
UNADDRESSED_S = 30.0
"""How long a running instance may lack an address: EC2 assigns it at the launch, or never."""

DIAL_ROUND_S = 20.0
"""How long instances are dialled before EC2 is asked whether they still live."""

LostInstances = dict[str, DlcloudError]
"""Why instances cannot be used, by instance id: they are given up by adding them, and the others continue."""


def wait_until_reachable(
    managed: ManagedCluster,
    members: Sequence[Member],
    *,
    group_id: str,
    plan: Plan,
    lost: LostInstances,
) -> tuple[list[Member], dict[str, Connection]]:
    """Open SSH to the plan's networks, await addresses, and connect.

    Returns:
        The instances that answer, and the connections to them by instance id.

    Raises:
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


def await_addresses(managed: ManagedCluster, members: Sequence[Member], lost: LostInstances) -> list[Member]:
    """Poll until every instance has an address; the state `running` is not waited for, SSH answers sooner.

    Returns:
        The instances that have an address; the others ended, or got none in `boot_timeout_s`, and are `lost`.
    """
    current = {member.instance.instance_id: member for member in members}
    running_since: dict[str, float] = {}

    def give_up(errors: Mapping[str, DlcloudError]) -> None:
        lost.update(errors)
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


def connect(managed: ManagedCluster, members: Sequence[Member], lost: LostInstances) -> dict[str, Connection]:
    """Connect to all instances in parallel, waiting for those that still boot.

    Returns:
        The connections by instance id. The other instances ended while booting, did not answer in time
        (`boot_timeout_s`) or could not prove their host key, and are `lost`.
    """
    waiting = {
        member.instance.instance_id: member.instance.endpoint(managed.cluster.user) for member in members
    }
    connected: dict[str, Connection] = {}

    def give_up(errors: Mapping[str, DlcloudError]) -> None:
        lost.update(errors)
        for name in errors:
            del waiting[name]

    def dial_waiting() -> dict[str, DlcloudError]:
        """Dial those that are waited for; return the errors of those that may still come to answer."""
        errors: dict[str, DlcloudError] = {}
        for outcome in fan_out(
            lambda endpoint: managed.dialer.dial(endpoint, wait_s=DIAL_ROUND_S), list(waiting.values())
        ):
            name = outcome.item.instance_id
            if outcome.value is not None:
                connected[name] = outcome.value
                del waiting[name]
            elif outcome.error is not None:
                errors[name] = outcome.error
        give_up({name: one for name, one in errors.items() if not isinstance(one, UnreachableError)})
        if waiting:
            listed = managed.describe_instances()
            give_up(_errors_of_ended(listed[name] for name in waiting if name in listed))
        errors = {name: error for name, error in errors.items() if name in waiting}
        if errors and not connected and all(isinstance(e.__cause__, TimeoutError) for e in errors.values()):
            _give_up_blocked(managed, errors, give_up)
        return {name: error for name, error in errors.items() if name in waiting}

    timeout_s = _boot_timeout_s(members)
    silent = wait_until(dial_waiting, not_, clock=managed.clock, timeout_s=timeout_s, poll_s=0)
    prices = {member.instance.instance_id: member.hourly_usd for member in members}
    for name, error in silent.items():
        # What waiting on costs, or another instance.
        error.message += f"; given up after {timeout_s:.0f} s ({describe_slow_boot(prices[name], timeout_s)})"
    give_up(silent)
    return connected


def _give_up_blocked(
    managed: ManagedCluster,
    errors: Mapping[str, DlcloudError],
    give_up: Callable[[Mapping[str, DlcloudError]], None],
) -> None:
    """Give all instances up if EC2 reaches each of them, and this machine none: waiting is in vain.

    An instance whose network works refuses a connection until its SSH server runs; one that is silent after
    EC2's own check has reached it is behind something that drops packets.
    """
    healthy = managed.cloud.instances.healthy(list(errors))
    if healthy >= errors.keys():
        for error in errors.values():
            error.message += "; EC2's status checks reach it, so that waiting longer is in vain"
        give_up(errors)


def too_few_usable(usable: Sequence[Member], lost: Mapping[str, DlcloudError], minimum: int) -> InstanceError:
    """Return the error for fewer usable instances than the minimum, with the reason of each lost one."""
    first = next(iter(lost.values()))
    kind = HostKeyError if isinstance(first, HostKeyError) else UnreachableError
    lines = [f"{len(usable)} instance(s) can be used, minimum is {minimum}:"]
    lines += [f"  {error.message}" for error in lost.values()]
    return kind("\n".join(lines), first.hint)


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
