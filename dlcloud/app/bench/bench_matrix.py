"""What the options of `dlcloud bench` make of a recipe, and the command that repeats it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlcloud.app.recipe_files import profile_defaults, read_recipe_file
from dlcloud.model.errors import RecipeError
from dlcloud.results.bench import BenchmarkMatrix
from dlcloud.runs.matrix import matrix_of_benchmarks, matrix_of_recipe


def recipe_keys(
    cloud: str | None, region: str | None, max_hours: str | None, max_usd: str | None, *, spot: bool
) -> dict[str, Any]:
    """Return the options that replace keys of the recipe; None leaves a key as it is."""
    return {
        "cloud": cloud,
        "region": region,
        "instances": {"market": "spot" if spot else None},
        "budget": {"max_hours": max_hours, "max_usd": max_usd},
    }


def command_again(
    benchmarks: Sequence[str],
    recipe: str,
    keys: Mapping[str, Any],
    nodes: Sequence[int] = (),
    *,
    is_rehearsal: bool,
) -> str:
    """Return the command that measures the same again, but for its types and the number of samples.

    What was rehearsed is measured on AWS, also where the recipe says `cloud: local`.
    """
    words = ["dlcloud", "bench", *(["--recipe", recipe] if recipe else [])]
    words += [word for name in benchmarks for word in ("-b", name)]
    words += ["--nodes", ",".join(map(str, nodes))] if nodes else []
    words += ["--cloud", "aws"] if is_rehearsal else []
    words += ["--region", keys["region"]] if keys["region"] else []
    return shlex.join([*words, *(["--spot"] if keys["instances"]["market"] else [])])


def read_matrix(
    types: Sequence[str],
    benchmarks: Sequence[str],
    recipe: str,
    keys: dict[str, Any],
    *,
    tiny: bool,
    nodes: Sequence[int] = (),
) -> tuple[BenchmarkMatrix, Path]:
    """Return the matrix, and the folder that the files of a recipe's workload are relative to."""
    if recipe and benchmarks:
        raise RecipeError("--recipe brings its own workload", "leave --benchmark out")
    if nodes and not recipe:
        raise RecipeError(
            "--nodes needs the recipe of a job", "dlcloud bench --recipe torchrun-ddp --nodes 1,2"
        )
    if not recipe and not types:
        raise RecipeError(
            "no instance type given", "dlcloud bench --instance c7i.xlarge --instance g4dn.xlarge"
        )
    keys = {key: value for key, value in keys.items() if value is not None}
    if not recipe:
        return matrix_of_benchmarks(types, benchmarks, profile_defaults(keys), tiny=tiny), Path()
    file = read_recipe_file(recipe)
    matrix = matrix_of_recipe(types, file.recipe, keys, tiny=tiny, nodes=nodes)
    return replace(matrix, recipe_path=file.path), Path(file.path).parent if file.path else Path()
