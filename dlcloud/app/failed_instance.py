"""The instance of a run that failed, kept for a while to look at, at a stated price."""

import math
from collections.abc import Sequence

from dlcloud.launch.launcher import Launcher
from dlcloud.launch.remote_jobs import INHERITED, start_job
from dlcloud.launch.setup import FOLDER, JOB
from dlcloud.model.cluster import ClusterState, Member
from dlcloud.model.events import Warned
from dlcloud.model.money import money
from dlcloud.results.result import RunState

KEEP_FOLDER = f"{FOLDER}/runs/keep"
_SECONDS_PER_HOUR = 3600
_SECONDS_PER_MINUTE = 60


def find_failed(launcher: Launcher, living: Sequence[Member]) -> Member | None:
    """Return the living instance of the newest run that failed; None if it has gone."""
    by_id = {member.instance.instance_id: member for member in living}
    runs = launcher.store.runs.of_cluster(launcher.cluster_id)
    failed = [run for run in runs if run.state is RunState.FAILED and run.instance_id in by_id]
    return by_id[failed[-1].instance_id] if failed else None


def keep_failed(launcher: Launcher, member: Member, living: Sequence[Member], seconds: float) -> None:
    """End all other instances; this one ends itself after some seconds, whatever happens here.

    Raises:
        CloudError, InstanceError: Something did not work out; the caller ends the instance.
    """
    end_later(launcher, member, seconds)
    launcher.shrink([other for other in living if other.instance.instance_id != member.instance.instance_id])
    launcher.store.clusters.set_state(launcher.cluster_id, ClusterState.READY)


def end_later(launcher: Launcher, member: Member, seconds: float) -> None:
    """Let an instance end itself after some seconds, whatever happens here; emit its price until then.

    Raises:
        CloudError, InstanceError: It does not answer.
    """
    name = launcher.cluster.name
    connection = launcher.connect(member.instance)
    # The job powers the instance off when this has ended; until then the watchdog takes it for work.
    command = f"sleep {math.ceil(seconds)}; touch ../power-off\n"
    start_job(connection, KEEP_FOLDER, INHERITED, {"files": {"command": command}})
    price = member.hourly_usd
    usd = "an unknown price" if price is None else f"{money(price * int(seconds) / _SECONDS_PER_HOUR)} USD"
    message = f"{name} is kept up for {seconds / _SECONDS_PER_MINUTE:g} minutes ({usd} at most), to look at"
    look = f"dlcloud ssh {name} looks, dlcloud down {name} ends it before"
    launcher.emit(Warned(message=f"{message}: {look}", instance_id=member.instance.instance_id))


def stop_ending(launcher: Launcher, members: Sequence[Member]) -> None:
    """Let instances that an earlier `up` has kept for a while stay up, as this one works on them."""
    for member in members:
        launcher.connect(member.instance).check(f"test ! -e {KEEP_FOLDER} || {JOB} stop {KEEP_FOLDER}")
