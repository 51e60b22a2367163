"""Load the samples of a worker's parts of a step, in between or ahead in processes of their own."""

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

SAMPLE, PART = 1, 2
"""What a random key is for; 0 would be the order of an epoch, which has no third number."""


@dataclass(frozen=True, slots=True)
class Part:
    """Samples that go through the model together.

    Attributes:
        start: Place of the first of them in the step's batch.
        samples: Their numbers in the data set.
    """

    start: int
    samples: Sequence[int]


@dataclass(frozen=True, slots=True)
class Turn:
    """A step as one worker sees it."""

    step: int
    rank: int
    size: int


Divide = Callable[[Turn], list[Part]]


def seed_everything(seed: int) -> None:
    """Seed PyTorch on every device, Python, and numpy where it is in use."""
    torch.manual_seed(seed)
    seed_loading(seed)


def seed_loading(seed: int) -> None:
    """Seed what samples are made with, on the CPU: a tenth of a millisecond less, and once per sample."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % (1 << 32))


class Batches:
    """Gives the batches of each turn; loads ahead as if the next turn had the same workers.

    Args:
        dataset: The samples.
        divide: Which parts of a step are this worker's.
        seed: Of what is random in a sample.
        loading: Processes; 0 loads in between.
        collate: Makes a batch of samples; None is PyTorch's own.
    """

    def __init__(
        self,
        *,
        dataset: Samples,
        divide: Divide,
        seed: int,
        loading: int,
        collate: Callable[[Sequence[Any]], Any] | None,
    ) -> None:
        self._keyed, self._divide = _Keyed(dataset, seed), divide
        self._collate = collate or default_collate
        self._ahead = _Ahead(divide)
        self._loader: Any = None
        if loading:
            self._loader = DataLoader(
                self._keyed,
                batch_sampler=self._ahead,
                num_workers=loading,
                persistent_workers=True,
                collate_fn=self._collate,
            )
        self._iterator: Iterator[Any] = iter(())
        self._next: Turn | None = None

    def of(self, turn: Turn) -> Iterator[tuple[Part, Any]]:
        """Give each part of this worker's turn that is not empty, with its batch."""
        if self._loader is not None and turn != self._next:
            self._ahead.turn = turn
            self._iterator = iter(self._loader)
        # Only a turn that was used up leaves the processes where the next one begins.
        self._next = None
        for part in self._divide(turn):
            if part.samples:
                yield part, self._batch(turn, part)
        self._next = Turn(turn.step + 1, turn.rank, turn.size)

    def _batch(self, turn: Turn, part: Part) -> Any:  # noqa: ANN401
        if self._loader is not None:
            return next(self._iterator)
        return self._collate([self._keyed[turn.step, sample] for sample in part.samples])


class _Keyed(Dataset):  # type: ignore[misc]  # PyTorch is not there where types are checked
    """The data set by step and sample, with all that is random in a sample keyed by both."""

    def __init__(self, dataset: Samples, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, place: tuple[int, int]) -> Any:  # noqa: ANN401
        step, sample = place
        seed_loading(key(self._seed, SAMPLE, step, sample))
        return self._dataset[sample]


@dataclass(slots=True)
class _Ahead:
    """The parts of all turns from one on, for the loading processes."""

    divide: Divide
    turn: Turn = field(default_factory=lambda: Turn(0, 0, 1))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        turn = self.turn
        while True:
            for part in self.divide(turn):
                if part.samples:
                    yield [(turn.step, sample) for sample in part.samples]
            turn = Turn(turn.step + 1, turn.rank, turn.size)


def moved(batch: Any, device: torch.device) -> Any:  # noqa: ANN401
    """Return a batch with its tensors on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: moved(each, device) for name, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(each, device) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(each, device) for each in batch)
    return batch
