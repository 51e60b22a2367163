"""How workers agree on the participants of a step: the rules, and the connection over which they ask.

A worker asks the lighthouse before each step, and leaves the record of the step before. It is waited for
while it is connected and was heard of lately: one that has ended is noticed immediately, when its connection
closes; one that hangs, or whose machine is gone, after `silent_s`. A worker that is only slow keeps its place
for `join_s`. These rules are the `Roster`'s; it is pure: the time is an argument.

Each worker keeps one connection open, of JSON lines. It sends

    {"hello": {"id", "host", "store", "state", "instance", "mates"}, "run": RUN}   first
    {"ask": {...}, "records": [...]}    before each step: as in `Ask`; steps, as in `records.py`
    {"beat": N}                         as a sign of life, which is repeated to it
    {"leave": true}                     it is not to be waited for after the step that has begun

and receives {"quorum": NUMBER, "members": [...], "ask": N, "recorded": STEP, "left": N}, where `left` counts
the workers that have said so, {"broken": NUMBER} once a member of that quorum is gone, so that the others do
not wait for it, {"refused": REASON}, or {"end": REASON}.

`QuorumServer` runs in the lighthouse, `QuorumClient` in each worker. Both ends read a message as if any other
program had sent it: one that is not as described ends its connection, and nothing of it is used.
"""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

from ..records import LARGEST, Journal
from .ledger import WrongRunError

MATES_S = 30.0
"""How long a newcomer waits for the other workers of its instance, which start at the same time."""

REJOIN_S = 5.0
"""How long a lighthouse that has restarted waits for the workers that others know of."""


