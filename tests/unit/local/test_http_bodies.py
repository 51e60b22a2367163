"""Bodies of requests as clients send them: after a go-ahead, of no length, or cut off."""

import socket
from urllib.parse import urlsplit

import pytest

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
