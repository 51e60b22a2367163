"""Run the programs of one instance: in its namespaces, as the instances' user, or as the daemon's.

`start` makes the namespaces, if there are any, `spawn` runs a program in them, and `stop` kills all of
them. `marks` tells by what the instance's processes are known while it lives.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from dlcloud.local.instance.processes import UMASK, Marks, kill_user, start_process
from dlcloud.local.instance.rootfs import RootFs, write_hosts
from dlcloud.local.tree.instance_tree import InstanceTree, open_terminal_in

_PROGRAM = Path(__file__).with_name("container_init.py")
# For programs that treat root as no login of EC2 is treated: they refuse, warn, or restore owners.
_ROOT_VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "TAR_OPTIONS": "--no-same-owner",
}
_KEEP_IDS = "--preserve-credentials"
_CHANGE_FOLDER = 'cd "$0" && exec "$@"'
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

MOST_PROCESSES = max(4096, 64 * (os.cpu_count() or 1))
"""Processes and threads of an instance."""

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Container:
    """What separates the programs of an instance from the machine.

    Args:
        root: The instance's folder.
        interpreter: The Python that builds the namespaces.
        owner: The user id of its programs, as the daemon sees it.
        users: The user ids of all instances; empty: its own.
        shared_group: The group of what all instances may write; None without one.
        ids: The number of user ids from `owner` on that they may take.
        rootfs: What they see of the machine; None if they have no namespaces.
        on_end: Called when the namespaces end by themselves, as by reboot(2).
    """

    root: Path
    interpreter: str
    owner: int
    ids: int = 1
    users: range = range(0)
    shared_group: int | None = None
    rootfs: RootFs | None = None
    on_end: Callable[[], None] | None = None
    _pid: int = 0
    _space: int = -1
    _entered: set[asyncio.subprocess.Process] = field(default_factory=set)
    _process: asyncio.subprocess.Process | None = None
    _watch: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def owners(self) -> range:
        """Return who may own a file of the instance that has further names; empty if this is not root."""
        own = self.users or range(self.owner, self.owner + self.ids)
        return own if os.getuid() == 0 else range(0)

    @property
    def tree(self) -> InstanceTree:
        """Return the files of the instance."""
        return InstanceTree(self.root, self.owners)

    @property
    def has_own_user(self) -> bool:
        """True if no other instance runs programs with its user id, which is all that separates them."""
        return self.shared_group is not None and self.owner != self.shared_group

    @property
    def base(self) -> Path:
        """Return the folder that stands for the root of the instance, as its programs see it."""
        return self.root if self.rootfs is None else Path("/")

    def marks(self) -> Marks:
        """Return by what the instance's processes are known, as they are now."""
        if self.rootfs is not None:
            self._entered = {process for process in self._entered if process.returncode is None}
            spaces = frozenset() if self._space < 0 else frozenset({os.fstat(self._space).st_ino})
            entered = frozenset(process.pid for process in self._entered)
            inits = frozenset({self._pid}) if self._pid else frozenset()
            return Marks(spaces=spaces, pids=entered, inits=inits)
        if self.has_own_user:
            return Marks(users=frozenset({self.owner}))
        return Marks(roots=frozenset({str(self.root)}))

    def create_folders(self) -> None:
        """Make the folders that its programs need, before the first of them runs."""
        self.tree.admit(self.owner)
        if self.rootfs is not None:
            self.rootfs.create_folders(self.tree)

    def write_hosts(self, lines: Sequence[str]) -> None:
        """Let names of instances resolve, where its programs have an /etc/hosts of their own."""
        if self.rootfs is not None:
            write_hosts(self.tree, lines)

    def give_folders(self) -> None:
        """Hand what the image has written over to the instance's user; `bin` and `lib` stay the daemon's."""
        for name in ("bin", "lib"):
            self.tree.make_folder(name, mode=0o755)
        self.tree.give(self.owner, keeps=("", "bin", "lib"))

    async def start(self, hostname: str) -> None:
        """Make the namespaces, with their own host name.

        Raises:
            OSError: The system refuses.
        """
        if self.rootfs is None:
            return
        plan = await asyncio.to_thread(self._plan, self.rootfs) | {"hostname": hostname}
        reader, writer = os.pipe()
        with os.fdopen(reader, encoding="utf-8", errors="replace") as answers:
            with os.fdopen(writer, "wb") as output:
                self._process = await self._unshare(output)
            await _send(self._process, json.dumps(plan).encode())
            answer = (await asyncio.to_thread(answers.readline)).strip()
        if not answer.isdigit():
            raise OSError(answer or "unshare failed")
        self._pid = int(answer)
        self._space = os.open(f"/proc/{self._pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._watch = asyncio.create_task(self._await_end(self._process))

    async def _unshare(self, output: BinaryIO) -> asyncio.subprocess.Process:
        return await start_process(
            *_unshare_command(),
            self.interpreter,
            *("-I", "-S", str(_PROGRAM)),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={"PATH": _SYSTEM_PATH},
            cwd="/",
            start_new_session=True,
        )

    def _plan(self, rootfs: RootFs) -> dict[str, Any]:
        return {
            "tree": str(rootfs.tree),
            "source": str(self.root / "rootfs"),
            "owner": rootfs.owner,
            "ids": self.ids,
            "steps": rootfs.steps(self.tree),
        }

    async def _await_end(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if self.on_end is not None:
            self.on_end()

    async def stop(self) -> None:
        """Kill every program and drop the namespaces with their mounts."""
        if self._watch is not None:
            self._watch.cancel()
        if self.has_own_user:
            await asyncio.to_thread(kill_user, self.owner)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # unshare waits for the first process, and that one's end for those of all others.
                os.kill(self._pid or self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._space >= 0:
            os.close(self._space)
        self._process, self._pid, self._space = None, 0, -1

    async def spawn(
        self,
        argv: list[str],
        *,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        has_terminal: bool = False,
    ) -> asyncio.subprocess.Process:
        """Start a program in the instance's home; one with a terminal makes its session itself.

        Raises:
            OSError: It cannot be started.
        """
        variables = env if self.rootfs is None else {**_ROOT_VARIABLES, **env}
        options: dict[str, Any] = {"env": variables, "stdin": stdin, "stdout": stdout, "stderr": stderr}
        options |= {"umask": UMASK, "start_new_session": not has_terminal}
        if self.rootfs is not None:
            command = (*limit_processes(), *self._enter_command(), *argv)
            process = await start_process(*command, cwd="/", **options)
            self._entered.add(process)
            return process
        if self.owner != os.getuid():
            groups = [] if self.shared_group is None else [self.shared_group]
            options |= {"user": self.owner, "group": self.owner, "extra_groups": groups}
            if self.has_own_user:
                options["umask"] = UMASK & ~0o020  # what it puts into the cache is its group's, too
            argv = [*limit_processes(), *argv]
        return await start_process(*argv, cwd=self.root / "home", **options)

    def _enter_command(self) -> tuple[str, ...]:
        """Return the words that run a program in the namespaces, in the instance's home.

        Without root, the user namespace that owns the others comes first.

        Raises:
            OSError: They have ended.
        """
        if self._process is None or not self._pid:
            raise OSError("the instance's namespaces have ended")
        spaces = ("--user", "--mount", "--pid", "--uts", "--ipc")
        enter: tuple[str, ...] = ("nsenter", "--target", str(self._pid), *spaces)
        if os.getuid() != 0:
            owner = f"--user=/proc/{self._process.pid}/ns/user"
            enter = ("nsenter", owner, _KEEP_IDS, *enter, _KEEP_IDS)
        return (*enter, "/bin/sh", "-c", _CHANGE_FOLDER, str(self.root / "home"))

    def open_terminal(self) -> tuple[int, int]:
        """Return both ends of a new terminal, one of the instance's own where it has namespaces."""
        if self.rootfs is None:
            master, slave = os.openpty()
        else:
            master, slave = open_terminal_in(Path(f"/proc/{self._pid}/root"))
        if self.owner != os.getuid():
            os.fchown(slave, self.owner, self.owner)
        return master, slave


@cache
def limit_processes() -> tuple[str, ...]:
    """Return the words before a command that limit the processes and threads of its user, or namespace.

    Processes of root are counted and not limited, so the limit holds from where the instance's user begins.
    """
    program = shutil.which("prlimit")
    return () if program is None else (program, f"--nproc={MOST_PROCESSES}:{MOST_PROCESSES}", "--")


async def _send(process: asyncio.subprocess.Process, content: bytes) -> None:
    """Write all of a process's standard input."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # it has ended, and its output says why
            process.stdin.write(content)
            await process.stdin.drain()
        process.stdin.close()


def _unshare_command() -> tuple[str, ...]:
    """Return the command that makes namespaces which end with the daemon, whatever ends it."""
    users = () if os.getuid() == 0 else ("--user", "--map-root-user")
    return ("setpriv", "--pdeathsig", "KILL", "unshare", *users, "--mount", "--pid", "--fork", "--kill-child")


@dataclass(kw_only=True, eq=False)
class InstanceServices:
    """The services of one instance, by name."""

    container: Container
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def run(self, name: str, argv: list[str], env: Mapping[str, str], *, limit_s: float | None) -> int:
        """Run a program until it ends, or is ended after some seconds; return its exit status.

        Raises:
            OSError: It cannot be started.
        """
        quiet = subprocess.DEVNULL
        process = await self.container.spawn(argv, env=env, stdout=quiet, stderr=quiet)
        self._running[name] = process
        try:
            return await asyncio.wait_for(asyncio.shield(process.wait()), limit_s)
        except TimeoutError:
            self.end(name)
            return await process.wait()
        finally:
            del self._running[name]

    def end(self, name: str) -> None:
        """End a program with what it has started; one that has ended is ignored."""
        if (process := self._running.get(name)) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