class NoQuorumError(Exception):
    """The workers have not agreed on a step: the lighthouse does not answer, or too few workers are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The request of a worker to take part in the next step.

    Attributes:
        number: Of the request; the answer repeats it.
        step: Committed steps of the worker's state.
        group: The quorum whose connections the worker has; 0 without any.
        quorum: Number of the last quorum that it took part in.
        before: Ids of the members of that one.
        unreachable: Ids of workers that it has no connection to.
        leaving: It was asked to leave, and so were the other workers of its instance.
    """

    number: int = 0
    step: int = 0
    group: int = 0
    quorum: int = 0
    before: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendant:
    """A connected worker.

    Attributes:
        id: Unique to its process.
        host, store, state: Its address, and the ports of its rendezvous store and of its state.
        instance: On which it runs; empty: on one of its own.
        mates: Workers of that instance, this one included.
    """

    id: str
    host: str = ""
    store: int = 0
    state: int = 0
    instance: str = ""
    mates: int = 1
    heard_at: float = 0.0
    asked_at: float = 0.0
    ask: Ask | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A member of a quorum: its address, the ports of its store and its state, and its committed steps.

    `instance` is the one on which it runs, and `leaving` says that it was asked to leave.
    """

    id: str
    host: str
    store: int
    state: int
    step: int
    instance: str = ""
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Quorum:
    """The participants of a step, by their ids; the number changes where they have to connect again."""

    number: int
    members: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Roster:
    """The workers that are connected to a lighthouse.

    Args:
        minimum: Instances of a quorum, at least.
        join_s: How long the others wait for a worker of the quorum before that is late.
        silent_s: A worker that was not heard of for this long hangs, or is gone.
        now: When the lighthouse was started.
    """

    minimum: int = 1
    join_s: float
    silent_s: float
    now: float = 0.0
    last: Quorum = Quorum(0, ())
    attendants: dict[str, Attendant] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)  # that ever were here
    _left: set[str] = field(default_factory=set)  # that said so
    _broken: int = 0
    _rejoin_until: float = 0.0

    def arrive(self, attendant: Attendant) -> None:
        self.attendants[attendant.id] = replace(attendant, heard_at=self.now)
        self._known.add(attendant.id)

    def hear(self, worker: str) -> None:
        self.attendants[worker] = replace(self.attendants[worker], heard_at=self.now)

    def ask(self, worker: str, ask: Ask) -> None:
        attendant = self.attendants[worker]
        self.attendants[worker] = replace(attendant, ask=ask, heard_at=self.now, asked_at=self.now)
        if ask.quorum > self.last.number:
            # Only where this lighthouse has restarted.
            self.last = Quorum(ask.quorum, ask.before)
            self._rejoin_until = self.now + REJOIN_S

    def leave(self, worker: str) -> None:
        """Wait for a worker no more; it may still be taking a step."""
        self._left.add(worker)

    @property
    def departures(self) -> int:
        """How many workers have left so far, and said so."""
        return len(self._left)

    def find_broken(self) -> int:
        """Return the number of the present quorum, once, when a member of it cannot continue; otherwise 0."""
        is_broken = any(self._is_out(name) for name in self.last.members)
        if not is_broken or self._broken == self.last.number:
            return 0
        self._broken = self.last.number
        return self._broken

    def decide(self) -> Quorum | None:
        """Return the next quorum, to which all its members are to be answered; None: wait."""
        heard = {name: who for name, who in self.attendants.items() if not self._is_silent(who)}
        asks = {name: who.ask for name, who in heard.items() if who.ask is not None}
        expected = [name for name in self.last.members if self._may_come(name)]
        late = [name for name in expected if name not in asks]
        # Newcomers wait until a worker of the quorum before has come: it has the state.
        since = min((heard[name].asked_at for name in expected if name in asks), default=None)
        if late and (since is None or self.now - since < self.join_s):
            return None
        ready = {name: ask for name, ask in asks.items() if not self._awaits_mates(name, asks)}
        members = sorted(choose_connected({name: ask.unreachable for name, ask in ready.items()}))
        if len({self.attendants[name].instance or name for name in members}) < max(self.minimum, 1):
            return None
        self.last = Quorum(self._number(tuple(members), asks), tuple(members))
        for name in members:
            self.attendants[name] = replace(self.attendants[name], ask=None)
        return self.last

    def _awaits_mates(self, worker: str, asks: Mapping[str, Ask]) -> bool:
        """True for a newcomer before all workers of its instance are there, for a while.

        They join together: each change of membership costs all workers new connections.
        """
        own = self.attendants[worker]
        if worker in self.last.members or own.mates < 2:  # noqa: PLR2004
            return False
        mates = [name for name in asks if self.attendants[name].instance == own.instance]
        first_at = min(self.attendants[name].asked_at for name in mates)
        return len(mates) < own.mates and self.now - first_at < MATES_S

    def _number(self, members: tuple[str, ...], asks: Mapping[str, Ask]) -> int:
        number = self.last.number
        is_same = members == self.last.members and all(asks[name].group == number for name in members)
        return self.last.number if is_same else self.last.number + 1

    def _is_silent(self, attendant: Attendant) -> bool:
        return self.now - attendant.heard_at > self.silent_s

    def _may_come(self, worker: str) -> bool:
        attendant = self.attendants.get(worker)
        if attendant is None:
            return worker not in self._known and self.now < self._rejoin_until
        return not (worker in self._left or self._is_silent(attendant))

    def _is_out(self, worker: str) -> bool:
        """True if a member of the present quorum is gone, hangs, or has given its connections up."""
        attendant = self.attendants.get(worker)
        if attendant is None or worker in self._left:
            return worker in self._known - self._left
        if attendant.ask is not None:
            return attendant.ask.group != self.last.number
        return self._is_silent(attendant)


def choose_connected(unreachable: dict[str, Iterable[str]]) -> set[str]:
    """Return workers that all reach each other, leaving out as few as possible, the last by name first.

    Args:
        unreachable: By worker: those that it does not reach.
    """
    chosen = set(unreachable)
    cuts = {
        (one, other)
        for one, other in combinations(sorted(chosen), 2)
        if other in unreachable[one] or one in unreachable[other]
    }
    while cuts:
        counts = {name: sum(name in cut for cut in cuts) for name in sorted(chosen)}
        out = max(counts, key=lambda name: (counts[name], name))
        chosen.discard(out)
        cuts = {cut for cut in cuts if out not in cut}
    return chosen


LONGEST_LINE = 16 << 20
LONGEST_NAME = 300
MOST_MEMBERS = 4096

CONNECT_S = 3.0
SLICE_S = 0.25
"""A wait handles signals, and checks whether it is still of use, this often."""

TICK_S = 0.1
MOST_TICK_S = 0.5
"""A longer tick is a pause of this machine, not of the workers: its rest does not count as their silence."""

HELLO_S = 10.0
"""A connection whose first message takes longer is none of a worker's."""

GOODBYE_S = 10.0
"""A worker has so long to read the last message."""


