"""Our client against a real OpenSSH server on a loopback port: broken connections and few sessions."""

import collections
import contextlib
import getpass
import os
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from dlcloud.model.errors import RemoteCommandError, UnreachableError
from dlcloud.model.remote import Endpoint
from dlcloud.ssh import dial, keys
from dlcloud.system.parallel import all_or_raise, fan_out
from tests.fakes.training import free_port, wait_until
from tests.needs import needs
from tests.programs import find

SSHD = find("sshd")
pytestmark = needs("sshd")

FLOOD = "yes 0123456789abcdef"


class Sshd:
    """One sshd with its own configuration; `restrict` changes it for connections to come."""

    def __init__(self, folder: Path, public_key: str):
        self.folder = folder
        folder.mkdir()
        keys.create_key(folder / "host_key")
        (folder / "authorized_keys").write_text(f"{public_key}\n")
        self.port = free_port()
        self.process = None

    def start(self, *options: str) -> "Sshd":
        settings = [
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "PermitRootLogin prohibit-password",
            f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            f"PidFile {self.folder / 'pid'}",
            f"ListenAddress 127.0.0.1:{self.port}",
            *options,
        ]
        (self.folder / "config").write_text("\n".join(settings) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own, for privilege separation
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.folder / "config")],
            stderr=(self.folder / "log").open("wb"),
        )
        wait_until(lambda: "Server listening" in (self.folder / "log").read_text(), "sshd", 120)
        return self

    @property
    def fingerprint(self) -> str:
        return keys.fingerprint(keys.public_key(self.folder / "host_key").split()[1])

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(instance_id="i-0abc", host="127.0.0.1", port=self.port, user=getpass.getuser())

    def kill_sessions(self, number: int = signal.SIGKILL) -> None:
        """Signal every process that serves a connection, but not the listener, nor the commands."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ends meanwhile
                if "sshd" in process.name():
                    process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.kill_sessions()
            self.process.kill()
            self.process.wait()


@pytest.fixture
def sshd(tmp_path, key_path):
    server = Sshd(tmp_path / "sshd", keys.public_key(key_path))
    yield server
    server.stop()


@pytest.fixture
def connect(sshd, make_dialer):
    """Start sshd with options and connect to it."""

    def start(*options):
        sshd.start(*options)
        return make_dialer(fingerprint=sshd.fingerprint).dial(sshd.endpoint, wait_s=60)

    return start


@pytest.mark.parametrize("attempt", range(6))
def test_a_server_killed_while_output_flows_is_unreachable(connect, sshd, attempt):
    connection = connect()
    threading.Timer(0.1 + 0.05 * attempt, sshd.kill_sessions).start()
    with pytest.raises(UnreachableError, match="i-0abc"):
        collections.deque(connection.stream(FLOOD), maxlen=0)
    assert not connection.is_open


def test_a_download_that_is_cut_off_leaves_no_half_file(connect, sshd, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "a").write_bytes(os.urandom(1000))
    (source / "b").write_bytes(os.urandom(200_000_000))
    (target / "b").write_bytes(b"old")
    connection = connect()

    def arrived():
        with contextlib.suppress(FileNotFoundError):  # a draft takes its name meanwhile
            return sum(path.stat().st_size for path in target.iterdir()) > 1_000_000

    def kill():
        wait_until(arrived, "a part of the files", 120)
        sshd.kill_sessions()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(UnreachableError):
        connection.fetch_files(str(source), ["*"], target)
    assert {path.name for path in target.iterdir()} == {"a", "b"}
    assert (target / "a").read_bytes() == (source / "a").read_bytes()
    assert (target / "b").read_bytes() == b"old"


def test_a_command_that_is_not_even_taken_in_time_has_not_ended(sshd, connect):
    connection = connect()
    sshd.kill_sessions(signal.SIGSTOP)
    with pytest.raises(UnreachableError, match="a command had not ended"):
        connection.run("true", timeout_s=0.2)


def test_abandoned_commands_do_not_use_up_the_sessions(connect):
    connection = connect()
    for _ in range(12):  # sshd counts them until their programs end, and allows 10
        with pytest.raises(UnreachableError, match="had not ended"):
            connection.run("sleep 60", timeout_s=0.05)
    assert connection.check("echo on", timeout_s=100) == b"on\n"
    assert connection.is_open


@pytest.mark.parametrize("sessions", [1, 2])
def test_commands_run_in_parallel_with_few_sessions(connect, sessions):
    connection = connect(f"MaxSessions {sessions}")
    wait = "timeout 60 sh -c 'while [ $(ls | wc -l) -lt 4 ]; do sleep 0.02; done'"
    folder = connection.check("mktemp -d").decode().strip()
    outcomes = fan_out(
        lambda number: connection.check(
            f"cd {folder} && touch {number} && {wait} && echo {number}", timeout_s=90
        ),
        range(4),
    )
    assert all_or_raise(outcomes) == [b"%d\n" % number for number in range(4)]
    assert connection.check("echo on") == b"on\n"


def test_a_banner_may_take_as_long_as_the_dial_waits(sshd, make_dialer, monkeypatch):
    monkeypatch.setattr(dial, "ANSWER_S", 0.3)
    sshd.start().process.send_signal(signal.SIGSTOP)  # connections are taken, but nothing answers
    threading.Timer(1.0, sshd.process.send_signal, [signal.SIGCONT]).start()
    dialer = make_dialer(fingerprint=sshd.fingerprint)
    assert dialer.dial(sshd.endpoint, wait_s=60).check("echo on") == b"on\n"


def test_a_session_that_the_server_closes_is_no_broken_connection(connect, sshd):
    """OpenSSH sends neither a status nor a signal then; the connection goes on."""
    option = "ChannelTimeout session:*=1s"
    sshd.start()
    command = [SSHD, "-t", "-f", str(sshd.folder / "config"), "-o", option]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this sshd closes no idle sessions (OpenSSH 9.2 and newer do)")
    sshd.stop()
    connection = connect(option)
    with pytest.raises(RemoteCommandError, match="`sleep 600` ended without an exit status"):
        connection.check("sleep 600")
    assert connection.is_open
