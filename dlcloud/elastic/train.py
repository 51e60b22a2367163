"""Run an elastic training on a cluster that is up, and launch it again when it has lost all of its instances.

`train` builds the controller with what it works with, and runs it to the last step. The loss of all instances
is a pause where checkpoints are in S3: what is left is terminated, the newest checkpoint is looked up, and
others are launched by the recipe, within its budget (`Relauncher`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from dlcloud.elastic.agents import Agents, program_of
from dlcloud.elastic.controller import Controller, Inbox, Scaler, TrainingControl
from dlcloud.elastic.deadline_scaler import (
    DeadlineScaler,
    RegionLeftError,
    end_deadline,
    make_scaler,
    prices_of,
)
from dlcloud.elastic.failover import (
    StateLostError,
    require_coordinator,
)
from dlcloud.elastic.registry import TrainingRegistry
from dlcloud.elastic.size_scaler import ReservationWatch, SizeScaler
from dlcloud.launch.data_access import Storage
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import INHERITED, nothing_kept
from dlcloud.model.cluster import Member
from dlcloud.model.errors import (
    BudgetError,
    CapacityError,
    CloudError,
    CredentialsError,
    InstanceError,
    QuotaError,
)
from dlcloud.model.events import Info, Warned
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.planning.plan import Plan
from dlcloud.planning.reservations import CapacityReservation, ReservationFit, choose_reservations
from dlcloud.planning.storage import run_name
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.scaling import LONGEST_WAIT, LaunchRefusals, longest_wait


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
        RegionLeftError: It should continue in another Region.
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
    warn_if_nothing_is_kept(launcher, recipe.kept_files.patterns or ())


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
        restored: Committed steps of the checkpoint in S3 that this run continues from.
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
        training, controller = self, self.controller()
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
                members = again.members
                training = replace(training, plan=again.plan, restored=again.restored)
                controller = training.controller(controller)
            except RegionLeftError:
                controller.abandon()
                raise
            else:
                return

    def controller(self, before: Controller | None = None) -> Controller:
        """Return the controller of new workers; `before` controlled those that were lost."""
        launcher, recipe, inbox = self.launcher, self.recipe, Inbox()
        registry = TrainingRegistry() if before is None else TrainingRegistry(speed=before.registry.speed)
        agents = Agents(
            launcher=launcher,
            recipe=recipe,
            program=program_of(recipe, self.folder, run=run_name(recipe, launcher.cluster_id)),
            registry=registry,
            image_id=self.plan.machine.image.image_id,
            prices=PriceLookup(launcher.cloud.prices),
            post=inbox.put,
            storage=Storage(managed=launcher, recipe=recipe, recipe_folder=self.folder),
            restored=self.restored,
            has_taken_over=bool(self.control.term),
            environment=self.environment,
        )
        return Controller(
            launcher=launcher,
            recipe=recipe,
            plan=self.plan,
            registry=registry,
            agents=agents,
            scaler=self._scaler(registry, None if before is None else before.scaler),
            inbox=inbox,
            control=self.control,
            restored=self.restored,
        )

    def _scaler(self, registry: TrainingRegistry, before: Scaler | None) -> Scaler:
        launcher, recipe = self.launcher, self.recipe
        if recipe.deadline is not None:
            made = make_scaler(
                launcher,
                recipe,
                recipe.deadline,
                pools=prices_of(self.plan),
                registry=registry,
                restored=self.restored,
                elsewhere=self.control.elsewhere,
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

    def _size(self) -> int:
        asked = self.launcher.store.clusters.size(self.launcher.cluster_id)
        return asked or self.recipe.instances.maximum


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


MOST_WITHOUT_PROGRESS = 5
"""This many losses in a row without a newer checkpoint end the training: it would never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunched:
    """The next instances of a training.

    Attributes:
        plan: They were launched with it.
        restored: Committed steps of the checkpoint that they continue from; 0: from the start.
    """

    plan: Plan
    members: Sequence[Member]
    restored: int


