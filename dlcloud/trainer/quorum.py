"""The engine on torchft: who takes part is agreed on at every step; a newcomer takes state from a peer.

Source: torchft 0.2.0, manager.py. Private names of it are used where it has no public ones; it is pinned.
"""

import contextlib
import logging
import re
import threading
import warnings
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ReduceOp, TCPStore
from torch.distributed._serialization import _streaming_load
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo, ProcessGroupNCCL

from .checkpoint import copied
from .engine import Load, Member, Save, State
from .errors import NoQuorumError, StrangerError
from .quorum_timing import Timing

log = logging.getLogger(__name__)

_STATUS = re.compile(r'^status: \w+, message: "([^"]+)"')
"""How torchft shows what its server answered."""

# What a peer sends is copied into the model and never written to.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


class QuorumEngine:
    """A worker among others.

    Args:
        step: Steps that the own state has behind it.
        load: Takes over a peer's state.
        save: Gives the own state to a peer.
        lighthouse: `http://HOST:PORT` of the lighthouse.
        host: This machine's address, as the others reach it.
        name: Of this worker, for logs.
        timing: How long to wait for others.

    Raises:
        NoQuorumError: There is no lighthouse; to be tried again.
    """

    def __init__(
        self, step: int, load: Load, save: Save, *, lighthouse: str, host: str, name: str, timing: Timing
    ) -> None:
        self._timing = timing
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        heal = timedelta(seconds=timing.heal_s)
        gloo = _Gloo(timeout=timedelta(seconds=timing.connect_s), sums=heal)
        self._group = ProcessGroupNCCL(timeout=heal) if torch.cuda.is_available() else gloo
        self._limit: tuple[int, float | None] = (-1, None)
        transport = _Transport(host, heal)
        try:
            self._manager = Manager(
                pg=self._group,
                load_state_dict=lambda state: self._heal(load, state),
                # A copy: while a peer reads it, the next step changes running statistics here.
                state_dict=lambda: copied(save()),
                min_replica_size=1,
                use_async_quorum=False,
                timeout=heal,
                quorum_timeout=timedelta(seconds=timing.quorum_s),
                connect_timeout=timedelta(seconds=timing.connect_s),
                rank=0,
                world_size=1,
                store_addr=host,
                store_port=self._store.port,
                lighthouse_addr=lighthouse,
                replica_id=name,
                hostname=host,
                heartbeat_interval=timedelta(seconds=timing.heartbeat_s),
                checkpoint_transport=transport,
                init_sync=False,
                quorum_retries=100,
            )
        except Exception as error:
            # As in `begin`: every kind comes through.
            transport.shutdown(wait=False)
            raise NoQuorumError(f"no lighthouse at {lighthouse}: {_line(error)}") from error
        self._manager.load_state_dict({"step": step, "batches_committed": 0})
        self._works: list[Any] = []
        self._healed = False
        self._size = 0
        self._departed = False
        self._own_steps = 0

    @property
    def step(self) -> int:
        """Return how many steps are committed."""
        return cast("int", self._manager.current_step()) + self._own_steps

    def begin(self) -> Member | None:
        """Agree on who takes part in the next step; see Engine."""
        self._healed, self._works = False, []
        # A failed agreement would be raised again by the next one.
        self._manager._quorum_future = None  # noqa: SLF001
        try:
            self._manager.start_quorum()
        except StrangerError:
            raise
        except Exception as error:
            # torchft translates nothing: RuntimeError, TimeoutError and its own kinds all come through here.
            raise NoQuorumError(self._reason(error)) from error
        if self._manager.errored():
            self.commit(agreed=False)
            return None
        self._size = self._manager.num_participants()
        self._limit_sums()
        return Member(
            rank=cast("int", self._manager.participating_rank()),
            size=self._size,
            quorum=self._manager._quorum_id,  # noqa: SLF001
            healed=self._healed,
        )

    def _reason(self, error: Exception) -> str:
        """Return why there is no agreement, in one line."""
        text = _line(error)
        if "Timeout expired" in text or isinstance(error, TimeoutError):
            return f"no agreement with other workers within {self._timing.quorum_s:g} s"
        return text

    def _limit_sums(self) -> None:
        """Let the sums of a step among the same workers take no longer than those of the step before might.

        Breaking a group off does not wake who waits in one of gloo's sums: only its own time-out does.
        """
        quorum, limit_s = self._limit
        same = quorum == self._manager._quorum_id  # noqa: SLF001
        if isinstance(self._group, _Gloo):
            limit_s = limit_s if same and limit_s else self._timing.heal_s
            self._group.sums = timedelta(seconds=limit_s)

    def depart(self) -> None:
        """Give no more sign of life: when the lighthouse is next asked, this worker is forgotten already."""
        if not self._departed:
            self._departed = True
            # The server of this worker gives the signs of life; nobody asks it during the step.
            self._manager._manager.shutdown()  # noqa: SLF001

    def sum(self, values: Tensor) -> None:
        """Begin to add up."""
        if self._size > 1:
            self._works.append(self._manager.allreduce(values, reduce_op=ReduceOp.SUM))

    def wait(self, limit_s: float | None) -> bool:
        """Wait for the sums; one that a peer holds up for too long is broken off."""
        self._limit = (self._manager._quorum_id, limit_s)  # noqa: SLF001
        if self._works:
            watch = threading.Timer(limit_s or self._timing.heal_s, self._give_up)
            watch.daemon = True
            watch.start()
            for work in self._works:
                work.wait()
            watch.cancel()
            self._works = []
        return self._manager.errored() is None

    def commit(self, *, agreed: bool) -> bool:
        """Count the step, or break off the connections so that nobody waits for this worker."""
        if self._departed:
            counted = agreed and self._manager.errored() is None
            self._own_steps += counted
            return counted
        if not agreed:
            self._manager.report_error(RuntimeError("this worker does not agree"))
        committed = bool(self._manager.should_commit())
        if not committed:
            self._group.abort()
        return committed

    def forget(self) -> None:
        """Begin anew without a state, to take a peer's."""
        self._manager.load_state_dict({"step": 0, "batches_committed": 0})

    def close(self) -> None:
        """Leave; nothing is waited for."""
        with contextlib.suppress(Exception):
            self._group.abort()
        self._manager.shutdown(wait=False)
        # A request that nobody answers ends with the server that it goes through, not with its time-out: no
        # process could end before.
        self._manager._manager = None  # noqa: SLF001

    def _give_up(self) -> None:
        log.warning("a sum has not ended in time: a peer hangs")
        self._group.abort()

    def _heal(self, load: Load, state: State) -> None:
        load(state)
        self._healed = True


