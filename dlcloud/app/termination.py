"""What a command must terminate however it ends, what it keeps up, and what it prints about both.

Instances cost money until they are terminated, so a command that launches owes their termination from then
on:

1. A use case that launches does so inside `destroy_at_end` or `destroy_on_failure`; one that creates
   something else that is billed inside `undo_on_failure`. Until the block ends, its termination is *pending*.
2. When the block ends or fails, the termination *runs*: no signal interrupts it (`terminal.signals`). A third
   Ctrl-C abandons it, after what is left was printed, with its price and the command that terminates it.
3. A termination that fails prints the same description of what is left. It never hides the error that came
   first.
4. With `--keep` or `keep: {failed: 1m}` something stays up. That is printed with its price before the block
   ends.

What must never happen: that something stays up unannounced.
"""

import math
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from dlcloud.analysis.result import Run, RunState
from dlcloud.app.terminal.signals import (
    Termination,
    TerminationAbandonedError,
    TerminationTexts,
    terminations,
)
from dlcloud.launch.acquire import ClusterLock
from dlcloud.launch.data_access import abort_uploads
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.remote_jobs import INHERITED, RemoteJobs, start_job
from dlcloud.launch.setup import FOLDER, JOB
from dlcloud.model.cluster import ClusterState, Leftover, Member
from dlcloud.model.errors import (
    DlcloudError,
    InstanceError,
    PartialError,
    RecipeError,
    StoreError,
    UnwritableError,
)
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.model.money import money, total_usd
from dlcloud.recipe.recipe import read_recipe
from dlcloud.report.cost_tables import cost_of_cluster
from dlcloud.runs.stoppable import StoppedError
from dlcloud.store.clusters import CANCEL
from dlcloud.system.parallel import fan_out

RESULTS_LEFT_S = 3600.0
"""How long an instance stays up whose results were not downloaded."""
MOST_LISTED = 50
"""The newest runs of an instance whose files `down` looks for."""
KEEP_FOLDER = f"{FOLDER}/runs/keep"
_SECONDS_PER_HOUR = 3600
_SECONDS_PER_MINUTE = 60


def destroy_cluster(launcher: Launcher, *, discard: bool = False) -> None:
    """Terminate a cluster that this command manages, and emit what it cost.

    `discard` as for `terminate_cluster`.

    Raises:
        CloudError: Something is left of it, which is emitted with its price; running it again continues.
    """
    with terminations.running(termination_of(launcher)):
        with terminating(launcher):
            members = launcher.destroy(discard=discard)
        launcher.emit(Info(message=cost_of_cluster(launcher.cluster, members)))
        _abort_uploads(launcher)


def _abort_uploads(launcher: Launcher) -> None:
    """Abort the uploads of checkpoints that the cluster's instances did not finish."""
    cluster = launcher.cluster
    if "checkpoints" not in cluster.recipe_text:
        return
    with suppress(RecipeError):  # of another version of dlcloud
        abort_uploads(launcher, read_recipe(cluster.recipe_text, cluster.recipe_path))


@contextmanager
def destroy_at_end(
    launcher: Launcher, acquired: ClusterLock, *, keep: bool, failed_s: float = 0.0
) -> Iterator[None]:
    """Destroy the cluster when the block ends or fails.

    With `keep`, or after `dlcloud cancel`, it stays up, even if a program failed on it: that is when the user
    wants to look. With
    `failed_s`, the instance of the newest failed run stays up for that time. A cluster that did not come up
    is destroyed in any case, and so is one after Ctrl-C.
    """
    failure: DlcloudError | None = None
    with ExitStack() as stack:
        # In here a signal that comes between still destroys the cluster; what is kept is emitted before this
        # ends.
        with destroy_on_failure(launcher, acquired):
            try:
                yield
                _raise_for_results_left(launcher)
            except (InstanceError, PartialError) as error:
                is_kept = (
                    _keep_after(launcher, error)
                    if keep or _is_cancelled(launcher)
                    else _keep_for_a_while(launcher, failed_s)
                )
                if not is_kept:
                    raise
                failure = error
            else:
                if keep:
                    _keep(launcher)
                else:
                    # Running begins before pending ends: no signal finds a moment between them.
                    stack.enter_context(terminations.running(termination_of(launcher)))
        if failure is not None:
            raise failure
        if not keep:
            destroy_cluster(launcher)


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
                launcher.mark_ready()
            raise
    else:
        with undo_on_failure(
            lambda: destroy_cluster(launcher),
            action=f"terminating {name}",
            left=f"{name} is not down",
            termination=termination_of(launcher),
        ):
            try:
                yield
            except KeyboardInterrupt:
                download_unfinished(launcher)
                raise


