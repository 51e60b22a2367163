"""Run dlcloud commands in forked children of a process that has imported all of it.

A command needs half a second of a processor to start, and the tests run hundreds of them. A child is a
process of its own with the environment, the folder and the streams of its order, and ends as the command
ends. `Commands` is the side of the tests; run as a program, this file is the other.

The program takes an order a connection: {"argv", "environment", "folder"} as a line of JSON, with the
descriptors of the child's streams; it answers the child's process id, and at its end the status, as
`os.waitpid` gives it.
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
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory, TemporaryFile

import dlcloud.app
import dlcloud.cli
from tests.preloading import preload

MOST = 1 << 20
"""Most bytes of an order."""


class Commands:
    """Commands of one test process, run to their ends."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="prefork-")
        self._address = str(Path(self._folder.name) / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address)
        listener.listen(64)
        # It ends with this process: its input is then at its end.
        self._program = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
        listener.close()

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
            order = {"argv": argv, "environment": environment, "folder": str(folder)}
            streams = [given.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], streams)
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
    """Take over what a command of its own would have."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = order["argv"]


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        preload(dlcloud.app, dlcloud.cli)
        assert threading.active_count() == 1, "a fork would lose the other threads"
        gc.collect()
        gc.freeze()  # a child's collections would copy every page of what is imported
        here = os.getpid()
        serve(listening)
    if os.getpid() != here:
        from dlcloud.cli.main import main

        main()
