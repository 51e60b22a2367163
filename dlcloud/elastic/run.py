"""Run an elastic training on a cluster that is up: builds its controller."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.core.cluster import Member
from dlcloud.core.deadline_scaling import limit_plan
from dlcloud.core.elastic import ScalingDecision
from dlcloud.core.errors import InstanceError
from dlcloud.core.instance import Market
from dlcloud.core.job_environment import JobEnvironment
from dlcloud.core.plan import Plan
from dlcloud.core.recipe import Recipe
from dlcloud.core.reservations import CapacityReservation, Fit, choose_reservations
from dlcloud.core.storage import run_name
from dlcloud.elastic.controller import Controller, Post
from dlcloud.elastic.deadline_run import end_deadline, make_scaler, prices_of
from dlcloud.elastic.program import Coordinator, program_of
from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.elastic.reserved import ReservationWatch
from dlcloud.elastic.standbys import Prepare, Standbys
from dlcloud.elastic.workers import Workers
from dlcloud.launch.launcher import LaunchedMembers, Launcher
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import INHERITED
from dlcloud.launch.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How a training is controlled.

    Attributes:
        prepare: Prepares an instance that stands by; None where no instance of the cluster controls it.
        term: In which an instance of the cluster took over; 0 for the first controller.
        rehearsal: The incidents of the recipe.
    """

    prepare: Prepare | None = None
    term: int = 0
    rehearsal: Rehearsal | None = None


def train(
    launcher: Launcher,
    recipe: Recipe,
    members: Sequence[Member],
    *,
    recipe_folder: Path,
    plan: Plan,
    environment: JobEnvironment = INHERITED,
    control: Control,
) -> None:
    """Train on a cluster that is up.

    The paths of the recipe are relative to `recipe_folder`; with `plan` the cluster was launched.

    Raises:
        InstanceError: The coordinator is gone, and no other instance has the model's state.
        RemoteCommandError: The program fails wherever it runs.
    """

    def make_workers(coordinator: Callable[[], Coordinator], post: Post) -> Workers:
        return Workers(
            launcher=launcher,
            recipe=recipe,
            program=program_of(recipe, recipe_folder, run=run_name(recipe, launcher.cluster_id)),
            coordinator=coordinator,
            image_id=plan.image.image_id,
            prices=PriceLookup(launcher.cloud),
            post=post,
            storage=Storage(managed=launcher, recipe=recipe, recipe_folder=recipe_folder),
            restored=restored,
            environment=environment,
        )

    def grow(decision: ScalingDecision, connected: Sequence[str]) -> LaunchedMembers:
        members = launcher.reconcile()
        size = len(members) + decision.launch
        more = launcher.plan(recipe, cidrs=plan.cidrs, size=size, members=members)
        if decision.reserved_only:
            more = replace(more, rounds=(), max_count=len(members) + more.reserved_count)
        elif decision.on_demand_only:
            more = limit_plan(more, Market.ON_DEMAND, recipe.instances.types, size)
        elif decision.market is not None:
            more = limit_plan(more, decision.market, decision.pools, size)
        return launcher.grow(more, connected=connected)

    restored = launcher.cloud.newest_step(recipe.checkpoints) if recipe.checkpoints else 0
    group_id = launcher.cloud.find_security_group(launcher.cluster_id)
    launcher.cloud.allow_peers(group_id)
    registry = WorkerRegistry()
    scaler = None
    if recipe.deadline is not None:
        scaler = make_scaler(launcher, recipe, recipe.deadline, pools=prices_of(plan), registry=registry)
    controller = Controller(
        cluster=launcher.cluster,
        recipe=recipe,
        make_workers=make_workers,
        grow=grow,
        end=launcher.shrink,
        target=lambda: launcher.store.clusters.size(launcher.cluster_id) or recipe.instances.maximum,
        clock=launcher.clock,
        emit=launcher.emit,
        rehearsal=control.rehearsal,
        restored=restored,
        deadline=scaler,
        registry=registry,
        term=control.term,
        reserved=_watch_reservations(launcher, recipe),
        # With checkpoints in S3 the instances have a role already, and the next `up` has a checkpoint.
        standbys=None
        if control.prepare is None or recipe.checkpoints is not None
        else Standbys(prepare=control.prepare, clock=launcher.clock, emit=launcher.emit),
    )
    try:
        controller.run(members)
    except InstanceError as error:
        if recipe.checkpoints is None:
            raise
        message = error.message.partition(": the ")[0]
        hint = f"the same dlcloud up RECIPE goes on from the newest checkpoint in {recipe.checkpoints}"
        raise InstanceError(message, hint) from error
    if scaler is not None:
        end_deadline(launcher, scaler.deadline)


def _watch_reservations(launcher: Launcher, recipe: Recipe) -> ReservationWatch | None:
    """Return what looks at the recipe's reservations; None where it uses none."""
    instances, choice = recipe.instances, recipe.instances.reservations
    if choice is None or not choice.is_used or recipe.deadline is not None:
        return None
    fit = Fit(types=instances.types, zones=instances.zones, group=instances.own_group)

    def ask() -> list[CapacityReservation]:
        return choose_reservations(choice, launcher.cloud.reservations(), fit, strict=False)[0]

    def keep_free() -> int:
        stored = launcher.store.clusters.keep_free(launcher.cluster_id)
        return choice.keep_free if stored is None else stored

    return ReservationWatch(ask=ask, keep_free=keep_free, clock=launcher.clock, emit=launcher.emit)
