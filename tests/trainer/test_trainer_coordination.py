"""Lighthouse and ledger: who takes part in a step, what keeps a run whole, and hostile or broken answers."""

import contextlib
import itertools
import json
import math
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from dlcloud.trainer.coordination.ledger import (
    CommitVerdict,
    Entry,
    LedgerClient,
    LedgerError,
    WrongRunError,
    check_history,
    check_size,
    parse_entry,
)
from dlcloud.trainer.coordination.ledger import WrongRunError as LedgerOfAnotherRunError
from dlcloud.trainer.coordination.quorum import (
    LARGEST,
    LONGEST_LINE,
    MATES_S,
    REJOIN_S,
    Ask,
    Attendant,
    NoQuorumError,
    ProtocolError,
    Quorum,
    QuorumClient,
    QuorumServer,
    Roster,
    choose_connected,
    parse_ask,
    parse_hello,
    parse_line,
    parse_quorum,
)
from dlcloud.trainer.lighthouse import Ledger, LedgerServer
from dlcloud.trainer.records import History, Journal, parse_record
from dlcloud.trainer.sampler import Sampler, chunks, divide, key, share
from dlcloud.trainer.settings import Control, ControlError, ControlFile, parse_control
from tests.fakes.training import read_records, wait_until, write_control_file

JOIN_S, SILENT_S, LIMIT_S = 4.0, 5.0, 300.0


def roster(*names, minimum=1):
    made = Roster(minimum=minimum, join_s=JOIN_S, silent_s=SILENT_S)
    for name in names:
        made.arrive(Attendant(id=name))
    return made


def ask(made, *names, group=None, **more):
    for name in names:
        made.ask(name, Ask(group=made.last.number if group is None else group, **more))


def test_the_workers_of_an_instance_join_together():
    made = roster("a")
    ask(made, "a")
    assert made.decide().members == ("a",)
    for name in ("b.0", "b.1"):
        made.arrive(Attendant(id=name, instance="b", mates=2))
    ask(made, "a", "b.0")
    assert made.decide().members == ("a",), "its mate has not come yet"
    ask(made, "a", "b.1")
    assert made.decide().members == ("a", "b.0", "b.1")


def test_a_worker_whose_mates_do_not_come_joins_without_them():
    made = roster("a")
    made.arrive(Attendant(id="b.0", instance="b", mates=2))
    ask(made, "a", "b.0")
    assert made.decide().members == ("a",)
    made.now += MATES_S
    for name in ("a", "b.0"):
        made.hear(name)
    ask(made, "a")
    assert made.decide().members == ("a", "b.0")


def test_a_minimum_counts_instances():
    lonely = roster("a", minimum=2)
    ask(lonely, "a")
    assert lonely.decide() is None
    made = roster(minimum=2)
    for name in ("a.0", "a.1"):
        made.arrive(Attendant(id=name, instance="a", mates=2))
    ask(made, "a.0", "a.1")
    assert made.decide() is None
    made.arrive(Attendant(id="b"))
    ask(made, "b")
    assert made.decide().members == ("a.0", "a.1", "b")


def formed(*names):
    """Return a roster that has just agreed on these workers."""
    made = roster(*names)
    for name in names:
        ask(made, name)
    made.decide()
    made.last = Quorum(1, tuple(sorted(names)))
    for name in names:
        made.attendants[name] = Attendant(id=name)
    return made


def test_the_same_workers_keep_their_connections():
    made = formed("a", "b")
    ask(made, "a")
    assert made.decide() is None
    ask(made, "b")
    assert made.decide() == Quorum(1, ("a", "b"))


def test_a_newcomer_is_added_when_the_others_come():
    made = formed("a", "b")
    made.arrive(Attendant(id="c"))
    ask(made, "c", group=0)
    made.now += 1000 * JOIN_S
    for name in "abc":
        made.hear(name)
    assert made.decide() is None, "the state is with the others, whose step may take long"
    ask(made, "a", "b")
    assert made.decide() == Quorum(2, ("a", "b", "c"))


def test_a_worker_whose_connection_closes_is_not_waited_for():
    made = formed("a", "b", "c")
    ask(made, "a", "b")
    del made.attendants["c"]
    assert made.find_broken() == 1
    assert made.find_broken() == 0
    assert made.decide() == Quorum(2, ("a", "b"))


def test_a_worker_that_leaves_is_not_waited_for_and_disturbs_no_step():
    made = formed("a", "b")
    made.leave("b")
    assert made.find_broken() == 0
    del made.attendants["b"]
    assert made.find_broken() == 0
    ask(made, "a")
    assert made.decide() == Quorum(2, ("a",))


