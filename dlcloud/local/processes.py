"""The processes of instances: their environment, how they start, how none is left behind."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT_VARIABLE = "DLCLOUD_ROOT"
# As on EC2's images; the daemon's own is narrower.
UMASK = 0o022
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROC = Path("/proc")
_PACKAGE_SOURCES = frozenset(
    f"PIP_{name}"
    for name in (
        "CERT",
        "CONFIG_FILE",
        "DEFAULT_TIMEOUT",
        "EXTRA_INDEX_URL",
        "FIND_LINKS",
        "INDEX_URL",
        "NO_INDEX",
        "PROXY",
        "TRUSTED_HOST",
    )
) | {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"}
_POLL_S = 0.02
_KILL_S = 5.0

log = logging.getLogger(__name__)


def shell_path() -> str:
    """Return the shell that runs what users send: bash, as on EC2's images, or else sh."""
    return shutil.which("bash", path=_SYSTEM_PATH) or "/bin/sh"


def environment(root: Path, *, metadata_url: str, user: str, minute_s: float = 60.0) -> dict[str, str]:
    """Return the whole environment of an instance's processes; of ours, only where packages come from."""
    return {
        **package_sources(os.environ),
        "HOME": str(root / "home"),
        "PATH": f"{root / 'bin'}:{_SYSTEM_PATH}",
        "USER": user,
        "LOGNAME": user,
        "SHELL": shell_path(),
        "LANG": "C.UTF-8",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata_url,
        ROOT_VARIABLE: str(root),
        "DLCLOUD_MINUTE_S": str(minute_s),
    }


def package_sources(own: Mapping[str, str]) -> dict[str, str]:
    """Return what tells pip where this machine gets its packages from: an instance here has no other way out.

    A user's pip.conf is not found from an instance's own home, so it is named.
    """
    found = {name: value for name, value in own.items() if name in _PACKAGE_SOURCES}
    if "PIP_CONFIG_FILE" not in found:
        home = Path(own.get("HOME", "/nonexistent"))
        folder = Path(own.get("XDG_CONFIG_HOME") or home / ".config")
        mac = home / "Library" / "Application Support" / "pip" / "pip.conf"
        known = (mac, home / ".pip" / "pip.conf", folder / "pip" / "pip.conf")
        configs = [str(path) for path in known if path.is_file()]
        found |= {"PIP_CONFIG_FILE": configs[-1]} if configs else {}
    return found


async def run_logged(argv: list[str], *, env: Mapping[str, str], cwd: Path, output: Path) -> int:
    """Run a command of the boot to its end; its output is added to a file. Returns its exit status."""
    with output.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=env,
            cwd=cwd,
            start_new_session=True,
            umask=UMASK,
        )
    return await process.wait()


async def end_all(roots: Iterable[Path], *, grace_s: float) -> None:
    """End every process of the instances with these roots: ask, wait up to the grace, then kill.

    Processes are found by their environment or working folder, whoever their parent is by now.
    """
    wanted = {str(root) for root in roots}
    await _signal_until_gone(wanted, signal.SIGTERM, grace_s)
    if not await _signal_until_gone(wanted, signal.SIGKILL, _KILL_S):
        log.error("processes of %d instances outlived SIGKILL", len(wanted))


async def _signal_until_gone(roots: set[str], number: signal.Signals, wait_s: float) -> bool:
    """Signal what belongs to the roots, newcomers too, until nothing does; False if time is up."""
    deadline = time.monotonic() + wait_s
    signalled: set[int] = set()
    while pids := owned(roots):
        for pid in pids if number is signal.SIGKILL else pids - signalled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        signalled |= pids
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def owned(roots: set[str]) -> set[int]:
    """Return the ids of the processes that belong to any of these instance roots."""
    if not roots:
        return set()
    return _owned_by_proc(roots) if _PROC.joinpath("self/environ").exists() else _owned_by_ps(roots)


def _owned_by_proc(roots: set[str]) -> set[int]:
    own = os.getpid()
    pids = (int(entry) for entry in os.listdir(_PROC) if entry.isdigit())  # noqa: PTH208 - many, so twice as fast
    return {pid for pid in pids if pid != own and _root_in_proc(pid, roots)}


def _root_in_proc(pid: int, roots: set[str]) -> bool:
    """Tell whether a process has a root in its environment, or works below one."""
    marker = f"{ROOT_VARIABLE}=".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:  # noqa: PTH123 - called for every process
            content = stream.read()
        folder = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - as above
    except OSError:
        return False  # it ended, is a zombie, or is somebody else's
    named = {entry[len(marker) :].decode() for entry in content.split(b"\0") if entry.startswith(marker)}
    return not named.isdisjoint(roots) or any(
        folder == root or folder.startswith(root + "/") for root in roots
    )


def _owned_by_ps(roots: set[str]) -> set[int]:
    """Find them where there is no /proc (macOS): `ps -E` shows the environment of one's own processes."""
    listing = subprocess.run(
        ["ps", "-axwwEo", "pid=,command="], capture_output=True, text=True, check=False
    ).stdout
    found: set[int] = set()
    for line in listing.splitlines():
        pid, _, words = line.strip().partition(" ")
        named = {word.partition("=")[2] for word in words.split() if word.startswith(f"{ROOT_VARIABLE}=")}
        if not named.isdisjoint(roots):
            found.add(int(pid))
    return found - {os.getpid()}


def base_interpreter() -> str:
    """Return the Python that the daemon's virtual environment was made from."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
