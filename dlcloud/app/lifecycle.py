"""The life of a cluster within one command: plan it, acquire it, and destroy it whatever happens."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from dlcloud.app.context import Context
from dlcloud.app.failed_instance import find_failed, keep_failed
from dlcloud.app.month_budget import hold_month
from dlcloud.app.terminal.ends import End, EndWords
from dlcloud.app.terminal.interrupts import EndLeftError, ends
from dlcloud.app.terminal.screen import confirm
from dlcloud.launch.acquire import (
    ClusterLock,
    RecipeFile,
    acquire_cluster,
    lock_cluster,
    new_cluster,
    resolve_cluster,
)
from dlcloud.launch.data_access import abort_uploads
from dlcloud.launch.launcher import Launcher
from dlcloud.model.cluster import Cluster, ClusterState, Leftover, Member
from dlcloud.model.errors import (
    BudgetError,
    DlcloudError,
    InstanceError,
    PartialError,
    RecipeError,
    StoreError,
    UnwritableError,
)
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.model.money import money, total_usd
from dlcloud.planning.plan import Plan
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.costs.cost_details import cost_of_cluster
from dlcloud.runs.stoppable import StoppedError


def plan_cluster(
    context: Context, file: RecipeFile, *, name: str, cidrs: Sequence[str], size: int | None = None
) -> Plan:
    """Return the plan of the cluster that an `up` of this recipe works on; see `Launcher.plan`."""
    cluster = resolve_cluster(file, name=name, store=context.store)
    cluster = cluster or new_cluster(file, name=name, clock=context.clock)
    return context.machines.launcher(cluster).plan(file.recipe, cidrs=cidrs, size=size)


def confirm_spending(context: Context, plan: Plan, *, yes: bool, cluster: Cluster | None = None) -> None:
    """Hold the limit of the month, and ask before money is spent: not with `--yes`, or of a rehearsal.

    Args:
        context: The collaborators.
        plan: What is about to be launched.
        yes: Do not ask.
        cluster: The one that the plan continues.

    Raises:
        BudgetError: The plan could pass the limit, or stdin is not a terminal.
    """
    hold_month(context, [(plan, cluster)])
    if yes or plan.rehearsal:
        return
    if not sys.stdin.isatty():
        raise BudgetError(
            "this spends money, and stdin is not a terminal", "pass --yes to confirm, in Python yes=True"
        )
    confirm("Go on?")


def acquire_for_command(context: Context, file: RecipeFile, *, name: str = "") -> ClusterLock:
    """Acquire a cluster; first finish what an earlier command left half terminated.

    Raises:
        StoreError, RecipeError: As `acquire_cluster`.
    """
    owner = context.owner(file.recipe.cloud, file.recipe.region)
    acquired = acquire_cluster(file, name=name, store=context.store, clock=context.clock, owner=owner)
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
        context.emit(Info(message=message))
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
        if context.clusters.last_hand_over(cluster.cluster_id) is not None:
            continue  # one of its instances may manage it
        try:
            acquired = lock_cluster(cluster, paths=context.paths)
        except StoreError:
            continue  # another command manages it
        with acquired:
            current = context.clusters.find(cluster.cluster_id)
            if current is not None and current.state is not ClusterState.DOWN:
                context.emit(Info(message=f"terminating {cluster.name}, which was left unfinished"))
                destroy_cluster(context.machines.launcher(current))


def destroy_cluster(launcher: Launcher) -> None:
    """Destroy a cluster that this command manages, and emit what it cost.

    Raises:
        CloudError: Something is left of it, which is emitted with its price; running it again goes on.
    """
    with ends.unbroken(end_of(launcher)):
        with ending(launcher):
            members = launcher.destroy()
        launcher.emit(Info(message=cost_of_cluster(launcher.cluster, members)))
        _abort_uploads(launcher)


def _abort_uploads(launcher: Launcher) -> None:
    """Abort what the cluster's instances left of uploads of checkpoints."""
    cluster = launcher.cluster
    if "checkpoints" not in cluster.recipe_text:
        return
    with suppress(RecipeError):  # of another version of dlcloud
        abort_uploads(launcher, read_recipe(cluster.recipe_text, cluster.recipe_path))


@contextmanager
def ending(launcher: Launcher, *, keeping: Collection[str] = (), command: str = "") -> Iterator[None]:
    """Let no signal break off the block, which is to end instances; see `Ends`.

    When it fails, what may still be up is emitted, with its price.

    Args:
        launcher: Of the cluster.
        keeping: The ids of the instances that stay.
        command: Ends what is left; by default `dlcloud down`.
    """
    end = end_of(launcher, keeping=keeping, command=command)
    with ends.unbroken(end):
        try:
            yield
        except (UnwritableError, EndLeftError):  # nothing is up any more, or it was emitted
            raise
        except (DlcloudError, KeyboardInterrupt):
            launcher.emit(Warned(message=describe_remainder(launcher, keeping=keeping, command=command)))
            raise


