"""Remove what is left of clusters that no store remembers, found by its tag alone."""

from collections.abc import Sequence

from dlcloud.core.cluster import Leftover
from dlcloud.core.errors import CloudError
from dlcloud.core.events import Emit, stage
from dlcloud.core.protocols import Clock, Cloud
from dlcloud.launch.down import POLL_S, TERMINATION_TIMEOUT_S


def gc(leftovers: Sequence[Leftover], *, cloud: Cloud, clock: Clock, emit: Emit) -> None:
    """Remove leftovers of one region: first what could launch more, last what the others hold on to.

    Raises:
        CloudError: Something is left; the message names it. Running it again goes on.
    """
    for each in leftovers:
        if each.kind == "iam-role":
            cloud.delete_control_role(each.cluster_id)
    instances = _ids(leftovers, "instance")
    with stage(emit, clock, f"terminating {len(instances)} instance(s) in {cloud.region}"):
        cloud.terminate(instances)
        _await_end(set(instances), cloud=cloud, clock=clock)
    clusters = sorted({each.cluster_id for each in leftovers})
    with stage(emit, clock, f"removing what belongs to {len(clusters)} cluster(s) in {cloud.region}"):
        cloud.delete_fleets(_ids(leftovers, "fleet"))
        cloud.delete_volumes(_ids(leftovers, "volume"))
        cloud.delete_interfaces(_ids(leftovers, "network-interface"))
        for cluster_id in clusters:
            cloud.delete_launch_templates(cluster_id)
            _delete_groups(cluster_id, cloud=cloud, clock=clock)


def _ids(leftovers: Sequence[Leftover], kind: str) -> list[str]:
    return [each.resource_id for each in leftovers if each.kind == kind]


def _await_end(instance_ids: set[str], *, cloud: Cloud, clock: Clock) -> None:
    deadline = clock.monotonic() + TERMINATION_TIMEOUT_S
    while left := instance_ids & {each.instance_id for each in cloud.instances() if not each.ended}:
        if clock.monotonic() > deadline:
            raise CloudError(f"still not terminated: {', '.join(sorted(left))}", "dlcloud gc")
        clock.sleep(POLL_S)


def _delete_groups(cluster_id: str, *, cloud: Cloud, clock: Clock) -> None:
    deadline = clock.monotonic() + TERMINATION_TIMEOUT_S
    while left := cloud.delete_security_groups(cluster_id):
        if clock.monotonic() > deadline:
            raise CloudError(f"security group {', '.join(left)} is still in use", "dlcloud gc")
        clock.sleep(POLL_S)
