"""Access to the local EC2: signed requests only, and none of another user of the machine."""

import contextlib
import hashlib
import http.client
import json
import os
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import urlsplit

import paramiko
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from click.testing import CliRunner

from dlcloud.cli.main import dlcloud
from dlcloud.cloud.api.clients import _CorrectedAuth, correct_clock
from dlcloud.local.api.signature import (
    ALGORITHM,
    TIME,
    SignatureVerifier,
    canonical_request,
    sign_canonical,
)
from dlcloud.local.instance import peers
from dlcloud.local.instance.peers import NoUser, is_refused_peer, peer_user
from dlcloud.local.site import LocalSite, SharedSite
from dlcloud.local.site_files import SitePaths, load_access_key
from dlcloud.model.errors import LocalCloudError
from tests.fakes.local_ec2 import Rig

DESCRIBE = b"Action=DescribeVpcs&Version=2016-11-15"
CHANGE = b"Action=CreateVpc&Version=2016-11-15&CidrBlock=10.9.0.0%2F16"
FORM = "application/x-www-form-urlencoded; charset=utf-8"
OTHER_UID = 54321
is_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


class Signer:
    """Signs as botocore does, with anything wrong that a test asks for."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.address = urlsplit(endpoint.url)

    def sign(self, body=DESCRIBE, *, service="ec2", age_s=0.0, key=None, secret=None, headers=None, path="/"):
        credentials = Credentials(
            key or self.endpoint.access_key.key_id, secret or self.endpoint.access_key.secret
        )
        request = AWSRequest("POST", self.endpoint.url + path, headers or {"Content-Type": FORM}, body)
        request.headers["Host"] = self.address.netloc
        signed_at = datetime.now(UTC) - timedelta(seconds=age_s)
        request.context["timestamp"] = signed_at.strftime("%Y%m%dT%H%M%SZ")
        request.headers["X-Amz-Date"] = request.context["timestamp"]
        auth = SigV4Auth(credentials, service, "us-east-1")
        text = auth.string_to_sign(request, auth.canonical_request(request))
        auth._inject_signature_to_request(request, auth.signature(text, request))
        return dict(request.headers)

    def send(self, headers, body=DESCRIBE, *, path="/", method="POST"):
        """Send a request: (status, text)."""
        connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=600)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()


@pytest.fixture
def signer(rig):
    return Signer(rig.endpoint)


def test_body_query_and_scope_are_part_of_the_signature(signer):
    headers = signer.sign()
    assert signer.send(headers)[0] == 200
    assert signer.send(headers, CHANGE)[0] == 401
    for old, new in (("us-east-1", "eu-west-1"), ("/ec2/", "/sts/")):
        moved = {**headers, "Authorization": headers["Authorization"].replace(old, new)}
        assert signer.send(moved)[0] in (401, 403)
    path = "/?Action=DescribeVpcs&Version=2016-11-15&Filter.1.Name=tag%3Aa%20b&Filter.1.Value.1=%2F"
    headers = signer.sign(b"", path=path)
    assert signer.send(headers, b"", path=path)[0] == 200
    assert signer.send(headers, b"", path=path + "x")[0] == 401


@pytest.mark.parametrize(
    ("service", "wrong", "status", "code"),
    [
        ("ec2", {"secret": "wrong"}, 401, "AuthFailure"),
        ("ec2", {"key": "AKIAUNKNOWN"}, 401, "AuthFailure"),
        ("ec2", {"age_s": 400.0}, 400, "RequestExpired"),
        ("ec2", {"age_s": -400.0}, 400, "RequestExpired"),
        ("sts", {"secret": "wrong"}, 403, "SignatureDoesNotMatch"),
        ("sts", {"key": "AKIAUNKNOWN"}, 403, "InvalidClientTokenId"),
        ("ssm", {"secret": "wrong"}, 400, "InvalidSignatureException"),
        ("ssm", {"key": "AKIAUNKNOWN"}, 400, "UnrecognizedClientException"),
        ("ssm", {"age_s": 400.0}, 400, "InvalidSignatureException"),
        ("pricing", {"key": "AKIAUNKNOWN"}, 400, "UnrecognizedClientException"),
        ("iam", {"age_s": 400.0}, 403, "SignatureDoesNotMatch"),
    ],
)
def test_a_wrong_signature_gets_the_error_of_its_service(signer, service, wrong, status, code):
    headers = {"Content-Type": FORM}
    if service in ("ssm", "pricing"):
        headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "AmazonSSM.GetParameter"}
    answer = signer.send(signer.sign(service=service, headers=headers, **wrong))
    assert (answer[0], code in answer[1]) == (status, True)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Authorization": None}, "MissingAuthenticationToken"),
        ({"Authorization": "AWS local:abc"}, "IncompleteSignature"),
        ({"X-Amz-Date": "yesterday"}, "IncompleteSignature"),
        ({"X-Amz-Date": None}, "IncompleteSignature"),
        ({"Content-Type": "text/plain"}, "AuthFailure"),
        ({"Host": "localhost:1"}, "AuthFailure"),
        ({"X-Amz-Target": "AmazonEC2.RunInstances"}, "AuthFailure|InvalidSignatureException"),
        ({"X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD"}, "AuthFailure"),
    ],
)
def test_a_changed_header_is_refused(signer, change, code):
    headers = {name: value for name, value in {**signer.sign(), **change}.items() if value is not None}
    status, text = signer.send(headers)
    assert 400 <= status < 404
    assert any(name in text for name in code.split("|"))


def test_a_change_is_not_replayed_and_a_reading_call_may_be_repeated(signer):
    change = signer.sign(CHANGE, age_s=20.0)
    assert signer.send(change, CHANGE)[0] == 200
    status, text = signer.send(change, CHANGE)
    assert (status, "made before" in text) == (401, True)
    reading = signer.sign(age_s=20.0)
    assert [signer.send(reading)[0] for _ in range(2)] == [200, 200]


def test_a_change_that_was_signed_before_the_start_is_refused_after_it():
    """A daemon does not know which signatures the one before it has accepted."""
    verifier = SignatureVerifier(datetime.now(UTC))
    for age_s, is_reading, refused in ((30.0, False, True), (30.0, True, False), (0.0, False, False)):
        moment = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime(TIME)
        call = SimpleNamespace(is_reading=is_reading, body=b"", is_json=False, service="ec2")
        environ = {"REQUEST_METHOD": "POST", "RAW_URI": "/", "HTTP_X_AMZ_DATE": moment, "HTTP_HOST": "x"}
        scope = f"{moment[:8]}/us-east-1/ec2/aws4_request"
        names, payload = ["host", "x-amz-date"], hashlib.sha256(b"").hexdigest()
        text = canonical_request(environ, names, path="/", query="", payload=payload)
        signature = sign_canonical(text, time=moment, scope=scope, secret="secret")
        signed = f"SignedHeaders={';'.join(names)}, Signature={signature}"
        environ["HTTP_AUTHORIZATION"] = f"{ALGORITHM} Credential=KEY/{scope}, {signed}"
        assert (verifier.refusal(call, environ, "secret") is not None) == refused


def test_equal_requests_of_one_second_are_all_carried_out(rig):
    [instance_id] = rig.run()
    for _ in range(3):
        rig.ec2.terminate_instances(InstanceIds=[instance_id])


def test_the_pages_of_moto_are_closed(rig, signer):
    instance_id = rig.run()[0]
    for path in ("/moto-api/", "/moto-api/reset", "/moto-api/data.json"):
        for method in ("GET", "POST"):
            assert signer.send({}, b"", path=path, method=method)[0] == 403
        assert signer.send(signer.sign(b"", path=path), b"", path=path)[0] == 404
    assert rig.state(instance_id)


def test_the_access_key_is_private_lasting_and_in_no_log(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir(mode=0o755)
    (folder / "cache").mkdir()
    site = LocalSite(folder)
    first = site.start()
    site.stop()
    second = site.start()
    try:
        assert second.access_key == first.access_key
        assert Rig(site, second).ec2.describe_vpcs()["Vpcs"]
        path = folder / "access-key.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert first.access_key.secret not in repr(first)
        logs = "".join(file.read_text() for file in folder.glob("*.log"))
        assert first.access_key.secret not in logs
    finally:
        site.stop()
    assert load_access_key(SitePaths(folder=tmp_path)) != first.access_key


def test_a_shared_site_takes_its_access_key_from_the_environment(rig):
    variables = {"DLCLOUD_LOCAL_ENDPOINT": rig.endpoint.url}
    keys = {"DLCLOUD_LOCAL_ACCESS_KEY_ID": "AKIAX", "DLCLOUD_LOCAL_SECRET_ACCESS_KEY": "s"}
    assert SharedSite.from_environment(variables | keys).access_key.key_id == "AKIAX"
    without = SharedSite.from_environment(variables)
    assert without.access_key is None
    with pytest.raises(LocalCloudError, match="access key") as caught:
        without.start().owner_key()
    assert "DLCLOUD_LOCAL_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize("command", ["start", "status"])
def test_the_printed_lines_make_the_aws_command_work_when_pasted(tmp_path, monkeypatch, command):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    try:
        started = CliRunner().invoke(dlcloud, ["local", "start"])
        printed = CliRunner().invoke(dlcloud, ["local", command])
        assert started.exit_code == printed.exit_code == 0
        exports = [line for line in printed.stdout.splitlines() if line.startswith("export AWS_")]
        assert len(exports) == 4
        aws = shlex.quote(str(Path(sys.executable).with_name("aws")))
        script = "\n".join([*exports, f"{aws} ec2 describe-instances --output json"])
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == {"Reservations": []}
        secret = next(line for line in exports if "SECRET" in line).partition("=")[2].encode()
        files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
        assert [path.name for path in files if secret in path.read_bytes()] == ["access-key.json"]
    finally:
        CliRunner().invoke(dlcloud, ["local", "stop"])


@pytest.mark.parametrize("way", ["netlink", "tables"])
def test_the_user_of_a_connection_is_known(way, monkeypatch):
    if way == "tables":
        monkeypatch.setattr(peers, "_open_diagnostics", Mock(side_effect=OSError))
    else:
        monkeypatch.setattr(peers, "open_tables", Mock(side_effect=OSError))
    with socket.create_server(("127.0.0.1", 0)) as server:
        for family in (socket.AF_INET, socket.AF_INET6):
            host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
            with socket.socket(family) as client:
                client.connect((host, server.getsockname()[1]))
                accepted, peer = server.accept()
                with accepted:
                    own = accepted.getsockname()
                    assert peer_user(peer, own) == os.getuid()
                    client.close()
                    assert peer_user(peer, own) is NoUser.UNKNOWN
        assert peer_user(server.getsockname(), ("127.0.0.1", 2)) is NoUser.UNKNOWN
    assert peer_user(("127.0.0.1", 1), ("127.0.0.1", 2)) is NoUser.UNKNOWN
    assert is_refused_peer(("127.0.0.1", 1), ("127.0.0.1", 2), range(0))
    assert is_refused_peer(None, ("127.0.0.1", 2), range(0))


# A connection of another user is closed at once, at times before its request is sent.
REFUSED = ("(403", "BrokenPipeError", "ConnectionResetError")


def as_other_user(action):
    """Run an action in a process of another user; return the text that it returns."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(OTHER_UID)
            os.setuid(OTHER_UID)
            text = str(action())
        except BaseException as error:  # noqa: BLE001 - the test reads it
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        text = stream.read().decode()
    os.waitpid(pid, 0)
    return text


