"""What the loop asks of whoever knows the other workers, and the answer of a worker that is alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

State = dict[str, Any]
"""All that a newcomer needs: tensors and plain values only, so that it can be read without trust."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker's place in one step.

    Attributes:
        rank: From 0.
        size: Workers in this step.
        quorum: Grows with every change of membership, and begins anew with the lighthouse.
        healed: The state has just been taken from a live peer.
    """

    rank: int
    size: int
    quorum: int
    healed: bool = False


class Engine(Protocol):
    """The other workers, as one of them sees them."""

    @property
    def step(self) -> int:
        """Return how many steps are committed."""

    def begin(self) -> Member | None:
        """Agree on who takes part in the next step, taking state from a peer if behind; None: try again.

        Raises:
            NoQuorumError: No agreement; to be tried again.
            StrangerError: The peer's state is not of this run.
        """

    def depart(self) -> None:
        """Give no more sign of life, so that nobody waits for this worker after the step that has begun."""

    def sum(self, values: Tensor) -> None:
        """Begin to add up the values of all workers, in place; known to be done after `commit` only."""

    def wait(self, limit_s: float | None) -> bool:
        """Wait for every sum begun; False where one failed.

        Args:
            limit_s: After which a sum is broken off; None where a newcomer may still be taking its state.
        """

    def commit(self, *, agreed: bool) -> bool:
        """Count the step as done, unless a sum failed or this worker does not agree."""

    def forget(self) -> None:
        """Begin anew without a state, to take a peer's."""

    def close(self) -> None:
        """Leave."""


class Solo:
    """The only worker: what a fixed run is, and what a script gets that no agent started.

    Args:
        step: Steps that the state has behind it.
    """

    def __init__(self, step: int = 0) -> None:
        self._step = step

    @property
    def step(self) -> int:
        """Return how many steps are committed."""
        return self._step

    def begin(self) -> Member:
        """Take part, alone."""
        return Member(rank=0, size=1, quorum=0)

    def depart(self) -> None:
        """Do nothing: nobody waits."""

    def sum(self, values: Tensor) -> None:
        """Leave the values as they are."""

    def wait(self, limit_s: float | None) -> bool:  # noqa: ARG002 - there is nobody to wait for
        """Return at once."""
        return True

    def commit(self, *, agreed: bool) -> bool:
        """Count the step."""
        self._step += agreed
        return agreed

    def forget(self) -> None:
        """Begin anew."""
        self._step = 0

    def close(self) -> None:
        """Do nothing."""


Load = Callable[[State], None]
Save = Callable[[], State]
Connect = Callable[[int, Load, Save], Engine]
"""Make an engine for a state that has so many steps behind it, which can be loaded and saved."""
