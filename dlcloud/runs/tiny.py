"""The tiny form of a workload: the real programs, with fewer repeats and steps."""

import shlex

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.recipe.workload import Workload


def has_tiny_form(workload: Workload) -> bool:
    """True if a benchmark, or the recipe of a command, says what makes it short."""
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    return bool(workload.tiny if benchmark is None else benchmark.tiny)


def tiny_form(workload: Workload) -> Workload:
    """Return the tiny form of a workload.

    A benchmark takes the parameters of its own tiny form; a command runs once instead of `repeats` times,
    with the arguments of `workload.tiny` appended.
    """
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is not None:
        return workload.model_copy(update={"parameters": {**workload.parameters, **benchmark.tiny}})
    command = " ".join([(workload.command or "").rstrip(), *map(shlex.quote, workload.tiny)])
    return workload.model_copy(update={"command": command, "repeats": 1, "tiny": []})


def describe_tiny(workload: Workload) -> str:
    """Return what the tiny form changes of a workload."""
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is not None:
        values = {
            name: value if isinstance(value, str) else " ".join(value)
            for name, value in benchmark.tiny.items()
        }
        return f"its tiny form: {', '.join(f'{name} {value}' for name, value in values.items())}"
    arguments = f"with {shlex.join(workload.tiny)}" if workload.tiny else "as it is (no workload.tiny)"
    return f"its tiny form: the command {arguments}" + ("" if workload.elastic else ", once")
