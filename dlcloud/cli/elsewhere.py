"""Clusters that an instance of their own controls: find it by its tags, log in, run the command there."""

import logging
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from dlcloud.cli.context import Context
from dlcloud.core.cluster import Cluster, ClusterState
from dlcloud.core.errors import CloudError, RecipeError, UnreachableError
from dlcloud.core.events import Notice
from dlcloud.core.whereabouts import DetachedCluster, controlled, is_run_of
from dlcloud.launch.installed import COMMAND
from dlcloud.launch.setup import FOLDER
from dlcloud.ssh.command_line import ssh_command
from dlcloud.system.parallel import fan_out

DEFAULT_REGION = "us-east-1"
REGIONS_AT_ONCE = 8

log = logging.getLogger(__name__)


def passed_on(context: Context, name: str) -> int | None:
    """Run this very command where its cluster is controlled, handing on what it prints.

    Args:
        context: The collaborators.
        name: The cluster that the command is about, as it was typed; empty for the only one.

    Returns:
        Its exit status there; None where the cluster is controlled from here, or is not known anywhere.

    Raises:
        UnreachableError: The instance does not answer.
    """
    found = find(context, name)
    if found is None:
        return None
    from dlcloud.cli.login import reached  # it brings paramiko, which most commands never need

    context.emit(Notice(message=f"asking {found.instance.instance_id}, which controls {found.name}"))
    with reached(context, found) as connection:
        # Whoever comes by counts as work: see templates/watchdog.py.
        command = f"touch {FOLDER}/used; exec {COMMAND} {shlex.join(sys.argv[1:])}"
        return connection.relay(command, out=_writer(sys.stdout), err=_writer(sys.stderr))


def shell_passed_on(context: Context, name: str, instance: str, *, only_say: bool) -> int | None:
    """Open a shell through the instance that controls a cluster; None where it is controlled from here.

    Raises:
        RecipeError: There is no ssh on this machine.
        UnreachableError: The instance does not answer.
    """
    found = find(context, name)
    if found is None:
        return None
    if only_say:
        return passed_on(context, name)
    program = shutil.which("ssh")
    if program is None:
        raise RecipeError("there is no ssh on this machine", f"dlcloud exec {name} -- COMMAND needs none")
    from dlcloud.cli.login import logged_in

    words = ["ssh", found.cluster_id, *(["--instance", instance] if instance else [])]
    with logged_in(context, found) as (_, files):
        endpoint = found.instance.endpoint(found.user)
        _, *options = ssh_command(endpoint, files.key, files.known_hosts)
        # -t: whoever types there has a terminal.
        command = [program, "-t", *options, f"exec {COMMAND} {shlex.join(words)}"]
        return subprocess.run(command, check=False).returncode


def find(context: Context, name: str) -> DetachedCluster | None:
    """Return the cluster of that name if one of its own instances controls it; None where none does.

    Raises:
        UnreachableError: This home handed it over, and the instance is gone.
    """
    if context.controller:
        return None
    known = _known(context, name)
    if known is None:
        return _called(name, _on_local(context)) or _called(name, _on_aws(context)) if name else None
    controller = context.clusters.controller(known.cluster_id)
    if controller is None or known.state is ClusterState.DOWN:
        return None
    found = of_cluster(context, known)
    if found is not None:
        return found
    raise UnreachableError(
        f"{known.name} was controlled by its own instance {controller}, which is gone",
        f"another machine took it down, or its budget ended it; dlcloud down {known.name} ends what is left",
    )


def everywhere(context: Context) -> list[DetachedCluster]:
    """Return every such cluster that can be found: on the local EC2 if one runs, in every region of AWS."""
    return [*_on_local(context), *_on_aws(context)]


def in_place(context: Context, cloud: str, region: str) -> list[DetachedCluster]:
    """Return those of one region."""
    return controlled(context.cloud(cloud, region).instances(), cloud=cloud, region=region)


def of_cluster(context: Context, cluster: Cluster) -> DetachedCluster | None:
    """Return a cluster of this home if one of its own instances controls it, and is up."""
    there = in_place(context, cluster.cloud, cluster.region)
    return next((each for each in there if each.cluster_id == cluster.cluster_id), None)


def _known(context: Context, name: str) -> Cluster | None:
    """Return the cluster that a name means to this home; without one, the only one that is up."""
    active = context.clusters.active()
    if not name:
        return active[0] if len(active) == 1 else None
    known = context.clusters.find(name)
    if known is None:
        known = next((each for each in active if is_run_of(each.name, name)), None)
    if known is None:
        runs = context.runs.own()
        of_run = next((run for run in runs if name in {run.run_id, run.instance_id}), None)
        known = None if of_run is None else context.clusters.find(of_run.cluster_id)
    return known


def _called(name: str, found: Sequence[DetachedCluster]) -> DetachedCluster | None:
    return next((each for each in found if each.called(name)), None)


def _on_local(context: Context) -> list[DetachedCluster]:
    """Look in the region of recipes that name none: to ask about another costs the local EC2 a second."""
    return [] if context.local_site.find() is None else in_place(context, "local", DEFAULT_REGION)


def _on_aws(context: Context) -> list[DetachedCluster]:
    """Look in every region at once; an account, or a region, that cannot be asked has none."""
    try:
        regions = context.cloud("aws", DEFAULT_REGION).regions()
    except CloudError as error:
        log.info("AWS is not searched: %s", error.message)
        return []
    outcomes = fan_out(lambda region: in_place(context, "aws", region), regions, width=REGIONS_AT_ONCE)
    for outcome in outcomes:
        if outcome.error is not None and not isinstance(outcome.error, CloudError):
            raise outcome.error
    return [each for outcome in outcomes for each in outcome.value or ()]


def _writer(stream: TextIO) -> Callable[[bytes], None]:
    def write(piece: bytes) -> None:
        stream.buffer.write(piece)
        stream.buffer.flush()

    return write
