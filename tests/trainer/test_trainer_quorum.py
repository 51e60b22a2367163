"""The rules of the lighthouse, and its service on real sockets: who takes part in a step, and its record."""

import contextlib
import itertools
import json
import socket
import time

import pytest

from dlcloud.trainer.coordination.ledger import WrongRunError
from dlcloud.trainer.coordination.quorum import (
    MATES_S,
    REJOIN_S,
    Ask,
    Attendant,
    NoQuorumError,
    Quorum,
    QuorumClient,
    QuorumServer,
    Roster,
    choose_connected,
)
from dlcloud.trainer.records import History, Journal
from tests.fakes.training import read_records, wait_until

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


def test_too_few_workers_wait():
    made = roster("a", minimum=2)
    ask(made, "a")
    assert made.decide() is None


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
