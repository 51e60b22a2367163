"""Nothing that a caller or a program sends is unbounded: ten times the limit costs no one else anything."""

import contextlib
import logging
import os
import resource
import socket
import time
from urllib.parse import urlsplit

import psutil
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dlcloud.local.api.server import GRACE_S, IDLE_S, MOST_CONNECTIONS, Connections, PacedSocket
from dlcloud.local.instance import metadata
from dlcloud.local.instance.sshd import _MOST_CONNECTIONS
from tests.fakes.local_ec2 import wait_for

UNSIGNED = "UNSIGNED-PAYLOAD"
TOO_LARGE = b"HTTP/1.1 413 "


def connect(rig):
    url = urlsplit(rig.endpoint.url)
    return socket.create_connection((url.hostname, url.port), timeout=120)


def request(*headers):
    return "\r\n".join(["POST / HTTP/1.1", "Host: ec2", *headers, "", ""]).encode()


def test_a_client_that_waits_for_the_go_ahead_gets_it_before_its_body(rig):
    with connect(rig) as client:
        client.sendall(request("Expect: 100-continue", "Content-Length: 4"))
        assert client.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"A=B&")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 4")
    s3 = rig.client("s3")
    s3._request_signer._credentials.secret_key = "wrong"
    with pytest.raises(s3.exceptions.ClientError, match="SignatureDoesNotMatch"):
        s3.put_object(Bucket="any", Key="x", Body=bytes(8 << 20))


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


def test_connections_that_say_nothing_give_way(rig):
    before = threads(rig)
    with contextlib.ExitStack() as silent:
        for _ in range(MOST_CONNECTIONS + 40):
            silent.enter_context(connect(rig))
        assert rig.ec2.describe_regions()["Regions"]
        most = before + MOST_CONNECTIONS + 20
        wait_for(lambda: threads(rig) < most, "the threads of those that gave way end")


def threads(rig):
    return psutil.Process(rig.endpoint.pid).num_threads()


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


log = logging.getLogger(__name__)


def test_a_line_between_chunks_is_short(rig):
    """An endless one filled the memory, behind any signature."""
    url, key = rig.endpoint.url, rig.endpoint.access_key
    headers = {"Transfer-Encoding": "chunked", "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    request = AWSRequest("PUT", f"{url}/bucket/key", headers=headers)
    signer = S3SigV4Auth(Credentials(key.key_id, key.secret), "s3", "us-east-1")
    signer.payload = lambda _: "UNSIGNED-PAYLOAD"
    signer.add_auth(request)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    before = psutil.Process(rig.endpoint.pid).memory_info().rss
    sent = 0
    with connect(rig) as client, contextlib.suppress(OSError):
        client.sendall(f"PUT /bucket/key HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n{head}\r\n".encode())
        while sent < 100 << 20:
            client.sendall(b"0" * (1 << 20))
            sent += 1 << 20
    assert sent < 100 << 20
    assert psutil.Process(rig.endpoint.pid).memory_info().rss - before < 100 << 20


def test_silent_connections_lock_nobody_out_of_an_instance(rig):
    instance = rig.up()
    entry = rig.entry(instance["InstanceId"])
    with contextlib.ExitStack() as silent:
        for _ in range(_MOST_CONNECTIONS + 64):
            silent.enter_context(socket.create_connection((entry["host"], entry["ssh_port"])))
        wait_for(lambda: rig.on(instance, "echo in")[1] == "in\n", "a login next to silent connections")


def test_keys_without_end_are_not_read(rig):
    instance = rig.up()
    many = "open('.ssh/authorized_keys', 'a').write(open('own').read() * 8000)"
    with rig.ssh(instance) as session:

        def run(command):
            session.exec_command(command)[1].channel.recv_exit_status()

        run(f'cp ~/.ssh/authorized_keys ~/own; python3 -c "{many}"')
        began = time.monotonic()
        with pytest.raises(Exception, match=r"[Aa]uthentication"):
            rig.on(instance, "echo in")
        assert time.monotonic() - began < 100
        run("mv ~/own ~/.ssh/authorized_keys")
    assert rig.on(instance, "echo in")[1] == "in\n"


def banner(entry):
    """Return the SSH server's first words."""
    with socket.create_connection((entry["host"], entry["ssh_port"]), timeout=60) as client:
        return client.recv(4)


@contextlib.contextmanager
def unnoticed(rig, instance):
    """Check that another instance answers, and that the daemon's memory hardly grows."""
    daemon, entry = psutil.Process(rig.endpoint.pid), rig.entry(instance["InstanceId"])
    before, began = daemon.memory_info().rss, time.monotonic()
    yield
    waited_s = time.monotonic()
    assert banner(entry) == b"SSH-"
    grown = daemon.memory_info().rss - before
    now = time.monotonic()
    log.info("flood %.1f s, banner %.3f s, %d MiB more", waited_s - began, now - waited_s, grown >> 20)
    assert grown < 200 << 20


def test_ten_times_as_many_connections_to_a_metadata_service_keep_nobody_from_it(rig):
    flooded, other = rig.up(), rig.up()
    entry = rig.entry(flooded["InstanceId"])
    address = entry["host"], entry["metadata_port"]
    with contextlib.ExitStack() as silent, unnoticed(rig, other):
        for _ in range(10 * metadata._MOST_CONNECTIONS):
            silent.enter_context(socket.create_connection(address, timeout=60))
        assert rig.metadata_v2(flooded, "latest/meta-data/instance-id")[1] == flooded["InstanceId"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_connections_of_another_user_hold_neither_thread_nor_memory(rig):
    """5,000 of them held as many threads, and kept the owner from the endpoint for 20 s."""
    instance, url = rig.up(), urlsplit(rig.endpoint.url)
    before = threads(rig)
    (read, held), (released, release) = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([])
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        os.setresuid(54321, 54321, 54321)
        every = [socket.create_connection((url.hostname, url.port)) for _ in range(10 * MOST_CONNECTIONS)]
        os.write(held, str(len(every)).encode())
        os.close(release)
        os.read(released, 1)
        os._exit(0)
    os.close(held)
    with unnoticed(rig, instance):
        assert os.read(read, 16) == str(10 * MOST_CONNECTIONS).encode()
        assert rig.ec2.describe_regions()["Regions"]
        assert threads(rig) < before + 32
    os.close(release)
    os.waitpid(pid, 0)
