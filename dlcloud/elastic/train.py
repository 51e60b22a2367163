"""Run an elastic training on a cluster that is up: builds its controller."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.elastic.controller import Controller, Inbox
from dlcloud.elastic.deadline_run import end_deadline, make_scaler, prices_of
from dlcloud.elastic.deadline_scaler import DeadlineScaler
from dlcloud.elastic.departures import Departures
from dlcloud.elastic.failover import CoordinatorFailover, StateLostError, require_coordinator
from dlcloud.elastic.failures import FailureCount
from dlcloud.elastic.progress import TrainingProgress
from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.relaunch import Relauncher
from dlcloud.elastic.requests import InstanceRequests
from dlcloud.elastic.reserved import ReservationWatch
from dlcloud.elastic.scaler import Scaler
from dlcloud.elastic.size_scaler import SizeScaler
from dlcloud.elastic.standbys import Prepare, Standbys
from dlcloud.elastic.training_program import Coordinator, program_of
from dlcloud.elastic.workers import Workers
from dlcloud.launch.data_access import Storage
from dlcloud.launch.launcher import LaunchedMembers, Launcher
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import INHERITED, nothing_kept
from dlcloud.model.cluster import Member
from dlcloud.model.events import Warned
from dlcloud.model.instance import Market
from dlcloud.planning.plan import Plan
from dlcloud.planning.reserved_capacity import CapacityReservation, ReservationFit, choose_reservations
from dlcloud.planning.storage import run_name
from dlcloud.recipe.job_environment import JobEnvironment
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.deadline_scaling import limit_plan
from dlcloud.scheduling.scaling import ScalingDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingControl:
    """How a training is controlled.

    Attributes:
        prepare: Prepares an instance that stands by; None where no instance of the cluster controls it.
        term: In which an instance of the cluster took over; 0 for the first controller.
        rehearsal: The incidents of the recipe.
        may_relaunch: If all instances are lost, others are launched where checkpoints are in S3. Not for a
            controller that runs on one of them.
    """

    prepare: Prepare | None = None
    term: int = 0
    rehearsal: Rehearsal | None = None
    may_relaunch: bool = False


def train(
    launcher: Launcher,
    recipe: Recipe,
    members: Sequence[Member],
    *,
    recipe_folder: Path,
    plan: Plan,
    environment: JobEnvironment = INHERITED,
    control: TrainingControl,
) -> None:
    """Train on a cluster that is up.

    The paths of the recipe are relative to `recipe_folder`; with `plan` the cluster was launched.

    Raises:
        StateLostError: No instance has the model's state, and there are no checkpoints in S3.
        InstanceError: Likewise, and the training was not launched again.
        RemoteCommandError: The program fails wherever it runs.
    """
    cloud = launcher.cloud
    cloud.network.allow_peers(cloud.network.find_group(launcher.cluster_id))
    restored = cloud.buckets.newest_step(recipe.checkpoints) if recipe.checkpoints else 0
    training = _Training(
        launcher=launcher,
        recipe=recipe,
        folder=recipe_folder,
        plan=plan,
        environment=environment,
        restored=restored,
        control=control,
    )
    training.run(members)
    if recipe.deadline is not None:
        end_deadline(launcher)
    warn_if_nothing_is_kept(launcher, recipe.keep.files)


def warn_if_nothing_is_kept(managed: ManagedCluster, patterns: Sequence[str]) -> None:
    """Emit a warning if no worker had a file that the recipe keeps."""
    folders = [
        managed.store.paths.run_files(run.run_id) for run in managed.store.runs.of_cluster(managed.cluster_id)
    ]
    if patterns and not any(path.is_file() for folder in folders for path in folder.rglob("*")):
        managed.emit(Warned(message=nothing_kept(patterns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """Builds a controller with all that it works with: workers, instances, a scaler.

    Args:
        folder: The paths of the recipe are relative to it.
        plan: The cluster was launched with it.
        restored: Committed steps of the checkpoint in S3 that this run goes on from.
    """

    launcher: Launcher
    recipe: Recipe
    folder: Path
    plan: Plan
    environment: JobEnvironment
    restored: int
    control: TrainingControl

    def run(self, members: Sequence[Member]) -> None:
        """Train to the last step; where checkpoints are in S3, the loss of all instances is a pause."""
        relauncher = Relauncher(
            launcher=self.launcher, recipe=self.recipe, cidrs=self.plan.cidrs, restored=self.restored
        )
        training, controller = self, self.controller(WorkerRegistry())
        while True:
            try:
                controller.run(members, require_coordinator(members, self.launcher.cluster.name))
            except StateLostError as error:
                if self.recipe.checkpoints is None:
                    raise
                if not self.control.may_relaunch:
                    raise relauncher.describe_end(error) from error
                controller.abandon()
                again = relauncher.launch(error)
                members, scaler = again.members, controller.scaler
                training = replace(training, plan=again.plan, restored=again.restored)
                controller = training.controller(WorkerRegistry(), scaler)
            else:
                return

    def controller(self, registry: WorkerRegistry, before: Scaler | None = None) -> Controller:
        """Return the controller of new workers; `before` decided for those that were lost."""
        clock, emit, end = self.launcher.clock, self.launcher.emit, self.launcher.shrink
        inbox = Inbox()
        workers = self._workers(lambda: failover.coordinator, inbox)
        failover = CoordinatorFailover(
            registry=registry,
            inform=workers.write_control,
            touch=workers.remind,
            end=end,
            post=inbox.put,
            clock=clock,
            emit=emit,
            restored=self.restored,
            term=self.control.term,
        )
        return Controller(
            scaler=self._scaler(registry, before),
            registry=registry,
            workers=workers,
            failover=failover,
            departures=Departures(registry=registry, drain=workers.drain, end=end, clock=clock, emit=emit),
            requests=InstanceRequests(launch_for=self._launch_for, post=inbox.put, emit=emit),
            failures=FailureCount(error_of=workers.error_of, emit=emit),
            progress=TrainingProgress(registry=registry, clock=clock, emit=emit),
            inbox=inbox,
            clock=clock,
            minimum=self.recipe.instances.minimum,
            rehearsal=self.control.rehearsal,
            standbys=self._standbys(self.control.prepare),
        )

    def _scaler(self, registry: WorkerRegistry, before: Scaler | None) -> Scaler:
        launcher, recipe = self.launcher, self.recipe
        if recipe.deadline is not None:
            made = make_scaler(
                launcher,
                recipe,
                recipe.deadline,
                pools=prices_of(self.plan),
                registry=registry,
                restored=self.restored,
            )
            return before.after_loss(made) if isinstance(before, DeadlineScaler) else made
        return SizeScaler(
            size=self._size,
            instances=recipe.instances,
            registry=registry,
            clock=launcher.clock,
            emit=launcher.emit,
            reserved=_watch_reservations(launcher, recipe),
        )

    def _workers(self, coordinator: Callable[[], Coordinator], inbox: Inbox) -> Workers:
        launcher, recipe = self.launcher, self.recipe
        return Workers(
            launcher=launcher,
            recipe=recipe,
            program=program_of(recipe, self.folder, run=run_name(recipe, launcher.cluster_id)),
            coordinator=coordinator,
            image_id=self.plan.image.image_id,
            prices=PriceLookup(launcher.cloud.prices),
            post=inbox.put,
            storage=Storage(managed=launcher, recipe=recipe, recipe_folder=self.folder),
            restored=self.restored,
            has_taken_over=bool(self.control.term),
            environment=self.environment,
        )

    def _launch_for(self, decision: ScalingDecision, connected: Sequence[str]) -> LaunchedMembers:
        """Plan what a decision requests, from its pools alone, and launch it."""
        members = self.launcher.reconcile()
        size = len(members) + decision.launch
        plan = self.launcher.plan(self.recipe, cidrs=self.plan.cidrs, size=size, members=members)
        if decision.reserved_only:
            plan = replace(plan, rounds=(), max_count=len(members) + plan.reserved_count)
        elif decision.on_demand_only:
            plan = limit_plan(plan, Market.ON_DEMAND, self.recipe.instances.types, size)
        elif decision.market is not None:
            plan = limit_plan(plan, decision.market, decision.pools, size)
        return self.launcher.grow(plan, connected=connected)

    def _size(self) -> int:
        asked = self.launcher.store.clusters.size(self.launcher.cluster_id)
        return asked or self.recipe.instances.maximum

    def _standbys(self, prepare: Prepare | None) -> Standbys | None:
        # With checkpoints in S3 the instances have a role already, and the next `up` has a checkpoint.
        # An agent in a container sees neither the controller's process nor its program.
        if prepare is None or self.recipe.checkpoints is not None or self.recipe.setup.image:
            return None
        return Standbys(prepare=prepare, clock=self.launcher.clock, emit=self.launcher.emit)


def _watch_reservations(launcher: Launcher, recipe: Recipe) -> ReservationWatch | None:
    """Return what looks at the recipe's reservations; None where it uses none."""
    instances, choice = recipe.instances, recipe.instances.reservations
    if choice is None or not choice.is_used or recipe.deadline is not None:
        return None
    fit = ReservationFit(types=instances.types, zones=instances.zones, group=instances.own_group)

    def ask() -> list[CapacityReservation]:
        return choose_reservations(choice, launcher.cloud.capacity.reservations(), fit, strict=False)[0]

    def keep_free() -> int:
        stored = launcher.store.clusters.keep_free(launcher.cluster_id)
        return choice.keep_free if stored is None else stored

    return ReservationWatch(ask=ask, keep_free=keep_free, clock=launcher.clock, emit=launcher.emit)