@contextmanager
def undo_on_failure(
    undo: Callable[[], None], *, action: str, left: str, termination: Termination
) -> Iterator[None]:
    """Call `undo` when the block fails, Ctrl-C included; no signal interrupts it.

    Its own failure does not hide the first one. Nothing is undone after a Ctrl-C has abandoned an inner
    termination.

    Args:
        undo: Removes what the block created.
        action: What it does, as in "terminating digits".
        left: The state after it has failed, too.
        termination: Describes what is left, and has the command that removes it.
    """
    with terminations.pending(termination):
        try:
            yield
        except BaseException as error:
            if not terminations.are_abandoned:
                with terminations.running(termination):
                    _undo(undo, error, action, left, termination)
                terminations.settle()
            raise


def _undo(
    undo: Callable[[], None], error: BaseException, action: str, left: str, termination: Termination
) -> None:
    emit = termination.emit
    is_interrupted = isinstance(error, KeyboardInterrupt | StoppedError)
    cause = "interrupted" if is_interrupted else f"failed ({_first_line(error)})"
    emit(Warned(message=f"{cause}: {action}"))
    try:
        undo()
    except UnwritableError as second:  # nothing is up any more
        emit(Warned(message=f"{second.message}; {second.hint}"))
    except DlcloudError as second:
        emit(Warned(message=f"{left} ({second.message}): {termination.command}"))
    except TerminationAbandonedError as second:
        second.handled = True


def _first_line(error: BaseException) -> str:
    """Return what failed, without the log that the error itself prints."""
    return str(error).partition("\n")[0].removesuffix(":")


@contextmanager
def terminating(launcher: Launcher, *, keeping: Collection[str] = (), command: str = "") -> Iterator[None]:
    """Let no signal interrupt the block, which terminates instances of a cluster.

    If it fails, what may still be up is emitted, with its price.

    Args:
        launcher: Of the cluster.
        keeping: The ids of the instances that stay.
        command: Terminates what is left; by default `dlcloud down`.
    """
    with terminations.running(termination_of(launcher, keeping=keeping, command=command)):
        try:
            yield
        except (UnwritableError, TerminationAbandonedError):  # nothing is up any more, or it was emitted
            raise
        except (DlcloudError, KeyboardInterrupt):
            launcher.emit(Warned(message=describe_remainder(launcher, keeping=keeping, command=command)))
            raise


@contextmanager
def removing_leftovers(
    leftovers: Sequence[Leftover], emit: Emit, *, price: str, command: str
) -> Iterator[None]:
    """Let no signal interrupt the block, which removes leftovers.

    Args:
        leftovers: What is removed.
        emit: Takes the messages.
        price: Of leaving all of it, as in "for 0.12 USD/h".
        command: Continues later.
    """
    count = sum(item.instance is not None for item in leftovers)
    others = len(leftovers) - count
    kinds = [f"{count} instance(s)"] if count else []
    kinds += [f"{others} other thing(s)"] if others else []
    subject = " and ".join(kinds) or "nothing"
    texts = TerminationTexts(
        doing=f"removing {subject}",
        otherwise=f"to leave what is there {price}",
        left=f"{subject} may be left {price}; {command} removes it",
    )
    with terminations.running(
        Termination(subject="what is left over", command=command, emit=emit, describe=lambda: texts)
    ):
        yield


