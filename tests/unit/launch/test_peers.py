"""An environment comes from a peer where one has it, and from the package index where none does."""

import json

import pytest

from dlcloud.launch.setup import EnvironmentPeer, prepare
from dlcloud.model.errors import UnreachableError
from dlcloud.model.events import Info, Warned
from dlcloud.model.remote import Endpoint
from dlcloud.recipe.workload import Setup
from tests.fakes.clock import FakeClock
from tests.fakes.machine import FakeConnection, FakeMachine

BUILT = b'{"python": "/env/bin/python", "reused": true, "seconds": 0.1}\n'
MISSING = b'{"name": "k-py3.12-x86_64", "system": "glibc-2.39", "complete": false}\n'
COPIED = b'{"seconds": 2.0, "bytes": 3145728}\n'


def machine(name, **other):
    return FakeMachine(name, **other)


def newcomer(missing=MISSING, **other):
    return machine("i-new", answers={"--find": missing, "fetch": COPIED, "environment.py": BUILT}, **other)


def source(name, **other):
    return machine(name, answers={"serve": b'{"port": 4711}\n'}, **other)


def prepared(to, *sources):
    """Prepare an instance beside peers; return the Python and the events."""
    events = []
    connection = FakeConnection(to, Endpoint(instance_id=to.instance_id, host="198.51.100.1"))
    peers = [
        EnvironmentPeer(
            instance_id=peer.instance_id,
            host="10.0.0.7",
            connect=lambda peer=peer: FakeConnection(peer, Endpoint(instance_id=peer.instance_id, host="x")),
        )
        for peer in sources
    ]
    python = prepare(connection, Setup(), "a==1\n", clock=FakeClock(), emit=events.append, peers=peers)
    return python, [event for event in events if isinstance(event, Info | Warned)]


def order_of(of, verb):
    """Return what a program was sent, which is nowhere in its command line."""
    (command,) = [command for command in of.commands if verb in command]
    order = json.loads(of.stdin[command])
    assert not any(str(value) in command for name, value in order.items() if name != "port")
    return order


def test_the_environment_comes_from_a_peer():
    to, peer = newcomer(), source("i-old")
    python, messages = prepared(to, peer)
    assert python == "/env/bin/python"
    assert "has the environment of i-old: 3 MiB in 2.0 s" in messages[0].message
    offered, fetched = order_of(peer, "serve"), order_of(to, "fetch")
    assert offered["system"] == "glibc-2.39"
    assert fetched["port"] == 4711
    assert (offered["key"], offered["host"]) == (fetched["key"], "10.0.0.7")
    assert len(offered["key"]) == 64


def test_each_copy_has_a_key_of_its_own():
    peer = source("i-old")
    keys = []
    for to in (newcomer(), newcomer()):
        prepared(to, peer)
        keys.append(order_of(to, "fetch")["key"])
    assert len(set(keys)) == 2


def test_the_next_peer_is_asked_where_one_fails():
    first, second = source("i-one", failing={"serve": (1, b"there is no environment")}), source("i-two")
    _, messages = prepared(newcomer(), first, second)
    assert [type(message) for message in messages[:1]] == [Info]
    assert "of i-two" in messages[0].message


@pytest.mark.parametrize(
    ("to", "peer"),
    [
        (newcomer(), source("i-old", failing={"serve": (1, b"its system is glibc-2.35")})),
        (newcomer(failing={"fetch": (1, b"the peer closed the connection")}), source("i-old")),
        (newcomer(), machine("i-old")),
        (newcomer(), source("i-old", gone=True)),
    ],
    ids=["refuses", "torn", "no answer", "gone"],
)
def test_without_a_peer_that_gives_it_it_is_built_with_a_warning(to, peer):
    python, messages = prepared(to, peer)
    assert python == "/env/bin/python"
    assert isinstance(messages[0], Warned)
    assert "i-old does not give the environment" in messages[0].message
    assert "it is built from the package index" in messages[0].message


def test_no_peer_is_asked_for_what_is_there():
    peer = source("i-old")
    _, messages = prepared(newcomer(missing=MISSING.replace(b"false", b"true")), peer)
    assert peer.commands == []
    assert "used again" in messages[0].message


def test_an_instance_that_is_gone_is_an_error_and_not_a_peers_failure():
    with pytest.raises(UnreachableError):
        prepared(newcomer(gone=True), source("i-old"))
