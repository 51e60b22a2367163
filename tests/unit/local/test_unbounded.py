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

from dlcloud.local.api.server import MOST_CONNECTIONS
from dlcloud.local.instance import metadata
from dlcloud.local.instance.sshd import _MOST_CONNECTIONS
from tests.fakes.local_ec2 import wait_for

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
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60) as client:
        client.sendall(f"PUT /bucket/key HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n{head}\r\n".encode())
        sent = 0
        try:
            while sent < 100 << 20:
                client.sendall(b"0" * (1 << 20))
                sent += 1 << 20
        except OSError:
            pass
    assert sent < 100 << 20
    assert psutil.Process(rig.endpoint.pid).memory_info().rss - before < 100 << 20


def test_silent_connections_lock_nobody_out_of_an_instance(rig):
    instance = rig.up()
    entry = rig.entry(instance["InstanceId"])
    silent = [
        socket.create_connection((entry["host"], entry["ssh_port"])) for _ in range(_MOST_CONNECTIONS + 64)
    ]
    try:
        wait_for(lambda: rig.on(instance, "echo in")[1] == "in\n", "a login beside silent connections")
    finally:
        for one in silent:
            one.close()


def test_keys_without_end_are_not_read(rig):
    instance = rig.up()
    many = "open('.ssh/authorized_keys', 'a').write(open('.ssh/authorized_keys.own').read() * 8000)"
    with rig.ssh(instance) as session:
        _, out, _ = session.exec_command(
            f'cp ~/.ssh/authorized_keys ~/.ssh/authorized_keys.own; python3 -c "{many}"'
        )
        out.channel.recv_exit_status()
        began = time.monotonic()
        with pytest.raises(Exception, match=r"[Aa]uthentication"):
            rig.on(instance, "echo in")
        assert time.monotonic() - began < 100
        _, out, _ = session.exec_command("mv ~/.ssh/authorized_keys.own ~/.ssh/authorized_keys")
        out.channel.recv_exit_status()
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
    silent = []
    with unnoticed(rig, other):
        silent += [
            socket.create_connection((entry["host"], entry["metadata_port"]), timeout=60)
            for _ in range(10 * metadata._MOST_CONNECTIONS)
        ]
        assert rig.metadata_v2(flooded, "latest/meta-data/instance-id")[1] == flooded["InstanceId"]
    for one in silent:
        one.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_connections_of_another_user_hold_neither_thread_nor_memory(rig):
    """5,000 of them held as many threads, and kept the owner from the endpoint for 20 s."""
    instance, url = rig.up(), urlsplit(rig.endpoint.url)
    threads = psutil.Process(rig.endpoint.pid).num_threads()
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
        assert psutil.Process(rig.endpoint.pid).num_threads() < threads + 32
    os.close(release)
    os.waitpid(pid, 0)