@contextmanager
def ending_of_leftovers(
    leftovers: Sequence[Leftover], emit: Emit, *, price: str, command: str
) -> Iterator[None]:
    """Let no signal break off the block, which removes leftovers.

    Args:
        leftovers: What is removed.
        emit: Takes the messages.
        price: Of leaving all of it, as in "for 0.12 USD/h".
        command: Goes on with it later.
    """
    count = sum(item.instance is not None for item in leftovers)
    others = len(leftovers) - count
    kinds = [f"{count} instance(s)"] if count else []
    kinds += [f"{others} other thing(s)"] if others else []
    words = EndWords(
        doing=f"removing {' and '.join(kinds) or 'nothing'}",
        otherwise=f"to leave what is there {price}",
        left=f"{' and '.join(kinds) or 'nothing'} may be left {price}; {command} removes it",
    )
    end = End(subject="what is left over", command=command, emit=emit, describe=lambda: words)
    with ends.unbroken(end):
        yield


def end_of(launcher: Launcher, *, keeping: Collection[str] = (), command: str = "") -> End:
    """Return the end of a cluster's instances, or of all but those of some ids."""
    name = launcher.cluster.name

    def describe() -> EndWords:
        remainder = launcher.remainder(keeping)
        count = remainder.count + remainder.requested
        instances = f"{count} instance{'s' if count > 1 else ''} of " if count else ""
        return EndWords(
            doing=f"ending {instances}{name}",
            otherwise=remainder.describe_leaving(launcher.clock.now()),
            left=describe_remainder(launcher, keeping=keeping, command=command),
        )

    return End(subject=name, command=command or f"dlcloud down {name}", emit=launcher.emit, describe=describe)


def describe_remainder(launcher: Launcher, *, keeping: Collection[str] = (), command: str = "") -> str:
    """Return what of a cluster may still be up, with its price, its own end and the command that ends it."""
    name = launcher.cluster.name
    try:
        remainder = launcher.remainder(keeping).describe()
    except StoreError as error:  # it must not hide why the end failed
        remainder = f"instances may still be up, and their price is unknown ({error.message})"
    return f"{name}: {remainder}; {command or f'dlcloud down {name}'} ends it"


@contextmanager
def destroy_at_end(
    launcher: Launcher, acquired: ClusterLock, *, keep: bool, failed_s: float = 0.0
) -> Iterator[None]:
    """Destroy the cluster when the block ends or fails.

    With `keep` it stays up, also where a program failed on it: that is when one wants to look. With
    `failed_s`, the instance of the newest run that failed stays up so long. The cluster is destroyed where it
    did not come up, and after Ctrl-C.
    """
    failure: DlcloudError | None = None
    with ExitStack() as stack:
        # In here a signal that comes between still destroys it; what is kept is emitted before that ends.
        with destroy_on_failure(launcher, acquired):
            try:
                yield
            except (InstanceError, PartialError) as error:
                living = _living_members(launcher) if keep or failed_s else []
                failed = None if keep else find_failed(launcher, living) if living else None
                if keep and living:
                    _keep_failed(launcher, living, error)
                elif failed is not None:
                    keep_failed(launcher, failed, living, failed_s)
                else:
                    raise
                failure = error
            else:
                if keep:
                    _keep(launcher)
                else:
                    stack.enter_context(ends.unbroken(end_of(launcher)))
        if failure is not None:
            raise failure
        if not keep:
            destroy_cluster(launcher)


def _keep(launcher: Launcher) -> None:
    name = launcher.cluster.name
    launcher.store.clusters.set_state(launcher.cluster_id, ClusterState.READY)
    launcher.emit(Info(message=f"{name} is kept up: dlcloud down {name} ends it"))


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
        undo = Undo(
            action=f"terminating {name}",
            call=lambda: destroy_cluster(launcher),
            left=f"{name} is not down",
            end=end_of(launcher),
        )
        with undo_on_failure(undo):
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """What is done when a block fails.

    Args:
        action: What it does, as in "terminating digits".
        call: Does it.
        left: The state after it has failed, too.
        end: Its description, its sink of warnings, and the command for that case.
    """

    action: str
    call: Callable[[], None]
    left: str
    end: End


@contextmanager
def undo_on_failure(undo: Undo) -> Iterator[None]:
    """Undo when the block fails, Ctrl-C included: no signal breaks that off.

    Its own failure does not hide the first one. Nothing is undone after a Ctrl-C has left an inner end.
    """
    with ends.owing(undo.end):
        try:
            yield
        except BaseException as error:
            if not ends.is_left:
                with ends.unbroken(undo.end):
                    _undo(undo, error)
                ends.settle()
            raise


def _undo(undo: Undo, error: BaseException) -> None:
    emit = undo.end.emit
    interrupted = isinstance(error, KeyboardInterrupt | StoppedError)
    cause = "interrupted" if interrupted else f"failed ({_first_line(error)})"
    emit(Warned(message=f"{cause}: {undo.action}"))
    try:
        undo.call()
    except UnwritableError as second:  # nothing is up any more
        emit(Warned(message=f"{second.message}; {second.hint}"))
    except DlcloudError as second:
        emit(Warned(message=f"{undo.left} ({second.message}): {undo.end.command}"))
    except EndLeftError as second:
        second.handled = True


def _first_line(error: BaseException) -> str:
    """Return what failed, without the log that the error itself prints."""
    return str(error).partition("\n")[0].removesuffix(":")