@is_root
def test_another_user_cannot_post_even_with_the_access_key(rig, signer):
    before = len(rig.control.status()["instances"])
    launch = b"Action=RunInstances&Version=2016-11-15&ImageId=ami-0d1c10cd000002404&MinCount=1&MaxCount=1"
    headers = signer.sign(launch)
    assert as_other_user(lambda: signer.send(headers, launch)).startswith(REFUSED)
    assert as_other_user(lambda: signer.send({}, b"", path="/moto-api/reset")).startswith(REFUSED)
    token = {"X-Dlcloud-Token": rig.control.token}
    status = as_other_user(lambda: signer.send(token, b"", path="/_dlcloud/status", method="GET"))
    assert status.startswith(REFUSED)
    assert len(rig.control.status()["instances"]) == before


@is_root
def test_another_user_reads_no_metadata_and_cannot_log_in_even_with_the_key(rig):
    instance = rig.up(UserData=rig.user_data("# a secret\n"))
    entry, key = rig.entry(instance["InstanceId"]), rig.private_key
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = rig.metadata(instance, "latest/api/token", method="PUT", headers=ttl)[1]

    def ask(method, path, headers):
        connection = http.client.HTTPConnection(entry["host"], entry["metadata_port"], timeout=600)
        connection.request(method, path, headers=headers)
        return connection.getresponse().status

    def log_in():
        with paramiko.Transport((entry["host"], entry["ssh_port"])) as transport:
            transport.connect(username="ubuntu", pkey=key)
            return "logged in"

    with_token = {"X-aws-ec2-metadata-token": token}
    for request in (
        ("PUT", "/latest/api/token", ttl),
        ("GET", "/latest/user-data", with_token),
        ("GET", "/latest/meta-data/instance-id", with_token),
    ):
        assert ask(*request) == 200
        answer = as_other_user(lambda request=request: ask(*request))
        assert answer.startswith(("RemoteDisconnected", "ConnectionResetError"))
    assert as_other_user(log_in) != "logged in"
    assert log_in() == "logged in"


