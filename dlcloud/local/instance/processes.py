"""The processes of instances: how they start, how they are found, and how none is left behind.

An instance ends by `ask_to_end`, then `end_all`, which find its processes by their `Marks`: the process
namespace or the user of the instance, or, where nothing separates it, its folder. No program of this
machine may get in the way of that, whatever its environment holds. What a killed daemon has left is found
by `clear_leftovers` at the next start, before there are instances.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dlcloud.local.site_files import SitePaths
from dlcloud.local.tree.copies import images_folder
from dlcloud.local.tree.instance_tree import InstanceTree, remove_tree

ROOT_VARIABLE = "DLCLOUD_ROOT"
# As on EC2's images; the daemon's own is narrower.
UMASK = 0o022
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_ENVIRON = 64 * 1024
# Of pip's variables, those that say where packages come from.
_PACKAGE_SOURCE = re.compile(
    "PIP_(CERT|CONFIG_FILE|DEFAULT_TIMEOUT|EXTRA_INDEX_URL|FIND_LINKS|INDEX_URL|NO_INDEX|PROXY|TRUSTED_HOST)"
    "|(HTTPS?|NO)_PROXY|(https?|no)_proxy|SSL_CERT_FILE"
)
# How idle threads wait: instances share this machine's cores, and what one of them spins away, another lacks.
_THREADS_WAIT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_POLL_S = 0.02
_KILL_S = 5.0

log = logging.getLogger(__name__)


async def start_process(
    *argv: str,
    **options: Any,  # noqa: ANN401 - those of subprocess.Popen
) -> asyncio.subprocess.Process:
    """Start a process; one whose start is cancelled is killed, and its children see the end of their input.

    A cancelled `asyncio.create_subprocess_exec` waits forever if a child of the process reads from the pipe
    that it had not connected yet. Source: CPython 3.11.7, asyncio/base_subprocess.py; issues 103847, 125502.

    Raises:
        OSError: It cannot be started.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_kill_started)
        raise


def _kill_started(starting: "asyncio.Future[asyncio.subprocess.Process]") -> None:
    if starting.cancelled() or starting.exception() is not None:
        return
    process = starting.result()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()


def shell_path() -> str:
    """Return the shell of sessions and user data: bash, as on EC2's images, or else sh."""
    return shutil.which("bash", path=_SYSTEM_PATH) or "/bin/sh"


def instance_environment(
    root: Path, *, cache: Path, metadata_url: str, user: str, minute_s: float = 60.0
) -> dict[str, str]:
    """Return the whole environment of an instance's processes.

    Only where packages come from, and how idle threads wait, are inherited from this process.
    """
    return {
        **package_sources(os.environ),
        **{name: os.environ[name] for name in _THREADS_WAIT if name in os.environ},
        "HOME": str(root / "home"),
        "PATH": f"{root / 'bin'}:{_SYSTEM_PATH}",
        "USER": user,
        "LOGNAME": user,
        "SHELL": shell_path(),
        "LANG": "C.UTF-8",
        "TMPDIR": str(root / "tmp"),
        # Builds in the cache must carry no instance's path: the cache outlives the instances.
        "XDG_CACHE_HOME": str(cache),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata_url,
        ROOT_VARIABLE: str(root),
        "DLCLOUD_MINUTE_S": str(minute_s),
    }


