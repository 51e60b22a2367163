"""The ledger beside the lighthouse: how far a run has come, kept so that nobody starts it over.

It answers `GET /ledger` and `POST /ledger` with JSON: {"run", "step": steps committed by anyone,
"checkpoint": newest step that is durable, "done", "origin": which first step is the run's, of several that
workers may have tried apart}. What is posted can only move it on. Another run gets 409.
"""

import http.client
import json
import os
import threading
import time
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .errors import StrangerError

_PATH = "/ledger"
_LIMIT_BYTES = 4096
_TIMEOUT_S = 3.0
CLAIM_S = 10.0
"""A first step that was claimed and has not been posted for so long may be claimed anew."""


class LedgerError(Exception):
    """The ledger cannot be reached, so nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How far a run has come."""

    run: str
    step: int = 0
    checkpoint: int = 0
    done: bool = False
    origin: int = 0

    def moved(self, *, step: int = 0, checkpoint: int = 0, done: bool = False, origin: int = 0) -> "Entry":
        """Return the entry moved on; never back, and the first origin stays."""
        return replace(
            self,
            step=max(self.step, step),
            checkpoint=max(self.checkpoint, checkpoint),
            done=self.done or done,
            origin=self.origin or origin,
        )


class Ledger:
    """The entry of one run, on disk.

    Args:
        path: Where it is kept; a file of another run is refused.
        run: The run's name.
        step: Steps known to be committed, where a lost coordinator is replaced.

    Raises:
        StrangerError: The file is of another run.
    """

    def __init__(self, path: Path, run: str, *, step: int = 0) -> None:
        self._path, self._lock = path, threading.Lock()
        self._claimed_at = 0.0
        self._entry = Entry(run=run)
        if path.exists():
            self._entry = _parse(path.read_text())
        if self._entry.run != run:
            raise StrangerError(f"{path} is the ledger of run {self._entry.run}, not of {run}")
        self.move(step=step)

    @property
    def entry(self) -> Entry:
        """Return how far the run has come."""
        return self._entry

    def move(self, *, step: int = 0, checkpoint: int = 0, done: bool = False, origin: int = 0) -> Entry:
        """Move the entry on and keep it."""
        with self._lock:
            now = time.monotonic()
            if origin and not self._entry.step and now - self._claimed_at > CLAIM_S:
                # Whoever claimed the first step died before it was taken.
                self._entry, self._claimed_at = replace(self._entry, origin=0), now
            moved = self._entry.moved(step=step, checkpoint=checkpoint, done=done, origin=origin)
            # That a run has begun, or is done, must outlive the power; each single step need not.
            begun = moved.origin != self._entry.origin or moved.done != self._entry.done
            if moved != self._entry or not self._path.exists():
                self._keep(moved, sync=begun)
            self._entry = moved
            return moved

    def _keep(self, entry: Entry, *, sync: bool) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(self._path.name + ".new")
        with unfinished.open("w") as stream:
            stream.write(json.dumps(asdict(entry)))
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        unfinished.rename(self._path)


class LedgerServer(ThreadingHTTPServer):
    """Serves a ledger until closed.

    Args:
        ledger: What is served.
        host: Address to listen on; empty for all.
        port: 0 takes a free one.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, ledger: Ledger, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.ledger = ledger
        threading.Thread(target=self.serve_forever, name="ledger", daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: LedgerServer
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        """Tell the entry."""
        if self.path != _PATH:
            self._answer(HTTPStatus.NOT_FOUND, {})
            return
        self._answer(HTTPStatus.OK, asdict(self.server.ledger.entry))

    def do_POST(self) -> None:
        """Move the entry on."""
        length = self.headers.get("Content-Length", "")
        if self.path != _PATH or not length.isdigit() or int(length) > _LIMIT_BYTES:
            self._answer(HTTPStatus.BAD_REQUEST, {})
            return
        try:
            given = _parse(self.rfile.read(int(length)).decode())
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        ledger = self.server.ledger
        if given.run != ledger.entry.run:
            self._answer(HTTPStatus.CONFLICT, asdict(ledger.entry))
            return
        moved = ledger.move(
            step=given.step, checkpoint=given.checkpoint, done=given.done, origin=given.origin
        )
        self._answer(HTTPStatus.OK, asdict(moved))

    def _answer(self, status: HTTPStatus, values: dict[str, Any]) -> None:
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as the library has it
        """Say nothing: a line a step would bury what matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerClient:
    """Asks a ledger.

    Args:
        address: `HOST:PORT`.
        run: The run's name.
    """

    address: str
    run: str

    def read(self) -> Entry:
        """Return how far the run has come.

        Raises:
            LedgerError: It cannot be reached.
            StrangerError: It is another run's.
        """
        return self._ask("GET", None)

    def move(self, *, step: int = 0, checkpoint: int = 0, done: bool = False, origin: int = 0) -> Entry:
        """Move the entry on; raises as `read` does."""
        entry = Entry(run=self.run, step=step, checkpoint=checkpoint, done=done, origin=origin)
        return self._ask("POST", json.dumps(asdict(entry)))

    def _ask(self, method: str, body: str | None) -> Entry:
        connection = http.client.HTTPConnection(self.address, timeout=_TIMEOUT_S)
        try:
            connection.request(method, _PATH, body=body)
            answer = connection.getresponse()
            text = answer.read(_LIMIT_BYTES).decode()
            if answer.status not in {HTTPStatus.OK, HTTPStatus.CONFLICT}:
                raise LedgerError(f"the ledger at {self.address} answered {answer.status}")
            entry = _parse(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LedgerError(f"no ledger at {self.address}: {error}") from error
        finally:
            connection.close()
        if entry.run != self.run:
            raise StrangerError(f"the lighthouse at {self.address} serves run {entry.run}, not {self.run}")
        return entry


def _parse(text: str) -> Entry:
    """Read an entry; keys that are not known are ignored.

    Raises:
        ValueError: It is none.
    """
    given = json.loads(text)
    if not isinstance(given, dict) or not isinstance(given.get("run"), str):
        raise ValueError("not a ledger entry")  # noqa: TRY004 - of a text that came in
    known = {name: given[name] for name in Entry.__dataclass_fields__ if name in given}
    entry = Entry(**known)
    if not all(type(each) is int and each >= 0 for each in (entry.step, entry.checkpoint, entry.origin)):
        raise ValueError("step, checkpoint and origin are whole numbers of at least 0")
    return replace(entry, done=bool(entry.done))
