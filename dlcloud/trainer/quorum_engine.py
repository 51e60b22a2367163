"""The engine of several workers: they agree on each step at the lighthouse, and sum over a group."""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta

from torch import Tensor
from torch.distributed import TCPStore

from .coordination.history import History
from .coordination.quorum import Ask, NoQuorumError
from .coordination.quorum_client import Agreement, QuorumClient
from .engine import Load, QuorumMember, Save, StateError, copy_state
from .group import GroupError, WorkerGroup
from .probe import Probes
from .settings import Timing
from .transfer import SPARE, StateServer, TransferError, count_bytes, fetch_history, fetch_state

log = logging.getLogger(__name__)


class QuorumEngine:
    """A worker among others.

    Args:
        step: Committed steps of this worker's state.
        load: Replaces the state by a peer's.
        save: Returns the state for a peer.
        lighthouse: `HOST:PORT`.
        host: This machine's address, as the others reach it.
        name: Of this worker; decides its rank.
        run: Name of the run.
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
        run: str,
        timing: Timing,
        history: History,
    ) -> None:
        self.step, self._load, self._save = step, load, save
        self._lighthouse, self._host, self._run = lighthouse, host, run
        self._timing, self._history = timing, history
        self._id = f"{name}:{uuid.uuid4().hex[:12]}"
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
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

    def begin(self) -> QuorumMember | None:
        self._server.withdraw()
        self._agreement = agreement = self._agree()
        self._history.recorded = agreement.recorded
        try:
            if agreement.number != self._connected:
                self._join(agreement)
            is_healed = self._heal(agreement)
        except (GroupError, TransferError) as error:
            self._give_up(str(error))
            return None
        rank = [peer.id for peer in agreement.members].index(self._id)
        return QuorumMember(
            rank=rank,
            size=len(agreement.members),
            quorum=agreement.number,
            healed=is_healed,
            left=agreement.left,
        )

    def ask(self) -> None:
        if self._client is not None:
            self._asks += 1
            self._client.ask(self._request(), self._unrecorded())
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
        hello["state"] = self._server.server_address[1]
        timing = self._timing
        return QuorumClient(
            self._lighthouse, self._run, hello, beat_s=timing.beat_s, silent_s=timing.silent_s
        )

    def _agree(self) -> Agreement:
        """Ask for the next quorum.

        Raises:
            NoQuorumError: The lighthouse does not answer, or too few workers have come.
        """
        if self._client is None or self._client.is_closed:
            self._client, self._has_asked = self._connect(), False
        deadline = time.monotonic() + self._timing.quorum_s
        while (left := deadline - time.monotonic()) > 0:
            if not self._has_asked:
                self.ask()
            self._has_asked = False
            # A worker that others do not reach asks again once they do.
            limit_s = min(left, self._probes.interval_s) if self._probes.suspects else left
            agreement = self._client.wait(self._asks, limit_s)
            if agreement is not None:
                return agreement
        raise NoQuorumError(f"no agreement with other workers within {self._timing.quorum_s:g} s")

    def _request(self) -> Ask:
        return Ask(
            number=self._asks,
            step=self.step,
            group=self._connected,
            quorum=self._agreement.number,
            before=tuple(peer.id for peer in self._agreement.members),
            unreachable=tuple(self._probes.suspects),
        )

    def _unrecorded(self) -> list[str]:
        """Return the records to send; one worker at a time sends old ones."""
        ids = [peer.id for peer in self._agreement.members]
        is_its_turn = self._id in ids and ids.index(self._id) == self.step % len(ids)
        return self._history.unrecorded(self.step, with_older=is_its_turn)

    def _join(self, agreement: Agreement) -> None:
        """Connect to the other workers of a new quorum."""
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
