"""A training job: everything that a plain PyTorch loop has, and the state that training changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from .coordination.ledger import WrongRunError
from .drain import Drain
from .engine import State, StateError, digest_of
from .records import History
from .sampler import key


class Samples(Protocol):
    """A map-style data set, as `torch.utils.data` has it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...  # noqa: ANN401 - a sample is whatever `collate` takes


Loss = Callable[[nn.Module, Any], Tensor]
"""`loss(model, batch) -> Tensor`: gets the model in training mode and a batch that `collate` made, on the
model's device. Returns the mean loss over its samples, a tensor of one element; `train` calls `backward`.
"""

Schedule = Callable[[int], float]
"""`schedule(step) -> float`: returns the factor of the optimizer's initial learning rates at a step, from 0.
It depends on the step alone.
"""

BeforeStep = Callable[[], None]
"""`before_step() -> None`: called on every worker once a step, when `parameter.grad` holds the sum over all
workers, before `optimizer.step()`.
"""

AfterStep = Callable[[int, float], None]
"""`after_step(steps, loss) -> None`: called on every worker after a step, with the number of steps so far,
from 1, and the mean loss over the whole batch.
"""

Collate = Callable[[Sequence[Any]], Any]
"""`collate(samples) -> batch`: gets a list of what `dataset[index]` returned, and makes the batch that `loss`
gets: tensors, or lists, tuples and dictionaries of tensors.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """A training job; its fields are the arguments of `training.train`, where they are described.

    Three more are for loops of other libraries (`transformers.py`):

    Attributes:
        order: Returns the samples of an epoch in their order, in place of one by `seed`.
        backward: `backward(place, microbatch, batch, samples) -> Tensor`, in place of `loss`: backpropagates
            the share that a microbatch has in the loss of its step of this many samples, and returns it. Then
            microbatches begin at multiples of `micro_batch`, and a worker that is alone seeds nothing.
        after_commit: `after_commit(place, loss) -> None`, called as `after_step` with the place in the step.
    """

    model: nn.Module
    optimizer: Optimizer
    dataset: Samples
    loss: Loss
    batch: int
    steps: int
    seed: int = 0
    schedule: Schedule | None = None
    shards: int | None = None
    micro_batch: int | None = None
    before_step: BeforeStep | None = None
    after_step: AfterStep | None = None
    loading: int = 0
    collate: Collate | None = None
    order: Callable[[int], Sequence[int]] | None = None
    backward: Callable[..., Tensor] | None = None
    after_commit: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

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
            raise ValueError("give shards or micro_batch: a shard is its own forward pass")


LONGEST_FAULT = 200


class TrainingState:
    """What training changes: model, optimizer, and the number of committed steps.

    Args:
        fingerprint: Of run and settings, which all workers share.
        drain: Must not interrupt the loading of a state.
        history: The records of the steps; that of the last one is a part of the state.

    Attributes:
        lineage: Distinguishes this sequence of commits from every other one.
        parent: The lineage before the last commit of this worker.
    """

    def __init__(self, job: WorkerJob, fingerprint: int, drain: Drain, history: History) -> None:
        self._job, self._fingerprint, self._drain, self._history = job, fingerprint, drain, history
        self._rates = [group["lr"] for group in job.optimizer.param_groups]
        self.step = self.lineage = self.parent = 0

    def save(self) -> State:
        """Return the state; its tensors are the ones that are trained."""
        return {
            "fingerprint": self._fingerprint,
            "step": self.step,
            "lineage": self.lineage,
            "record": self._history.find(self.step),
            "model": self._job.model.state_dict(),
            "optimizer": self._job.optimizer.state_dict(),
        }

    def load(self, state: State) -> None:
        """Replace the state.

        Raises:
            WrongRunError: It belongs to another run, or to other settings.
            StateError: It does not fit; this worker counts from 0 then, and needs another one.
        """
        if state.get("fingerprint") != self._fingerprint:
            raise WrongRunError(
                "this state is of another run, or of other settings (batch, seed, shards, data set, model)"
            )
        with self._drain.uninterruptible():
            try:
                step, lineage = _whole(state["step"]), _whole(state["lineage"])
                self._job.model.load_state_dict(state["model"])
                self._job.optimizer.load_state_dict(state["optimizer"])
            except Exception as error:
                # PyTorch's errors have no class in common; a half of the state may have been loaded.
                self.reset()
                raise StateError(f"{type(error).__name__}: {error}"[:LONGEST_FAULT]) from error
            self.step, self.lineage = step, lineage
        record = state.get("record")
        self._history.rewind(self.step, record if isinstance(record, str) else None)

    def reset(self) -> None:
        """Count from 0, so that a peer's state replaces this one."""
        self.step = self.lineage = 0

    def add_lineage(self, step: int, nonce: int) -> None:
        self.parent = self.lineage
        self.lineage = key(self.parent, step, nonce) >> 31

    def set_learning_rates(self, step: int) -> None:
        """Set the optimizer's learning rates for a step from 0."""
        factor = self._job.schedule(step) if self._job.schedule else 1.0
        for group, rate in zip(self._job.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def digest(self) -> str:
        """Return a digest of model and optimizer; lineages differ even where results are equal."""
        state = self.save()
        return digest_of({name: state[name] for name in ("step", "model", "optimizer")})


def _whole(value: Any) -> int:  # noqa: ANN401 - whatever a peer sent
    if type(value) is not int or value < 0:
        raise ValueError(f"not a whole number of at least 0: {value!r:.50}")
    return value