def _line(error: Exception) -> str:
    """Return the first line of what a library says; some of them say nothing."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    status = _STATUS.search(line)
    return (status[1] if status else line)[:200]


class _Gloo(ProcessGroupGloo):  # type: ignore[misc]  # torchft is not there where types are checked
    """Gives up connecting soon, for a peer may be gone, and sums late, for a peer may be taking its state."""

    def __init__(self, timeout: timedelta, sums: timedelta) -> None:
        super().__init__(timeout=timeout)
        self.sums = sums

    def _opts_hook(self, opts: Any) -> Any:  # noqa: ANN401 - the options of any collective
        opts.timeout = self.sums
        return opts


class _Transport(HTTPTransport):  # type: ignore[misc]  # torchft is not there where types are checked
    """Serves state at an address that peers can reach, and reads theirs as data, never as code."""

    def __init__(self, host: str, timeout: timedelta) -> None:
        # Before all else: it is asked for its address while it is made.
        self._host = host
        super().__init__(timeout=timeout, num_chunks=0)
        # It would print a line for each peer that joins.
        self._server.RequestHandlerClass.log_message = lambda *_: None

    def address(self) -> str:
        """Return where peers fetch from; the host's name need not resolve."""
        return f"http://{self._host}:{self._server.socket.getsockname()[1]}/checkpoint/"

    @classmethod
    def _load_from_address(cls, address: str, timeout: timedelta) -> object:
        # A peer of this run's security group, on plain HTTP as torchft speaks it.
        import urllib.request  # noqa: PLC0415

        with urllib.request.urlopen(address, timeout=timeout.total_seconds()) as answer:  # noqa: S310
            return _streaming_load(answer, weights_only=True)
