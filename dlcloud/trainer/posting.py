"""Tell the ledger how far the run has come, beside the training."""

import contextlib
import queue
import threading
from dataclasses import dataclass, field, replace

from .ledger import Entry, LedgerClient, LedgerError

FAREWELL_S = 5.0


@dataclass(slots=True)
class Posting:
    """Posts to a ledger; without one it says that nothing has been trained.

    Args:
        client: The ledger, or None for a worker that is alone.
    """

    client: LedgerClient | None
    _moves: "queue.Queue[dict[str, int] | None]" = field(default_factory=queue.Queue, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def read(self) -> Entry | None:
        """Return the entry; None where the ledger cannot be reached."""
        if self.client is None:
            return Entry(run="")
        with contextlib.suppress(LedgerError):
            return self.client.read()
        return None

    def claim(self, origin: int) -> bool:
        """Ask whether a first step may be the run's: of several groups that tried one apart, one may."""
        if self.client is None:
            return True
        with contextlib.suppress(LedgerError):
            return self.client.move(origin=origin).origin == origin
        return False

    def move(self, address: str) -> None:
        """Post to another ledger from now on: that of a coordinator that has taken over."""
        if self.client is not None:
            self.client = replace(self.client, address=address)

    def soon(self, **move: int) -> None:
        """Post when the ledger has time; of many moves only the sum is posted."""
        if self.client is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._moves.put(move)

    def now(self, *, step: int = 0, done: bool = False) -> None:
        """Post at once; a ledger that is away is told by the next post."""
        if self.client is not None:
            with contextlib.suppress(LedgerError):
                self.client.move(step=step, done=done)

    def close(self) -> None:
        """Post what is waiting, if the ledger answers soon."""
        if self._thread is not None:
            self._moves.put(None)
            self._thread.join(FAREWELL_S)
            self._thread = None

    def _work(self) -> None:
        known: dict[str, int] = {}
        ends = False
        while not ends:
            waiting = [self._moves.get()]
            while not self._moves.empty():
                waiting.append(self._moves.get())
            ends = None in waiting
            for move in waiting:
                known = {**known, **(move or {})}
            client = self.client
            with contextlib.suppress(LedgerError):
                if client is not None:
                    client.move(step=known.get("step", 0), checkpoint=known.get("checkpoint", 0))
