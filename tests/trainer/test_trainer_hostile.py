"""Hostile or broken answers of lighthouse, ledger and workers: refused, in bounded time and memory."""

import contextlib
import json
import math
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from dlcloud.trainer.coordination.ledger import Entry, LedgerClient, LedgerError, parse_entry
from dlcloud.trainer.coordination.ledger import WrongRunError as LedgerOfAnotherRunError
from dlcloud.trainer.coordination.quorum import (
    LARGEST,
    LONGEST_LINE,
    Ask,
    NoQuorumError,
    ProtocolError,
    QuorumClient,
    QuorumServer,
    Roster,
    parse_ask,
    parse_hello,
    parse_line,
    parse_quorum,
)
from dlcloud.trainer.lighthouse import Ledger, LedgerServer
from dlcloud.trainer.records import History, Journal, parse_record
from dlcloud.trainer.settings import Control, ControlError, parse_control
from tests.fakes.training import read_records

RUN, OWN = "run-1", "a:1"
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
DEEP = b"[" * 200_000 + b"]" * 200_000 + b"\n"
PEER = {"id": OWN, "host": "127.0.0.1", "store": 1, "state": 2, "step": 5}
QUORUM = {"run": RUN, "quorum": 1, "ask": 1, "recorded": 5, "members": [PEER]}
ASK = {"number": 1, "step": 5, "group": 0, "quorum": 0, "before": [], "unreachable": []}
HELLO = {"id": OWN, "host": "127.0.0.1", "store": 1, "state": 2}


def mutate(draw, message, part=None):
    """Replace or remove one value of a message, or of a part of it."""
    changed = json.loads(json.dumps(message))
    inner = changed if part is None else part(changed)
    name = draw(some.sampled_from(sorted(inner)))
    if draw(some.booleans()):
        del inner[name]
    else:
        inner[name] = draw(JSON)
    return changed


@settings(max_examples=60)
@given(some.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode() + b"\n"))
def test_any_line_is_an_object_or_refused(line):
    with contextlib.suppress(ProtocolError):
        assert isinstance(parse_line(line), dict)


@pytest.mark.parametrize("line", [DEEP, b"{" * 9 + b"\n", b"{}", b"\xff\n", b" " * LONGEST_LINE + b"{}\n"])
def test_bombs_torn_lines_and_garbage_are_refused(line):
    with pytest.raises(ProtocolError):
        parse_line(line)


def test_a_message_that_asks_nothing_is_refused():
    with pytest.raises(ProtocolError):
        parse_ask({"records": []})


@settings(max_examples=60)
@given(some.data())
def test_a_quorum_is_as_described_or_refused(data):
    part = data.draw(some.sampled_from([None, lambda message: message["members"][0]]))
    message = mutate(data.draw, QUORUM, part)
    with contextlib.suppress(ProtocolError):
        number, quorum, peers, recorded = parse_quorum(message, own=OWN, run=RUN)
        assert OWN in quorum.members
        assert 0 <= recorded <= max(peer.step for peer in peers) < LARGEST
        assert all(0 <= peer.state < 65536 and isinstance(peer.host, str) for peer in peers)
        assert number >= 0


@pytest.mark.parametrize(
    "change",
    [
        {"run": "run-2"},
        {"recorded": 6},
        {"recorded": True},
        {"quorum": math.inf},
        {"quorum": 1 << 60},
        {"members": []},
        {"members": [PEER, PEER]},
        {"members": [{**PEER, "id": "b:2"}]},
        {"members": [{**PEER, "step": -1}]},
        {"members": [{**PEER, "host": "a\nb"}]},
    ],
)
def test_quorums_of_others_from_the_future_or_without_this_worker(change):
    with pytest.raises(ProtocolError):
        parse_quorum(QUORUM | change, own=OWN, run=RUN)


@settings(max_examples=60)
@given(some.data())
def test_a_workers_messages_are_as_described_or_refused(data):
    with contextlib.suppress(ProtocolError):
        attendant = parse_hello(mutate(data.draw, {"hello": HELLO}, lambda message: message["hello"]))
        assert (attendant.ask, attendant.heard_at) == (None, 0.0)
    with contextlib.suppress(ProtocolError):
        ask, _ = parse_ask(mutate(data.draw, {"ask": ASK, "records": []}, lambda message: message["ask"]))
        assert all(0 <= number < LARGEST for number in (ask.number, ask.step, ask.group, ask.quorum))


def record(step=3, **more):
    return json.dumps({"record": "step", "run": RUN, "step": step, "lineage": 1, **more})


@pytest.mark.parametrize(
    "line",
    [
        record(run="run-2"),
        record(step=6),
        record(step=0),
        record(step=True),
        record(step=2.0),
        record(lineage=[]),
        record(note="x" * (1 << 17)),
        record().replace(",", ",\n", 1),
        "[" * 100_000,
        json.dumps([record()]),
        "",
    ],
)
def test_records_of_other_runs_and_of_the_future_are_not_taken(tmp_path, line):
    assert parse_record(line, run=RUN, most=5) is None
    journal, history = Journal(tmp_path / "records.jsonl", RUN), History(run=RUN)
    journal.add([line, record()], most=5)
    assert [kept["step"] for kept in read_records(tmp_path / "records.jsonl")] == [3]
    history.fill([line, record()], 5)
    assert history.all() == [record()]


