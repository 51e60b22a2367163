"""What is trained: everything that a plain PyTorch loop has, as one value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer


class Samples(Protocol):
    """A map-style data set, as `torch.utils.data` has it."""

    def __len__(self) -> int:
        """Return how many samples there are."""

    def __getitem__(self, index: int, /) -> Any:  # noqa: ANN401 - whatever a sample is
        """Return a sample."""


Loss = Callable[[nn.Module, Any], Tensor]
"""Run the model on a collated batch and return the mean loss over the samples in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained.

    Attributes:
        model: On the device where it trains.
        optimizer: Made of the model's parameters.
        dataset: The same on every worker. What is random in it is repeatable: PyTorch's, Python's and numpy's
            generators are seeded for each sample of each step.
        loss: Called as `loss(model, batch)`; a mean over the samples, whatever their number.
        batch: Samples in a step, over all workers. The last step of an epoch has what is left: a layer that
            cannot do with one sample (BatchNorm on flat input) needs a batch that divides.
        steps: When to end.
        seed: Of the order of samples and everything random in training. The model's first parameters must be
            equal on all workers: seed them too.
        schedule: What the learning rates at the start are multiplied by, at a step from 0.
        shards: Makes the run exact: the batch is always computed in so many shards, so that every bit of the
            result is that of one fixed worker, on like processors. Costs so many times the traffic and memory
            of the gradients. None is faster and equal up to rounding.
        micro_batch: Most samples in one forward pass; what a share has more goes in several.
        before_step: Called between the sum of the gradients and the optimizer: for clipping.
        after_step: Called with the number of steps committed and the loss.
        loading: Processes that load samples ahead; 0 loads in between.
        collate: Makes a batch of samples; None is PyTorch's own.
    """

    model: nn.Module
    optimizer: Optimizer
    dataset: Samples
    loss: Loss
    batch: int
    steps: int
    seed: int = 0
    schedule: Callable[[int], float] | None = None
    shards: int | None = None
    micro_batch: int | None = None
    before_step: Callable[[], None] | None = None
    after_step: Callable[[int, float], None] | None = None
    loading: int = 0
    collate: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be trained.

        Raises:
            ValueError: A number is out of range, or both `shards` and `micro_batch` are given.
        """
        for name in ("batch", "steps", "shards", "micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.loading < 0:
            raise ValueError(f"loading must be at least 0, not {self.loading}")
        if not len(self.dataset):
            raise ValueError("the data set is empty")
        if self.batch > len(self.dataset):
            raise ValueError(f"a batch of {self.batch} is more than the data set has ({len(self.dataset)})")
        if self.shards and self.micro_batch:
            raise ValueError("give shards or micro_batch: a shard is a forward pass of its own")
