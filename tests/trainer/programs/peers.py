"""Workers that send something else than a state or a history to a peer; run by pytest where PyTorch is."""

import contextlib
import io
import os
import pickle
import socket
import threading
import time

import pytest
import torch
from parts import job_of
from trainer import quorum_engine
from trainer.coordination.ledger import WrongRunError
from trainer.drain import Drain
from trainer.engine import StateError
from trainer.job import TrainingState
from trainer.quorum_engine import TransferError, fetch_history, fetch_state
from trainer.records import History


class Evil:
    """What a pickle of foreign bytes would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@contextlib.contextmanager
def peer_that_sends(data, times=1, pause_s=0.0):
    """Serve one worker that asks for a state; its address."""

    def lie(connection):
        with contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            for _ in range(times):
                connection.sendall(data)
                time.sleep(pause_s)
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: lie(server.accept()[0]), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def fetch(address, step=3):
    return fetch_state(address, 1, lambda: False, step=step, most_bytes=1 << 20)


def saved(state):
    content = io.BytesIO()
    torch.save(state, content)
    return content.getvalue()


def test_a_peer_gives_the_state_of_the_step_that_was_agreed():
    with peer_that_sends(saved({"step": 3, "model": {}})) as address:
        assert fetch(address) == {"step": 3, "model": {}}


def test_a_peer_cannot_bring_code(tmp_path):
    for data in (saved({"step": 3, "model": Evil(tmp_path / "evil")}), pickle.dumps(Evil(tmp_path / "evil"))):
        with peer_that_sends(data) as address, pytest.raises(TransferError, match="not whole"):
            fetch(address)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "data", [b"", b"garbage", saved({"step": 4}), saved({"step": True}), saved([3]), saved({})]
)
def test_a_peer_that_gives_something_else_is_refused(data):
    with peer_that_sends(data) as address, pytest.raises(TransferError):
        fetch(address)


def test_a_peer_that_never_ends_or_trickles_is_given_up(monkeypatch):
    with (
        peer_that_sends(b"x" * (1 << 16), times=1000) as address,
        pytest.raises(TransferError, match="more than"),
    ):
        fetch(address)
    monkeypatch.setattr(quorum_engine, "IDLE_S", 0.1)
    with peer_that_sends(b"x", 100_000, 0.01) as address, pytest.raises(TransferError, match="slower"):
        fetch(address)


@pytest.mark.parametrize("data", [b"7", b"{}", b"[" * 100_000, b"\xff", b"[1, {}, null]"])
def test_a_history_that_is_none_brings_no_record(data):
    history = History(run="r")
    with peer_that_sends(data) as address, contextlib.suppress(TransferError):
        history.fill(fetch_history(address), 9)
    assert history.all() == []


@pytest.mark.parametrize(
    "change",
    [
        {"model": {}},
        {"model": None},
        {"optimizer": {"state": {}}},
        {"step": -1},
        {"step": float("nan")},
        {"lineage": "x"},
        {"model": {"last.weight": torch.zeros(7)}},
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_not_trained_on(change):
    job = job_of()
    state = TrainingState(job, 1, Drain(), History())
    state.step = 3
    good = state.save()
    broken = {**good, **change}
    with pytest.raises(StateError):
        state.load(broken)
    assert state.step == 0, "a half of it may have been loaded"
    state.load(good)
    assert state.step == 3


def test_a_state_of_another_run_or_none_at_all_is_refused():
    state = TrainingState(job_of(), 1, Drain(), History())
    with pytest.raises(WrongRunError):
        state.load({**state.save(), "fingerprint": 2})