@settings(max_examples=60)
@given(some.text(max_size=60) | JSON.map(json.dumps))
def test_any_ledger_entry_and_control_file_is_read_or_refused(text):
    with contextlib.suppress(ValueError):
        assert isinstance(parse_entry(text), Entry)
    with contextlib.suppress(ControlError):
        assert isinstance(parse_control(text), Control)


@pytest.mark.parametrize(
    "text", ["[" * 4000, "{" * 4000, '{"run": "r", "step": NaN}', '{"run": "r", "step": 1e9}']
)
def test_bombs_and_numbers_that_are_none_are_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - any refusal will do
        parse_entry(text)
    if not text.endswith("}"):
        with pytest.raises(ControlError):
            parse_control(text)


class Liar(threading.Thread):
    """A server that answers every connection with the same bytes, again and again, and reads nothing."""

    def __init__(self, data, *, pause_s=0.0, times=1):
        super().__init__(daemon=True)
        self.data, self.pause_s, self.times = data, pause_s, times
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.sent, self.connections = 0, []
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                self.connections.append(self.server.accept()[0])
                threading.Thread(target=self.lie, args=(self.connections[-1],), daemon=True).start()

    def lie(self, connection):
        with contextlib.suppress(OSError):
            for _ in range(self.times):
                connection.sendall(self.data)
                self.sent += len(self.data)
                time.sleep(self.pause_s)

    def close(self):
        for connection in [self.server, *self.connections]:
            connection.close()


@contextlib.contextmanager
def lying(data, **options):
    liar = Liar(data, **options)
    try:
        yield liar
    finally:
        liar.close()


def asked(liar, silent_s=30.0):
    client = QuorumClient(liar.address, RUN, {"id": OWN}, beat_s=0.02, silent_s=silent_s)
    try:
        client.ask(Ask(number=1), [])
        return client.wait(1, 60.0)
    finally:
        client.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"null\n",
        b"[]\n",
        b"{nonsense\n",
        b'{"broken": NaN}\n',
        b'{"broken": 1e999}\n',
        b'{"end": {}}\n',
        b'{"quorum": 1}\n',
        DEEP,
        json.dumps(QUORUM | {"members": [{**PEER, "id": "b"}]}).encode() + b"\n",
    ],
)
def test_a_lighthouse_that_sends_garbage_is_no_lighthouse(data):
    with lying(data) as liar, pytest.raises(NoQuorumError):
        asked(liar)


def test_a_lighthouse_of_another_run_is_refused():
    line = json.dumps(QUORUM | {"run": "run-2"}).encode() + b"\n"
    with lying(line) as liar, pytest.raises(LedgerOfAnotherRunError):
        asked(liar)


def test_a_line_without_an_end_is_given_up_in_bounded_memory():
    with lying(b"x" * (1 << 20), times=1000) as liar, pytest.raises(NoQuorumError):
        asked(liar)
    assert liar.sent < LONGEST_LINE + (64 << 20)


def test_a_lighthouse_that_trickles_is_given_up():
    with lying(b" ", pause_s=0.01, times=100_000) as liar, pytest.raises(NoQuorumError, match="no whole"):
        asked(liar, silent_s=0.1)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_ledger_that_trickles_is_given_up(monkeypatch, head):
    monkeypatch.setattr("dlcloud.trainer.coordination.ledger.TIMEOUT_S", 0.2)
    with lying(head + b"x", pause_s=0.05, times=100_000) as liar, pytest.raises(LedgerError):
        LedgerClient(address=liar.address, run=RUN).read()


@pytest.mark.parametrize("length", ["²", "-1", "1e3", "99999999999", ""])
def test_a_ledger_refuses_lengths_that_are_none(tmp_path, length):
    server = LedgerServer(Ledger(tmp_path / "ledger.json", RUN), "127.0.0.1", 0)
    try:
        with socket.create_connection(server.server_address) as connection:
            head = f"POST /ledger HTTP/1.0\r\nContent-Length: {length}\r\n\r\n"
            connection.sendall(head.encode("latin-1"))
            assert b" 400 " in connection.recv(1 << 16)
    finally:
        server.shutdown()
        server.server_close()


def test_a_lighthouse_serves_on_whatever_connects_to_it(tmp_path):
    roster = Roster(join_s=1.0, silent_s=30.0)
    server = QuorumServer(roster, Journal(tmp_path / "records.jsonl", RUN), RUN, "127.0.0.1", 0)
    hello = {"run": RUN, "hello": HELLO}
    lines = [
        b"GET / HTTP/1.1\r\n\r\n",
        DEEP,
        b"7\n",
        json.dumps({**hello, "hello": {**HELLO, "ask": {}, "id": []}}).encode() + b"\n",
        json.dumps({**hello, "ask": {**ASK, "step": -1}}).encode() + b"\n",
        json.dumps({**hello, "ask": ASK, "records": [record(step=9), record(run="x"), "{}"]}).encode()
        + b"\n",
    ]
    for line in lines:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while connection.recv(1 << 16):
                    pass
    assert (tmp_path / "records.jsonl").read_text() == ""
    client = QuorumClient(f"127.0.0.1:{server.port}", RUN, HELLO, beat_s=0.1, silent_s=30.0)
    client.ask(Ask(number=1, step=5), [record(step=5)])
    agreement = client.wait(1, 60.0)
    client.close()
    assert [peer.id for peer in agreement.members] == [OWN]
