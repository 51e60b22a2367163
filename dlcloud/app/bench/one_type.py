"""One instance type of a bench: launch an instance, run on it all that fits, destroy it."""

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property

from dlcloud.analysis.bench import BenchJob, BenchmarkMatrix, TypeResult, fits
from dlcloud.app.context import Context
from dlcloud.app.lifecycle import acquire_for_command
from dlcloud.app.recipe_files import profile_of
from dlcloud.app.termination import destroy_at_end
from dlcloud.launch.data_access import prepare_access
from dlcloud.launch.launcher import LaunchedMembers, Launcher
from dlcloud.model.cluster import Member
from dlcloud.model.errors import CapacityError, CloudError, DlcloudError, InstanceError, QuotaError
from dlcloud.model.events import Emit, Event, Info, Warned
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.remote import Dial
from dlcloud.planning.plan import Plan, QuotaPlace
from dlcloud.recipe.recipe import RecipeFile
from dlcloud.report.bench_tables import TypePlan
from dlcloud.runs.nodes import run_workload
from dlcloud.runs.program import RunProgram, probe_machine
from dlcloud.runs.race import Race, RaceWatch
from dlcloud.runs.run import Runner
from dlcloud.runs.stoppable import (
    ExclusiveSlot,
    SharedQuota,
    StoppableClock,
    StoppedError,
    stop_emitting,
)


@dataclass(slots=True, kw_only=True, eq=False)
class Shared:
    """What all types of a bench have in common.

    Args:
        bench_id: The key of the bench in the store.
        matrix: The types and the jobs.
        programs: By the names of the jobs.
        environment: Of the programs.
        fresh: Measure again what an interrupted run had measured.
        stop: Set when all are to stop.
        slot: Held from a type's launch until all of it is measured.
        quota: The account's vCPUs, held from a type's launch until its instances are terminated.
        dials: The connections of all types; closed when all are to stop.
        race: Of the types; None if each is measured to its own end.
    """

    bench_id: str
    matrix: BenchmarkMatrix
    programs: Mapping[str, RunProgram]
    environment: JobEnvironment
    fresh: bool
    stop: threading.Event
    slot: ExclusiveSlot
    quota: SharedQuota[QuotaPlace]
    dials: list[Dial] = field(default_factory=list)
    race: Race | None = None

    def hang_up(self) -> None:
        """Close every connection, so that no thread waits for an instance's output."""
        for dial in list(self.dials):
            dial.close()


def recipe_file(matrix: BenchmarkMatrix, name: str) -> RecipeFile:
    """Return the recipe of one type's cluster, as the store remembers it."""
    recipe = matrix.recipe_of_type(name)
    content = recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    text = json.dumps(content, indent=1)
    return RecipeFile(recipe=recipe, text=text, path=matrix.recipe_path, profile=profile_of(recipe))


