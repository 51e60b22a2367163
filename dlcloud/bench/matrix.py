"""What a user asks a bench for, read and checked: bundled benchmarks, or the workload of a recipe."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness.benchmark import Benchmark
from dlcloud.core.bench import BenchmarkMatrix, Job
from dlcloud.core.errors import RecipeError
from dlcloud.core.recipe import Recipe, Workload, read_recipe

NAME = "bench"


def sweepable() -> list[str]:
    """Return the names of the benchmarks that run without being told anything."""
    return [each.name for each in BENCHMARKS.values() if each.sweep is not None]


def bundled_order(
    types: Sequence[str], benchmarks: Sequence[str], options: Mapping[str, Any], *, tiny: bool
) -> BenchmarkMatrix:
    """Return the order of bundled benchmarks on types.

    Args:
        types: Instance types.
        benchmarks: Their names; all if there are none.
        options: The top-level keys of a recipe beside its workload.
        tiny: Whether each runs in its tiny form.

    Raises:
        RecipeError: A name is none, or an option means nothing.
    """
    known = sweepable()
    unknown = [name for name in benchmarks if name not in known]
    if unknown:
        raise RecipeError(
            f"--benchmark {unknown[0]}: there is no such benchmark to run by itself",
            f"there are: {', '.join(known)}; for your own command: --recipe FILE",
        )
    names = list(dict.fromkeys(benchmarks or known))
    works = tuple(_work(BENCHMARKS[name], tiny=tiny) for name in names)
    return _order(types, works, {"name": NAME, **options, "workload": works[0].workload.model_dump()})


def recipe_order(
    types: Sequence[str], recipe: Recipe, options: Mapping[str, Any], *, tiny: bool = False
) -> BenchmarkMatrix:
    """Return the order of a recipe's workload on types.

    Args:
        types: Instance types, instead of the recipe's own; its own, all of them, where there are none.
        recipe: What to run, with its set-up and its budget.
        options: What stands in place of the recipe's own keys, down to single ones.
        tiny: Whether its benchmark runs in its tiny form.

    Raises:
        RecipeError: An option means nothing, or the workload has no tiny form.
    """
    workload = recipe.workload
    benchmark = BENCHMARKS.get(workload.benchmark) if workload.benchmark else None
    if tiny:
        if benchmark is None or not benchmark.tiny:
            raise RecipeError(f"{recipe.name} has no tiny form: its program is its own")
        parameters = {**workload.parameters, **benchmark.tiny}
        workload = workload.model_copy(update={"parameters": parameters})
    types = types or recipe.instances.types
    work = Job(name=workload.benchmark or recipe.name, workload=workload, benchmark=benchmark)
    said = recipe.model_copy(update={"workload": workload}).model_dump(mode="json", exclude_none=True)
    return _order(types, (work,), _merged(said, options))


def _work(benchmark: Benchmark, *, tiny: bool) -> Job:
    parameters = {**(benchmark.sweep or {}), **(benchmark.tiny if tiny else {})}
    workload = Workload(benchmark=benchmark.name, parameters=parameters)
    return Job(name=benchmark.name, workload=workload, benchmark=benchmark)


def _order(types: Sequence[str], works: tuple[Job, ...], said: Mapping[str, Any]) -> BenchmarkMatrix:
    names = tuple(dict.fromkeys(types))
    whole = _merged(said, {"instances": {"types": list(names), "count": 1}})
    # Through the reader of recipes, so that an option is refused in the words in which a recipe would be.
    base = read_recipe(json.dumps(_without_none(whole)), "what was asked for")
    return BenchmarkMatrix(base=base, types=names, works=works)


def _merged(said: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(said)
    for key, value in more.items():
        if value is None:
            continue
        inner = merged.get(key)
        merged[key] = (
            _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, dict) else value
        )
    return merged


def _without_none(value: Any) -> Any:  # noqa: ANN401  a tree of JSON
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
