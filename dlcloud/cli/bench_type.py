"""What a bench does on one instance type: an instance up, what fits run on it, the instance terminated."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from dlcloud.bench.parallel import ExclusiveSlot, StoppableClock, StoppedError, stop_emitting
from dlcloud.bench.probe import look
from dlcloud.bench.program import Program
from dlcloud.bench.run import Runner
from dlcloud.cli.context import Context
from dlcloud.cli.lifecycle import acquire_for_command, brought_up, taken_down_after
from dlcloud.core.bench import BenchmarkMatrix, Job, TypeResult, fits
from dlcloud.core.cluster import Cluster
from dlcloud.core.errors import CloudError, DlcloudError, InstanceError
from dlcloud.core.events import Emit, Event, Notice, Warned
from dlcloud.core.plan import Plan
from dlcloud.core.protocols import Cloud
from dlcloud.core.remote import Dial
from dlcloud.launch.lock import RecipeFile
from dlcloud.launch.up import ConnectedMembers
from dlcloud.report.bench import TypePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all types of a bench have in common.

    Attributes:
        bench_id: Under which it is stored.
        order: What is asked for.
        programs: What each work runs, by name.
        cloud: Where.
        fresh: Measure again what an interrupted run had measured.
        stop: Set when all are to stop.
        turns: Who may measure now.
        dials: What connects to instances; closed when all are to stop.
    """

    bench_id: str
    order: BenchmarkMatrix
    programs: Mapping[str, Program]
    cloud: Cloud
    fresh: bool
    stop: threading.Event
    turns: ExclusiveSlot
    dials: list[Dial] = field(default_factory=list)

    def hang_up(self) -> None:
        """End every connection, so that nobody waits for what an instance may still say."""
        for dial in list(self.dials):
            dial.close()


def recipe_file(order: BenchmarkMatrix, name: str) -> RecipeFile:
    """Return the recipe of one type's cluster, as the store remembers it."""
    recipe = order.of_type(name)
    said = recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return RecipeFile(recipe=recipe, text=json.dumps(said, indent=1), path="")


@dataclass(kw_only=True)
class TypeRun:
    """One type of a bench.

    Args:
        shared: What it has in common with the others.
        context: Tells of everything under the type's name.
        planned: What is to be run.
        plan: How an instance is had.
        done: The works that are done; grows.
        failed: What went wrong with others, by name; grows.
    """

    shared: Shared
    context: Context
    planned: TypePlan
    plan: Plan
    done: list[str]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the instance type."""
        return self.planned.instance_type

    @cached_property
    def emit(self) -> Emit:
        """Where its steps are told, until all are stopped."""
        return stop_emitting(self.context.emit, self.shared.stop)

    @cached_property
    def clock(self) -> StoppableClock:
        """The clock of its steps."""
        return StoppableClock(self.context.clock, self.shared.stop)

    def outcome(self) -> TypeResult:
        """Bring the instance up, run, terminate it, and say what became of it."""
        refused: CloudError | None = None
        try:
            self._in_charge()
        except CloudError as error:
            refused = error
        except DlcloudError as error:
            left = [work for work in self.planned.waiting if work not in {*self.done, *self.failed}]
            self.failed |= dict.fromkeys(left or ["the end"], error.message)
        if self.shared.stop.is_set():
            raise StoppedError
        return TypeResult(instance_type=self.name, done=tuple(self.done), failed=self.failed, refused=refused)

    def _in_charge(self) -> None:
        if self.shared.stop.is_set():
            return
        claim = acquire_for_command(self.context, recipe_file(self.shared.order, self.name))
        try:
            self.context.benches.add_cluster(self.shared.bench_id, claim.cluster.cluster_id)
            with taken_down_after(self.context, claim, keep=False):
                self._run_all(claim.cluster)
        finally:
            claim.lock.release()

    def _run_all(self, cluster: Cluster) -> None:
        dial = self.context.dialer(cluster)
        self.shared.dials.append(dial)
        reached = brought_up(
            self.context,
            cluster,
            self.plan,
            cloud=self.shared.cloud,
            dial=dial,
            clock=self.clock,
            emit=self.emit,
        )
        for work in self._fitting(reached):
            if self.shared.turns.taken:
                self.emit(Notice(message=f"{work.name} waits: on one machine only one is measured at a time"))
            with self.shared.turns:
                self._run(work, cluster, reached, dial)

    def _fitting(self, reached: ConnectedMembers) -> list[Job]:
        """Return the works that fit what the instance really has; store and tell why others do not."""
        waiting = [work for work in self.shared.order.works if work.name in self.planned.waiting]
        connection = next(iter(reached.connections.values()))
        program = next(iter(self.shared.programs.values()))
        decided = fits(waiting, look(connection, program, instance_type=self.name))
        lacking = [left for left in decided.left_out if not left.setting]
        self.context.benches.put_left_out(self.shared.bench_id, self.name, lacking)
        for left in lacking:
            self.emit(Warned(message=f"{left.benchmark} is left out: {left.reason}"))
        return [work for work in waiting if work.name in decided.benchmarks]

    def _run(self, work: Job, cluster: Cluster, reached: ConnectedMembers, dial: Dial) -> None:
        """Run one program; that it fails keeps no other from running."""
        context = self.context
        runner = Runner(
            cluster=cluster,
            recipe=self.shared.order.of_work(self.name, work),
            program=self.shared.programs[work.name],
            image_id=self.plan.image.image_id,
            cloud=self.shared.cloud,
            dial=dial,
            runs=context.runs,
            paths=context.paths,
            clock=self.clock,
            emit=self.emit,
            fresh=self.shared.fresh,
        )
        try:
            runner.run_all(reached.members)
        except InstanceError as error:
            self.failed[work.name] = error.message
            self.emit(Warned(message=f"{work.name} failed: {error.message}"))
        else:
            self.done.append(work.name)


def labelled(emit: Emit, name: str) -> Emit:
    """Return an `emit` that tells everything under one name: a bench has one instance of a type."""

    def tell(event: Event) -> None:
        emit(replace(event, instance_id=name))

    return tell