def termination_of(launcher: Launcher, *, keeping: Collection[str] = (), command: str = "") -> Termination:
    """Return the termination of a cluster's instances, or of all but those of some ids."""
    name = launcher.cluster.name

    def describe() -> TerminationTexts:
        remainder = launcher.remainder(keeping)
        count = remainder.count + remainder.requested
        instances = f"{count} instance{'s' if count > 1 else ''} of " if count else ""
        return TerminationTexts(
            doing=f"terminating {instances}{name}",
            otherwise=remainder.describe_leaving(launcher.clock.now()),
            left=describe_remainder(launcher, keeping=keeping, command=command),
        )

    command_or_down = command or f"dlcloud down {name}"
    return Termination(subject=name, command=command_or_down, emit=launcher.emit, describe=describe)


def describe_remainder(launcher: Launcher, *, keeping: Collection[str] = (), command: str = "") -> str:
    """Return what of a cluster may still be up, with its price and the command that terminates it."""
    name = launcher.cluster.name
    try:
        remainder = launcher.remainder(keeping).describe()
    except StoreError as error:  # it must not hide why the termination failed
        remainder = f"instances may still be up, and their price is unknown ({error.message})"
    return f"{name}: {remainder}; {command or f'dlcloud down {name}'} terminates it"


# What stays up.


def _keep(launcher: Launcher) -> None:
    name = launcher.cluster.name
    launcher.mark_ready()
    launcher.emit(Info(message=f"{name} is kept up: dlcloud down {name} terminates it"))


def _keep_after(launcher: Launcher, failure: DlcloudError) -> bool:
    """Keep a cluster up on which a program failed, with its price; False if no instance is left."""
    members = living_members(launcher)
    if not members:
        return False
    name = launcher.cluster.name
    launcher.mark_ready()
    hourly_usd = total_usd(member.hourly_usd for member in members)
    usd = "at an unknown price" if hourly_usd is None else f"{money(hourly_usd)} USD/h"
    message = f"failed ({_first_line(failure)}): {name} is kept up ({usd})"
    launcher.emit(
        Warned(message=f"{message}: dlcloud ssh {name} opens a shell, dlcloud down {name} terminates it")
    )
    return True


def _is_cancelled(launcher: Launcher) -> bool:
    """True if `dlcloud cancel` has stopped what failed here; that is said once, for the `up` in charge."""
    clusters = launcher.store.clusters
    intents = [intent for intent in clusters.intents(launcher.cluster_id, CANCEL) if intent.outcome is None]
    for intent in intents:
        clusters.end_intent(intent.intent_id, "kept up", launcher.clock.now())
    return bool(intents)


def _keep_for_a_while(launcher: Launcher, failed_s: float) -> bool:
    """Keep up the instances that have results which were not downloaded, and that of the newest failed run.

    All others are terminated. Returns False if there is none to keep.

    Raises:
        CloudError, InstanceError: Something did not work out; the caller destroys the cluster.
    """
    left = launcher.results_left
    members = living_members(launcher) if failed_s or left else []
    seconds = dict.fromkeys(left, RESULTS_LEFT_S)
    if failed_s and (failed := find_failed(launcher, members)) is not None:
        instance_id = failed.instance.instance_id
        seconds[instance_id] = max(failed_s, seconds.get(instance_id, 0.0))
    kept = [member for member in members if member.instance.instance_id in seconds]
    if not kept:
        return False
    for member in kept:
        end_later(launcher, member, seconds[member.instance.instance_id])
    launcher.shrink([member for member in members if member not in kept])
    launcher.mark_ready()
    return True


def _raise_for_results_left(launcher: Launcher) -> None:
    """Raise PartialError if results are still on instances."""
    if not launcher.results_left:
        return
    messages = [
        f"{instance_id}: not downloaded from {left.folder}: {left.reason}"
        for instance_id, left in launcher.results_left.items()
    ]
    config = shlex.quote(str(launcher.store.paths.ssh_config))
    copies = [
        # Not scp -r, which fails at a link to a folder.
        f"mkdir -p {instance_id} && ssh -F {config} {instance_id} tar -C {left.folder} -chf - . "
        f"| tar -C {instance_id} -xf -"
        for instance_id, left in launcher.results_left.items()
    ]
    commands = " && ".join([f"dlcloud ssh {launcher.cluster.name} --config", *copies])
    raise PartialError("\n".join(messages), commands)


