"""The fence: whether a worker may commit a step. Pure, so that every case can be tested.

It refuses a worker that starts the run again from step 0, a stale state, a run that is done, and a group of
workers that was separated from the others; by what the ledger and the control file say.
"""

from dataclasses import dataclass, field
from enum import Enum

from .ledger import Entry


class Verdict(Enum):
    """What a worker does next: commit, wait, or end."""

    GO = "go"
    HOLD = "hold"
    END = "end"


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """A verdict and its reason."""

    verdict: Verdict
    reason: str = ""


GO = CommitDecision(Verdict.GO)

REJOIN_S = 3.0
"""How long workers wait for others that a restarted lighthouse has not heard of yet."""


@dataclass(slots=True)
class RejoinBarrier:
    """Keeps a part of the workers from continuing alone after a restart of the lighthouse.

    A restarted lighthouse counts its quorums from 1 again and knows no worker: the first one that asks is
    alone, as far as it knows. Within a few heartbeats it has heard of the others.
    """

    _size: int = field(default=0, init=False)
    _until: float = field(default=0.0, init=False)

    def observe(self, before: tuple[int, int], after: tuple[int, int], now: float) -> bool:
        """Compare two quorums; True if the lighthouse has restarted in between and knows fewer workers.

        Args:
            before: Number and size of the quorum before.
            after: The same of this one.
            now: Seconds of a monotonic clock.
        """
        has_restarted = after[0] <= before[0] and after[1] < before[1]
        if has_restarted:
            self._size, self._until = before[1], now + REJOIN_S
        return has_restarted

    def check(self, size: int, now: float) -> CommitDecision:
        """Decide on a quorum of so many workers."""
        if size >= self._size or now >= self._until:
            self._size = 0
            return GO
        reason = f"the lighthouse has restarted: {size} of {self._size} workers are back"
        return CommitDecision(Verdict.HOLD, reason)


def check_size(size: int, minimum: int) -> CommitDecision:
    """Decide on a step of so many workers."""
    if size >= minimum:
        return GO
    return CommitDecision(Verdict.HOLD, f"{size} of {minimum} workers needed")


def check_history(step: int, entry: Entry | None, least: int = 0) -> CommitDecision:
    """Decide on a state that is about to be trained on, before its first step in this process.

    Args:
        step: Committed steps of the state.
        entry: The ledger's; None where the ledger cannot be reached.
        least: Committed steps of the newest state, as the controller says.
    """
    if entry is None:
        return CommitDecision(Verdict.HOLD, "the ledger does not answer: this step may be committed already")
    if entry.done:
        return CommitDecision(Verdict.END, "the run is done")
    reason = ""
    if step == 0 and entry.step > 0:
        reason = f"the run has {entry.step} committed steps; neither a peer nor a checkpoint has them"
    elif step < entry.checkpoint:
        reason = f"a checkpoint of step {entry.checkpoint} exists; this worker has step {step}"
    elif step < least:
        reason = f"a peer has the state of step {least}; this worker has step {step}"
    return CommitDecision(Verdict.HOLD, reason) if reason else GO