def test_a_slow_worker_keeps_its_place_and_a_silent_one_does_not():
    made = formed("a", "b", "c")
    ask(made, "a", "b")
    made.now += JOIN_S * 0.9
    made.hear("c")
    assert (made.decide(), made.find_broken()) == (None, 0)
    made.now += SILENT_S * 0.5
    for name in "ab":
        made.hear(name)
    made.last = Quorum(1, ("a", "b", "c"))
    assert made.decide() == Quorum(2, ("a", "b")), "it is later than the others wait"


def test_a_worker_that_is_silent_breaks_the_step_of_the_others():
    made = formed("a", "b")
    made.now += SILENT_S + 1
    made.hear("a")
    assert made.find_broken() == 1
    ask(made, "a", group=0)
    assert made.decide() == Quorum(2, ("a",))


def test_a_worker_without_connections_breaks_the_step_of_the_others():
    made = formed("a", "b")
    ask(made, "a", group=0)
    assert made.find_broken() == 1
    ask(made, "b", group=0)
    assert made.decide() == Quorum(2, ("a", "b"))


def test_a_restarted_lighthouse_waits_for_the_workers_that_others_know_of():
    made = roster("a")
    ask(made, "a", group=7, quorum=7, before=("a", "b"))
    assert made.decide() is None
    made.arrive(Attendant(id="b"))
    ask(made, "b", group=7, quorum=7, before=("a", "b"))
    assert made.decide() == Quorum(7, ("a", "b")), "their connections are as good as before"


def test_the_wait_for_others_after_a_restart_ends():
    made = roster("a")
    ask(made, "a", group=7, quorum=7, before=("a", "b"))
    made.now += REJOIN_S
    made.hear("a")
    assert made.decide() == Quorum(8, ("a",))


@pytest.mark.parametrize(
    ("unreachable", "chosen"),
    [
        ({"a": (), "b": ()}, {"a", "b"}),
        ({"a": ("b",), "b": ("a",), "c": ()}, {"a", "c"}),
        ({"a": (), "b": ("a", "c"), "c": ()}, {"a", "c"}),
        ({"a": ("gone",), "b": ()}, {"a", "b"}),
        ({"a": ("b", "c"), "b": (), "c": ()}, {"b", "c"}),
    ],
)
def test_workers_that_do_not_reach_each_other_are_not_put_together(unreachable, chosen):
    assert choose_connected(unreachable) == chosen


def line(step, lineage=1):
    return json.dumps({"record": "step", "step": step, "lineage": lineage, "worker": "w"})


def test_a_journal_writes_each_commit_once_and_knows_its_file(tmp_path):
    path = tmp_path / "records.jsonl"
    journal = Journal(path)
    journal.add([line(1), line(1), line(3)])
    assert journal.recorded == 1
    journal.add([line(2), line(3, lineage=2), "half a li", '{"record":"event","step":9}'])
    assert journal.recorded == 3
    assert [record["step"] for record in read_records(path)] == [1, 3, 2, 3]
    assert Journal(path).recorded == 3


def test_a_history_sends_the_last_step_and_in_turn_what_is_lacking():
    history = History()
    for step in range(1, 6):
        history.add(step, line(step))
    history.recorded = 2
    assert history.unrecorded(5, with_older=False) == [line(5)]
    assert history.unrecorded(5, with_older=True) == [line(3), line(4), line(5)]
    history.rewind(4, line(4, lineage=2))
    history.fill([line(1, lineage=3), line(5)], 4)
    assert history.all() == [line(1, lineage=3), line(2), line(3), line(4, lineage=2)]


@pytest.fixture
def serve(tmp_path):
    """Serve a roster; return a function that connects a worker."""
    made = Roster(join_s=LIMIT_S, silent_s=LIMIT_S)
    server = QuorumServer(made, Journal(tmp_path / "records.jsonl"), "run-1", "127.0.0.1", 0)
    clients = []

    def connect(name, run="run-1"):
        hello = {"id": name, "host": "127.0.0.1", "store": 1, "state": 2}
        clients.append(QuorumClient(f"127.0.0.1:{server.port}", run, hello, beat_s=0.05, silent_s=LIMIT_S))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_workers_agree_and_their_records_are_written_before_the_next_step(serve, tmp_path):
    a = serve("a")
    a.ask(Ask(number=1, step=1), [line(1)])
    alone = a.wait(1, LIMIT_S)
    assert [peer.id for peer in alone.members] == ["a"]
    assert alone.recorded == 1
    assert [record["step"] for record in read_records(tmp_path / "records.jsonl")] == [1]
    b = serve("b")
    b.ask(Ask(number=1), [])
    assert b.wait(1, 0.1) is None
    a.ask(Ask(number=2, step=2, group=alone.number, quorum=alone.number, before=("a",)), [line(2)])
    both = [client.wait(number, LIMIT_S) for client, number in ((a, 2), (b, 1))]
    assert both[0] == both[1]
    assert [(peer.id, peer.step) for peer in both[0].members] == [("a", 2), ("b", 0)]
    b.close()
    wait_until(lambda: a.is_broken(both[0].number), "the news that b is gone", LIMIT_S)


