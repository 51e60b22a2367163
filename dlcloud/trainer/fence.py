"""Whether a worker may commit a step: pure, so that every case can be tried.

A phantom (a worker that comes up alone and starts over), a stale state, a run that is done, and a part that
was split off are all refused by what the ledger and the controller say.
"""

from dataclasses import dataclass, field
from enum import Enum

from .ledger import Entry


class Verdict(Enum):
    """What a worker does next."""

    GO = "go"
    HOLD = "hold"
    END = "end"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and why."""

    verdict: Verdict
    reason: str = ""


GO = Judgement(Verdict.GO)

GATHER_S = 3.0
"""How long those whom a lighthouse that began anew has heard of wait for those whom it has not."""


@dataclass(slots=True)
class Gathering:
    """Keeps a part of the workers from going on alone after a restart of the lighthouse.

    A lighthouse that begins anew counts its agreements from 1 again, and knows of nobody: who asks it first
    is alone, for all that it knows. Within a few heartbeats it has heard of the others.
    """

    _size: int = field(default=0, init=False)
    _until: float = field(default=0.0, init=False)

    def note(self, before: tuple[int, int], after: tuple[int, int], now: float) -> bool:
        """Learn of an agreement; tell whether it is of a lighthouse that began anew and has fewer workers.

        Args:
            before: Number of the agreement before, and how many workers it had.
            after: The same of this one.
            now: Seconds.
        """
        anew = after[0] <= before[0] and after[1] < before[1]
        if anew:
            self._size, self._until = before[1], now + GATHER_S
        return anew

    def judge(self, size: int, now: float) -> Judgement:
        """Judge an agreement of so many workers."""
        if size >= self._size or now >= self._until:
            self._size = 0
            return GO
        return Judgement(Verdict.HOLD, f"the lighthouse began anew: {size} of {self._size} workers are back")


def judge_size(size: int, minimum: int) -> Judgement:
    """Judge how many workers agreed on the step."""
    if size >= minimum:
        return GO
    return Judgement(Verdict.HOLD, f"{size} of {minimum} workers needed")


def judge_history(step: int, entry: Entry | None, least: int = 0) -> Judgement:
    """Judge a state that is about to be trained on, before its first step in this process.

    Args:
        step: Steps that the state has behind it.
        entry: What the ledger says; None where it cannot be reached.
        least: Steps that the newest state has behind it, as the controller says.
    """
    if entry is None:
        return Judgement(Verdict.HOLD, "the ledger cannot be reached, so this may be a step taken before")
    if entry.done:
        return Judgement(Verdict.END, "the run is done")
    if step == 0 and entry.step > 0:
        return Judgement(
            Verdict.HOLD,
            f"the run has {entry.step} steps behind it; neither a peer nor a checkpoint has them",
        )
    if step < entry.checkpoint:
        return Judgement(Verdict.HOLD, f"a checkpoint of step {entry.checkpoint} exists; here is step {step}")
    if step < least:
        return Judgement(Verdict.HOLD, f"a peer has the state of step {least}; here is step {step}")
    return GO
