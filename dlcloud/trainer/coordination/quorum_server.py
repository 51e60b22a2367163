"""The lighthouse's service: workers agree here on the participants of each step, and leave its record.

Each worker keeps one connection open, of JSON lines. It sends

    {"hello": {"id", "host", "store", "state"}, "run": RUN}   first
    {"ask": {...}, "records": [...]}    before each step: as in `quorum.Ask`; steps, as in `records.py`
    {"beat": N}                         as a sign of life, which is repeated to it
    {"leave": true}                     it is not to be waited for after the step that has begun

and receives {"quorum": NUMBER, "members": [...], "ask": N, "recorded": STEP, "left": N}, where `left` counts
the workers that have said so, {"broken": NUMBER} once a member of that quorum is gone, so that the others do
not wait for it, {"refused": REASON}, or {"end": REASON}.
"""

import asyncio
import contextlib
import json
import socket
import threading
import time
from dataclasses import asdict
from typing import Any

from .history import Journal
from .protocol import LONGEST_LINE, parse_ask, parse_hello, parse_line
from .quorum import Attendant, Quorum, Roster

TICK_S = 0.1
MOST_TICK_S = 0.5
"""A longer tick is a pause of this machine, not of the workers: its rest does not count as their silence."""

HELLO_S = 10.0
"""A connection whose first message takes longer is none of a worker's."""

GOODBYE_S = 10.0
"""A worker has so long to read the last message."""


class QuorumServer:
    """Serves a roster from a thread of its own until the process ends; port 0 takes a free one.

    Raises:
        OSError: The address is in use.
    """

    def __init__(self, roster: Roster, journal: Journal, run: str, host: str, port: int) -> None:
        self._roster, self._journal, self._run = roster, journal, run
        self._writers: dict[str, asyncio.StreamWriter] = {}
        family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
        self._socket = socket.create_server(
            (host, port), family=family, dualstack_ipv6=not host and socket.has_dualstack_ipv6()
        )
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="quorum", daemon=True).start()

    async def _serve(self) -> None:
        await asyncio.start_server(self._meet, sock=self._socket, limit=LONGEST_LINE)
        before = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._roster.now += min(now - before, MOST_TICK_S)
            before = now
            self._advance()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one worker until its connection closes."""
        worker = ""
        try:
            line = await asyncio.wait_for(reader.readline(), HELLO_S)
            while line:
                message = parse_line(line)
                worker = worker or self._welcome(message, writer)
                self._handle(worker, message)
                line = await reader.readline()
        except (OSError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a connection that was cut, or no worker of ours
        finally:
            if worker and self._writers.get(worker) is writer:
                del self._writers[worker], self._roster.attendants[worker]
                self._advance()
            await _close(reader, writer)

    def _welcome(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> str:
        if message.get("run") != self._run:
            _send(writer, {"refused": f"serves run {self._run}, not {str(message.get('run'))[:300]}"})
            raise ValueError("another run")
        attendant = parse_hello(message)
        former = self._writers.get(attendant.id)
        if former is not None:
            former.transport.abort()
        self._writers[attendant.id] = writer
        self._roster.arrive(attendant)
        return attendant.id

    def _handle(self, worker: str, message: dict[str, Any]) -> None:
        if self._writers.get(worker) is None:
            raise ValueError("it has connected again")
        self._roster.hear(worker)
        if "beat" in message:
            _send(self._writers[worker], {"beat": 1})
        if "leave" in message:
            self._roster.leave(worker)
        if "ask" in message:
            ask, records = parse_ask(message)
            # Before the answer: a step begins only once the record of the one before is here.
            try:
                self._journal.add(records, most=ask.step)
            except OSError as error:
                _send(self._writers[worker], {"end": f"it cannot record a step: {error}"})
                raise
            self._roster.ask(worker, ask)
            self._advance()

    def _advance(self) -> None:
        """Do all that the present state asks for."""
        steps = {who.id: who.ask.step for who in self._roster.attendants.values() if who.ask}
        numbers = {who.id: who.ask.number for who in self._roster.attendants.values() if who.ask}
        if broken := self._roster.find_broken():
            for name in self._roster.last.members:
                if name in self._writers and name not in steps:
                    _send(self._writers[name], {"broken": broken})
        quorum = self._roster.decide()
        if quorum is not None:
            self._answer(quorum, steps, numbers)

    def _answer(self, quorum: Quorum, steps: dict[str, int], numbers: dict[str, int]) -> None:
        members = [_address(self._roster.attendants[name]) | {"step": steps[name]} for name in quorum.members]
        most = max(steps[name] for name in quorum.members)
        answer = {
            "run": self._run,
            "quorum": quorum.number,
            "members": members,
            # Where all workers begin again from a checkpoint, steps after it are taken again.
            "recorded": min(self._journal.recorded, most),
            "left": self._roster.departures,
        }
        for name in quorum.members:
            _send(self._writers[name], {**answer, "ask": numbers[name]})


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close a connection after the worker: what it still sends would else undo our last message."""
    with contextlib.suppress(OSError, TimeoutError, RuntimeError):
        writer.write_eof()
        await asyncio.wait_for(_discard(reader), GOODBYE_S)
    writer.close()


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(LONGEST_LINE):
        pass


def _address(attendant: Attendant) -> dict[str, Any]:
    values = asdict(attendant)
    return {name: values[name] for name in ("id", "host", "store", "state")}


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(json.dumps(message).encode() + b"\n")
