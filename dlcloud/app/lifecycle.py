"""The life of a cluster within one command: plan it, acquire it, and destroy it whatever happens."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from dlcloud.app.context import Context
from dlcloud.app.terminal.interrupts import Interrupt
from dlcloud.app.terminal.screen import confirm
from dlcloud.launch.acquire import (
    ClusterLock,
    RecipeFile,
    acquire_cluster,
    lock_cluster,
    new_cluster,
    resolve_cluster,
)
from dlcloud.launch.launcher import Launcher
from dlcloud.model.cluster import Cluster, ClusterState, Member
from dlcloud.model.errors import (
    BudgetError,
    DlcloudError,
    InstanceError,
    PartialError,
    RecipeError,
    StoreError,
    UnwritableError,
)
from dlcloud.model.events import Emit, Notice, Warned
from dlcloud.model.money import money, total_usd
from dlcloud.planning.plan import Plan
from dlcloud.report.cost_details import cost_of_cluster
from dlcloud.runs.parallel import StoppedError


def plan_cluster(
    context: Context, file: RecipeFile, *, name: str, cidrs: Sequence[str], size: int | None = None
) -> Plan:
    """Return the plan of the cluster that an `up` of this recipe works on; see `Launcher.plan`."""
    cluster = resolve_cluster(file, name=name, store=context.store)
    cluster = cluster or new_cluster(file, name=name, clock=context.clock)
    return context.machines.launcher(cluster).plan(file.recipe, cidrs=cidrs, size=size)


def confirm_spending(plan: Plan, *, yes: bool) -> None:
    """Ask before money is spent, unless `--yes` was passed or the plan is a rehearsal."""
    if yes or plan.rehearsal:
        return
    if not sys.stdin.isatty():
        raise BudgetError("this spends money, and stdin is not a terminal", "pass --yes to confirm")
    confirm("Go on?")


def acquire_for_command(context: Context, file: RecipeFile, *, name: str = "") -> ClusterLock:
    """Acquire a cluster; first finish what an earlier command left half terminated.

    Raises:
        StoreError, RecipeError: As `acquire_cluster`.
    """
    acquired = acquire_cluster(file, name=name, store=context.store, clock=context.clock)
    cluster = acquired.cluster
    controller = context.clusters.controller_instance_id(cluster.cluster_id)
    if controller is not None:
        acquired.release()
        raise detached_error(cluster, controller)
    if cluster.state is ClusterState.STOPPING:
        destroy_cluster(context.machines.launcher(cluster))
        acquired.release()
        return acquire_for_command(context, file, name=name)
    if acquired.unfinished:
        message = f"going on with {cluster.name}, which an earlier {context.command} left unfinished"
        context.emit(Notice(message=message))
    return acquired


def detached_error(cluster: Cluster, controller_instance_id: str) -> RecipeError:
    """Return the error for a cluster that is not controlled from here."""
    return RecipeError(
        f"{cluster.name} is controlled by its own instance {controller_instance_id}",
        f"dlcloud status {cluster.name}; dlcloud down {cluster.name} brings its results home and ends it",
    )


def destroy_unfinished(context: Context, file: RecipeFile) -> None:
    """Destroy what a killed command left of a cluster on which nothing more is to be done."""
    for cluster in context.clusters.active():
        if cluster.recipe_hash != file.recipe.hash or cluster.state is ClusterState.READY:
            continue
        try:
            acquired = lock_cluster(cluster, paths=context.paths)
        except StoreError:
            continue  # another command manages it
        with acquired:
            current = context.clusters.find(cluster.cluster_id)
            if current is not None and current.state is not ClusterState.DOWN:
                context.emit(Notice(message=f"terminating {cluster.name}, which was left unfinished"))
                destroy_cluster(context.machines.launcher(current))


def destroy_cluster(launcher: Launcher) -> None:
    """Destroy a cluster that this command manages, and emit what it cost.

    Raises:
        CloudError: Something is left of it, which is emitted with its price; running it again goes on.
    """
    with warn_of_remainder(launcher):
        members = launcher.destroy()
    launcher.emit(Notice(message=cost_of_cluster(launcher.cluster, members)))


@contextmanager
def warn_of_remainder(launcher: Launcher) -> Iterator[None]:
    """Emit what may still be up, with its price, when the block, which is to end instances, fails."""
    try:
        yield
    except UnwritableError:  # nothing is up any more
        raise
    except (DlcloudError, KeyboardInterrupt):
        name = launcher.cluster.name
        try:
            remainder = launcher.remainder()
        except StoreError as second:  # it must not hide why the block failed
            remainder = f"instances may still be up, and their price is unknown ({second.message})"
        launcher.emit(Warned(message=f"{name}: {remainder}; dlcloud down {name} ends it"))
        raise


@contextmanager
def destroy_at_end(launcher: Launcher, acquired: ClusterLock, *, keep: bool) -> Iterator[None]:
    """Destroy the cluster when the block ends or fails.

    With `keep` it stays up, also where a program failed on it: that is when one wants to look. It is
    destroyed where it did not come up, and after Ctrl-C.
    """
    name = launcher.cluster.name
    with destroy_on_failure(launcher, acquired):
        try:
            yield
        except (InstanceError, PartialError) as error:
            failure: DlcloudError | None = error
            living = _living_members(launcher) if keep else []
            if not living:
                raise
        else:
            failure = None
    if failure is not None:
        _keep_failed(launcher, living, failure)
        raise failure
    if keep:
        launcher.store.clusters.set_state(launcher.cluster_id, ClusterState.READY)
        launcher.emit(Notice(message=f"{name} is kept up: dlcloud down {name} ends it"))
    else:
        destroy_cluster(launcher)


def _living_members(launcher: Launcher) -> list[Member]:
    """Return the living instances of a cluster that came up; none if EC2 does not answer."""
    stored = launcher.store.clusters.find(launcher.cluster_id)
    if stored is None or stored.state not in {ClusterState.RUNNING, ClusterState.READY}:
        return []
    try:
        return launcher.members()
    except DlcloudError:
        return []


def _keep_failed(launcher: Launcher, members: Sequence[Member], failure: DlcloudError) -> None:
    """Keep a cluster up on which a program failed; emit its price, how to look at it and how to end it."""
    name = launcher.cluster.name
    launcher.store.clusters.set_state(launcher.cluster_id, ClusterState.READY)
    hourly_usd = total_usd(member.hourly_usd for member in members)
    usd = "at an unknown price" if hourly_usd is None else f"{money(hourly_usd)} USD/h"
    message = f"failed ({_first_line(failure)}): {name} is kept up ({usd})"
    launcher.emit(Warned(message=f"{message}: dlcloud ssh {name} looks, dlcloud down {name} ends it"))


@contextmanager
def destroy_on_failure(launcher: Launcher, acquired: ClusterLock) -> Iterator[None]:
    """Destroy the cluster when the block fails; one that was kept up before stays."""
    name = launcher.cluster.name
    if acquired.kept:
        try:
            yield
        except BaseException:
            launcher.emit(Warned(message=f"{name} was kept up before and stays up"))
            with suppress(UnwritableError):
                launcher.store.clusters.set_state(launcher.cluster_id, ClusterState.READY)
            raise
    else:
        with undo_on_failure(
            launcher.emit,
            f"terminating {name}",
            lambda: destroy_cluster(launcher),
            left=f"{name} is not down",
            hint=f"dlcloud down {name}",
        ):
            yield


@contextmanager
def undo_on_failure(
    emit: Emit, action: str, undo: Callable[[], None], *, left: str, hint: str
) -> Iterator[None]:
    """Call `undo` when the block fails; its own failure does not hide the first one.

    Args:
        emit: Takes the warnings.
        action: What `undo` does.
        undo: Called for any exception, Ctrl-C included.
        left: The state after `undo` has failed, too.
        hint: The command for that case.
    """
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt | StoppedError)
        emit(
            Warned(message=f"{'interrupted' if interrupted else f'failed ({_first_line(error)})'}: {action}")
        )
        try:
            undo()
        except UnwritableError as second:  # nothing is up any more
            emit(Warned(message=f"{second.message}; {second.hint}"))
        except (DlcloudError, KeyboardInterrupt) as second:
            if isinstance(second, Interrupt):
                second.handled = True
            reason = second.message if isinstance(second, DlcloudError) else "interrupted again"
            emit(Warned(message=f"{left} ({reason}): {hint}"))
        raise


def _first_line(error: BaseException) -> str:
    """Return what failed, without the log that the error itself prints."""
    return str(error).partition("\n")[0].removesuffix(":")