class QuorumServer:
    """Serves a roster from its own thread until the process ends; port 0 takes a free one.

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
        asks = {who.id: who.ask for who in self._roster.attendants.values() if who.ask}
        if broken := self._roster.find_broken():
            for name in self._roster.last.members:
                if name in self._writers and name not in asks:
                    _send(self._writers[name], {"broken": broken})
        quorum = self._roster.decide()
        if quorum is not None:
            self._answer(quorum, asks)

    def _answer(self, quorum: Quorum, asks: dict[str, Ask]) -> None:
        members = [
            _address(self._roster.attendants[name]) | {"step": asks[name].step, "leaving": asks[name].leaving}
            for name in quorum.members
        ]
        most = max(asks[name].step for name in quorum.members)
        answer = {
            "run": self._run,
            "quorum": quorum.number,
            "members": members,
            # Where all workers begin again from a checkpoint, steps after it are taken again.
            "recorded": min(self._journal.recorded, most),
            "left": self._roster.departures,
        }
        for name in quorum.members:
            _send(self._writers[name], {**answer, "ask": asks[name].number})


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
    return {name: values[name] for name in ("id", "host", "store", "state", "instance")}


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(json.dumps(message).encode() + b"\n")


class ProtocolError(ValueError):
    """A message is not as described."""


class OtherRunError(ProtocolError):
    """A message belongs to another run."""


def parse_line(line: bytes) -> dict[str, Any]:
    """Read a message.

    Raises:
        ProtocolError: It is too long, cut off, or no JSON object.
    """
    if len(line) > LONGEST_LINE or not line.endswith(b"\n"):
        raise ProtocolError("a message that is too long, or was cut off")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message that is no JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError("a message that is no JSON object")
    return message


def parse_hello(message: dict[str, Any]) -> Attendant:
    """Read the first message of a worker; raises as `parse_line` does."""
    hello = message.get("hello")
    if not isinstance(hello, dict):
        raise ProtocolError("no hello")
    return Attendant(**_worker(hello), mates=parse_number(hello, "mates") or 1)


def parse_ask(message: dict[str, Any]) -> tuple[Ask, list[str]]:
    """Read a request for the next step, and its records; raises as `parse_line` does."""
    values = message.get("ask")
    if not isinstance(values, dict):
        raise ProtocolError("an ask that is no JSON object")
    ask = Ask(
        number=_whole(values, "number"),
        step=_whole(values, "step"),
        group=_whole(values, "group"),
        quorum=_whole(values, "quorum"),
        before=_names(values, "before"),
        unreachable=_names(values, "unreachable"),
        leaving=values.get("leaving") is True,
    )
    records = message.get("records", [])
    if not isinstance(records, list) or not all(isinstance(line, str) for line in records):
        raise ProtocolError("records that are no texts")
    return ask, records


def parse_quorum(message: dict[str, Any], *, own: str, run: str) -> tuple[int, Quorum, tuple[Peer, ...], int]:
    """Read the lighthouse's answer to a worker.

    Args:
        message: With a key `quorum`.
        own: Id of the worker, which must be a member.
        run: Name of its run.

    Returns:
        The number of the request, the quorum, its members, and how many steps are recorded.

    Raises:
        ProtocolError: It is not as described.
        OtherRunError: It is of another run.
    """
    if message.get("run", run) != run:
        raise OtherRunError(f"answers for run {str(message['run'])[:LONGEST_NAME]!r}, not {run}")
    values = message.get("members")
    if not isinstance(values, list) or not 0 < len(values) <= MOST_MEMBERS:
        raise ProtocolError("a quorum without members")
    peers = tuple(_peer(value) for value in values)
    ids = [peer.id for peer in peers]
    if len(set(ids)) < len(ids) or own not in ids:
        raise ProtocolError("a quorum that this worker is not in, or another one twice")
    recorded = _whole(message, "recorded")
    if recorded > max(peer.step for peer in peers):
        raise ProtocolError("a record of steps that no worker has taken")
    number = _whole(message, "quorum")
    return _whole(message, "ask"), Quorum(number, tuple(ids)), peers, recorded


def parse_number(message: dict[str, Any], name: str) -> int:
    """Return a whole number of a message, 0 where it is missing; raises as `parse_line` does."""
    return _whole(message, name) if name in message else 0


def parse_text(message: dict[str, Any], name: str) -> str:
    """Return a text of a message, empty where it is missing; raises as `parse_line` does."""
    value = message.get(name, "")
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is no text")
    return "".join(letter if letter.isprintable() else "?" for letter in value[:LONGEST_NAME])


def _peer(value: Any) -> Peer:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(value, dict):
        raise ProtocolError("a member that is no JSON object")
    return Peer(**_worker(value), step=_whole(value, "step"), leaving=value.get("leaving") is True)


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Read who a worker is and where it listens: what a first message and a list of peers say alike."""
    return {
        "id": _name(values, "id"),
        "host": _name(values, "host"),
        "store": _port(values, "store"),
        "state": _port(values, "state"),
        "instance": parse_text(values, "instance"),
    }


