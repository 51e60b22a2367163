"""The daemon: found, started once, stopped, killed; and access to its control pages."""

import http.client
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from dlcloud.local.site import LocalSite, SharedSite
from dlcloud.local.site_files import SiteState, write_state
from dlcloud.model.errors import InstanceGoneError, LocalCloudError, install_hint
from tests.fakes.local_ec2 import Rig, processes_of, wait_for
from tests.needs import needs

CODE = """
import sys
from pathlib import Path
from tests.fakes.local_ec2 import processes_of
from dlcloud.local.site import LocalSite
print(LocalSite(Path(sys.argv[1])).start().pid)
"""


@pytest.fixture
def site(tmp_path):
    site = LocalSite(tmp_path / "site")
    yield site
    site.stop()


def ask(rig, method, path, headers):
    """Send one bare request: its status."""
    address = urlsplit(rig.endpoint.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
    connection.request(method, path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def refusal_of(call):
    """Return the error code and the HTTP status that a call is refused with, or None."""
    try:
        call()
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    return None


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_site_is_found_started_once_and_stopped(site):
    assert site.find() is None
    assert site.stop() is False
    first = site.start()
    assert site.start() == first
    assert site.find() == first
    assert first.control.status()["endpoint"] == first.url
    assert site.stop() is True
    assert site.find() is None
    assert not is_running(first.pid)


def test_two_commands_at_once_start_one_daemon(site):
    folder = str(site._paths.folder)
    begun = [
        subprocess.Popen([sys.executable, "-c", CODE, folder], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    pids = {process.communicate(timeout=600)[0].strip() for process in begun}
    assert pids == {str(site.find().pid)}


def test_the_daemon_outlives_its_command_and_ends_its_children(site):
    process = subprocess.run(
        [sys.executable, "-c", CODE, str(site._paths.folder)], stdout=subprocess.PIPE, text=True, check=True
    )
    rig = Rig(site, site.find())
    assert rig.endpoint.pid == int(process.stdout)
    instance = rig.up(UserData=rig.user_data("runcmd:\n  - setsid sleep 1000 &\n  - sleep 999\n"))
    root = rig.entry(instance["InstanceId"])["folder"]
    wait_for(lambda: processes_of({root}), "the sleeper sleeps")
    site.stop()
    assert not processes_of({root})
    assert not list(site._paths.folder.glob("instances/*"))


@needs("setsid")
def test_leftovers_of_a_killed_daemon_are_cleared_at_the_next_start(site):
    rig = Rig(site, site.start())
    instance = rig.up()
    rig.on(instance, "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
    root = Path(rig.entry(instance["InstanceId"])["folder"])
    assert processes_of({str(root)})
    (site._paths.cache / "kept").write_text("environment")
    os.kill(rig.endpoint.pid, signal.SIGKILL)
    wait_for(lambda: site.find() is None, "the daemon is dead")
    second = site.start()
    assert second.pid != rig.endpoint.pid
    assert not processes_of({str(root)})
    assert not root.exists()
    assert (site._paths.cache / "kept").exists()
    assert second.control.status()["instances"] == []


def test_a_stale_state_file_is_nothing(site):
    site._paths.folder.mkdir()
    state = SiteState(
        pid=os.getpid(), url="http://127.0.0.1:9", token="t", started_at="2026-01-01T00:00:00+00:00"
    )
    write_state(site._paths.state, state)
    assert site.find() is None
    assert site.stop() is False
    assert site.start().pid != os.getpid()


def test_sigterm_ends_everything(site):
    rig = Rig(site, site.start())
    rig.run(3)
    os.kill(rig.endpoint.pid, signal.SIGTERM)
    wait_for(lambda: not is_running(rig.endpoint.pid), "it ends")
    assert site.find() is None
    assert not list(site._paths.folder.glob("instances/*"))
    assert not site._paths.state.exists()


def test_the_control_page_can_end_it(site):
    endpoint = site.start()
    endpoint.control.call("POST", "shutdown", {})
    wait_for(lambda: site.find() is None, "it ends")


def test_a_daemon_whose_folder_is_removed_ends(site):
    endpoint = site.start()
    shutil.rmtree(site._paths.folder, ignore_errors=True)
    wait_for(lambda: not is_running(endpoint.pid), True)


def test_what_only_a_look_has_started_is_stopped_again(site):
    site.start()
    assert LocalSite(site._paths.folder).stop_if_unused() is False  # it did not start it
    other = LocalSite(site._paths.folder)
    other.start()
    assert site.stop_if_unused() is False  # the other one uses it
    assert other.find() is not None
    looking = LocalSite(site._paths.folder.with_name("another"))
    looking.start()
    assert looking.stop_if_unused() is True
    assert looking.find() is None


def test_a_start_that_fails_shows_the_log(site):
    site._paths.folder.mkdir()
    (site._paths.folder / "images.json").mkdir()
    with pytest.raises(LocalCloudError, match="IsADirectoryError") as caught:
        site.start()
    assert "daemon.log" in caught.value.hint


@pytest.mark.usefixtures("starts_anew")
def test_a_missing_library_is_named_with_its_cure(site, tmp_path, monkeypatch):
    (tmp_path / "moto.py").write_text("raise ModuleNotFoundError(\"No module named 'moto'\", name='moto')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LocalCloudError, match="No module named 'moto'") as caught:
        site.start()
    assert caught.value.hint == install_hint("local")


def test_the_state_file_is_its_owners_alone(rig):
    mode = (rig.folder / "endpoint.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_nothing_listens_beyond_loopback(rig):
    instance = rig.up()
    inodes = set()
    for descriptor in Path(f"/proc/{rig.endpoint.pid}/fd").iterdir():
        target = str(descriptor.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address = fields[1].partition(":")[0]
                assert table == "tcp"
                listening.append(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    assert len(listening) >= 3
    assert all(address.startswith("127.") for address in listening)
    assert instance["PublicIpAddress"] in listening


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 403), ({"X-Dlcloud-Token": "guess"}, 403), ({"Host": "evil.example"}, 403)],
)
def test_control_needs_the_token_and_a_loopback_name(rig, headers, status):
    assert ask(rig, "GET", "/_dlcloud/status", headers) == status


def test_a_rebound_name_is_refused_even_with_the_token(rig):
    token = {"X-Dlcloud-Token": rig.control.token}
    assert ask(rig, "GET", "/_dlcloud/status", token) == 200
    assert ask(rig, "GET", "/_dlcloud/status", {**token, "Host": "evil.example"}) == 403
    assert ask(rig, "POST", "/", {"Host": "evil.example"}) == 403
    assert ask(rig, "POST", "/?Action=RunInstances", {"Origin": "http://evil.example"}) == 403
    assert ask(rig, "POST", "/?Action=RunInstances", {}) == 403
    assert ask(rig, "GET", "/_dlcloud/none", token) == 404
    assert ask(rig, "POST", "/moto-api/reset", {}) == 403


def test_calls_are_counted(rig):
    rig.control.reset_calls()
    for _ in range(3):
        rig.ec2.describe_vpcs()
    rig.client("sts").get_caller_identity()
    assert rig.control.calls() == {"DescribeVpcs": 3, "GetCallerIdentity": 1}


def test_a_rate_refuses_evenly(rig):
    rig.control.add_fault("*", "RequestLimitExceeded", rate=1 / 3, status=503)
    outcomes = [refusal_of(rig.ec2.describe_vpcs) for _ in range(9)]
    assert outcomes == [None, None, ("RequestLimitExceeded", 503)] * 3
    assert [fault["code"] for fault in rig.control.status()["faults"]] == ["RequestLimitExceeded"]


def test_faults_speak_each_services_language(rig):
    rig.control.add_fault("GetCallerIdentity", "ExpiredToken", times=1, status=403)
    sts = rig.client("sts")
    with pytest.raises(sts.exceptions.ClientError, match="ExpiredToken"):
        sts.get_caller_identity()
    rig.control.add_fault("GetParameter", "ThrottlingException", times=1)
    ssm = rig.client("ssm")
    with pytest.raises(ssm.exceptions.ClientError, match="ThrottlingException"):
        ssm.get_parameter(Name="x")


def test_refusals_of_control_name_the_reason(rig):
    with pytest.raises(InstanceGoneError, match="i-none"):
        rig.control.interrupt("i-none")
    with pytest.raises(LocalCloudError, match="0 or more"):
        rig.control.set_capacity("c5.large", -1)
    with pytest.raises(LocalCloudError, match="0 s or more"):
        rig.control.set_boot_delay(-1.0)


def test_services_that_are_not_there_say_so(rig):
    with pytest.raises(ClientError, match="dynamodb"):
        rig.client("dynamodb").list_tables()


def test_many_clients_at_once_over_kept_connections(rig):
    client = rig.client("ec2", max_pool_connections=64)
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(lambda _: client.describe_vpcs(), range(192)))
    assert len(replies) == 192
    assert threading.active_count() < 64


def test_a_stock_client_retries_over_a_throttled_call(rig):
    rig.control.add_fault("DescribeVpcs", "RequestLimitExceeded", times=1, status=503)
    client = rig.client("ec2", retries={"mode": "standard", "total_max_attempts": 3})
    assert client.describe_vpcs()["Vpcs"]


def test_another_home_uses_it_with_only_the_token(rig):
    shared = SharedSite(url=rig.endpoint.url)
    assert shared.start().url == rig.endpoint.url
    with pytest.raises(LocalCloudError, match="control token") as caught:
        shared.start().control.status()
    assert "DLCLOUD_LOCAL_TOKEN" in caught.value.hint
    trusted = SharedSite(url=rig.endpoint.url, token=rig.control.token)
    assert trusted.start().control.status()["endpoint"] == rig.endpoint.url
    with pytest.raises(LocalCloudError, match="another home"):
        trusted.stop()
