"""Build an instance's root file system and become its first process: python3 -I -S container_init.py.

Runs in mount and process namespaces that unshare(1) made, as the root user of the machine or of a user
namespace. It reads a plan in JSON from standard input, prints its process id as the daemon sees it, and
becomes `sleep`, which collects the processes that lose their parent.

Plan: {"tree": mount point of the new root, "source": folder that it shows, "owner": user id of what is made,
"ids": number of user and group ids, "hostname": of the instance, "steps": [[name of a function below, its
arguments ...]]}.
"""

import contextlib
import ctypes
import json
import os
import signal
import stat
import struct
import sys

# Source: include/uapi/linux/mount.h and sched.h; mount_setattr(2) has this number on every architecture.
NOSUID, NODEV, BIND, RECURSIVE = 2, 4, 4096, 16384
DETACH = 2
SIGNAL_AT_PARENTS_DEATH = 1
SET_ATTRIBUTES, AT_RECURSIVE, AT_CWD, ATTR_RDONLY = 442, 0x8000, -100, 1
NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC, NEW_USERS = 0x00020000, 0x04000000, 0x08000000, 0x10000000
FIRST = ("/bin/sleep", "infinity")

LIBC = ctypes.CDLL(None, use_errno=True)


class Tree:
    """The new root while it is built; paths are those inside of it."""

    def __init__(self, folder: str, owner: int) -> None:
        self.folder = folder
        self.owner = owner

    def bind(self, source: str, path: str) -> None:
        """Show a file or a folder of the machine, with what is mounted below it."""
        target = self.make(path, is_folder=os.path.isdir(source))
        mount(source, target, None, BIND | RECURSIVE)

    def read_only(self, path: str) -> None:
        """Refuse writes to a mount and all mounts below it."""
        attributes = struct.pack("QQQQ", ATTR_RDONLY, 0, 0, 0)
        target = (self.folder + path).encode()
        check(LIBC.syscall(SET_ATTRIBUTES, AT_CWD, target, AT_RECURSIVE, attributes, len(attributes)), path)

    def memory(self, path: str, mode: str, size: str) -> None:
        """Mount an empty file system in memory; a size of 0 has no limit."""
        options = f"mode={mode},uid={self.owner},gid={self.owner},size={size}"
        mount("tmpfs", self.make(path), "tmpfs", NOSUID | NODEV, options)

    def overlay(self, lower: str, upper: str, work: str, path: str, options: str) -> None:
        """Show folders of the machine; what is written comes into `upper`."""
        options = f"lowerdir={lower},upperdir={upper},workdir={work}{options}"
        mount("overlay", self.make(path), "overlay", 0, options)

    def processes(self, path: str) -> None:
        """Mount /proc."""
        mount("proc", self.make(path), "proc", NOSUID | NODEV)

    def terminals(self, path: str) -> None:
        """Mount /dev/pts, of terminals of its own."""
        mount("devpts", self.make(path), "devpts", NOSUID, "newinstance,ptmxmode=0666,mode=620")

    def again(self, source: str, path: str) -> None:
        """Show a folder of the tree, without what is mounted below it, at a second path."""
        mount(self.folder + source, self.make(path), None, BIND)

    def link(self, target: str, path: str) -> None:
        """Make a symbolic link, unless there is one."""
        with contextlib.suppress(FileExistsError):
            os.symlink(target, self.folder + path)

    def make(self, path: str, *, is_folder: bool = True) -> str:
        """Make a mount point with the folders above it; refuse to follow a link out of the tree."""
        current = self.folder
        names = path.strip("/").split("/")
        for number, name in enumerate(names):
            current += "/" + name
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISLNK(os.lstat(current).st_mode):
                    raise OSError(f"{path} leads through a link")
                continue
            if is_folder or number < len(names) - 1:
                os.mkdir(current, 0o755)
            else:
                os.close(os.open(current, os.O_CREAT | os.O_WRONLY, 0o644))
            os.chown(current, self.owner, self.owner)
        return current


def mount(source: str, target: str, kind: "str | None", flags: int, options: str = "") -> None:
    """Mount.

    Raises:
        OSError: The system refuses.
    """
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    check(LIBC.mount(*texts, ctypes.c_ulong(flags), options.encode()), f"{kind or 'bind'} {target}")


def check(result: int, subject: str) -> None:
    """Raise the error of a system call that failed."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)


def enter(folder: str) -> None:
    """Make a mount the root, and drop the old one."""
    os.chdir(folder)
    check(LIBC.pivot_root(b".", b"."), "pivot_root")
    check(LIBC.umount2(b".", DETACH), "umount")
    os.chdir("/")


def take_users(owner: int, ids: int) -> None:
    """Enter a user namespace whose root is `owner` outside; from now on no mount can be taken away.

    Only a process outside of the namespace may write its maps: a child does.
    """
    ready, written = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(written)
        os.read(ready, 1)
        for kind in ("uid", "gid"):
            with open(f"/proc/1/{kind}_map", "w", encoding="ascii") as file:
                file.write(f"0 {owner} {ids}\n")
        os._exit(0)
    check(LIBC.unshare(NEW_USERS | NEW_MOUNTS | NEW_HOST_NAME | NEW_IPC), "user namespace")
    os.close(written)
    if os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]):
        raise OSError("the ids of the user namespace are refused")
    with contextlib.suppress(PermissionError):  # the groups of the user who started the daemon stay
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def main() -> None:
    """Build, enter, report, and wait."""
    os.umask(0o022)
    plan = json.load(sys.stdin)
    pid = os.readlink("/proc/self")
    tree = Tree(plan["tree"], plan["owner"])
    mount(plan["source"], tree.folder, None, BIND)
    for name, *arguments in plan["steps"]:
        getattr(tree, name)(*arguments)
    enter(tree.folder)
    take_users(plan["owner"], plan["ids"])
    hostname = plan["hostname"].encode()
    check(LIBC.sethostname(hostname, len(hostname)), "host name")
    # The change of user has cleared what unshare had set.
    check(LIBC.prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL, 0, 0, 0), "prctl")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so no ended process stays a zombie
    os.write(1, pid.encode() + b"\n")
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.execv(FIRST[0], FIRST)  # noqa: S606 - it is the process that stays


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
