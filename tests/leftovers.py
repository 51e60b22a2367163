"""End what tests leave running when their process ends, however it ends: local EC2s, commands, trainings.

`watch` marks the environment of the tests' process, which its children inherit, and starts this file as a
program. It waits for the death of the tests' process, then terminates each process that carries the mark: a
daemon of the local EC2 terminates its instances first. It needs the standard library only, and Linux.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "DLCLOUD_TESTS_OF"
TIME_S = 20.0
"""For a local EC2 to terminate its instances; what runs by then is killed."""
_PR_SET_PDEATHSIG = 1


def watch() -> None:
    """Let nothing that this process starts outlive it."""
    if not sys.platform.startswith("linux"):
        return
    os.environ[MARK] = str(os.getpid())
    subprocess.Popen(
        [sys.executable, "-S", __file__, str(os.getpid())],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath},
    )


def marked(tests: int) -> "list[int]":
    """Return the processes that a tests' process has started, directly or not."""
    mark, found = f"{MARK}={tests}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return [process for process in found if process != tests]


def end(tests: int) -> None:
    """Terminate them, and kill those that do not end in time."""
    asked: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + TIME_S
        while (running := marked(tests)) and time.monotonic() < deadline:
            for process in running:
                if number == signal.SIGKILL or process not in asked:
                    with suppress(OSError):
                        os.kill(process, number)
            asked.update(running)
            time.sleep(0.1)


def main(tests: int) -> None:
    """Wait for the tests' process to end, and end what it left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == tests:
        signal.sigwait([signal.SIGTERM])
    end(tests)


if __name__ == "__main__":
    main(int(sys.argv[1]))