def package_sources(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which pip finds this machine's package index, from an instance's home too."""
    variables = {name: value for name, value in environ.items() if _PACKAGE_SOURCE.fullmatch(name)}
    if "PIP_CONFIG_FILE" not in variables:
        home = Path(environ.get("HOME", "/nonexistent"))
        folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        mac = home / "Library" / "Application Support" / "pip" / "pip.conf"
        candidates = (mac, home / ".pip" / "pip.conf", folder / "pip" / "pip.conf")
        configs = [str(path) for path in candidates if path.is_file()]
        variables |= {"PIP_CONFIG_FILE": configs[-1]} if configs else {}
    return variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """By what the processes of instances are known.

    Args:
        roots: The folders of instances that nothing separates: their processes are this user's, and have the
            folder in their environment, or work below it.
        spaces: The inodes of process namespaces, held open: else another one could get the same number.
        users: The user ids that one instance each has.
        pids: What entered namespaces, and is itself outside.
        inits: The first process of each namespace. It ignores SIGTERM and ends with its namespace.
    """

    roots: frozenset[str] = frozenset()
    spaces: frozenset[int] = frozenset()
    users: frozenset[int] = frozenset()
    pids: frozenset[int] = frozenset()
    inits: frozenset[int] = frozenset()

    def __or__(self, other: "Marks") -> "Marks":
        return Marks(
            roots=self.roots | other.roots,
            spaces=self.spaces | other.spaces,
            users=self.users | other.users,
            pids=self.pids | other.pids,
            inits=self.inits | other.inits,
        )


async def ask_to_end(marks: Marks, *, grace_s: float) -> None:
    """Send SIGTERM to every process of instances, and wait up to the grace for their ends."""
    if not await _signal_until_gone(marks, signal.SIGTERM, grace_s):
        log.info("killing the processes of instances, %.1f s after SIGTERM", grace_s)


async def end_all(marks: Marks) -> None:
    """Kill every process of instances."""
    if not await _signal_until_gone(marks, signal.SIGKILL, _KILL_S):
        log.error("processes of instances outlived SIGKILL")


async def _signal_until_gone(marks: Marks, number: signal.Signals, wait_s: float) -> bool:
    """Signal all processes, new ones too, until there is none; False if time is up."""
    deadline = time.monotonic() + wait_s
    signalled: set[int] = set()
    ignored = marks.inits if number is signal.SIGTERM else frozenset()
    while pids := await asyncio.to_thread(find_processes, marks) - ignored:
        for pid in pids if number is signal.SIGKILL else pids - signalled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        signalled |= pids
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def kill_user(user: int) -> None:
    """Kill all processes of a user of instances, as only a process of this user can do it in one call.

    The kernel sends the signal to all of them before any can make another one. Source: kill(2), pid -1.
    """
    if os.getuid() != 0 or user == 0:
        return
    program = ["/bin/sh", "-c", "kill -9 -1"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(program, user=user, group=user, extra_groups=[], cwd="/", timeout=_KILL_S, check=False)


def find_processes(marks: Marks) -> set[int]:
    """Return the processes with any of the marks.

    Any program of this machine is looked at, so that nothing of it may matter but what the kernel says: its
    namespace and its user. The environment, which a program can make as large and as odd as it likes, is read
    of this user's own programs only, and no more of it than the first 64 KiB.
    """
    if marks == Marks():
        return set()
    return {pid for pid in psutil.pids() if pid != os.getpid() and _is_marked(pid, marks)}


def _is_marked(pid: int, marks: Marks) -> bool:
    try:
        if marks.spaces and os.stat(f"/proc/{pid}/ns/pid").st_ino in marks.spaces:  # noqa: PTH116 - of every one
            return True
    except OSError:
        pass  # this user may not ask: it is not in a namespace of this user's
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if pid in marks.pids:
            return True
        user = process.uids().real if marks.users or marks.roots else -1
        if user in marks.users:
            return True
        return bool(marks.roots) and user == os.getuid() and _names_root(process, marks.roots)
    except (OSError, psutil.Error):
        return False  # it ended, or is another user's


def _names_root(process: psutil.Process, roots: frozenset[str]) -> bool:
    """True if a process has a root in its environment, or its working folder below one."""
    folder = process.cwd()
    if any(folder == root or folder.startswith(f"{root}/") for root in roots):
        return True
    if not psutil.LINUX:
        return process.environ().get(ROOT_VARIABLE) in roots
    with open(f"/proc/{process.pid}/environ", "rb") as stream:  # noqa: PTH123 - called for every process
        entries = stream.read(_MOST_ENVIRON).split(b"\0")
    return not {os.fsencode(f"{ROOT_VARIABLE}={root}") for root in roots}.isdisjoint(entries)


def base_interpreter() -> str:
    """Return the Python that the daemon's virtual environment was made from."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


class UserIds:
    """The user ids that the daemons of one user of this machine share out among their instances.

    A daemon holds a lock on one byte of a file for each of its instances, which the kernel drops when the
    daemon dies. No other code of the process may open the file: closing it would drop the locks.

    Args:
        path: The file.
        ids: The user ids.
    """

    def __init__(self, path: Path, ids: range) -> None:
        self._ids = ids
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._reserved: set[int] = set()

    def take(self, living: Collection[int]) -> int:
        """Return an id that no instance has, nor any program that is left of one.

        Args:
            living: The ids of this daemon's instances; all others that it has reserved are free again.

        Raises:
            OSError: There is none.
        """
        self._release(self._reserved.difference(living))
        candidates = list(set(self._ids) - self._reserved - _users_of_programs())
        while candidates:
            user = candidates.pop(secrets.randbelow(len(candidates)))
            if self.reserve(user):
                return user
        raise OSError("no user id is left for an instance")

    def reserve(self, user: int) -> bool:
        """Hold an id until `take` finds it unused; False if it is none of `ids`, or another daemon has it."""
        if user not in self._ids:
            return False
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, user)
        except OSError:
            return False
        self._reserved.add(user)
        return True

    def _release(self, users: set[int]) -> None:
        for user in users:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, user)
        self._reserved -= users


