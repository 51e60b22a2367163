"""The engine of several workers: they agree on each step at the lighthouse, and sum over a group.

The loop drives it through the interface of `engine.py`. `begin` asks the lighthouse for the participants;
where they have changed it connects a new `WorkerGroup`, and serves or fetches the state over HTTP. PyTorch's
own process groups do the sums. A call of gloo cannot be aborted, it ends with its own time-out only: so it is
made from a thread or waited for in slices, and one that hangs is left to a thread. After a quorum that
failed, `Probes` finds out which workers do not answer: a network may be cut between two workers only.
"""

import atexit
import ctypes
import http.client
import io
import json
import logging
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, ReduceOp, TCPStore
from torch.distributed.distributed_c10d import AllreduceOptions

from .coordination.quorum import Agreement, Ask, NoQuorumError, QuorumClient
from .engine import Load, Save, State, StateError, StepPlace, copy_state
from .limits import time_limit
from .records import History
from .settings import Timing

log = logging.getLogger(__name__)


class QuorumEngine:
    """A worker among others.

    Args:
        step: Committed steps of this worker's state.
        lighthouse: `HOST:PORT`.
        host: This machine's address, as the others reach it.
        name: Of this worker; decides its rank.
        instance: On which it runs.
        mates: Workers of that instance.
        history: The records of steps, for the coordinator and for peers.

    Raises:
        NoQuorumError: The lighthouse does not answer; to be repeated.
    """

    def __init__(
        self,
        step: int,
        load: Load,
        save: Save,
        *,
        lighthouse: str,
        host: str,
        name: str,
        instance: str,
        mates: int,
        run: str,
        timing: Timing,
        history: History,
    ) -> None:
        self.step, self._load, self._save = step, load, save
        self._lighthouse, self._host, self._run = lighthouse, host, run
        self._timing, self._history = timing, history
        self._id = f"{name}:{uuid.uuid4().hex[:12]}"
        self._instance, self._mates = instance or self._id, mates
        self._store = _make_store(host)
        self._server = StateServer(host, history)
        self._probes = Probes()
        self._group: WorkerGroup | None = None
        self._connected = 0  # the quorum of the group
        self._agreement = Agreement(number=0, members=(), recorded=0)
        self._asks, self._fault, self._has_departed = 0, "", False
        self._has_asked = False  # for the next step, and the answer was not taken yet
        self._client: QuorumClient | None = None
        try:
            self._client = self._connect()
        except NoQuorumError:
            self.close()
            raise

    def begin(self, *, leaving: bool) -> StepPlace | None:
        self._server.withdraw()
        self._agreement = agreement = self._agree(leaving=leaving)
        self._history.recorded = agreement.recorded
        try:
            if agreement.number != self._connected:
                self._join(agreement)
            is_healed = self._heal(agreement)
        except (GroupError, TransferError) as error:
            self._give_up(str(error))
            return None
        rank = [peer.id for peer in agreement.members].index(self._id)
        return StepPlace(
            rank=rank,
            size=len(agreement.members),
            quorum=agreement.number,
            healed=is_healed,
            left=agreement.left,
            instances=len({peer.instance or peer.id for peer in agreement.members}),
            leaves=any(peer.leaving for peer in agreement.members if peer.instance == self._instance),
        )

    def ask(self, *, leaving: bool) -> None:
        if self._client is not None:
            self._asks += 1
            self._client.ask(self._request(leaving=leaving), self._unrecorded())
            self._has_asked = True

    def depart(self) -> None:
        if self._client is not None and not self._has_departed:
            self._has_departed = True
            self._client.leave()

    def allreduce(self, values: Tensor) -> None:
        if self._group is not None and not self._fault:
            try:
                self._group.allreduce(values)
            except GroupError as error:
                self._fault = str(error)

    def wait(self, limit_s: float | None) -> bool:
        if self._group is not None and not self._fault:
            try:
                self._group.wait(limit_s or self._timing.heal_s)
            except GroupError as error:
                self._fault = str(error)
        return not self._fault

    def commit(self, *, agreed: bool) -> bool:
        is_committed = agreed and not self._fault
        if is_committed:
            self.step += 1
        else:
            self._give_up(self._fault)
        return is_committed

    def reset(self) -> None:
        self.step = 0

    def close(self) -> None:
        if self._client is not None:
            # Its last step is committed, or was never begun: no peer is to break its own off.
            self._client.leave()
            self._client.close()
        self._probes.close()
        self._server.close()
        self._disconnect()

    def _connect(self) -> QuorumClient:
        hello = {"id": self._id, "host": self._host, "store": self._store.port}
        hello |= {"state": self._server.server_address[1], "instance": self._instance, "mates": self._mates}
        timing = self._timing
        return QuorumClient(
            self._lighthouse, self._run, hello, beat_s=timing.beat_s, silent_s=timing.silent_s
        )

    def _agree(self, *, leaving: bool) -> Agreement:
        """Ask for the next quorum.

        Raises:
            NoQuorumError: The lighthouse does not answer, or too few workers have come.
        """
        if self._client is None or self._client.is_closed:
            self._client, self._has_asked = self._connect(), False
        deadline = time.monotonic() + self._timing.quorum_s
        while (left := deadline - time.monotonic()) > 0:
            if not self._has_asked:
                self.ask(leaving=leaving)
            self._has_asked = False
            # A worker that others do not reach asks again once they do.
            limit_s = min(left, self._probes.interval_s) if self._probes.suspects else left
            agreement = self._client.wait(self._asks, limit_s)
            if agreement is not None:
                return agreement
        raise NoQuorumError(f"no agreement with other workers within {self._timing.quorum_s:g} s")

    def _request(self, *, leaving: bool) -> Ask:
        return Ask(
            number=self._asks,
            step=self.step,
            group=self._connected,
            quorum=self._agreement.number,
            before=tuple(peer.id for peer in self._agreement.members),
            unreachable=tuple(self._probes.suspects),
            leaving=leaving,
        )

    def _unrecorded(self) -> list[str]:
        """Return the records to send; one worker at a time sends old ones."""
        ids = [peer.id for peer in self._agreement.members]
        is_its_turn = self._id in ids and ids.index(self._id) == self.step % len(ids)
        return self._history.unrecorded(self.step, with_older=is_its_turn)

    def _join(self, agreement: Agreement) -> None:
        self._disconnect()
        members = agreement.members
        if len(members) > 1:
            self._group = WorkerGroup(
                members[0].host,
                members[0].store,
                number=agreement.number,
                rank=[peer.id for peer in members].index(self._id),
                size=len(members),
                connect_s=self._timing.connect_s,
                reduce_s=self._timing.heal_s,
                is_broken=self._watch(agreement),
            )
        self._connected, self._fault = agreement.number, ""
        self._probes.clear()

    def _heal(self, agreement: Agreement) -> bool:
        """Serve the state to those that are behind, or fetch it from one that is not; True if fetched."""
        top = max(peer.step for peer in agreement.members)
        behind = [peer.id for peer in agreement.members if peer.step < top]
        sources = [peer for peer in agreement.members if peer.step == top]
        if self._id not in behind:
            served = {sources[place % len(sources)].id for place in range(len(behind))}
            if self._id in served:
                # A copy: while a peer reads it, the next step changes running statistics here.
                self._server.publish(agreement.number, copy_state(self._save()))
            return False
        source = sources[behind.index(self._id) % len(sources)]
        address = f"{source.host}:{source.state}"
        state = fetch_state(
            address,
            agreement.number,
            self._watch(agreement),
            step=top,
            most_bytes=2 * count_bytes(self._save()) + SPARE,
        )
        try:
            self._load(state)
        except StateError as error:
            self.step = 0
            raise TransferError(f"the state of {address} does not fit: {error}") from error
        self.step = top
        threading.Thread(target=self._fill, args=(address, top), name="history", daemon=True).start()
        return True

    def _fill(self, address: str, step: int) -> None:
        """Keep the records that a peer has, too: it may be gone when another coordinator needs them."""
        try:
            self._history.fill(fetch_history(address), step)
        except TransferError as error:
            log.info("no older records: %s", error)

    def _watch(self, agreement: Agreement) -> Callable[[], bool]:
        client = self._client
        return lambda: client is not None and client.is_broken(agreement.number)

    def _give_up(self, fault: str) -> None:
        """Leave the connections of the quorum, so that no peer waits for this worker."""
        self._disconnect()
        if fault:
            others = [peer for peer in self._agreement.members if peer.id != self._id]
            self._probes.suspect({peer.id: (peer.host, peer.state) for peer in others})

    def _disconnect(self) -> None:
        group, self._group = self._group, None
        self._connected, self._fault = 0, ""
        if group is not None:
            group.close()


