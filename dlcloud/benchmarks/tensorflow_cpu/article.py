"""Work out an article's settings for a machine: Intel's and Amazon's best-known methods of 2018.

Source: "Amazon Web Services Works with Intel to Enable Optimized Deep Learning Frameworks on Amazon EC2 CPU
Instances", Intel AI blog, 2018: as many OpenMP and intra-op threads as physical cores, one inter-op thread,
NCHW, and Intel's MKL-DNN, which TensorFlow calls oneDNN today.
"""

from collections.abc import Mapping, Sequence

from .knobs import Knob, Setting, Value, stock
from .machine import Machine


def article(knobs: Sequence[Knob], machine: Machine) -> Setting:
    """Return the article's settings; the OpenMP variables are the value of a knob of their own."""
    cores = len(machine.cores)
    by_name = {(knob.name, value.name): value for knob in knobs for value in knob.values}
    return {
        **stock(knobs),
        "onednn": by_name["onednn", "on"],
        "layout": by_name["layout", "NCHW"],
        "intra": Value(name=str(cores), arguments={"intra": cores}),
        "inter": Value(name="1", arguments={"inter": 1}),
        "openmp": Value(name="article", environment=openmp(cores)),
    }


def openmp(cores: int) -> dict[str, str]:
    """Return the article's variables; its `verbose` is left out, which only prints."""
    return {
        "OMP_NUM_THREADS": str(cores),
        "OMP_PROC_BIND": "true",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": "1",
        "KMP_SETTINGS": "1",
    }


def told(machine: Machine, proven: Mapping[str, object]) -> dict[str, object]:
    """Return what became of the article's rules here.

    Args:
        machine: What they were worked out for.
        proven: Facts of a process that has trained a step: `openmp_runtime` is the library that it loaded.
    """
    variables = openmp(len(machine.cores))
    facts: dict[str, object] = {
        "physical_cores_found": len(machine.cores),
        "hyper_threads_per_core": machine.threads_per_core,
        "openmp_settings": " ".join(f"{name}={text}" for name, text in variables.items()),
    }
    if proven.get("openmp_runtime") is None:
        facts["ignored"] = (
            f"{', '.join(variables)}: this TensorFlow runs on Eigen's threads and has loaded no OpenMP"
        )
    return facts
