"""A bench: the same jobs on several instance types, and the result of each type."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from dlcloud.analysis.node_scaling import nodes_name
from dlcloud.analysis.result import Run, RunState
from dlcloud.benchmarks.harness.benchmark import Benchmark, Parameters
from dlcloud.model.errors import CapacityError, CloudError, DlcloudError, InstanceError, PartialError
from dlcloud.model.instance import InstanceType
from dlcloud.planning.fit import Fit, Machine, fit, machine_of_type
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.workload import Workload

LONGEST_NAME = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchJob:
    """One workload for every type; `benchmark` is None for the user's own command.

    `nodes`: the number of instances of one job over several; None for one that runs on each by itself.
    """

    name: str
    workload: Workload
    benchmark: Benchmark | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMatrix:
    """The jobs and the instance types of a bench.

    Attributes:
        base: A recipe with everything but the instance type and the workload.
        types: The instance types, each once.
        jobs: Run on each type, one after the other.
        recipe_path: Of the recipe's file; empty if there is none.
        places: The region of each type, if the base has several.
    """

    base: Recipe
    types: tuple[str, ...]
    jobs: tuple[BenchJob, ...]
    recipe_path: str = ""
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The key under which an interrupted bench of the same matrix is resumed."""
        content: list[object] = [{"deadline": None, **self.base.values()}, self.types]
        content += [[job.name, job.workload.model_dump(mode="json")] for job in self.jobs]
        content += [self.recipe_path] if self.recipe_path else []  # its files are those of its folder
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def count(self) -> int:
        """The instances of each type: those of its largest job."""
        return max(job.nodes or 1 for job in self.jobs)

    def count_of(self, names: Collection[str]) -> int:
        """Return the instances that some of the jobs need."""
        return max((job.nodes or 1 for job in self.jobs if job.name in names), default=1)

    def recipe_of_type(self, name: str) -> Recipe:
        """Return the recipe of one type's cluster, named after both, with the first workload."""
        instances = self.base.instances.model_copy(update={"types": [name], "count": self.count})
        label = f"{self.base.name}-{name.replace('.', '-')}"[:LONGEST_NAME].rstrip("-")
        update = {"name": label, "instances": instances, "workload": self.jobs[0].workload}
        update["region"] = self.places.get(name, self.base.region)
        return self.base.model_copy(update=update)

    def recipe_of_job(self, name: str, job: BenchJob) -> Recipe:
        return self.recipe_of_type(name).model_copy(update={"name": self.base.name, "workload": job.workload})


def rehearsal_s(job: BenchJob) -> float | None:
    """Estimate the seconds that a job takes on two cores, without its environment; None for a command."""
    benchmark, parameters = job.benchmark, job.workload.parameters
    if benchmark is None:
        return None
    if benchmark.tiny and parameters.get("max-seconds") == benchmark.tiny.get("max-seconds"):
        return benchmark.tiny_s
    cases = count_cases(job)
    (most,) = _values(benchmark, parameters, "max-seconds")
    return cases * (float(most) + benchmark.case_s)


def matrix_s(matrix: BenchmarkMatrix) -> float | None:
    """Estimate the seconds that all jobs take on all types, one after the other; None if one is not known."""
    lengths = [rehearsal_s(job) for job in matrix.jobs]
    return None if None in lengths else sum(filter(None, lengths)) * len(matrix.types)


def count_cases(job: BenchJob) -> int:
    """Return how many cases a job measures; 1 for the user's own command."""
    benchmark, parameters = job.benchmark, job.workload.parameters
    if benchmark is None:
        return 1
    return prod(len(_values(benchmark, parameters, name)) or 1 for name in benchmark.selecting)


def _values(benchmark: Benchmark, parameters: Parameters, name: str) -> Sequence[str]:
    """Return the values of a parameter: those that are given, else its default; none if it has none."""
    given = parameters.get(name, benchmark.parameters[name].default)
    values = given if isinstance(given, list | tuple) else [given]
    return [str(value) for value in values if value not in {None, ""}]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeResult:
    """The result of one instance type.

    Attributes:
        done: The jobs that succeeded, in earlier attempts included.
        failed: The errors of the other jobs, by job name.
        refused: Why no instance was launched; None if one was, or if none was needed.
    """

    instance_type: str
    done: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    refused: CloudError | None = None


def fits(jobs: Sequence[BenchJob], hardware: InstanceType | Machine | None) -> Fit:
    """Return which jobs run on a type or a probed machine; on an unknown type, all."""
    from_catalog = [job.benchmark for job in jobs if job.benchmark is not None]
    own = tuple(job.name for job in jobs if job.benchmark is None)
    if hardware is None:
        return Fit(benchmarks=(*own, *(benchmark.name for benchmark in from_catalog)), left_out=(), advice=())
    machine = hardware if isinstance(hardware, Machine) else machine_of_type(hardware)
    parameters = {job.benchmark.name: job.workload.parameters for job in jobs if job.benchmark is not None}
    decided = fit(from_catalog, machine, parameters)
    return Fit(benchmarks=(*own, *decided.benchmarks), left_out=decided.left_out, advice=decided.advice)


def done_before(runs: Iterable[Run]) -> set[tuple[str, str]]:
    """Return the instance types and jobs of the runs that succeeded."""
    done = [run for run in runs if run.state is RunState.DONE and run.rank == 0]
    alone = {(run.instance_type, run.workload) for run in done}
    return alone | {(run.instance_type, nodes_name(run.workload, run.nodes)) for run in done}


def fault_of(results: Sequence[TypeResult]) -> DlcloudError | None:
    """Return the error that a bench ends with; None if all that fits was measured.

    A PartialError if a part was measured; else an InstanceError if a program failed, else the refusals.
    """
    refused = [result.refused for result in results if result.refused is not None]
    failed = [result for result in results if result.failed]
    if not refused and not failed:
        return None
    message = "\n".join(_lines(results))
    hint = "the same command measures only what is missing"
    if any(result.done for result in results):
        return PartialError(message, hint)
    if failed:
        return InstanceError(message, "dlcloud logs prints the output of the newest run")
    kinds = {type(error) for error in refused}
    kind = kinds.pop() if len(kinds) == 1 else CapacityError
    return kind(message, refused[0].hint)


def _lines(results: Iterable[TypeResult]) -> Iterable[str]:
    for result in results:
        if result.refused is not None:
            yield f"{result.instance_type} was refused: {result.refused.message}"
        for job, message in result.failed.items():
            yield f"{job} failed on {result.instance_type}: {message}"
