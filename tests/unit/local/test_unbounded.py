"""Nothing that a caller or a program sends is unbounded: ten times the limit costs no one else anything."""

import base64
import gzip
import socket
import time
from urllib.parse import urlsplit

import psutil
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dlcloud.local.instance.cloudinit import read_user_data
from dlcloud.local.instance.metadata import MetadataService, Request
from dlcloud.local.instance.sshd import _MOST_CONNECTIONS
from tests.fakes.local_ec2 import wait_for

ALIASES = "#cloud-config\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "content",
    [
        f"{ALIASES}runcmd: [[*a8]]\n".encode(),
        b"#cloud-config\n" + b"[" * 16000,
        gzip.compress(b"#cloud-config\n" + b"# \n" * (1 << 22)),
        gzip.compress(
            b"#cloud-config\nwrite_files:\n- {path: /x, encoding: gz+b64, content: "
            + base64.b64encode(gzip.compress(bytes(1 << 28)))
            + b"}\n"
        ),
    ],
)
def test_user_data_that_would_fill_the_memory_is_a_warning(content):
    began, before = time.monotonic(), psutil.Process().memory_info().rss
    (warning,) = read_user_data(content).warnings
    assert "cannot be read" in warning
    assert time.monotonic() - began < 5
    assert psutil.Process().memory_info().rss - before < 100 << 20


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


def test_tokens_of_the_metadata_service_are_counted():
    service = MetadataService(documents=lambda: {"latest/meta-data/x": "y"}, power=print, secret="s")
    ask = {"x-aws-ec2-metadata-token-ttl-seconds": "21600"}
    put = Request(method="PUT", path="/latest/api/token", headers=ask, body=b"")
    tokens = [service._answer(put)[1] for _ in range(10_240)]
    assert len(service._tokens) <= 1024

    def status(token):
        got = {"x-aws-ec2-metadata-token": token}
        return service._answer(Request(method="GET", path="/latest/meta-data/x", headers=got, body=b""))[0]

    assert (status(tokens[0]), status(tokens[-1])) == (401, 200)


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
        assert time.monotonic() - began < 20
        _, out, _ = session.exec_command("mv ~/.ssh/authorized_keys.own ~/.ssh/authorized_keys")
        out.channel.recv_exit_status()
    assert rig.on(instance, "echo in")[1] == "in\n"
