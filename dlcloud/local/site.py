"""Find, start and stop the local EC2 of one folder. Standard library only: commands import this."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dlcloud.core.errors import LocalCloudError
from dlcloud.local.control import ControlClient
from dlcloud.local.state import SitePaths, SiteState, is_locked, locked, read_state

_START_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEndpoint:
    """Where a running local EC2 answers; `control` drives what AWS would decide itself.

    `pid` and `started_at` are known to the home that started it.
    """

    pid: int | None
    url: str
    started_at: str
    control: ControlClient


class LocalSite:
    """The local EC2 of one folder: at most one daemon, shared by every command that names the folder."""

    def __init__(self, folder: Path) -> None:
        self._paths = SitePaths(folder=folder.expanduser().absolute())

    def find(self) -> LocalEndpoint | None:
        """Return the running daemon, or None; files that a dead one left count for nothing."""
        if not is_locked(self._paths.life_lock):
            return None
        state = read_state(self._paths.state)
        return None if state is None else _endpoint(state)

    def start(self) -> LocalEndpoint:
        """Return the running daemon, or start one and return once it answers.

        Raises:
            LocalCloudError: It ended, or did not answer in time; the message carries the end of its log.
        """
        self._prepare()
        with locked(self._paths.start_lock):
            # A daemon that is just stopping still holds its lock; it has no state any more.
            self._await_end_of_a_stopping_one()
            return self.find() or self._start()

    def stop(self) -> bool:
        """Stop the daemon with all its instances and wait until it is gone; False if there was none.

        Raises:
            LocalCloudError: It did not end in time.
        """
        if not self._paths.folder.is_dir():
            return False
        with locked(self._paths.start_lock):
            state = read_state(self._paths.state)
            if state is None or not is_locked(self._paths.life_lock):
                return False
            _terminate(state.pid)
            self._await_end(state.pid)
            return True

    def _prepare(self) -> None:
        try:
            self._paths.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LocalCloudError(f"cannot make the folder {self._paths.folder}: {error}") from error

    def _start(self) -> LocalEndpoint:
        self._paths.state.unlink(missing_ok=True)
        with self._paths.startup_log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dlcloud.local.daemon", str(self._paths.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_daemon_environment(),
            )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            state = read_state(self._paths.state)
            if state is not None and state.pid == process.pid:
                return _endpoint(state)
            if process.poll() is not None:
                raise self._failed(f"the local cloud ended at its start with status {process.returncode}")
            time.sleep(_POLL_S)
        process.kill()
        process.wait()
        raise self._failed(f"the local cloud did not answer within {_START_S:.0f} s")

    def _failed(self, what: str) -> LocalCloudError:
        tails = [_tail(path) for path in (self._paths.startup_log, self._paths.log)]
        text = "\n".join(tail for tail in tails if tail)
        missing = any(f"No module named '{name}" in text for name in ("moto", "asyncssh", "flask"))
        hint = "pip install 'dlcloud[local]'" if missing else f"see {self._paths.log}"
        return LocalCloudError(f"{what}\n{text}".rstrip(), hint)

    def _await_end_of_a_stopping_one(self) -> None:
        deadline = time.monotonic() + _STOP_S
        while is_locked(self._paths.life_lock) and read_state(self._paths.state) is None:
            if time.monotonic() > deadline:
                raise self._failed("another local cloud in this folder neither answers nor ends")
            time.sleep(_POLL_S)

    def _await_end(self, pid: int) -> None:
        deadline = time.monotonic() + _STOP_S
        while is_locked(self._paths.life_lock) or _is_running(pid):
            if time.monotonic() > deadline:
                raise LocalCloudError(
                    f"the local cloud (process {pid}) did not end within {_STOP_S:.0f} s", f"kill {pid}"
                )
            time.sleep(_POLL_S)


def _endpoint(state: SiteState) -> LocalEndpoint:
    control = ControlClient(url=state.url, token=state.token)
    return LocalEndpoint(pid=state.pid, url=state.url, started_at=state.started_at, control=control)


def _daemon_environment() -> dict[str, str]:
    """Return this process's environment, with this very dlcloud importable from any folder."""
    source = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{known}" if known else source}


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LocalCloudError(f"the local cloud (process {pid}) belongs to another user") from error


def _is_running(pid: int) -> bool:
    """Tell whether a process lives; a zombie of this very process is taken in."""
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        done = 0
    if done == pid:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _LOG_TAIL_BYTES))
            return stream.read().decode("utf-8", errors="replace").strip()
    except OSError:
        return ""
