"""Run the processes that build models and prove kernels, two at once where there is memory for both."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..harness import program, usage
from ..harness.variant import WorkerVariant
from .formats import is_user_model

AT_ONCE = 2
"""Most of the time a builder computes on one core; more of them would only wait for memory and the disk."""

BUILDER_BYTES = 5 * usage.GIB // 2
"""Most memory of a builder of the largest bundled network, VGG19: 1.8 GiB were measured."""

# Small networks are trained in NumPy: OpenBLAS's threads, which poll while they wait, only slow that down
# (on a busy machine to a tenth and less), and one thread sums in one order.
_ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

Built = TypeVar("Built")


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


def count_at_once(network: str, free_bytes: int | None, cores: int | None = None) -> int:
    """Return how many builders may run at once: one where memory is short or the model is the user's."""
    room = AT_ONCE if free_bytes is None else free_bytes // BUILDER_BYTES
    most = 1 if is_user_model(network) else min(AT_ONCE, cores or os.cpu_count() or 1)
    return max(1, min(most, room))


def build_all(builds: Sequence[Callable[[], Built]], at_once: int, reader: FactReader) -> list[Built]:
    """Return what the builds return, in their order; the last is begun first, for int8 takes longest.

    A failure or an interruption ends the processes of the others.

    Raises:
        VariantError: A build failed.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(build) for build in reversed(builds)]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            reader.close()
            raise
    return [future.result() for future in reversed(futures)]
