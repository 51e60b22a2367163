"""The tiny form of a workload: the real programs, with fewer repeats and steps."""

import shlex

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.command.shell import with_arguments
from dlcloud.benchmarks.harness.benchmark import Benchmark, Parameters
from dlcloud.recipe.workload import Workload

PROGRAMS = frozenset({"engine"})
"""Parameters that choose which programs are measured."""


def has_tiny_form(workload: Workload) -> bool:
    """True if a benchmark, or the recipe of a command, says what makes it short."""
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    return bool(workload.tiny if benchmark is None else benchmark.tiny)


def tiny_form(workload: Workload) -> Workload:
    """Return the tiny form of a workload.

    A benchmark takes the parameters of its own tiny form, but keeps the engines of the recipe; a command runs
    once instead of `repeats` times, with the arguments of `workload.tiny` appended.
    """
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is not None:
        parameters = {**workload.parameters, **_tiny_parameters(benchmark, workload)}
        return workload.model_copy(update={"parameters": parameters})
    command = with_arguments(workload.command or "", workload.tiny)
    return workload.model_copy(update={"command": command, "repeats": 1, "tiny": []})


def describe_tiny(workload: Workload) -> str:
    """Return what the tiny form changes of a workload."""
    benchmark = BENCHMARKS.get(workload.benchmark or "")
    if benchmark is not None:
        values = {
            name: value if isinstance(value, str) else " ".join(value)
            for name, value in _tiny_parameters(benchmark, workload).items()
        }
        return f"its tiny form: {', '.join(f'{name} {value}' for name, value in values.items())}"
    arguments = f"with {shlex.join(workload.tiny)}" if workload.tiny else "as it is (no workload.tiny)"
    return f"its tiny form: the command {arguments}" + ("" if workload.elastic else ", once")


def _tiny_parameters(benchmark: Benchmark, workload: Workload) -> Parameters:
    """Return what the tiny form sets: the recipe's programs are what is rehearsed."""
    return {
        name: value
        for name, value in benchmark.tiny.items()
        if name not in PROGRAMS or name not in workload.parameters
    }
