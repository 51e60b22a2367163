"""Run processes that only report facts, such as those of a model that they build."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import program
from .variant import WorkerVariant

# Small networks are trained in NumPy: OpenBLAS's threads, which poll while they wait, only slow that down
# (on a busy machine to a tenth and less), and one thread sums in one order.
_ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class FactReader:
    """Starts processes that report facts; `close` ends those that still run."""

    _running: list[WorkerVariant] = field(default_factory=list)

    def read(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        variables: Mapping[str, str],
        python: str = sys.executable,
    ) -> Mapping[str, Any]:
        """Return the facts of a factory's workload, made in a process that gives its memory back.

        Raises:
            VariantError: The workload cannot be made.
        """
        variant = WorkerVariant(
            name=factory,
            unit="",
            factory=factory,
            arguments=arguments,
            environment=program.environment({**_ONE_BLAS_THREAD, **variables}),
            python=python,
        )
        self._running.append(variant)
        try:
            return variant.start()
        finally:
            variant.close()
            self._running.remove(variant)

    def close(self) -> None:
        for variant in tuple(self._running):
            variant.close()
