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
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from dlcloud.local import service
from dlcloud.local.api.faults import Fault, FaultInjector
from dlcloud.local.site import LocalSite, SharedSite
from dlcloud.local.site_files import SiteState, read_state, write_state
from dlcloud.model.errors import InstanceGoneError, LocalCloudError, install_hint
from tests.fakes.local_ec2 import Rig, processes_of, refused, wait_for

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
    assert stat.S_IMODE(site._paths.state.stat().st_mode) == 0o600
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


def test_the_pages_know_the_token_before_a_command_can_read_it(site, monkeypatch):
    """A command that read it a moment too early was refused: "the control token is missing or wrong"."""
    pages, known_first = SimpleNamespace(state=None), []
    monkeypatch.setattr(service, "write_state", lambda _, state: known_first.append(pages.state is state))
    service._announce(site._paths, pages, 1)
    assert known_first == [True]


def test_a_stale_state_file_is_nothing(site):
    site._paths.folder.mkdir()
    for text in ('{"schema": 99, "pid": 1, "url": "u", "token": "t", "started_at": "s"}', "{"):
        site._paths.state.write_text(text)
        assert read_state(site._paths.state) is None
    state = SiteState(
        pid=os.getpid(), url="http://127.0.0.1:9", token="t", started_at="2026-01-01T00:00:00+00:00"
    )
    write_state(site._paths.state, state)
    assert read_state(site._paths.state) == state
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


def test_control_needs_the_token_and_a_loopback_name(rig):
    """A rebound name is refused even with the token."""
    token, evil = {"X-Dlcloud-Token": rig.control.token}, {"Host": "evil.example"}
    assert ask(rig, "GET", "/_dlcloud/status", token) == 200
    for headers in ({}, {"X-Dlcloud-Token": "guess"}, evil, {**token, **evil}):
        assert ask(rig, "GET", "/_dlcloud/status", headers) == 403
    assert ask(rig, "POST", "/", {"Host": "evil.example"}) == 403
    assert ask(rig, "POST", "/?Action=RunInstances", {"Origin": "http://evil.example"}) == 403
    assert ask(rig, "POST", "/?Action=RunInstances", {}) == 403
    assert ask(rig, "GET", "/_dlcloud/none", token) == 404
    assert ask(rig, "POST", "/moto-api/reset", {}) == 403


def test_refusals_of_control_name_the_reason(rig):
    with pytest.raises(InstanceGoneError, match="i-none"):
        rig.control.interrupt("i-none")
    with pytest.raises(LocalCloudError, match="0 or more"):
        rig.control.set_capacity("c5.large", -1)
    with pytest.raises(LocalCloudError, match="0 s or more"):
        rig.control.set_boot_delay(-1.0)


def test_calls_are_counted(rig):
    rig.control.reset_calls()
    for _ in range(3):
        rig.ec2.describe_vpcs()
    rig.client("sts").get_caller_identity()
    assert rig.control.calls() == {"DescribeVpcs": 3, "GetCallerIdentity": 1}


@pytest.mark.parametrize("rate", [0.0, 0.25, 1 / 3, 0.5, 1.0])
def test_a_rate_refuses_evenly_over_any_hundred_calls(rate):
    faults = FaultInjector()
    faults.add(Fault(action="*", code="X", rate=rate))
    struck = [faults.count_call("A") is not None for _ in range(120)]
    assert sum(struck) == round(120 * rate)
    assert struck[:9] == [int((call + 1) * rate) > int(call * rate) for call in range(9)]


def test_faults_speak_each_services_language(rig):
    calls = {
        "GetCallerIdentity": ("ExpiredToken", 403, rig.client("sts").get_caller_identity, {}),
        "GetParameter": ("ThrottlingException", 400, rig.client("ssm").get_parameter, {"Name": "x"}),
        "*": ("RequestLimitExceeded", 503, rig.ec2.describe_vpcs, {}),
    }
    for action, (code, status, call, arguments) in calls.items():
        rig.control.add_fault(action, code, times=1, status=status)
        assert [fault["code"] for fault in rig.control.status()["faults"]] == [code]
        with refused(code) as caught:
            call(**arguments)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        assert rig.control.status()["faults"] == []
    rig.control.add_fault("DescribeVpcs", "RequestLimitExceeded", times=1, status=503)
    client = rig.client("ec2", retries={"mode": "standard", "total_max_attempts": 3})
    assert client.describe_vpcs()["Vpcs"], "a stock client retries"
    with pytest.raises(ClientError, match="dynamodb"):
        rig.client("dynamodb").list_tables()


def test_many_clients_at_once_over_kept_connections(rig):
    client = rig.client("ec2", max_pool_connections=64)
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(lambda _: client.describe_vpcs(), range(192)))
    assert len(replies) == 192
    assert threading.active_count() < 64


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


def test_a_shared_site_that_does_not_answer_is_not_started():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        site = SharedSite(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert site.find() is None
        with pytest.raises(LocalCloudError, match="no local EC2 answers"):
            site.start()


@pytest.mark.parametrize(
    "url", ["http://203.0.113.7:80", "127.0.0.1:80", "http://127.0.0.1", "http://[", "http://127.0.0.1:99999"]
)
def test_an_address_beyond_this_machine_is_refused(url):
    with pytest.raises(LocalCloudError, match="DLCLOUD_LOCAL_ENDPOINT"):
        SharedSite(url=url).find()