@dataclass(slots=True, kw_only=True)
class Relauncher:
    """Launches one training again, as often as it loses all of its instances.

    Args:
        cidrs: The networks that may reach the instances.
        restored: Committed steps of the checkpoint that the first instances went on from.
    """

    launcher: Launcher
    recipe: Recipe
    cidrs: Sequence[str]
    restored: int
    _losses: int = field(init=False, default=0)  # since the newest checkpoint was stored

    @property
    def _hint(self) -> str:
        return f"dlcloud up RECIPE resumes from the newest checkpoint in {self.recipe.checkpoints}"

    def describe_end(self, lost: StateLostError) -> InstanceError:
        """Return the error of a training that is not launched again here."""
        return InstanceError(_what_happened(lost), self._hint)

    def launch(self, lost: StateLostError) -> Relaunched:
        """End what is left, and launch by the recipe; while EC2 refuses, ask again until the budget ends.

        Raises:
            InstanceError: The budget is used up, EC2 denies it for good, or no checkpoint was stored between
                the newest losses.
            CapacityError, QuotaError: Its region has no capacity, and the recipe names others.
        """
        message, refusals = _what_happened(lost), 0
        self.launcher.emit(Warned(message=f"{message}: launching again from {self.recipe.checkpoints}"))
        while True:
            try:
                return self._launch()
            except (BudgetError, CredentialsError) as error:
                raise self._give_up(message, error.message) from error
            except (CloudError, InstanceError) as error:
                if isinstance(error, CloudError) and error.is_final:
                    raise self._give_up(message, error.message) from error
                if self.recipe.regions and isinstance(error, CapacityError | QuotaError):
                    raise  # another region may have capacity
                refusals += 1
                self._wait(error, refusals)

    def _launch(self) -> Relaunched:
        launcher = self.launcher
        launcher.shrink(launcher.reconcile(consistent=True))
        # Only now: until its end an instance may have stored another.
        step = launcher.cloud.buckets.newest_step(str(self.recipe.checkpoints))
        self._refuse_no_progress(step)
        self._refuse_end_of_budget()
        plan = launcher.plan(self.recipe, cidrs=self.cidrs, members=[])
        try:
            members = launcher.launch(plan).members
        except (CloudError, InstanceError):
            launcher.shrink(launcher.reconcile())  # while it waits, nothing is billed
            raise
        launcher.emit(Info(message=f"resumes from step {step}, stored in {self.recipe.checkpoints}"))
        self._losses += 1
        return Relaunched(plan=plan, members=members, restored=step)

    def _refuse_no_progress(self, step: int) -> None:
        if step > self.restored:
            self.restored, self._losses = step, 0
        if self._losses >= MOST_WITHOUT_PROGRESS:
            times = f"{self._losses + 1} losses in a row without a newer checkpoint than that of step {step}"
            raise BudgetError(f"{times}; set checkpoint_seconds below the lifetime of instances")

    def _refuse_end_of_budget(self) -> None:
        hours = self.recipe.budget.max_hours
        if self.launcher.clock.now() >= self.launcher.cluster.created_at + timedelta(hours=hours):
            raise BudgetError(f"budget.max_hours is over: {hours:g} h since the start")

    def _wait(self, error: CloudError | InstanceError, times: int) -> None:
        """Wait after a refusal, each time twice as long as before."""
        clock, deadline = self.launcher.clock, self.recipe.deadline
        now, longest, created_at = clock.now(), LONGEST_WAIT, self.launcher.cluster.created_at
        if deadline is not None:
            longest = longest_wait(deadline.at(created_at) - created_at)
        refusals = LaunchRefusals(times=times, at=now)
        wait_s = min(refusals.retry_at - now, longest).total_seconds()
        message = f"not launched: {error.message}; retrying in {wait_s:.0f} s"
        self.launcher.emit(Warned(message=message))
        clock.sleep(wait_s)

    def _give_up(self, message: str, cause: str) -> InstanceError:
        return InstanceError(f"{message}, and it is not launched again: {cause}", self._hint)


def _what_happened(lost: StateLostError) -> str:
    """Return the message of the loss without what it says of the steps: they are not lost here."""
    return lost.message.partition(": the ")[0]