def _make_store(host: str) -> TCPStore:
    """Make the store at which the workers of a quorum find each other.

    A store that opens its own socket listens on `::`, and looks up the name of each worker that connects, one
    after another. An address such as `::ffff:127.0.0.1` is in no hosts file: if the name server is slow, the
    workers of a large quorum do not connect in time.
    """
    listener = socket.create_server((host, 0), backlog=LONGEST_QUEUE)
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=5),
        master_listen_fd=listener.detach(),
    )


LONGEST_QUEUE = 4096
"""Workers that connect to a store at the same time."""

SLICE_S = 0.1

MOST_SLICE_S = 0.5
"""A longer slice is a pause of this machine: more of it does not count."""


_hanging: list[tuple[list[Any], Any]] = []
"""Sums that have not ended, with their connections: to close these would wait for them."""


@atexit.register
def _leave_hanging() -> None:
    """Let the process end without them."""
    for pair in _hanging:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pair))


class GroupError(Exception):
    """The connections could not be made, or a peer is gone."""


class WorkerGroup:
    """The connections of a worker in one quorum.

    Args:
        host, port: Of the store at which the workers find each other.
        connect_s: Time for a connection.
        reduce_s: Longest time of a sum.
        is_broken: True once a worker of the quorum is gone.

    Raises:
        GroupError: A worker is gone, or does not answer in time.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        number: int,
        rank: int,
        size: int,
        connect_s: float,
        reduce_s: float,
        is_broken: Callable[[], bool],
    ) -> None:
        limit, self._reduce = timedelta(seconds=connect_s), timedelta(seconds=reduce_s)
        self._is_broken, self._works = is_broken, list[Any]()

        def connect() -> Any:  # noqa: ANN401 - gloo's or NCCL's
            client = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
            store = PrefixStore(str(number), client)
            if torch.cuda.is_available():
                return _make_nccl(store, rank, size)
            return ProcessGroupGloo(store, rank, size, timeout=limit)

        # Each of the other workers may take its time.
        self._group = _call(connect, limit_s=2 * connect_s, is_broken=is_broken)

    def allreduce(self, values: Tensor) -> None:
        """Begin to sum, in place.

        Raises:
            GroupError: A worker is gone.
        """
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM
        options.timeout = self._reduce
        try:
            self._works.append(self._group.allreduce([values], options))
        except RuntimeError as error:
            raise GroupError(str(error)) from error

    def wait(self, limit_s: float) -> None:
        """Wait for the sums that have begun.

        Raises:
            GroupError: A worker is gone, or hangs; values may still be written to.
        """
        waited, before = 0.0, time.monotonic()
        for work in self._works:
            while not _wait_slice(work):
                now = time.monotonic()
                waited, before = waited + min(now - before, MOST_SLICE_S), now
                if self._is_broken():
                    raise GroupError("a worker is gone")
                if waited > limit_s:
                    raise GroupError(f"a sum has not ended after {limit_s:.1f} s")
        self._works = []

    def close(self) -> None:
        """Give the connections up; those of a sum that hangs are closed once it has ended."""
        if torch.cuda.is_available() and self._group is not None:
            self._group.abort()
        _hanging.append((self._works, self._group))
        self._works, self._group = [], None
        _hanging[:] = [
            (works, group) for works, group in _hanging if not all(work.is_completed() for work in works)
        ]


def _call(make: Callable[[], Any], *, limit_s: float, is_broken: Callable[[], bool]) -> Any:  # noqa: ANN401
    """Call from a thread, and wait for the result until it is of no use any more."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(make())
        except Exception as error:  # noqa: BLE001 - PyTorch's errors have no class in common
            results.put(error)

    threading.Thread(target=work, name="connect", daemon=True).start()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not is_broken():
        try:
            result = results.get(timeout=SLICE_S)
        except queue.Empty:
            continue
        if isinstance(result, Exception):
            raise GroupError(str(result)) from result
        return result
    raise GroupError("a worker is gone" if is_broken() else f"no connection within {limit_s:g} s")


