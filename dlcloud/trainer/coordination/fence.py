"""The fence: whether a worker may commit a step. Pure, so that every case can be tested.

It refuses a worker that starts the run again from step 0, a stale state, and a run that is done; by what the
ledger and the control file say.
"""

from dataclasses import dataclass
from enum import Enum

from .ledger import Entry


class CommitVerdict(Enum):
    """What a worker does next: commit, wait, or end."""

    GO = "go"
    HOLD = "hold"
    END = "end"


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """A verdict and its reason."""

    verdict: CommitVerdict
    reason: str = ""


GO = CommitDecision(CommitVerdict.GO)


def check_size(size: int, minimum: int) -> CommitDecision:
    """Decide on a step of so many workers."""
    if size >= minimum:
        return GO
    return CommitDecision(CommitVerdict.HOLD, f"{size} of {minimum} workers needed")


def check_history(step: int, entry: Entry | None, least: int = 0) -> CommitDecision:
    """Decide on a state that is about to be trained on, before its first step in this process.

    Args:
        step: Committed steps of the state.
        entry: The ledger's; None where the ledger cannot be reached.
        least: Committed steps of the newest state, as the controller says.
    """
    if entry is None:
        return CommitDecision(
            CommitVerdict.HOLD, "the ledger does not answer: this step may be committed already"
        )
    if entry.done:
        return CommitDecision(CommitVerdict.END, "the run is done")
    reason = ""
    if step == 0 and entry.step > 0:
        reason = f"the run has {entry.step} committed steps; neither a peer nor a checkpoint has them"
    elif step < entry.checkpoint:
        reason = f"a checkpoint of step {entry.checkpoint} exists; this worker has step {step}"
    elif step < least:
        reason = f"a peer has the state of step {least}; this worker has step {step}"
    return CommitDecision(CommitVerdict.HOLD, reason) if reason else GO