def test_workers_hear_how_many_have_left_and_said_so(serve):
    a, b, c = (serve(name) for name in "abc")
    b.leave()
    b.close()
    c.close()
    wait_until(lambda: b.is_closed and c.is_closed, "the ends of b and c", LIMIT_S)
    for number in itertools.count(1):
        a.ask(Ask(number=number), [])
        if a.wait(number, LIMIT_S).left:
            break
    assert a.wait(number, LIMIT_S).left == 1


def test_a_worker_of_another_run_is_refused(serve):
    stranger = serve("x", run="run-2")
    stranger.ask(Ask(number=1), [])
    with pytest.raises(WrongRunError, match="serves run run-1, not run-2"):
        stranger.wait(1, LIMIT_S)


def test_a_refusal_is_not_lost_while_the_worker_still_sends(tmp_path):
    server = QuorumServer(Roster(join_s=1, silent_s=1), Journal(tmp_path / "r"), "run-1", "127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", server.port)) as stranger, stranger.makefile("rb") as lines:
        stranger.sendall(b'{"run": "run-2"}\n')
        refusal, end = lines.readlines(), time.monotonic() + 1
        while time.monotonic() < end:  # on a connection that the server had closed, the second would fail
            stranger.sendall(b'{"beat": 1}\n')
            time.sleep(0.05)
    assert json.loads(refusal[0])["refused"] == "serves run run-1, not run-2"


def test_a_lighthouse_that_is_away_is_no_quorum(serve):
    with pytest.raises(NoQuorumError, match="no lighthouse at"):
        QuorumClient("127.0.0.1:1", "run-1", {}, beat_s=1, silent_s=LIMIT_S)
    client = serve("a")
    client.close()
    with contextlib.suppress(OSError), pytest.raises(NoQuorumError, match="closed"):
        client.wait(1, LIMIT_S)


@pytest.mark.parametrize(
    ("step", "entry", "verdict"),
    [
        (0, Entry(run="r"), CommitVerdict.GO),
        (7, Entry(run="r", step=7), CommitVerdict.GO),
        (0, Entry(run="r", step=1), CommitVerdict.HOLD),
        (40, Entry(run="r", step=90, checkpoint=60), CommitVerdict.HOLD),
        (60, Entry(run="r", step=90, checkpoint=60), CommitVerdict.GO),
        (90, Entry(run="r", step=90, checkpoint=60, done=True), CommitVerdict.END),
        (0, None, CommitVerdict.HOLD),
    ],
)
def test_a_state_is_trained_on_only_if_it_is_the_newest(step, entry, verdict):
    decision = check_history(step, entry)
    assert decision.verdict is verdict
    assert bool(decision.reason) == (verdict is not CommitVerdict.GO)
    if verdict is CommitVerdict.GO:
        late = check_history(step, entry, least=step + 1)
        assert late.verdict is CommitVerdict.HOLD
        assert f"a peer has the state of step {step + 1}" in late.reason
        assert check_history(step, entry, least=step).verdict is CommitVerdict.GO


def test_too_few_workers_hold():
    assert check_size(2, 2).verdict is CommitVerdict.GO
    assert check_size(1, 2).verdict is CommitVerdict.HOLD


@pytest.fixture
def served(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json", "run-1")
    server = LedgerServer(ledger, "127.0.0.1", 0)
    yield ledger, f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_ledger_only_moves_on(served):
    ledger, address = served
    client = LedgerClient(address=address, run="run-1")
    assert client.advance(step=5, checkpoint=3) == Entry(run="run-1", step=5, checkpoint=3)
    assert client.advance(step=2) == Entry(run="run-1", step=5, checkpoint=3)
    assert client.advance(done=True).done
    assert client.advance(step=6).done
    assert client.read() == ledger.entry


def test_a_ledger_outlives_its_process_or_begins_where_the_run_was(tmp_path):
    Ledger(tmp_path / "l", "run-1").advance(step=4, done=True)
    assert Ledger(tmp_path / "l", "run-1").entry == Entry(run="run-1", step=4, done=True)
    assert Ledger(tmp_path / "new", "run-1", step=12).entry.step == 12, "of a new coordinator"


def test_another_run_is_refused(served, tmp_path):
    _, address = served
    stranger = LedgerClient(address=address, run="run-2")
    with pytest.raises(WrongRunError, match="serves run run-1, not run-2"):
        stranger.advance(step=9)
    with pytest.raises(WrongRunError, match="serves run run-1"):
        stranger.read()
    Ledger(tmp_path / "l", "run-1")
    with pytest.raises(WrongRunError, match="ledger of run run-1"):
        Ledger(tmp_path / "l", "run-2")


def test_many_workers_may_post_at_once(served):
    ledger, address = served
    client = LedgerClient(address=address, run="run-1")
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda step: client.advance(step=step), range(1, 20)))
    assert ledger.entry.step == 19


