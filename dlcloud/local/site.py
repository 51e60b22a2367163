"""Find, start and stop the local EC2 of a folder, or use that of another home. Standard library only.

A command asks `LocalSite.start`: under the folder's lock it returns the daemon that runs, or starts one and
waits until its state file names its address. `stop` ends it by a signal; `stop_if_unused` does so only if
this command started it and neither instances nor other commands use it. `SharedSite` is the same for the
local EC2 of another home, which is never started or stopped from here.

There is never more than one daemon for a folder, and a file of a dead one is never taken for a live one: the
daemon holds `life_lock` for as long as it lives.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from dlcloud.local.control import ControlClient
from dlcloud.local.site_files import AccessKey, SitePaths, SiteState, load_access_key, read_state
from dlcloud.model.clock import wait_until
from dlcloud.model.errors import LocalCloudError, install_hint
from dlcloud.system.files import FileLock, unwritable_hint

ENDPOINT_VARIABLE = "DLCLOUD_LOCAL_ENDPOINT"
TOKEN_VARIABLE = "DLCLOUD_LOCAL_TOKEN"  # noqa: S105  a variable's name
KEY_ID_VARIABLE = "DLCLOUD_LOCAL_ACCESS_KEY_ID"
SECRET_VARIABLE = "DLCLOUD_LOCAL_SECRET_ACCESS_KEY"  # noqa: S105  a variable's name
SESSION_VARIABLE = "DLCLOUD_LOCAL_SESSION_TOKEN"
_LOOPBACK_NAMES = ("127.0.0.1", "localhost")
_CONNECT_S = 5.0
_START_S = 60.0
_STOP_S = 21.0  # a daemon ends itself within 20 s
_KILLED_S = 5.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000
_PROBE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEndpoint:
    """Where a running local EC2 answers; `control` makes the decisions of AWS.

    `pid` and `started_at` are known in the home that started it; `access_key` there, or where the user
    names it.
    """

    pid: int | None
    url: str
    started_at: str
    control: ControlClient
    access_key: AccessKey | None = None

    def owner_key(self) -> tuple[str, str]:
        """Return id and secret of the access key.

        Raises:
            LocalCloudError: It is not known.
        """
        if self.access_key is None:
            raise LocalCloudError(
                f"the access key of the local EC2 at {self.url} is not known",
                f"set {KEY_ID_VARIABLE} and {SECRET_VARIABLE}, as dlcloud local status shows them there",
            )
        return self.access_key.key_id, self.access_key.secret

    def environment(self, region: str = "us-east-1") -> dict[str, str]:
        """Return the variables by which any AWS client uses it; none without an access key."""
        if self.access_key is None:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": self.access_key.key_id,
            "AWS_SECRET_ACCESS_KEY": self.access_key.secret,
            "AWS_DEFAULT_REGION": region,
            "AWS_ENDPOINT_URL": self.url,
        }


class LocalSite:
    """The local EC2 of one folder: at most one daemon, shared by every command that names the folder."""

    def __init__(self, folder: Path) -> None:
        self._paths = SitePaths(folder=folder.expanduser().absolute())
        self._users: int | None = None
        self._is_started_here = False

    def find(self) -> LocalEndpoint | None:
        """Return the running daemon, or None; files of a dead one are ignored."""
        if not self._is_alive():
            return None
        state = read_state(self._paths.state)
        return None if state is None else self._endpoint(state)

    def start(self) -> LocalEndpoint:
        """Return the running daemon, or start one and return once it answers.

        Raises:
            LocalCloudError: It ended, or did not answer in time; the message carries the end of its log.
        """
        try:
            self._paths.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._paths.folder.chmod(0o700)
        except OSError as error:
            raise LocalCloudError(f"cannot make the folder {self._paths.folder}: {error}") from error
        self._use()
        with FileLock(self._paths.start_lock):
            # A daemon that is just stopping still holds its lock; it has no state any more.
            self._await_end_of_stopping_daemon()
            return self.find() or self._start()

    def stop(self) -> bool:
        """Stop the daemon with all its instances and wait until it is gone; False if there was none.

        Raises:
            LocalCloudError: It did not end in time.
        """
        if not self._paths.folder.is_dir():
            return False
        with FileLock(self._paths.start_lock):
            state = read_state(self._paths.state)
            if state is None or not self._is_alive():
                return False
            _signal(state.pid, signal.SIGTERM)
            if not self._has_ended(state.pid, _STOP_S):
                # Instances end with it, or with the next start.
                _signal(state.pid, signal.SIGKILL)
                if not self._has_ended(state.pid, _KILLED_S):
                    raise LocalCloudError(f"the local cloud (process {state.pid}) outlived SIGKILL")
            return True

    def stop_if_unused(self) -> bool:
        """Stop the daemon if this object has started it, and neither instances nor other commands use it.

        Raises:
            LocalCloudError: It did not end in time.
        """
        endpoint = self.find() if self._is_started_here and self._users is not None else None
        if endpoint is None or self._users is None:
            return False
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # another command uses it
        try:
            return not endpoint.control.status()["instances"] and self.stop()
        finally:
            os.close(self._users)
            self._users = None

    def _use(self) -> None:
        """Let no other command stop the daemon as unused, until this process ends."""
        if self._users is not None:
            return
        with suppress(OSError):  # a full disk must not keep a command from the daemon
            self._users = os.open(self._paths.users_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._users, fcntl.LOCK_SH)

    def _has_ended(self, pid: int, timeout_s: float) -> bool:
        return _wait(lambda: not self._is_alive() and not _is_running(pid), timeout_s)

    def _start(self) -> LocalEndpoint:
        self._paths.state.unlink(missing_ok=True)
        self._paths.startup_log.unlink(missing_ok=True)
        self._paths.startup_log.touch(mode=0o600)
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
        _wait(lambda: self._state_of(process.pid) or process.poll() is not None, _START_S)
        if state := self._state_of(process.pid):
            self._is_started_here = True
            return self._endpoint(state)
        if process.poll() is not None:
            raise self._error(f"the local cloud ended at its start with status {process.returncode}")
        process.kill()
        process.wait()
        raise self._error(f"the local cloud did not answer within {_START_S:.0f} s")

    def _state_of(self, pid: int) -> SiteState | None:
        """Return the state that a daemon has written; None until then."""
        state = read_state(self._paths.state)
        return state if state is not None and state.pid == pid else None

    def _is_alive(self) -> bool:
        return FileLock(self._paths.life_lock).is_held()

    def _endpoint(self, state: SiteState) -> LocalEndpoint:
        return LocalEndpoint(
            pid=state.pid,
            url=state.url,
            started_at=state.started_at,
            control=ControlClient(url=state.url, token=state.token),
            access_key=load_access_key(self._paths),
        )

    def _error(self, message: str) -> LocalCloudError:
        """Return an error with the ends of the logs, and a hint for a missing library, or a full disk."""
        if (refusal := _refusal_of_writing(self._paths.folder)) is not None:
            hint = f"{unwritable_hint(refusal) or 'look at'} {self._paths.folder}"
            return LocalCloudError(f"{message}: nothing can be written there: {refusal.strerror}", hint)
        tails = [_tail(path) for path in (self._paths.startup_log, self._paths.log)]
        text = "\n".join(tail for tail in tails if tail)
        missing = any(f"No module named '{name}" in text for name in ("moto", "asyncssh", "flask"))
        hint = install_hint("local") if missing else f"see {self._paths.log}"
        return LocalCloudError(f"{message}\n{text}".rstrip(), hint)

    def _await_end_of_stopping_daemon(self) -> None:
        if not _wait(lambda: not self._is_alive() or read_state(self._paths.state) is not None, _STOP_S):
            raise self._error("another local cloud in this folder neither answers nor ends")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSite:
    """The local EC2 of another home, known by its address alone; it is never started or stopped.

    Args:
        url: Where it answers, such as http://127.0.0.1:40001.
        token: The token of its control pages; empty where they are not used.
        access_key: Its owner's access key; None on its instances, which have the keys of their roles.
    """

    url: str
    token: str = ""
    access_key: AccessKey | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the site that DLCLOUD_LOCAL_ENDPOINT and the variables next to it name."""
        key_id, secret = environ.get(KEY_ID_VARIABLE, ""), environ.get(SECRET_VARIABLE, "")
        return cls(
            url=environ[ENDPOINT_VARIABLE],
            token=environ.get(TOKEN_VARIABLE, ""),
            access_key=AccessKey(key_id=key_id, secret=secret, token=environ.get(SESSION_VARIABLE, ""))
            if key_id and secret
            else None,
        )

    def find(self) -> LocalEndpoint | None:
        """Return it; None if nothing answers there.

        Raises:
            LocalCloudError: The address is none of this machine.
        """
        host, port = self._address()
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except OSError:
            return None
        control = ControlClient(url=self.url, token=self.token)
        return LocalEndpoint(
            pid=None, url=self.url, started_at="", control=control, access_key=self.access_key
        )

    def start(self) -> LocalEndpoint:
        """Return it.

        Raises:
            LocalCloudError: Nothing answers there.
        """
        endpoint = self.find()
        if endpoint is None:
            raise LocalCloudError(
                f"no local EC2 answers at {self.url} ({ENDPOINT_VARIABLE})",
                f"dlcloud local start, in the home that it belongs to; or unset {ENDPOINT_VARIABLE}",
            )
        return endpoint

    def stop(self) -> bool:
        """Refuse: it belongs to another home.

        Raises:
            LocalCloudError: Always.
        """
        raise LocalCloudError(
            f"the local EC2 at {self.url} was started from another home",
            f"unset {ENDPOINT_VARIABLE}, and stop it with that home's DLCLOUD_HOME",
        )

    def stop_if_unused(self) -> bool:
        """Return False: it belongs to another home."""
        return False

    def _address(self) -> tuple[str, int]:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if host not in _LOOPBACK_NAMES or port is None or parts.scheme != "http":
            raise LocalCloudError(
                f"{ENDPOINT_VARIABLE} is {self.url!r}: it must be the address of a local EC2",
                "for example http://127.0.0.1:40001; dlcloud local status shows it",
            )
        return host, port


def _daemon_environment() -> dict[str, str]:
    """Return this process's environment, with this very dlcloud importable from any folder."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH", "")
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}
    }
    # The user's own AWS configuration, broken or not, is nothing to the local EC2.
    own |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    return {**own, "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source}


def _wait(condition: Callable[[], object], timeout_s: float) -> bool:
    return bool(wait_until(condition, clock=time, timeout_s=timeout_s, poll_s=_POLL_S))


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LocalCloudError(f"the local cloud (process {pid}) belongs to another user") from error


def _is_running(pid: int) -> bool:
    """True if a process lives; a zombie child of this process is reaped."""
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
    import psutil  # noqa: PLC0415 - of the extra, as the daemon; and commands without one start sooner

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _refusal_of_writing(folder: Path) -> OSError | None:
    """Return why a few bytes cannot be written in a folder; None if they can."""
    probe = folder / f"probe-{os.getpid()}"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _LOG_TAIL_BYTES))
            return stream.read().decode("utf-8", errors="replace").strip()
    except OSError:
        return ""