def _make_nccl(store: PrefixStore, rank: int, size: int) -> Any:  # noqa: ANN401
    from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415 - only where PyTorch has it

    options = ProcessGroupNCCL.Options()
    options.config.blocking = False
    return ProcessGroupNCCL(store, rank, size, options)


def _wait_slice(work: Any) -> bool:  # noqa: ANN401 - Work of PyTorch
    """Wait a slice for a sum; return True if it has ended.

    Raises:
        GroupError: It failed.
    """
    if torch.cuda.is_available():
        if not work.is_completed():
            time.sleep(0.0005)
            return False
    else:
        try:
            work.wait(timedelta(seconds=SLICE_S))
        except RuntimeError:
            if not work.is_completed():
                return False
        else:
            return True
    # It has ended, and waiting again tells how: whatever PyTorch calls the end of a slice.
    try:
        work.wait()
    except RuntimeError as error:
        raise GroupError(str(error)) from error
    return True


LIMIT_S = 1.0
INTERVAL_S = 1.0
ROUNDS = 30
"""A worker that stays away for longer is no member any more: the lighthouse does not reach it, either."""

Address = tuple[str, int]


class Probes:
    """Connects to suspected workers until each has answered.

    Attributes:
        suspects: Ids of the workers that did not answer the last time.
    """

    interval_s = INTERVAL_S

    def __init__(self) -> None:
        self.suspects: frozenset[str] = frozenset()
        self._round = threading.Event()
        self._number = 0

    def suspect(self, peers: Mapping[str, Address]) -> None:
        """Try each of these workers now, all in parallel, and continue with those that do not answer."""
        self.clear()
        silent = _find_silent(peers)
        self.suspects = frozenset(silent)
        if silent:
            threading.Thread(target=self._repeat, args=(silent, self._number), daemon=True).start()

    def clear(self) -> None:
        self._number += 1
        self.suspects = frozenset()

    def close(self) -> None:
        self.clear()
        self._round.set()

    def _repeat(self, peers: Mapping[str, Address], number: int) -> None:
        for _ in range(ROUNDS):
            if self._round.wait(INTERVAL_S):
                return
            peers = _find_silent(peers)
            if number != self._number:
                return
            self.suspects = frozenset(peers)
            if not peers:
                return
        self.suspects = frozenset()


