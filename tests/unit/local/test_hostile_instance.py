"""Files that programs put into an instance neither stop the daemon nor lead it to the machine's files."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import paramiko
import psutil
import pytest

from dlcloud.local.ec2 import instances as instances_module
from dlcloud.local.instance.addresses import AddressPool
from dlcloud.local.instance.container import MOST_PROCESSES
from dlcloud.local.instance.isolation import VARIABLE, Level
from dlcloud.local.instance.peers import NoUser, peer_user
from dlcloud.local.site import LocalSite
from dlcloud.model.instance import InstanceState
from tests.fakes.local_ec2 import Rig, processes_of

LATEST_S = 60.0  # 10 s on a machine with nothing else to do
LOG = "/var/log/cloud-init-output.log"


@pytest.fixture(scope="module")
def other(rig):
    """An instance that must go on to be served."""
    return rig.up()


@pytest.fixture
def instance(rig):
    instance = rig.up()
    yield instance
    rig.end(instance["InstanceId"])


def test_fifos_in_an_instance_stop_nobody(rig, instance, other):
    """Each of them froze the daemon: the loop of all instances, or the calls that read the console."""
    paths = f"~/.ssh/authorized_keys {LOG}"
    assert rig.on(instance, f"rm -f {paths}; mkfifo {paths} && echo made")[1] == "made\n"
    with contextlib.suppress(paramiko.SSHException), rig.ssh(instance):
        pytest.fail("an instance without authorized keys let someone in")
    assert rig.on(other, "echo served")[1] == "served\n"
    rig.console(instance["InstanceId"])


def test_a_terminal_is_made_by_what_makes_terminals_only(rig, instance, tmp_path):
    if rig.control.status()["isolation"]["level"] != "namespaces":
        pytest.skip("terminals are those of the machine here")
    (tmp_path / "target").write_text("of the machine")
    script = f"mount -t tmpfs tmpfs /dev/pts && ln -s {tmp_path}/target /dev/pts/ptmx && echo made"
    assert rig.on(instance, script)[1] == "made\n"
    descriptors = Path(f"/proc/{rig.endpoint.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(20):
        with rig.ssh(instance) as client:
            channel = client.get_transport().open_session()
            channel.get_pty()
            channel.exec_command("true")
            assert channel.recv_exit_status() == 255
    assert len(list(descriptors.iterdir())) < before + 20


def test_what_is_forwarded_has_the_rights_of_the_instance(rig, instance):
    """Services of another user took it for the daemon's own user, which may be root."""
    has_user = rig.control.status()["isolation"]["level"] != "none" and os.getuid() == 0
    with socket.create_server(("127.0.0.1", 0)) as server, rig.ssh(instance) as client:
        address, transport = server.getsockname(), client.get_transport()
        channel = transport.open_channel("direct-tcpip", address, ("127.0.0.1", 1))
        accepted, peer = server.accept()
        with accepted:
            user = peer_user(peer, accepted.getsockname())
            assert not has_user or user not in (0, os.getuid(), *NoUser)
            channel.sendall(b"there")
            assert accepted.recv(16) == b"there"
            accepted.sendall(b"back")
            assert channel.recv(16) == b"back"
        assert channel.recv(16) == b""
        server.close()  # a port that nobody listens at ends the channel
        assert transport.open_channel("direct-tcpip", address, ("127.0.0.1", 1)).recv(16) == b""


def test_an_instance_has_a_limit_of_processes(rig, instance):
    if rig.control.status()["isolation"]["level"] == "none":
        pytest.skip("instances have no user of their own here")
    limit = "python3 -c 'import resource as r; print(*r.getrlimit(r.RLIMIT_NPROC))'"
    assert rig.on(instance, limit)[1].split() == [str(MOST_PROCESSES)] * 2
    script = (
        "import resource as r, subprocess; r.setrlimit(r.RLIMIT_NPROC, (40, 40))\n"
        "try:\n  [subprocess.Popen(['sleep', '30'], stdout=-3, stderr=-3) for _ in range(200)]\n"
        "except BlockingIOError: print('refused')"
    )
    assert rig.on(instance, "python3 -", script.encode())[1] == "refused\n"