def test_a_ledger_that_is_away_differs_from_an_empty_one():
    with pytest.raises(LedgerError, match="no ledger at"):
        LedgerClient(address="127.0.0.1:1", run="r").read()


@pytest.mark.parametrize(
    "text",
    [
        *["", "[]", "{", '{"minimum": 0}', '{"minimum": true}', '{"generation": "3"}', '{"drain": 1}'],
        *['{"coordinator": "10.0.0.7"}', '{"coordinator": 1}', '{"step": -1}', '{"least": null}'],
    ],
)
def test_a_faulty_control_file_is_refused(text):
    with pytest.raises(ControlError):
        parse_control(text)


def test_a_control_file_is_followed(tmp_path):
    path = tmp_path / "control.json"
    follower = ControlFile(path)
    assert follower.read() == Control()
    control = Control(
        generation=2,
        minimum=3,
        drain="resize to 1",
        coordinator="10.0.0.7:29510",
        coordinates=True,
        step=9,
        least=8,
    )
    write_control_file(path, **asdict(control))
    assert follower.read() == control
    assert parse_control(json.dumps({"minimum": 2, "news": 1})) == Control(minimum=2)


def test_a_file_that_breaks_or_is_older_changes_nothing(tmp_path):
    path = tmp_path / "control.json"
    follower = ControlFile(path)
    write_control_file(path, generation=2, minimum=3)
    follower.read()
    path.write_text("{")
    assert follower.read().minimum == 3
    assert "not JSON" in follower.fault
    write_control_file(path, generation=1, minimum=9)
    assert follower.read().minimum == 3
    path.unlink()
    assert follower.read().minimum == 3


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


def permute(count, seed):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@given(count=some.integers(0, 300), size=some.integers(1, 40))
def test_shares_cover_everything_once_and_differ_by_one_at_most(count, size):
    shares = [share(count, rank, size) for rank in range(size)]
    assert [place for some_share in shares for place in some_share] == list(range(count))
    sizes = [len(some_share) for some_share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(samples=some.integers(1, 200), batch=some.integers(1, 200), seed=some.integers(0, 9), data=some.data())
def test_each_sample_is_used_once_per_epoch_at_any_world_size(samples, batch, seed, data):
    sampler = Sampler(samples=samples, batch=min(batch, samples), seed=seed, permute=permute)
    for epoch in range(2):
        taken = []
        for step in range(sampler.steps_per_epoch):
            whole = sampler.batch_of(epoch * sampler.steps_per_epoch + step)
            size = data.draw(some.integers(1, 9))
            for piece in divide(whole, size):
                taken.extend(piece)
        assert sorted(taken) == list(range(samples))


def test_the_samples_of_a_step_depend_on_nothing_that_came_before():
    walked = Sampler(samples=50, batch=7, seed=3, permute=permute)
    for step in range(20):
        walked.batch_of(step)
    fresh = Sampler(samples=50, batch=7, seed=3, permute=permute)
    assert fresh.batch_of(19) == walked.batch_of(19)
    assert fresh.batch_of(2) == walked.batch_of(2)
    whole = Sampler(samples=50, batch=50, seed=3, permute=permute)
    assert whole.batch_of(0) != whole.batch_of(1), "epochs differ in their order"


@given(count=some.integers(0, 100), limit=some.one_of(some.none(), some.integers(1, 30)))
def test_chunks_are_as_few_as_can_be_and_none_is_too_large(count, limit):
    pieces = chunks(range(count), limit)
    assert [index for piece in pieces for index in piece] == list(range(count))
    if limit and count:
        assert max(map(len, pieces)) <= limit
        assert len(pieces) == -(-count // limit)


def test_keys_are_the_same_everywhere():
    assert key(0, 1, 2) == 4727102316523150270
    assert len({key(seed, part) for seed in range(20) for part in range(20)}) == 400
    assert 0 <= key(5) < 1 << 63
