"""The rules by which workers agree on the participants of a step. Pure: the time is an argument.

A worker asks before each step. It is waited for while it is connected and was heard of lately: one that has
ended is noticed immediately, when its connection closes; one that hangs, or whose machine is gone, after
`silent_s`. A worker that is only slow keeps its place for `join_s`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

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
        """Note a sign of life."""
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
        if self._count_instances(members) < max(self.minimum, 1):
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

    def _count_instances(self, members: Sequence[str]) -> int:
        return len({self.attendants[name].instance or name for name in members})

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