def _find_silent(peers: Mapping[str, Address]) -> dict[str, Address]:
    silent: dict[str, Address] = {}

    def probe(name: str, address: Address) -> None:
        try:
            socket.create_connection(address, LIMIT_S).close()
        except OSError:
            silent[name] = address

    threads = [threading.Thread(target=probe, args=item, daemon=True) for item in peers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    return silent


IDLE_S = 5.0
"""A transfer in which nothing comes for this long has failed."""

CHUNK = 1 << 20


SLOWEST = 64 << 10
"""Bytes a second: a transfer that is slower than this over its whole time has failed."""

SPARE = 64 << 20
"""Bytes that a state may have beyond twice those of the worker's own."""

LONGEST_HISTORY = 256 << 20


class TransferError(Exception):
    """A state could not be fetched."""


class StateServer(ThreadingHTTPServer):
    """Serves the state of this worker while a step is taken in which a peer needs it, and its history."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, history: History) -> None:
        super().__init__((host, 0), _Handler)
        self.history = history
        self._published: tuple[int, State] | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self.serve_forever, name="state", daemon=True).start()

    def publish(self, quorum: int, state: State) -> None:
        """Serve a state, which must not change, to the members of a quorum."""
        with self._changed:
            self._published = quorum, state
            self._changed.notify_all()

    def withdraw(self) -> None:
        with self._changed:
            self._published = None

    def find(self, quorum: int) -> State | None:
        """Return the state for a quorum, which may be about to be published."""
        with self._changed:
            self._changed.wait_for(lambda: self._published and self._published[0] >= quorum, IDLE_S)
            published = self._published
        return published[1] if published and published[0] == quorum else None

    def handle_error(self, *_: Any) -> None:  # noqa: ANN401 - as the library has it
        """Write no log: the peer repeats its request."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: StateServer
    timeout = 4 * IDLE_S

    def do_GET(self) -> None:
        kind, _, number = self.path.strip("/").partition("/")
        if kind == "history":
            self._answer(HTTPStatus.OK)
            self.wfile.write(json.dumps(self.server.history.all()).encode())
            return
        state = self.server.find(int(number)) if kind == "state" and number.isdecimal() else None
        self._answer(HTTPStatus.OK if state is not None else HTTPStatus.NOT_FOUND)
        if state is not None:
            # Its end is the index: a reader recognizes one that was cut off.
            torch.save(state, self.wfile)

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as the library has it
        """Write no log."""


def fetch_state(
    address: str, quorum: int, is_broken: Callable[[], bool], *, step: int, most_bytes: int
) -> State:
    """Fetch a peer's state.

    Args:
        address: `HOST:PORT` of its server.
        quorum: In which both take part.
        is_broken: True once a worker of it is gone.
        step: Committed steps that it must have.
        most_bytes: A longer answer is given up.

    Raises:
        TransferError: The peer is gone, or has no such state.
    """
    data = _fetch(address, f"/state/{quorum}", is_broken, most_bytes)
    try:
        # Plain values and tensors only: a peer cannot send code.
        state: State = torch.load(data, map_location="cpu", weights_only=True)
    except Exception as error:
        # PyTorch's errors for a file that was cut off have no class in common.
        raise TransferError(f"the state of {address} is not whole: {error}") from error
    if not isinstance(state, dict) or type(state.get("step")) is not int or state["step"] != step:
        raise TransferError(f"{address} gave no state of step {step}")
    return state


def count_bytes(state: Any) -> int:  # noqa: ANN401 - any tree of tensors and plain values
    """Count the bytes of all tensors in a state."""
    if isinstance(state, torch.Tensor):
        return int(state.numel() * state.element_size())
    values = state.values() if isinstance(state, dict) else state
    return sum(count_bytes(value) for value in values) if isinstance(state, dict | list | tuple) else 0


def fetch_history(address: str) -> list[str]:
    """Fetch the records that a peer has; raises as `fetch_state` does."""
    try:
        lines = json.loads(_fetch(address, "/history", lambda: False, LONGEST_HISTORY).getvalue())
    except (ValueError, RecursionError) as error:
        raise TransferError(f"the history of {address} is not whole") from error
    if not isinstance(lines, list):
        raise TransferError(f"the history of {address} is no list")
    return [line for line in lines if isinstance(line, str)]


def _fetch(address: str, path: str, is_broken: Callable[[], bool], most_bytes: int) -> io.BytesIO:
    data, started_at = io.BytesIO(), time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=2 * IDLE_S)
    try:
        connection.connect()
        with time_limit(connection.sock, 4 * IDLE_S):
            connection.request("GET", path)
            answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise TransferError(f"{address}{path}: status {answer.status}")
        while chunk := answer.read1(CHUNK):
            data.write(chunk)
            if is_broken():
                raise TransferError("a worker is gone")
            if data.tell() > most_bytes:
                raise TransferError(f"{address}{path}: more than {most_bytes} bytes")
            if data.tell() < SLOWEST * (time.monotonic() - started_at - 4 * IDLE_S):
                raise TransferError(f"{address}{path}: slower than {SLOWEST} bytes a second")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransferError(f"{address}{path}: {error}") from error
    finally:
        connection.close()
    data.seek(0)
    return data
