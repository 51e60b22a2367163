"""The lighthouse of a run, at which its workers agree on the participants of each step, and its ledger.

Runs on one instance, the coordinator, which must not be a spot instance. Neither port is protected: both
belong inside a security group. Workers wait while the lighthouse is away and continue when it is back.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .coordination.ledger import LIMIT_BYTES, PATH, TIMEOUT_S, Entry, WrongRunError, parse_entry
from .coordination.quorum import QuorumServer, Roster
from .instance.options import parse_lighthouse
from .instance.processes import watch_termination
from .records import Journal

CLAIM_S = 10.0
"""A first step that was claimed and not committed for this long may be claimed again."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_lighthouse(argv)
    terminated = watch_termination()
    try:
        ledger = Ledger(arguments.ledger, arguments.run, step=arguments.step)
        server = LedgerServer(ledger, arguments.host, arguments.ledger_port)
        roster = Roster(
            minimum=arguments.minimum,
            join_s=arguments.join_ms / 1000,
            silent_s=arguments.heartbeat_ms / 1000,
        )
        QuorumServer(
            roster, Journal(arguments.records, arguments.run), arguments.run, arguments.host, arguments.port
        )
    except (OSError, ValueError, WrongRunError) as error:
        sys.stderr.write(f"lighthouse: {error}\n")
        return 1
    terminated.wait()
    server.shutdown()
    return 0


class Ledger:
    """The entry of one run, on disk.

    Args:
        step: Steps that are known to be committed, where a lost coordinator is replaced.

    Raises:
        WrongRunError: The file belongs to another run.
    """

    def __init__(self, path: Path, run: str, *, step: int = 0) -> None:
        self._path, self._lock = path, threading.Lock()
        self._claimed_at = 0.0
        self.entry = parse_entry(path.read_text()) if path.exists() else Entry(run=run)
        if self.entry.run != run:
            raise WrongRunError(f"{path} is the ledger of run {self.entry.run}, not of {run}")
        self.advance(step=step)

    def advance(self, *, step: int = 0, checkpoint: int = 0, done: bool = False, origin: int = 0) -> Entry:
        with self._lock:
            now = time.monotonic()
            if origin and not self.entry.step and now - self._claimed_at > CLAIM_S:
                # The worker that claimed the first step died before it was committed.
                self.entry, self._claimed_at = replace(self.entry, origin=0), now
            entry = self.entry.advance(step=step, checkpoint=checkpoint, done=done, origin=origin)
            # That a run has begun, or is done, must survive a power failure; a single step need not.
            is_crucial = entry.origin != self.entry.origin or entry.done != self.entry.done
            if entry != self.entry or not self._path.exists():
                self._write(entry, sync=is_crucial)
            self.entry = entry
            return entry

    def _write(self, entry: Entry, *, sync: bool) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(self._path.name + ".new")
        with unfinished.open("w") as stream:
            stream.write(json.dumps(asdict(entry)))
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        unfinished.rename(self._path)


class LedgerServer(ThreadingHTTPServer):
    """Serves a ledger until closed; an empty host listens on all addresses, port 0 takes a free one."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # all workers may report at the same moment

    def __init__(self, ledger: Ledger, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.ledger = ledger
        threading.Thread(target=self.serve_forever, name="ledger", daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: LedgerServer
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        if self.path != PATH:
            self._answer(HTTPStatus.NOT_FOUND, {})
            return
        self._answer(HTTPStatus.OK, asdict(self.server.ledger.entry))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != PATH or not length.isdecimal() or int(length) > LIMIT_BYTES:
            self._answer(HTTPStatus.BAD_REQUEST, {})
            return
        try:
            report = parse_entry(self.rfile.read(int(length)).decode())
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        ledger = self.server.ledger
        if report.run != ledger.entry.run:
            self._answer(HTTPStatus.CONFLICT, asdict(ledger.entry))
            return
        entry = ledger.advance(
            step=report.step, checkpoint=report.checkpoint, done=report.done, origin=report.origin
        )
        self._answer(HTTPStatus.OK, asdict(entry))

    def _answer(self, status: HTTPStatus, values: dict[str, Any]) -> None:
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as the library has it
        """Write no log: there would be a line per step."""


if __name__ == "__main__":
    sys.exit(main())
