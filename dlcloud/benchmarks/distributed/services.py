"""Servers that a program needs: started one after the other, each once the one before is healthy."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HEALTHY_S = 300.0
"""For a server to become healthy: Java and Ray take most of a minute on a busy machine."""

GRACE_S = 30.0
"""Between SIGTERM and SIGKILL."""

POLL_S = 0.2
TAIL_CHARACTERS = 2000


class ServiceError(Exception):
    """A server ended, or did not become healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that runs in the foreground.

    Attributes:
        name: For messages and its log.
        command: Its program with arguments.
        environment: All its variables.
        is_healthy: Its health check, called until it is True.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    is_healthy: Callable[[], bool]


@dataclass(slots=True, kw_only=True)
class _Running:
    service: Service
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(self.service.command),
                env=dict(self.service.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def find_failure(self) -> str:
        """Return how it ended, below the end of its log; nothing while it runs."""
        status = self.process.poll()
        return "" if status is None else self._describe(f"ended with status {status}")

    def wait_until_healthy(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not self.service.is_healthy():
            if failure := self.find_failure():
                raise ServiceError(failure)
            if time.monotonic() >= deadline:
                raise ServiceError(self._describe(f"not healthy in {within_s:.0f} s"))
            time.sleep(POLL_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _describe(self, failure: str) -> str:
        tail = self.log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:].strip()
        return f"{tail}\n{self.service.name} {failure}".lstrip()


@contextmanager
def run_services(
    services: Sequence[Service],
    logs: Path,
    *,
    within_s: float = HEALTHY_S,
    on_failure: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Run servers during the block; they are stopped in reverse order, also where one fails to start.

    An engine may go on without one of its servers, slower: the block fails, although its work succeeds.

    Args:
        services: In the order in which they are started.
        logs: The folder for `NAME.log` of each.
        within_s: For each to become healthy.
        on_failure: Called from a thread when one ends during the block, which it ends.

    Raises:
        ServiceError: One ended or is not healthy; the message has the end of its log.
    """
    started: list[_Running] = []
    with ExitStack() as stack:
        for service in services:
            running = _Running(service=service, log=logs / f"{service.name}.log")
            began = time.monotonic()
            running.start()
            stack.callback(_stop, running)
            started.append(running)
            running.wait_until_healthy(within_s)
            report(f"{service.name} is healthy after {time.monotonic() - began:.1f} s")
        stack.enter_context(_watch(started, on_failure))
        yield


@contextmanager
def _watch(servers: Sequence[_Running], on_failure: Callable[[], object]) -> Iterator[None]:
    """Fail the block if a server ends during it."""
    done, failures = threading.Event(), list[str]()

    def look() -> None:
        while not failures and not done.wait(POLL_S):
            failures.extend(failure for server in servers if (failure := server.find_failure()))
        if failures:
            on_failure()

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if failures:
            raise ServiceError(failures[0]) from error
        raise
    finally:
        done.set()
        thread.join()
    failures.extend(failure for server in servers if (failure := server.find_failure()))
    if failures:
        raise ServiceError(failures[0])


def report(message: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


def _stop(running: _Running) -> None:
    running.stop()
    report(f"{running.service.name} is stopped")