def _whole(values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise ProtocolError(f"{name} is no whole number of at least 0")
    return value


def _port(values: dict[str, Any], name: str) -> int:
    value = _whole(values, name)
    if value >= 1 << 16:
        raise ProtocolError(f"{name} is no port")
    return value


def _name(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_NAME:
        raise ProtocolError(f"{name} is no name")
    return value


def _names(values: dict[str, Any], name: str) -> tuple[str, ...]:
    listed = values.get(name, [])
    if not isinstance(listed, list) or len(listed) > MOST_MEMBERS:
        raise ProtocolError(f"{name} is no list of names")
    return tuple(_name({name: value}, name) for value in listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The quorum of a step, how many steps the coordinator has recorded, and how many workers have left."""

    number: int
    members: tuple[Peer, ...]
    recorded: int
    left: int = 0


class QuorumClient:
    """One connection, with a thread that listens and sends signs of life.

    Args:
        address: `HOST:PORT`.
        hello: Of this worker.
        beat_s: Between signs of life.
        silent_s: A lighthouse that does not answer them for this long is gone.

    Raises:
        NoQuorumError: There is no lighthouse.
    """

    def __init__(
        self, address: str, run: str, hello: dict[str, Any], *, beat_s: float, silent_s: float
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._beat_s, self._silent_s = address, beat_s, silent_s
        self._run, self._own, self._unheard_s = run, str(hello.get("id", "")), 0.0
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._agreement: tuple[int, Agreement] | None = None
        self._broken, self._refused = 0, ""
        self._end = ""
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        except OSError as error:
            raise NoQuorumError(f"no lighthouse at {address}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(silent_s)  # a send that takes longer fails
        self._send({"run": run, "hello": hello})
        for target in (self._listen, self._beat):
            threading.Thread(target=target, name="lighthouse", daemon=True).start()

    @property
    def is_closed(self) -> bool:
        return bool(self._end)

    def ask(self, ask: Ask, records: Sequence[str]) -> None:
        self._send({"ask": asdict(ask), "records": list(records)})

    def leave(self) -> None:
        self._send({"leave": True})

    def wait(self, number: int, limit_s: float) -> Agreement | None:
        """Wait for the answer to the request of a number; None if there is none in time.

        Raises:
            NoQuorumError: The lighthouse is gone.
            WrongRunError: It serves another run.
        """
        deadline = time.monotonic() + limit_s
        with self._changed:
            while (left := deadline - time.monotonic()) > 0:
                if self._refused:
                    raise WrongRunError(f"the lighthouse at {self._address} {self._refused}")
                if self._end:
                    raise NoQuorumError(f"no lighthouse at {self._address}: {self._end}")
                if self._agreement is not None and self._agreement[0] == number:
                    return self._agreement[1]
                self._changed.wait(min(left, SLICE_S))
        return None

    def is_broken(self, number: int) -> bool:
        return self._broken >= number

    def close(self) -> None:
        self._stop("closed")

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._stop(str(error))

    def _beat(self) -> None:
        """Send signs of life; each is answered, and one that is not ends the connection."""
        before = time.monotonic()
        while not self._end:
            self._send({"beat": 1})
            time.sleep(self._beat_s)
            now = time.monotonic()
            # A longer time is a pause of this machine: its rest is not the lighthouse's silence.
            self._unheard_s += min(now - before, 2 * self._beat_s)
            before = now
            if self._unheard_s > 2 * self._silent_s:
                self._stop("it sends no whole message")

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(LONGEST_LINE + 1):
                    self._handle(parse_line(line))
                    self._unheard_s = 0.0
            self._stop("it has closed the connection")
        except OtherRunError as error:
            with self._changed:
                self._refused = str(error)
            self._stop(str(error))
        except ProtocolError as error:
            self._stop(f"it sent {error}")
        except (OSError, ValueError) as error:
            self._stop(str(error) or type(error).__name__)

    def _handle(self, message: dict[str, Any]) -> None:
        with self._changed:
            self._broken = max(self._broken, parse_number(message, "broken"))
            self._end = parse_text(message, "end") or self._end
            self._refused = parse_text(message, "refused") or self._refused
            if "quorum" in message:
                ask, quorum, members, recorded = parse_quorum(message, own=self._own, run=self._run)
                left = parse_number(message, "left")
                self._agreement = (
                    ask,
                    Agreement(number=quorum.number, members=members, recorded=recorded, left=left),
                )
            self._changed.notify_all()

    def _stop(self, reason: str) -> None:
        with self._changed:
            self._end = self._end or reason
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