def download_unfinished(launcher: Launcher, *, of_controller: bool = False) -> None:
    """Download what the runs of a command that is interrupted have written so far.

    What fails is a warning. Trials run again, and a training has saved its own checkpoint. The programs are
    not stopped first: a thread that follows one would take its end for a failure, and launch a replacement.

    Args:
        launcher: Of the cluster.
        of_controller: The command is the controller of a detached cluster, which `down` has ended.

    Raises:
        KeyboardInterrupt: It was interrupted again.
    """
    try:
        recipe = read_recipe(launcher.cluster.recipe_text, launcher.cluster.recipe_path)
    except RecipeError:
        return
    runs = launcher.store.runs.of_cluster(launcher.cluster_id)
    unfinished = [run for run in runs if (run.state is RunState.LOST if of_controller else not run.ended_at)]
    if not unfinished or recipe.workload.elastic is not None or recipe.experiment is not None:
        return
    members = {member.instance.instance_id: member for member in living_members(launcher)}
    jobs = RemoteJobs(managed=launcher)

    def download(run: Run) -> None:
        state = run.state if of_controller else RunState.FAILED
        try:
            jobs.fetch_results(members[run.instance_id], replace(run, state=state), recipe.kept_files)
        except DlcloudError as error:
            message = f"its results were not downloaded: {error.message}"
            launcher.emit(Warned(message=message, instance_id=run.instance_id))

    reachable = [run for run in unfinished if run.instance_id in members]
    if reachable:
        loss = "" if of_controller else "; Ctrl-C again loses it"
        launcher.emit(Info(message=f"downloading what was written so far{loss}"))
        fan_out(download, reachable, width=None)


def files_left(launcher: Launcher) -> dict[str, int]:
    """Return the files of a cluster's runs that its recipe keeps and that were never downloaded, with bytes.

    Names begin with the instance. An instance that does not answer has none.
    """
    try:
        recipe = read_recipe(launcher.cluster.recipe_text, launcher.cluster.recipe_path)
    except RecipeError:
        return {}
    runs = launcher.store.runs.of_cluster(launcher.cluster_id) if recipe.experiment is None else []
    jobs = RemoteJobs(managed=launcher)

    def list_left(member: Member) -> dict[str, int]:
        instance_id = member.instance.instance_id
        own = [run for run in runs if run.instance_id == instance_id][-MOST_LISTED:]
        if not own:
            return {}
        with suppress(DlcloudError):
            connection = jobs.connect(member)
            lists = [jobs.not_downloaded(connection, run, recipe.kept_files) for run in own]
            return {f"{instance_id}: {name}": size for files in lists for name, size in files.items()}
        return {}

    outcomes = fan_out(list_left, living_members(launcher), width=None)
    return {name: size for outcome in outcomes for name, size in (outcome.value or {}).items()}


def living_members(launcher: Launcher) -> list[Member]:
    """Return the living instances of a cluster that came up; none if EC2 does not answer."""
    stored = launcher.store.clusters.find(launcher.cluster_id)
    if stored is None or stored.state not in {ClusterState.RUNNING, ClusterState.READY}:
        return []
    try:
        return launcher.members()
    except DlcloudError:
        return []


def find_failed(launcher: Launcher, living: Sequence[Member]) -> Member | None:
    """Return the living instance of the newest run that failed; None if it has gone."""
    by_id = {member.instance.instance_id: member for member in living}
    runs = launcher.store.runs.of_cluster(launcher.cluster_id)
    failed = [run for run in runs if run.state is RunState.FAILED and run.instance_id in by_id]
    return by_id[failed[-1].instance_id] if failed else None


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
    look = f"dlcloud ssh {name} opens a shell, dlcloud down {name} terminates it earlier"
    launcher.emit(Warned(message=f"{message}: {look}", instance_id=member.instance.instance_id))


def stop_ending(launcher: Launcher, members: Sequence[Member]) -> None:
    """Let instances that an earlier `up` has kept for a while stay up, as this one works on them."""
    for member in members:
        launcher.connect(member.instance).check(f"test ! -e {KEEP_FOLDER} || {JOB} stop {KEEP_FOLDER}")
