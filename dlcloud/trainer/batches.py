"""Load the samples of a worker's share of a step, between steps or ahead in separate processes."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from .job import Samples
from .sampler import key

SAMPLE, MICROBATCH = 1, 2
"""Purposes of random keys. The order of an epoch has a key without a third number."""


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Samples that go through the model together.

    Attributes:
        start: Place of the first sample in the step's batch.
    """

    start: int
    samples: Sequence[int]


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A step, and the place of one worker in it."""

    step: int
    rank: int
    size: int


Divide = Callable[[WorkerStep], list[Microbatch]]


def seed_everything(seed: int) -> None:
    """Seed PyTorch on every device, Python, and numpy where it is in use."""
    torch.manual_seed(seed)
    seed_loading(seed)


def seed_loading(seed: int) -> None:
    """Seed the generators that samples use, on the CPU only: once per sample, and 0.1 ms faster."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % (1 << 32))


class Batches:
    """Loads the batches of each step; loads ahead as if the next step had the same workers.

    Args:
        divide: Returns the microbatches of a step that are this worker's.
        seed: Of the randomness in a sample.
        loading: Processes; 0 loads between steps.
        collate: Makes a batch of samples; None is PyTorch's own.
        seeds_alone: False: a worker that is alone loads samples without seeding the generators.
    """

    def __init__(
        self,
        *,
        dataset: Samples,
        divide: Divide,
        seed: int,
        loading: int,
        collate: Callable[[Sequence[Any]], Any] | None,
        seeds_alone: bool = True,
    ) -> None:
        self._dataset, self._seeds_alone = dataset, seeds_alone
        self._seeded, self._divide = _SeededDataset(dataset, seed), divide
        self._collate = collate or default_collate
        self._upcoming = _Upcoming(divide)
        self._loader: Any = None
        if loading:
            self._loader = DataLoader(
                self._seeded,
                batch_sampler=self._upcoming,
                num_workers=loading,
                persistent_workers=True,
                collate_fn=self._collate,
            )
        self._iterator: Iterator[Any] = iter(())
        self._next: WorkerStep | None = None

    def of(self, place: WorkerStep) -> Iterator[tuple[Microbatch, Any]]:
        """Yield every microbatch of this worker that is not empty, with its batch."""
        if self._loader is not None and place != self._next:
            self._upcoming.place = place
            self._iterator = iter(self._loader)
        # Only a step whose batches were all taken leaves the processes at the start of the next one.
        self._next = None
        for microbatch in self._divide(place):
            if microbatch.samples:
                yield microbatch, self._batch(place, microbatch)
        self._next = WorkerStep(place.step + 1, place.rank, place.size)

    def _batch(self, place: WorkerStep, microbatch: Microbatch) -> Any:  # noqa: ANN401
        if self._loader is not None:
            return next(self._iterator)
        if place.size == 1 and not self._seeds_alone:
            return self._collate([self._dataset[sample] for sample in microbatch.samples])
        return self._collate([self._seeded[place.step, sample] for sample in microbatch.samples])


class _SeededDataset(Dataset):  # type: ignore[misc]  # PyTorch is not there where types are checked
    """The data set by step and sample; the generators are seeded by both."""

    def __init__(self, dataset: Samples, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, index: tuple[int, int]) -> Any:  # noqa: ANN401
        step, sample = index
        seed_loading(key(self._seed, SAMPLE, step, sample))
        return self._dataset[sample]


@dataclass(slots=True)
class _Upcoming:
    """The samples of all microbatches from one step on, for the loading processes."""

    divide: Divide
    place: WorkerStep = field(default_factory=lambda: WorkerStep(0, 0, 1))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        place = self.place
        while True:
            for microbatch in self.divide(place):
                if microbatch.samples:
                    yield [(place.step, sample) for sample in microbatch.samples]
            place = WorkerStep(place.step + 1, place.rank, place.size)


def move_to_device(batch: Any, device: torch.device) -> Any:  # noqa: ANN401
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: move_to_device(item, device) for name, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to_device(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move_to_device(item, device) for item in batch)
    return batch