def _users_of_programs() -> set[int]:
    """Return the user ids of all processes."""
    shown = (process.info["uids"] for process in psutil.process_iter(["uids"]))
    return {uids.real for uids in shown if uids is not None}


_CONTAINER_S, _REMOVALS = 60.0, 5
CONTAINERS = "home/dlcloud/container.py"
"""What dlcloud runs containers with, on an instance that has had some."""


async def clear_leftovers(paths: SitePaths, users: UserIds | None = None) -> None:
    """End the processes and remove the folders of a daemon that was killed.

    Args:
        paths: Where that daemon had them.
        users: The user ids of instances that had one of their own each; None if all daemons share theirs.
    """
    roots = list(paths.instances.iterdir()) if paths.instances.is_dir() else []
    if roots:
        log.warning("clearing %d instances of an earlier daemon", len(roots))
        for root in roots:
            await asyncio.to_thread(_kill_user_of, root, users)
        await end_all(Marks(roots=frozenset(str(root) for root in roots)))
    await asyncio.gather(*(asyncio.to_thread(remove_root, root) for root in roots))
    for folder in (paths.instances, images_folder(paths)):
        await asyncio.to_thread(remove_tree, folder)
    paths.instances.mkdir(exist_ok=True)
    paths.instances.chmod(0o711)  # the instances' user passes through, if it gets as far
    images_folder(paths).mkdir(mode=0o700, exist_ok=True)
    paths.cache.mkdir(mode=0o700, exist_ok=True)


def _kill_user_of(root: Path, users: UserIds | None) -> None:
    """Kill the programs of the user that owns the home of an instance, if no other daemon has this user."""
    with contextlib.suppress(OSError):
        user = InstanceTree(root).state("home").st_uid
        if users is not None and users.reserve(user):
            kill_user(user)


def remove_root(root: Path) -> bool:
    """Remove the folder of an instance whose programs have ended; False if something is left."""
    if InstanceTree(root).exists(CONTAINERS):
        _remove_containers(root)
    return remove_tree(root)


def _remove_containers(root: Path) -> None:
    """Remove the containers of an instance: this machine's podman or docker keeps those that were killed.

    Podman fails the first time where the process that watched over a container was killed, too.
    """
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None:
        return
    fault = ""
    for _ in range(_REMOVALS):
        listed = _call(engine, "ps", "--all", "--quiet", "--filter", f"label={ROOT_VARIABLE}={root}")
        names = listed.stdout.split()
        if listed.returncode or not names:
            fault = listed.stderr if listed.returncode else ""
            break
        fault = _call(engine, "rm", "--force", *names).stderr
    if fault:
        log.warning("the containers of %s may remain: %s", root, fault.strip())


def _call(*words: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CONTAINER_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))
