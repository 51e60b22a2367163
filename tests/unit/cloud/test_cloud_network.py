"""Ways to instances without public addresses: Session Manager's plugin, and Instance Connect Endpoints."""

import json
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from dlcloud.cloud.network.tunnels import PLUGIN, VARIABLE, start_session
from dlcloud.cloud.network.vpc import _endpoints
from dlcloud.model.errors import CloudError, UnreachableError
from dlcloud.ssh.route import connect_by_program

ANSWER = {"SessionId": "me-1", "TokenValue": "secret", "StreamUrl": "wss://ssmmessages.example/me-1"}


def test_the_plugin_gets_the_session_and_its_token_is_no_argument(clients, stub):
    ssm = stub(clients.get("ssm"))
    parameters = {"portNumber": ["22"]}
    expected = {"Target": "i-1", "DocumentName": "AWS-StartSSHSession", "Parameters": parameters}
    ssm.add_response("start_session", ANSWER, expected)
    words, environment = start_session(clients, "i-1", 22, {"PATH": "/bin"})
    assert words[:4] == [PLUGIN, VARIABLE, clients.region, "StartSession"]
    assert json.loads(words[5]) == expected
    assert json.loads(environment[VARIABLE]) == ANSWER
    assert environment["PATH"] == "/bin"
    assert not any("secret" in word for word in words)


def test_a_program_carries_bytes_both_ways():
    program = "import os\nwhile data := os.read(0, 100): os.write(1, data.upper())"
    with closing(connect_by_program([sys.executable, "-c", program], {}, 60.0)) as stream:
        stream.sendall(b"ssh-2.0")
        assert stream.recv(100) == b"SSH-2.0"


def test_a_program_that_is_missing_is_unreachable(tmp_path):
    with pytest.raises(UnreachableError, match=r"cannot start .*no-such-plugin"):
        connect_by_program([str(tmp_path / "no-such-plugin")], {}, 1.0)


def test_endpoints_that_preserve_client_addresses_are_not_used():
    one, two = (
        {"InstanceConnectEndpointId": f"eice-{number}", "PreserveClientIp": number == 1} for number in (1, 2)
    )

    def chosen(*endpoints):
        return _endpoints(SimpleNamespace(pages=lambda *_, **__: endpoints), "vpc-1")

    assert chosen(one, two) == ("eice-2",)
    assert chosen() == ()
    with pytest.raises(CloudError, match="eice-1 preserves client addresses") as refused:
        chosen(one)
    assert "--no-preserve-client-ip" in refused.value.hint
