"""Bodies of requests as clients send them: after a go-ahead, of no length, or cut off."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dlcloud.local.api.server import GRACE_S, IDLE_S, MOST_CONNECTIONS, Connections, PacedSocket
from tests.fakes.local_ec2 import wait_for

UNSIGNED = "UNSIGNED-PAYLOAD"
TOO_LARGE = b"HTTP/1.1 413 "


def connect(rig):
    url = urlsplit(rig.site.find().url)
    return socket.create_connection((url.hostname, url.port), timeout=120)


def request(*headers):
    return "\r\n".join(["POST / HTTP/1.1", "Host: ec2", *headers, "", ""]).encode()


def test_a_client_that_waits_for_the_go_ahead_gets_it_before_its_body(rig):
    with connect(rig) as client:
        client.sendall(request("Expect: 100-continue", "Content-Length: 4"))
        assert client.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"A=B&")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("length", ["-1", "+4", "four", "1e3", "9" * 30, str(1 << 40)])
def test_a_body_of_no_possible_length_is_refused_unread(rig, length):
    with connect(rig) as client:
        client.sendall(request(f"Content-Length: {length}"))
        assert client.recv(1 << 16).startswith(TOO_LARGE)


def test_a_request_that_was_cut_off_is_not_carried_out(rig):
    with connect(rig) as client:
        client.sendall(request("Content-Length: 100") + b"Action=DescribeInstances")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1 << 16).startswith(TOO_LARGE)


@pytest.mark.parametrize(
    "headers",
    [
        ("Authorization: a/s3/aws4_request",),
        ("Authorization: AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request",),
        ("Authorization: a/s3/aws4_request", "Transfer-Encoding: chunked"),
    ],
)
def test_a_large_body_is_not_read_for_a_signature_that_is_none(rig, headers):
    """The header alone let a client send 256 MiB, which the daemon held."""
    with connect(rig) as client:
        client.sendall(request(*headers, f"X-Amz-Content-Sha256: {UNSIGNED}", "Content-Length: 200000000"))
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 4")
        assert client.recv(1 << 16) == b""


def test_a_large_object_with_a_wrong_signature_is_refused_unread(rig):
    s3 = rig.client("s3")
    s3._request_signer._credentials.secret_key = "wrong"
    with pytest.raises(s3.exceptions.ClientError, match="SignatureDoesNotMatch"):
        s3.put_object(Bucket="any", Key="x", Body=bytes(8 << 20))


def test_connections_that_say_nothing_give_way(rig):
    before = threads(rig)
    silent = [connect(rig) for _ in range(MOST_CONNECTIONS + 40)]
    try:
        assert rig.ec2.describe_regions()["Regions"]
        most = before + MOST_CONNECTIONS + 20
        wait_for(lambda: threads(rig) < most, "the threads of those that gave way end")
    finally:
        for client in silent:
            client.close()


def threads(rig):
    return len(list(Path(f"/proc/{rig.site.find().pid}/task").iterdir()))


class Client:
    """One end of a connection, with a clock that the test sets."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("dlcloud.local.api.server.time.monotonic", lambda: self.now)
        self.ours, theirs = socket.socketpair()
        self.paced = PacedSocket(theirs, lambda: None)

    def send(self, count, seconds):
        """Send bytes, so much later, and return how many were read."""
        self.ours.sendall(bytes(count))
        self.now += seconds
        return self.paced.readinto(bytearray(count))


def test_a_slow_request_is_cut_off_and_a_large_one_is_not(monkeypatch):
    client = Client(monkeypatch)
    assert client.send(1, 0.0) == 1
    for _ in range(40):
        assert client.send(1 << 16, 2.0) == 1 << 16  # at the least rate
    client = Client(monkeypatch)
    assert client.send(1, 0.0) == 1
    assert client.send(1, GRACE_S - 1.0) == 1
    with pytest.raises(TimeoutError):
        client.send(1, 2.0)


def test_an_idle_connection_may_wait_for_longer_than_a_request(monkeypatch):
    client = Client(monkeypatch)
    assert client.send(1, 0.0) == 1
    client.paced.rest()
    assert client.send(1, IDLE_S - 1.0) == 1


def test_the_longest_silent_connection_of_a_kind_gives_way(monkeypatch):
    connections, now = Connections(most=2), [0.0]
    monkeypatch.setattr("dlcloud.local.api.server.time.monotonic", lambda: now[0])
    pairs = [socket.socketpair() for _ in range(4)]
    for (_, daemon), kind in zip(pairs, ("instances", "instances", "owner", "instances"), strict=True):
        now[0] += 1.0
        if daemon is pairs[3][1]:
            connections.wait(pairs[0][1])
        assert connections.admit(daemon, kind)
    assert pairs[1][0].recv(1) == b""
    for _, daemon in (pairs[0], pairs[3]):
        connections.work(daemon)
    ours, theirs = socket.socketpair()
    assert not connections.admit(theirs, "instances")
    connections.leave(pairs[0][1])
    assert connections.admit(theirs, "instances")
    for pair in (*pairs, (ours, theirs)):
        for end in pair:
            end.close()