def test_programs_that_listen_everywhere_keep_no_instance_from_its_launch():
    """Any user's server at the ports of SSH and of the metadata service made each launch fail."""
    pool = AddressPool(many=True)
    with socket.create_server(("0.0.0.0", 0)) as ssh, socket.create_server(("0.0.0.0", 0)) as metadata:
        pool._ports = (ssh.getsockname()[1], metadata.getsockname()[1])
        listeners = pool.take()
    ports = (listeners.ssh_port, listeners.metadata_port)
    assert not {0, *pool._ports} & set(ports)
    listeners.close()


HOSTILE = {
    "ignores signals": "trap '' TERM HUP INT QUIT; while :; do sleep 1000; done",
    "has a session of its own": "setsid sh -c \"trap '' TERM; sleep 1000\" & sleep 1000",
    "is stopped": "kill -STOP $$",
    "reads without a writer": "trap '' TERM; mkfifo fifo; cat fifo",
    "writes without a reader": "trap '' TERM; cat /dev/zero",
    "is many": "trap '' TERM; for i in $(seq 200); do sleep 1000 & done; wait",
    "has a deep and closed folder": "mkdir -p $(seq -s / 900) && chmod 0 1; sleep 1000",
}
FORKS = """import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.0005)
"""


@pytest.mark.parametrize("level", Level)
def test_the_daemon_stops_whatever_programs_do(tmp_path, monkeypatch, level):
    monkeypatch.setenv(VARIABLE, level)
    site = LocalSite(tmp_path / "site")
    rig = Rig(site, site.start())
    found = rig.control.status()["isolation"]
    programs = HOSTILE
    if found["level"] != Level.NONE:
        # Without namespaces, or a user of its own, such a program outlives its instance.
        programs = {**HOSTILE, "forks without end": f"exec python3 -c '{FORKS}'"}
    try:
        instances = [rig.await_state(name, "running") for name in rig.run(2)]
        with contextlib.ExitStack() as opened:
            for number, program in enumerate(programs.values()):
                client = opened.enter_context(rig.ssh(instances[number % 2]))
                assert client.exec_command(f"echo up; {program}")[1].read(3) == b"up\n"
            begin = time.monotonic()
            assert site.stop()
            took = time.monotonic() - begin
    finally:
        site.stop()
    print(f"stopped at level {found['level']} after {took:.1f} s")  # noqa: T201 - the figure
    assert took < LATEST_S
    assert not processes_of({str(site._paths.instances / one["InstanceId"]) for one in instances})


def test_a_daemon_that_stands_still_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("dlcloud.local.site._STOP_S", 0.5)
    site = LocalSite(tmp_path / "site")
    pid = site.start().pid
    os.kill(pid, signal.SIGSTOP)
    assert site.stop()
    assert site.find() is None


LARGE_ENVIRONMENT = """
import ctypes, mmap, time
space = mmap.mmap(-1, 150 << 20)
begin = ctypes.addressof(ctypes.c_char.from_buffer(space))
libc = ctypes.CDLL(None, use_errno=True)
for option, place in ((11, begin + (150 << 20)), (10, begin)):  # PR_SET_MM_ENV_END, PR_SET_MM_ENV_START
    libc.prctl(35, option, ctypes.c_ulong(place), 0, 0)
print("ready", flush=True)
time.sleep(900)
"""


def test_an_environment_of_any_size_costs_the_daemon_no_memory(rig):
    instances = [rig.up(), rig.up()]
    with subprocess.Popen([sys.executable, "-c", LARGE_ENVIRONMENT], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        before = psutil.Process(rig.endpoint.pid).memory_info().rss
        for instance in instances:
            rig.end(instance["InstanceId"])
        grown = psutil.Process(rig.endpoint.pid).memory_info().rss - before
        process.kill()
    assert grown < 100 << 20


def test_an_end_that_fails_is_tried_again(monkeypatch):
    tried, ended = [], []

    async def halt(_, *, grace_s):
        tried.append(grace_s)
        if len(tried) < 3:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd")

    async def remove(_):
        assert len(tried) == 3

    parts = {
        "halt": halt,
        "remove": remove,
        "record_end": lambda entry, _: ended.append(entry),
        "_RETRY_S": 0.0,
    }
    for name, part in parts.items():
        monkeypatch.setattr(instances_module, name, part)
    entry = SimpleNamespace(record=SimpleNamespace(state=InstanceState.SHUTTING_DOWN))
    site = SimpleNamespace(_closing=False, _write_names_soon=lambda: None)
    asyncio.run(instances_module.SiteInstances._terminate(site, [entry], None))
    assert ended == [entry]
