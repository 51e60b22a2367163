"""A bench: the same work on several instance types; what is to be done, and what came of it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from dlcloud.benchmarks.harness.benchmark import Benchmark
from dlcloud.core.errors import CapacityError, CloudError, DlcloudError, InstanceError, PartialError
from dlcloud.core.fit import Fit, Machine, fit, machine_of_type
from dlcloud.core.instance import InstanceType
from dlcloud.core.recipe import Recipe, Workload
from dlcloud.core.result import Run, RunState

RESUME_WINDOW = timedelta(days=7)
"""A bench that was cut off longer ago is begun anew."""

LONGEST_NAME = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing to run on every type; `benchmark` is None for the user's own command."""

    name: str
    workload: Workload
    benchmark: Benchmark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMatrix:
    """What a user asked a bench for.

    Attributes:
        base: A recipe with everything but the instance type and the workload.
        types: The instance types, each once.
        works: What runs on each, one after the other.
    """

    base: Recipe
    types: tuple[str, ...]
    works: tuple[Job, ...]

    @property
    def digest(self) -> str:
        """Return a digest of all that is asked for: the same order, interrupted, is taken up again."""
        said: list[object] = [self.base.model_dump(mode="json"), self.types]
        said += [[work.name, work.workload.model_dump(mode="json")] for work in self.works]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def of_type(self, name: str) -> Recipe:
        """Return the recipe of the cluster of one type, named after both; its workload is the first."""
        instances = self.base.instances.model_copy(update={"types": [name], "count": 1})
        label = f"{self.base.name}-{name.replace('.', '-')}"[:LONGEST_NAME].rstrip("-")
        update = {"name": label, "instances": instances, "workload": self.works[0].workload}
        return self.base.model_copy(update=update)

    def of_work(self, name: str, work: Job) -> Recipe:
        """Return the recipe of one work on one type."""
        return self.of_type(name).model_copy(update={"name": self.base.name, "workload": work.workload})


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeResult:
    """What became of one type.

    Attributes:
        instance_type: Which.
        done: The works that ended well, on earlier attempts included.
        failed: What went wrong with the others, by their names.
        refused: Why no instance could be had; None where one was, or where nothing was to be done.
    """

    instance_type: str
    done: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    refused: CloudError | None = None


def fits(works: Iterable[Job], hardware: InstanceType | Machine | None) -> Fit:
    """Say what of the works runs on a type, or on a machine that was looked at; on an unknown type, all."""
    from_catalog = [work.benchmark for work in works if work.benchmark is not None]
    own = tuple(work.name for work in works if work.benchmark is None)
    if hardware is None:
        return Fit(benchmarks=(*own, *(each.name for each in from_catalog)), left_out=(), advice=())
    machine = hardware if isinstance(hardware, Machine) else machine_of_type(hardware)
    decided = fit(from_catalog, machine)
    return Fit(benchmarks=(*own, *decided.benchmarks), left_out=decided.left_out, advice=decided.advice)


def done_before(runs: Iterable[Run]) -> set[tuple[str, str]]:
    """Return the instance types and workloads of the runs that ended well."""
    return {(run.instance_type, run.workload) for run in runs if run.state is RunState.DONE}


def fault_of(outcomes: Sequence[TypeResult]) -> DlcloudError | None:
    """Return the error that a bench ends with; None where everything that fits was measured.

    Something done and something not is a PartialError. Where nothing was done, it is what the types were
    refused for, or, where any instance could be had, that the programs failed.
    """
    refused = [each for each in outcomes if each.refused is not None]
    failed = [each for each in outcomes if each.failed]
    if not refused and not failed:
        return None
    message = "\n".join(_lines(outcomes))
    hint = "the same command again tries only what is missing"
    if any(each.done for each in outcomes):
        return PartialError(message, hint)
    if failed:
        return InstanceError(message, "dlcloud logs shows what the last of them printed")
    errors = [each.refused for each in refused if each.refused is not None]
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else CapacityError
    return kind(message, errors[0].hint)


def _lines(outcomes: Iterable[TypeResult]) -> Iterable[str]:
    for each in outcomes:
        if each.refused is not None:
            yield f"{each.instance_type} could not be had: {each.refused.message}"
        for name, told in each.failed.items():
            yield f"{name} failed on {each.instance_type}: {told}"
