"""The interface between the loop and the other workers, and its implementation for a worker that is alone."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

State = dict[str, Any]
"""All that a newcomer needs: tensors and plain values only, so that it can be read from a peer safely."""


class StateError(Exception):
    """A state does not fit the model or the optimizer; nothing, or all, is to be loaded again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """A worker's place in one step.

    Attributes:
        rank: From 0.
        quorum: Grows with every change of membership; begins again with a new lighthouse.
        healed: True if the state has just been fetched from a peer.
        left: Workers that have left so far, and said so.
        instances: On which they run.
        leaves: True if the workers of this instance leave after the step.
    """

    rank: int
    size: int
    quorum: int
    healed: bool = False
    left: int = 0
    instances: int = 1
    leaves: bool = False


class Engine(Protocol):
    """The other workers, as one of them sees them."""

    step: int
    """Committed steps."""

    def begin(self, *, leaving: bool) -> StepPlace | None:
        """Agree on the participants of the next step and fetch a peer's state if this one is behind.

        `leaving` says that this worker was asked to leave. Returns None where that failed and is to be
        repeated.

        Raises:
            NoQuorumError: No agreement; to be repeated.
            WrongRunError: The peer's state belongs to another run.
        """

    def ask(self, *, leaving: bool) -> None:
        """Ask for the next step now, as `begin` does, while this worker still finishes the last one."""

    def depart(self) -> None:
        """Leave after the step that has begun, so that peers don't wait for this worker then."""

    def allreduce(self, values: Tensor) -> None:
        """Begin to sum the values of all workers, in place; the result is certain after `commit` only."""

    def wait(self, limit_s: float | None) -> bool:
        """Wait for every reduction; False where one failed.

        Args:
            limit_s: Time after which a reduction is given up; None where a newcomer may be fetching state.
        """

    def commit(self, *, agreed: bool) -> bool:
        """Count the step as committed, unless a reduction failed or this worker does not agree."""

    def reset(self) -> None:
        """Begin again without a state, to fetch a peer's."""

    def close(self) -> None:
        """Leave."""


class Solo:
    """The only worker of a run: also that of a script that no agent started."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def begin(self, *, leaving: bool) -> StepPlace:
        return StepPlace(rank=0, size=1, quorum=0, leaves=leaving)

    def ask(self, *, leaving: bool) -> None:
        """Do nothing: there is no peer."""

    def depart(self) -> None:
        """Do nothing: there is no peer."""

    def allreduce(self, values: Tensor) -> None:
        """Leave the values as they are."""

    def wait(self, limit_s: float | None) -> bool:  # noqa: ARG002 - there is no peer to wait for
        return True

    def commit(self, *, agreed: bool) -> bool:
        self.step += agreed
        return agreed

    def reset(self) -> None:
        self.step = 0

    def close(self) -> None:
        """Do nothing."""


Load = Callable[[State], None]
Save = Callable[[], State]
Connect = Callable[[int, Load, Save], Engine]
"""Make an engine for a state with this many committed steps, which can be loaded and saved."""


def copy_state(value: Any) -> Any:  # noqa: ANN401 - any tree of tensors and plain values
    """Copy a state to the CPU, so that training may continue while the copy is written or sent."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: copy_state(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copy_state(item) for item in value)
    return value


def digest_of(state: State) -> str:
    """Return a digest of every tensor and value of a state: equal only where all bits are."""
    total = hashlib.blake2b(digest_size=16)
    for name, value in _leaves(state, ""):
        total.update(name.encode())
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            total.update(flat.view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(value).encode())
    return total.hexdigest()


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{name}/{number}")
    else:
        yield name, value