@dataclass(kw_only=True)
class TypeRun:
    """One type of a bench.

    Args:
        shared: With the other types.
        context: Emits every event under the type's name.
        planned: The jobs to be run.
        plan: Of the instance.
        done: The jobs that are done; grows.
        failed: The messages of those that failed, by name; grows.
        launched: Its instance was there.
    """

    shared: Shared
    context: Context
    planned: TypePlan
    plan: Plan
    done: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    launched: bool = False

    @property
    def name(self) -> str:
        return self.planned.instance_type

    @cached_property
    def emit(self) -> Emit:
        """The sink of its events, which raises once all are stopped."""
        return stop_emitting(self.context.emit, self.shared.stop)

    @cached_property
    def clock(self) -> StoppableClock:
        return StoppableClock(self.context.clock, self.shared.stop)

    def outcome(self) -> TypeResult:
        """Launch the instance, run all that fits, destroy it, and return the result of the type."""
        refused: CloudError | None = None
        for following in (*self.planned.elsewhere, None):
            refused = self._attempt()
            is_scarce = isinstance(refused, CapacityError | QuotaError) and not self.shared.stop.is_set()
            if following is None or not is_scarce or self.launched:
                break
            message = f"{self.plan.region} gives no instances: trying {following.region}"
            self.context.emit(Warned(message=message))
            self.plan = following
            places = {**self.shared.matrix.places, self.name: following.region}
            self.shared = replace(self.shared, matrix=replace(self.shared.matrix, places=places))
        if self.shared.stop.is_set():
            raise StoppedError
        if self.shared.race is not None and not self.done:
            reason = refused.message if refused is not None else "; ".join(self.failed.values())
            self.shared.race.leave(self.name, reason or "nothing was measured")
        return TypeResult(instance_type=self.name, done=tuple(self.done), failed=self.failed, refused=refused)

    def _attempt(self) -> CloudError | None:
        """Measure in the plan's region; return the error if the cloud refused it."""
        try:
            self._measure()
        except CloudError as error:
            return error
        except DlcloudError as error:
            left = [name for name in self.planned.waiting if name not in {*self.done, *self.failed}]
            self.failed |= dict.fromkeys(left or ["the end"], error.message)
        return None

    def _measure(self) -> None:
        if self.shared.stop.is_set():
            return
        context = self.context
        with (
            ExitStack() as ended,
            acquire_for_command(context, recipe_file(self.shared.matrix, self.name)) as acquired,
        ):
            launcher = context.machines.launcher(acquired.cluster)
            context.benches.add_cluster(self.shared.bench_id, launcher.cluster_id)
            self.shared.dials.append(launcher.dialer)
            with destroy_at_end(launcher, acquired, keep=False):
                # The end itself is neither stopped nor silenced; the quota is free only after it.
                self._wait_for_quota(ended)
                if self.shared.slot.is_taken:
                    self.emit(Info(message="waits: on one machine only one type is measured at a time"))
                with self.shared.slot:  # before the launch: an instance that waits would be billed for it
                    self._run_all(replace(launcher, clock=self.clock, emit=self.emit))

    def _wait_for_quota(self, ended: ExitStack) -> None:
        """Wait until the account's vCPU quotas have room for the type, next to those that run."""
        needs = {place: vcpus for place, (_, vcpus) in self.plan.needs_by_place.items()}
        if not self.shared.quota.has_room(needs):
            self.emit(Info(message="waits until others have ended: the vCPU quota does not hold all types"))
        ended.enter_context(self.shared.quota.taking(needs))

    def _run_all(self, launcher: Launcher) -> None:
        prepare_access(launcher, self.shared.matrix.recipe_of_type(self.name))
        launched = launcher.launch(self.plan)
        self.launched = True
        members = launched.members
        for job in self._fitting(launched):
            if job.nodes is not None:
                members = self._keep(job.nodes, launcher, members)
            if len(members) < (job.nodes or 1):
                self.failed[job.name] = f"{len(members)} instance(s) are left of {job.nodes}"
                continue
            self._run(job, launcher, members)

    def _keep(self, nodes: int, launcher: Launcher, members: Sequence[Member]) -> list[Member]:
        """Terminate the instances that a job needs no more; return the others."""
        if self.failed:
            living = {member.instance.instance_id for member in launcher.reconcile()}
            members = [member for member in members if member.instance.instance_id in living]
        surplus = members[nodes:]
        if surplus:
            self.emit(Info(message=f"terminating {len(surplus)} instance(s): {nodes} are needed from here"))
            launcher.shrink(surplus)
        return list(members[:nodes])

    def _fitting(self, launched: LaunchedMembers) -> list[BenchJob]:
        """Return the jobs that fit the instance's real hardware; store and emit why others do not."""
        waiting = [job for job in self.shared.matrix.jobs if job.name in self.planned.waiting]
        connection = next(iter(launched.connections.values()))
        program = next(iter(self.shared.programs.values()))
        decided = fits(waiting, probe_machine(connection, program, instance_type=self.name))
        lacking = [left for left in decided.left_out if not left.setting]
        self.context.benches.put_left_out(self.shared.bench_id, self.name, lacking)
        for left in lacking:
            self.emit(Warned(message=f"{left.benchmark} is left out: {left.reason}"))
        return [job for job in waiting if job.name in decided.benchmarks]

    def _run(self, job: BenchJob, launcher: Launcher, members: Sequence[Member]) -> None:
        """Run one program; its failure keeps no other from running."""
        race = self.shared.race
        watch = None if race is None else RaceWatch(race=race, instance_type=self.name)
        runner = Runner(
            managed=launcher,
            recipe=self.shared.matrix.recipe_of_job(self.name, job),
            program=self.shared.programs[job.name],
            image_id=self.plan.machine.image.image_id,
            fresh=self.shared.fresh,
            environment=self.shared.environment,
            watch=watch,
        )
        try:
            run_workload(runner, members)
        except InstanceError as error:
            if watch is not None and watch.is_over:
                self.emit(Info(message="its round was cut off: its samples are stored, without a result"))
                self.done.append(job.name)
                return
            self.failed[job.name] = error.message
            self.emit(Warned(message=f"{job.name} failed: {error.message}"))
        else:
            self.done.append(job.name)


def label_events(emit: Emit, name: str) -> Emit:
    """Return an `emit` that labels every event with one name: a bench has one instance of a type."""

    def emit_labelled(event: Event) -> None:
        emit(replace(event, instance_id=name))

    return emit_labelled
