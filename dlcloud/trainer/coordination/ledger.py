"""The ledger of a run: how many steps are committed, so that no worker starts the run again; and the fence.

The server (`lighthouse.py`) answers `GET /ledger` and `POST /ledger` with JSON: {"run", "step": committed
steps, "checkpoint": step of the newest durable checkpoint, "done", "origin": identifies the first step, which
separate groups of workers may have tried at the same time}. A POST can only advance the entry. A request for
another run is answered with 409. The quorum's connection does not carry it: an agent asks the ledger before
it starts a worker and after the worker is gone, and an orphaned instance before it ends itself.

The fence (`check_size`, `check_history`) decides whether a worker may commit a step. It refuses a worker that
starts the run again from step 0, a stale state, and a run that is done. It is pure, so that every case can be
tested.
"""

import contextlib
import http.client
import json
import queue
import threading
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from http import HTTPStatus

from ..limits import request

PATH = "/ledger"
LIMIT_BYTES = 4096
TIMEOUT_S = 3.0
CLOSE_S = 5.0
"""Longest wait for the last report when a worker ends."""


class WrongRunError(Exception):
    """A peer, a ledger or a checkpoint belongs to another run, or to this one with other settings."""


class LedgerError(Exception):
    """The ledger cannot be reached, so the progress of the run is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The progress of a run; see the module."""

    run: str
    step: int = 0
    checkpoint: int = 0
    done: bool = False
    origin: int = 0

    def advance(self, *, step: int = 0, checkpoint: int = 0, done: bool = False, origin: int = 0) -> "Entry":
        """Return the entry with larger numbers; the first origin stays."""
        return replace(
            self,
            step=max(self.step, step),
            checkpoint=max(self.checkpoint, checkpoint),
            done=self.done or done,
            origin=self.origin or origin,
        )


def parse_entry(text: str) -> Entry:
    """Read an entry; unknown keys are ignored.

    Raises:
        ValueError: The text is not an entry.
    """
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("not a ledger entry") from error
    if not isinstance(values, dict) or not isinstance(values.get("run"), str):
        raise ValueError("not a ledger entry")  # noqa: TRY004 - the text is wrong, not a type of the program
    entry = Entry(**{name: values[name] for name in Entry.__dataclass_fields__ if name in values})
    if not all(type(n) is int and n >= 0 for n in (entry.step, entry.checkpoint, entry.origin)):
        raise ValueError("step, checkpoint and origin are whole numbers of at least 0")
    return replace(entry, done=bool(entry.done))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClient:
    """Sends requests to the ledger at `HOST:PORT`."""

    address: str
    run: str

    def read(self) -> Entry:
        """Return the progress of the run.

        Raises:
            LedgerError: The ledger cannot be reached.
            WrongRunError: It belongs to another run.
        """
        return self._request("GET", None)

    def advance(self, *, step: int = 0, checkpoint: int = 0, done: bool = False, origin: int = 0) -> Entry:
        """Advance the entry; raises as `read` does."""
        entry = Entry(run=self.run, step=step, checkpoint=checkpoint, done=done, origin=origin)
        return self._request("POST", json.dumps(asdict(entry)))

    def _request(self, method: str, body: str | None) -> Entry:
        try:
            status, answer = request(
                self.address, method, PATH, body=body, limit_s=TIMEOUT_S, most_bytes=LIMIT_BYTES
            )
            if status not in {HTTPStatus.OK, HTTPStatus.CONFLICT}:
                raise LedgerError(f"the ledger at {self.address} answered {status}")
            entry = parse_entry(answer.decode())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LedgerError(f"no ledger at {self.address}: {error}") from error
        if entry.run != self.run:
            raise WrongRunError(f"the lighthouse at {self.address} serves run {entry.run}, not {self.run}")
        return entry


@dataclass(slots=True)
class LedgerReporter:
    """Reports progress to a ledger, from a thread where it is not urgent.

    Args:
        client: None for a worker that trains alone: then every read gives an empty entry.
    """

    client: LedgerClient | None
    _reports: "queue.Queue[dict[str, int] | None]" = field(default_factory=queue.Queue, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def read(self) -> Entry | None:
        """Return the entry; None where the ledger cannot be reached."""
        if self.client is None:
            return Entry(run="")
        with contextlib.suppress(LedgerError):
            return self.client.read()
        return None

    def claim_first_step(self, origin: int) -> bool:
        """Ask whether this first step may be committed: separate groups may try one, only one of them may."""
        if self.client is None:
            return True
        with contextlib.suppress(LedgerError):
            return self.client.advance(origin=origin).origin == origin
        return False

    def redirect(self, address: str) -> None:
        """Report to another ledger from now on: that of a new coordinator."""
        if self.client is not None:
            self.client = replace(self.client, address=address)

    def report_soon(self, **progress: int) -> None:
        """Report from a thread; of several waiting reports only the sum is sent."""
        if self.client is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._reports.put(progress)

    def report_now(self, *, step: int = 0, done: bool = False) -> None:
        """Report before returning; if the ledger does not answer, the next report makes up for it."""
        if self.client is not None:
            with contextlib.suppress(LedgerError):
                self.client.advance(step=step, done=done)

    def close(self) -> None:
        """Send the waiting reports, if the ledger answers in time."""
        if self._thread is not None:
            self._reports.put(None)
            self._thread.join(CLOSE_S)
            self._thread = None

    def _work(self) -> None:
        progress: dict[str, int] = {}
        is_closing = False
        while not is_closing:
            reports = [self._reports.get()]
            while not self._reports.empty():
                reports.append(self._reports.get())
            is_closing = None in reports
            for report in reports:
                progress |= report or {}
            client = self.client
            with contextlib.suppress(LedgerError):
                if client is not None:
                    client.advance(step=progress.get("step", 0), checkpoint=progress.get("checkpoint", 0))


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


def check_size(instances: int, minimum: int) -> CommitDecision:
    """Decide on a step of the workers of this many instances."""
    if instances >= minimum:
        return GO
    return CommitDecision(CommitVerdict.HOLD, f"{instances} of {minimum} instances needed")


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
