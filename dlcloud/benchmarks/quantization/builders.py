"""Run the processes that build models and prove kernels, two at once where there is memory for both."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from ..harness import usage
from ..harness.preparation import FactReader
from .formats import is_user_model

AT_ONCE = 2
"""Most of the time a builder computes on one core; more of them would only wait for memory and the disk."""

BUILDER_BYTES = 5 * usage.GIB // 2
"""Most memory of a builder of the largest bundled network, VGG19: 1.8 GiB were measured."""

Built = TypeVar("Built")


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
