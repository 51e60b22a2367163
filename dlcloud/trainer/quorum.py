"""The engine on torchft: workers agree on the participants of every step; a newcomer fetches a peer's state.

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

from .engine import Load, Member, NoQuorumError, Save, State, copy_state
from .ledger import WrongRunError
from .settings import Timing

log = logging.getLogger(__name__)

_STATUS = re.compile(r'^status: \w+, message: "([^"]+)"')
"""The form in which torchft shows an error of its server."""

# What a peer sends is copied into the model and never written to.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


class QuorumEngine:
    """A worker among others.

    Args:
        step: Committed steps of this worker's state.
        load: Replaces the state by a peer's.
        save: Returns the state for a peer.
        lighthouse: `http://HOST:PORT`.
        host: This machine's address, as the others reach it.
        name: Of this worker, for logs.

    Raises:
        NoQuorumError: The lighthouse does not answer; to be repeated.
    """

    def __init__(
        self, step: int, load: Load, save: Save, *, lighthouse: str, host: str, name: str, timing: Timing
    ) -> None:
        self._timing = timing
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        heal = timedelta(seconds=timing.heal_s)
        gloo = _Gloo(timeout=timedelta(seconds=timing.connect_s), reduce_limit=heal)
        self._group = ProcessGroupNCCL(timeout=heal) if torch.cuda.is_available() else gloo
        self._limit: tuple[int, float | None] = (-1, None)
        transport = _Transport(host, heal)
        try:
            self._manager = Manager(
                pg=self._group,
                load_state_dict=lambda state: self._heal(load, state),
                # A copy: while a peer reads it, the next step changes running statistics here.
                state_dict=lambda: copy_state(save()),
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
            # As in `begin`: torchft raises errors of many classes.
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
        return cast("int", self._manager.current_step()) + self._own_steps

    def begin(self) -> Member | None:
        self._healed, self._works = False, []
        # A failed agreement would be raised again by the next one.
        self._manager._quorum_future = None  # noqa: SLF001
        try:
            self._manager.start_quorum()
        except WrongRunError:
            raise
        except Exception as error:
            # torchft translates no error: RuntimeError, TimeoutError and its own classes all come through.
            raise NoQuorumError(self._reason(error)) from error
        if self._manager.errored():
            self.commit(agreed=False)
            return None
        self._size = self._manager.num_participants()
        self._limit_reductions()
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

    def _limit_reductions(self) -> None:
        """Give the reductions of a step with the same workers the limit of the step before.

        Aborting the group does not end a wait in one of gloo's reductions: only gloo's own time-out does.
        """
        quorum, limit_s = self._limit
        same = quorum == self._manager._quorum_id  # noqa: SLF001
        if isinstance(self._group, _Gloo):
            limit_s = limit_s if same and limit_s else self._timing.heal_s
            self._group.reduce_limit = timedelta(seconds=limit_s)

    def depart(self) -> None:
        if not self._departed:
            self._departed = True
            # The server of this worker sends the heartbeats; no other request reaches it during a step.
            self._manager._manager.shutdown()  # noqa: SLF001

    def allreduce(self, values: Tensor) -> None:
        if self._size > 1:
            self._works.append(self._manager.allreduce(values, reduce_op=ReduceOp.SUM))

    def wait(self, limit_s: float | None) -> bool:
        """Wait for the reductions; one that takes too long is aborted."""
        self._limit = (self._manager._quorum_id, limit_s)  # noqa: SLF001
        if self._works:
            watch = threading.Timer(limit_s or self._timing.heal_s, self._abort_reductions)
            watch.daemon = True
            watch.start()
            for work in self._works:
                work.wait()
            watch.cancel()
            self._works = []
        return self._manager.errored() is None

    def commit(self, *, agreed: bool) -> bool:
        """Count the step, or abort the connections so that no peer waits for this worker."""
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

    def reset(self) -> None:
        self._manager.load_state_dict({"step": 0, "batches_committed": 0})

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._group.abort()
        self._manager.shutdown(wait=False)
        # A request without an answer ends with the server that it goes through, not with its time-out; the
        # process could not end before.
        self._manager._manager = None  # noqa: SLF001

    def _abort_reductions(self) -> None:
        log.warning("a reduction has not ended in time: a peer hangs")
        self._group.abort()

    def _heal(self, load: Load, state: State) -> None:
        load(state)
        self._healed = True


def _line(error: Exception) -> str:
    """Return the first line of an error's text, or its class where it has none."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    status = _STATUS.search(line)
    return (status[1] if status else line)[:200]


class _Gloo(ProcessGroupGloo):  # type: ignore[misc]  # torchft is not there where types are checked
    """Limits connecting, where a peer may be gone, and reductions, where it may be healing, separately."""

    def __init__(self, timeout: timedelta, reduce_limit: timedelta) -> None:
        super().__init__(timeout=timeout)
        self.reduce_limit = reduce_limit

    def _opts_hook(self, opts: Any) -> Any:  # noqa: ANN401 - the options of any collective
        opts.timeout = self.reduce_limit
        return opts


class _Transport(HTTPTransport):  # type: ignore[misc]  # torchft is not there where types are checked
    """Serves the state at an address that peers reach, and reads theirs as data, never as code."""

    def __init__(self, host: str, timeout: timedelta) -> None:
        # First: the constructor asks for the address.
        self._host = host
        super().__init__(timeout=timeout, num_chunks=0)
        # It would print a line for every peer that joins.
        self._server.RequestHandlerClass.log_message = lambda *_: None

    def address(self) -> str:
        """Return the URL for peers; the host's name need not resolve."""
        return f"http://{self._host}:{self._server.socket.getsockname()[1]}/checkpoint/"

    @classmethod
    def _load_from_address(cls, address: str, timeout: timedelta) -> object:
        # A peer of this run's security group, on plain HTTP as torchft speaks it.
        import urllib.request  # noqa: PLC0415

        with urllib.request.urlopen(address, timeout=timeout.total_seconds()) as answer:  # noqa: S310
            return _streaming_load(answer, weights_only=True)
