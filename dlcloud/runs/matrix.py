"""Read and check the matrix of a bench: instance types, and bundled benchmarks or a recipe's workload."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlcloud.analysis.bench import BenchJob, BenchmarkMatrix
from dlcloud.analysis.node_scaling import nodes_name
from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness.benchmark import Benchmark
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.launchers import unclear_nodes
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.recipe.workload import MEASURED_REPEATS, Workload
from dlcloud.runs.program import has_tiny_form, tiny_form

NAME = "bench"


def sweepable_benchmarks() -> list[str]:
    """Return the names of the benchmarks that run without parameters."""
    return [benchmark.name for benchmark in BENCHMARKS.values() if benchmark.sweep is not None]


def matrix_of_benchmarks(
    types: Sequence[str], benchmarks: Sequence[str], options: Mapping[str, Any], *, tiny: bool
) -> BenchmarkMatrix:
    """Return the matrix of bundled benchmarks on instance types.

    Args:
        types: Instance types.
        benchmarks: Names of benchmarks; if there are none, all but the language models.
        options: The top-level keys of a recipe except its workload.
        tiny: Whether to run the tiny forms.

    Raises:
        RecipeError: An unknown benchmark, or a bad option.
    """
    available = sweepable_benchmarks()
    unknown = [name for name in benchmarks if name not in available]
    if unknown:
        raise RecipeError(
            f"--benchmark {unknown[0]}: no such benchmark",
            f"available: {', '.join(available)}; for your own command: --recipe FILE",
        )
    usual = [name for name in available if not BENCHMARKS[name].only_if_named]
    names = list(dict.fromkeys(benchmarks or usual))
    jobs = tuple(_job(BENCHMARKS[name], tiny=tiny) for name in names)
    return _matrix(types, jobs, {"name": NAME, **options, "workload": jobs[0].workload.model_dump()})


def matrix_of_recipe(
    types: Sequence[str],
    recipe: Recipe,
    options: Mapping[str, Any],
    *,
    tiny: bool = False,
    nodes: Sequence[int] = (),
) -> BenchmarkMatrix:
    """Return the matrix of a recipe's workload on instance types.

    Args:
        types: Instance types; those of the recipe if there are none.
        recipe: The workload, with its set-up and its budget.
        options: Keys that replace the recipe's own, at any depth.
        tiny: Whether to run the workload's tiny form.
        nodes: The numbers of instances of a job over several; the recipe's own if there are none.

    Raises:
        RecipeError: A bad option, or the workload has no tiny form, or is no job over several instances.
    """
    workload = recipe.workload
    if recipe.experiment is not None:
        raise RecipeError(f"{recipe.name} has an experiment, not a benchmark", "dlcloud up RECIPE runs it")
    benchmark = BENCHMARKS.get(workload.benchmark) if workload.benchmark else None
    if workload.checkpoints:  # every measured run starts from the beginning
        plain = {"checkpoints": [], "resume": "none", "on_notice": "", "on_rebalance": False}
        workload = workload.model_copy(update=plain)
        recipe = recipe.model_copy(update={"checkpoints": None})
    if workload.command is not None and "repeats" not in workload.model_fields_set:
        workload = workload.model_copy(update={"repeats": MEASURED_REPEATS})
    if tiny:
        if not has_tiny_form(workload):
            hint = "workload.tiny: the arguments that make the command short"
            raise RecipeError(f"{recipe.name} has no tiny form: its recipe has no workload.tiny", hint)
        workload = tiny_form(workload)
    if workload.nodes is None and recipe.launcher is not None and recipe.launcher.over_all is None:
        raise unclear_nodes(recipe.launcher.name, recipe.instances.maximum)
    is_one_job = recipe.resized(max(nodes, default=recipe.instances.maximum)).is_one_job
    if is_one_job:  # on the smallest number of instances, too
        workload = workload.model_copy(update={"nodes": "all"})
    types = types or recipe.instances.types
    recipe = recipe.with_types(types)
    jobs: tuple[BenchJob, ...] = (
        BenchJob(name=workload.benchmark or recipe.name, workload=workload, benchmark=benchmark),
    )
    if is_one_job:
        jobs = _node_jobs(jobs[0], nodes or [recipe.instances.maximum])
    elif nodes:
        message = f"--nodes: {recipe.name} does not run one job over several instances"
        raise RecipeError(message, "set workload.nodes: all in the recipe")
    document = recipe.model_copy(update={"workload": workload}).model_dump(mode="json", exclude_none=True)
    if options.get("region"):
        for key in ("regions", "geography"):
            document.pop(key, None)
    return _matrix(types, jobs, _merge(document, options))


def _node_jobs(job: BenchJob, nodes: Sequence[int]) -> tuple[BenchJob, ...]:
    """Return a job for each number of nodes, the largest first: what it needs no more is terminated."""
    counts = sorted(set(nodes), reverse=True)
    return tuple(replace(job, name=nodes_name(job.name, count), nodes=count) for count in counts)


def repeat_matrix(matrix: BenchmarkMatrix, samples: int, *, types: Sequence[str] = ()) -> BenchmarkMatrix:
    """Return the matrix with at least this many samples of each setting; on `types` only, if given."""
    jobs = tuple(replace(job, workload=_repeat(job.workload, samples)) for job in matrix.jobs)
    return replace(matrix, jobs=jobs, types=tuple(types) or matrix.types)


def _repeat(workload: Workload, samples: int) -> Workload:
    if workload.command is not None:
        return workload.model_copy(update={"repeats": samples})
    return workload.model_copy(update={"parameters": {**workload.parameters, "rounds": str(samples)}})


def _job(benchmark: Benchmark, *, tiny: bool) -> BenchJob:
    parameters = {**(benchmark.sweep or {}), **(benchmark.tiny if tiny else {})}
    workload = Workload(benchmark=benchmark.name, parameters=parameters)
    return BenchJob(name=benchmark.name, workload=workload, benchmark=benchmark)


def _matrix(types: Sequence[str], jobs: tuple[BenchJob, ...], document: Mapping[str, Any]) -> BenchmarkMatrix:
    names = tuple(dict.fromkeys(types))
    count = max(job.nodes or 1 for job in jobs)
    document = _merge(document, {"instances": {"types": list(names), "count": count, "chosen_for": ""}})
    # The reader of recipes reports a bad option as it reports a bad recipe.
    base = read_recipe(json.dumps(_without_none(document)), "the options")
    return BenchmarkMatrix(base=base, types=names, jobs=jobs)


def _merge(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(document)
    for key, value in changes.items():
        if value is None:
            continue
        inner = merged.get(key)
        merged[key] = (
            _merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, dict) else value
        )
    return merged


def _without_none(value: Any) -> Any:  # noqa: ANN401 - a tree of JSON
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