@is_root
def test_another_user_reads_nothing_of_the_home(rig):
    parents = [*rig.folder.parents][: len(rig.folder.parents) - len(Path(tempfile.gettempdir()).parents) - 1]
    modes = {parent: parent.stat().st_mode for parent in parents}
    try:
        for parent in parents:
            parent.chmod(0o755)
        assert "'site" in as_other_user(lambda: [*map(str, rig.folder.parent.iterdir())]).replace("/", "'")
        for path in (rig.folder, rig.folder / "instances"):
            assert "PermissionError" in as_other_user(lambda path=path: [*path.iterdir()])
        for name in ("access-key.json", "endpoint.json", "daemon.log"):
            assert "PermissionError" in as_other_user((rig.folder / name).read_bytes)
    finally:
        for parent, mode in modes.items():
            parent.chmod(mode)


@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_jumps_keeps_no_command_from_its_calls(rig, monkeypatch, days):
    """Two instances were left up by a clock that jumped by a day."""
    clients = rig.clients()
    launching, buckets = clients.get_without_retries("ec2"), clients.get("s3")

    class Jumped(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=days)

    monkeypatch.setattr("dlcloud.cloud.api.clients.datetime", Jumped)
    monkeypatch.setattr(_CorrectedAuth, "ahead", timedelta())
    vpc = launching.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
    launching.delete_vpc(VpcId=vpc)
    buckets.list_buckets()
    assert abs(_CorrectedAuth.ahead + timedelta(days=days)) < timedelta(minutes=1)


def test_calls_that_were_signed_together_before_a_jump_are_all_repeated(monkeypatch):
    """The first to be refused corrects the clock: the others were refused for their own signatures."""
    monkeypatch.setattr(_CorrectedAuth, "ahead", timedelta())
    now = datetime.now(UTC)
    refused = SimpleNamespace(status_code=400, headers={"Date": format_datetime(now, usegmt=True)})
    late = {"context": {"timestamp": f"{now - timedelta(days=1):%Y%m%dT%H%M%SZ}"}}
    in_time = {"context": {"timestamp": f"{now:%Y%m%dT%H%M%SZ}"}}
    answers = [correct_clock((refused, None), request_dict=signed) for signed in (late, late, in_time)]
    assert answers == [0.0, 0.0, None]
