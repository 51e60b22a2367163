"""Run dlcloud commands, and the daemons they start, in forked children of a process that has all imported.

A command needs half a second of a processor to start, a daemon a whole one; the tests run hundreds of them. A
child is a process of its own with the environment, the folder and the streams of its order, and ends as what
it runs ends. `Commands` is the side of the tests; run as a program, this file is the other.

The program takes an order a connection: {"argv", "environment", "folder"} as a line of JSON, with the
descriptors of the child's streams; it answers the child's process id, and at its end the status, as
`os.waitpid` gives it. Commands and daemons have a program each: no command imports moto.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from select import select
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory, TemporaryFile
from types import SimpleNamespace
from typing import IO
from unittest.mock import patch

import dlcloud.app
import dlcloud.cli
from dlcloud.cli.main import main
from dlcloud.local import daemon, site
from tests.preloading import preload, preload_daemon

MOST = 1 << 20
"""Most bytes of an order."""
DAEMON = [sys.executable, "-m", "dlcloud.local.daemon"]
"""How LocalSite starts a daemon."""


class Commands:
    """Commands of one test process, run to their ends."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="prefork-")
        self._address = f"{self._folder.name}/commands"
        self._program = start(self._address, "commands", Daemons.of_this_process().address)

    @classmethod
    @cache
    def of_this_process(cls) -> "Commands":
        return cls()

    def run(
        self, argv: list[str], *, environment: dict[str, str], folder: Path, text: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as `subprocess.run` would, with its output as text."""
        with (
            TemporaryFile("w+", encoding="utf-8") as given,
            TemporaryFile("w+", encoding="utf-8") as out,
            TemporaryFile("w+", encoding="utf-8") as err,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            given.write(text)
            given.seek(0)
            connection.settimeout(timeout_s)
            connection.connect(self._address)
            streams = [given.fileno(), out.fileno(), err.fileno()]
            send(connection, streams, argv=argv, environment=environment, folder=str(folder))
            with connection.makefile("r", encoding="utf-8") as answers:
                pid = int(answers.readline())
                try:
                    status = int(answers.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(argv, timeout_s) from None
            for stream in (out, err):
                stream.seek(0)
            code = os.waitstatus_to_exitcode(status)
            return subprocess.CompletedProcess(argv, code, out.read(), err.read())


def send(connection: socket.socket, streams: list[int], **order: object) -> None:
    """Send an order."""
    socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], streams)


def start(address: str, *words: str) -> subprocess.Popen[bytes]:
    """Start the program, which answers at an address; it ends with this process, by the end of its input."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        return subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno()), *words],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )


class Daemons:
    """The daemons that one process starts."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="prefork-")
        self.address = f"{self._folder.name}/daemons"
        self._program = start(self.address, "daemons")

    @classmethod
    @cache
    def of_this_process(cls) -> "Daemons":
        return cls()

    def start(self, local: site.LocalSite) -> site.LocalEndpoint:
        """Start a site, with a forked daemon; what else this process starts is a program of its own."""
        with patch.object(site, "subprocess"):
            fork_daemons(self.address)
            return local.start()


class Daemon:
    """A daemon, as LocalSite uses the `subprocess.Popen` of its own: a fork of the program at an address."""

    def __init__(
        self, address: str, argv: list[str], *, stdout: IO[bytes], env: dict[str, str], **_: object
    ) -> None:
        assert argv[:-1] == DAEMON
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        with Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), stdout.fileno(), stdout.fileno()]
            send(self._connection, streams, argv=argv, environment=env, folder="/")
        self._answers = self._connection.makefile("r", encoding="utf-8")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None and select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for its end."""
        self.returncode = os.waitstatus_to_exitcode(int(self._answers.readline()))
        return self.returncode

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)


def serve(listener: socket.socket) -> None:
    """Fork a child for each connection until the tests have gone; children return from here."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with DefaultSelector() as selector:
        selector.register(listener, EVENT_READ)
        selector.register(sys.stdin.fileno(), EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                attend(connection)
                return
            connection.close()


def attend(connection: socket.socket) -> None:
    """Fork the command of an order, wait for it and answer; only the command returns from here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(connection, MOST, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(MOST)
    pid = os.fork()
    if pid == 0:
        connection.close()
        become(json.loads(data), streams)
        return
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def become(order: dict, streams: list[int]) -> None:
    """Take over what a process of its own would have."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = order["argv"]


def fork_daemons(address: str) -> None:
    """Let the program at an address fork the daemons that this process and its children start."""
    site.subprocess = SimpleNamespace(Popen=partial(Daemon, address), DEVNULL=subprocess.DEVNULL)


def be_daemon() -> None:
    """Run a daemon; moto's numbers are its own."""
    os.setsid()
    sys.modules["moto.moto_api._internal"].mock_random.seed()
    os._exit(daemon.main(sys.argv[-1:]))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        if sys.argv[2] == "daemons":
            preload_daemon()
            be = be_daemon
        else:
            preload(dlcloud.app, dlcloud.cli)
            fork_daemons(sys.argv[3])
            be = main
        assert threading.active_count() == 1, "a fork would lose the other threads"
        gc.collect()
        gc.freeze()  # a child's collections would copy every page of what is imported
        here = os.getpid()
        serve(listening)
    if os.getpid() != here:
        be()
