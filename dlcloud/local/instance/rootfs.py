"""The root file system that an instance sees in a mount namespace.

Its own: /etc (a copy), /home, /media, /mnt, /opt, /root, /run, /srv, /tmp, /usr (written over the machine's),
/var, and whatever it makes in /. Read only: everything else of the machine. Hidden: the homes of users, the
folder of dlcloud, block devices.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlcloud.local.instance.shims import FOUND_BY_PATH
from dlcloud.local.tree.beneath import give
from dlcloud.local.tree.instance_tree import InstanceTree

HOSTS = "etc/hosts"
"""Where it is in an instance's folder."""
_BEGIN = "# instances of the local EC2, kept up to date:\n"
_END = "# end of instances\n"


def hosts_line(host: str, names: Sequence[str]) -> str:
    """Return the line of one instance: the fully qualified private name first, as `hostname -f` prints it."""
    private, *others = names
    return f"{host} {' '.join((private, private.partition('.')[0], *others))}\n"


def write_hosts(tree: InstanceTree, lines: Sequence[str]) -> None:
    """Replace the lines of instances in the hosts file, and keep those that others wrote.

    The file is written in place: it is part of a mounted layer. One that is gone, is no plain file or exceeds
    1 MiB, as programs of the instance may have arranged, is left alone.
    """

    def replace(content: bytes) -> bytes:
        before, _, rest = content.partition(_BEGIN.encode())
        _, _, after = rest.partition(_END.encode())
        return b"".join([before, f"{_BEGIN}{''.join(lines)}{_END}".encode(), after])

    with contextlib.suppress(OSError):
        tree.update(HOSTS, replace)


# Folders of / that an instance has for itself, empty at its launch.
_OWN = ("home", "media", "mnt", "root", "run", "srv", "tmp", "var")
_KERNEL = ("dev", "proc", "sys")
# Folders of / that an instance may write over.
_LAYERED = ("bin", "opt", "sbin", "usr")
# Those of its folder that are the same as in /.
SAME_FOLDERS = ("etc", "opt", "root", "run", "tmp", "usr", "var")
_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
# Drivers of accelerators, with nodes that any user may open.
_DEVICE_PATTERNS = ("nvidia*", "dri", "kfd", "infiniband", "accel*", "neuron*", "dxg")
_BLOCK_DEVICES = ("/sys/block", "/sys/class/block", "/sys/dev/block")
# Made in the layers, so that an instance may add to those of the machine.
_LAYER_FOLDERS = ("bin", "lib", "libexec", "local", "sbin", "share", "src")
# Made in an instance's folder at its launch.
_OWN_FOLDERS = (
    *(
        "var/cache",
        "var/lib/apt/lists",
        "var/lib/dlcloud",
        "var/log",
        "var/mail",
        "var/opt",
        "var/spool",
        "var/tmp",
    ),
    *("rootfs/home", "rootfs/media", "rootfs/mnt", "rootfs/srv", "run/lock", *SAME_FOLDERS),
)
_LINKS = {"var/run": "/run", "var/lock": "/run/lock"}
_PACKAGES = ("/var/lib/dpkg", "/var/lib/rpm")
_RESOLVED = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
_LOCK = "etc/.pwd.lock"
_READ, _ENTER = 0o004, 0o005  # of every user
_SHIM = '#!/bin/sh\nexec /run/dlcloud/bin/{name} "$@"\n'
_USER_LINE = "ubuntu:x:0:0:Ubuntu:/home/ubuntu:/bin/bash\n"

Step = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFs:
    """The parts of all instances' root file systems that are the same.

    Args:
        image: The folder of the read-only layers, and the mount point of the new root.
        hidden: Folders of the machine that no instance may see.
        shown: Files and folders in hidden ones that every instance may read.
        cache: The folder that all instances share.
        owner: The user id that owns what is made.
        overlay_options: Further options of overlay mounts.
    """

    image: Path
    hidden: tuple[Path, ...]
    shown: tuple[Path, ...]
    cache: Path
    owner: int
    overlay_options: str

    @property
    def tree(self) -> Path:
        return self.image / "tree"

    def build_image(self) -> None:
        """Make the layers: a copy of what every user may read of /etc, and our programs."""
        shutil.rmtree(self.image, ignore_errors=True)
        self.tree.mkdir(parents=True)
        _copy_readable("/etc", str(self.image / "etc"))
        # That of the machine, which no instance may open, would keep programs from changing /etc/passwd.
        (self.image / _LOCK).touch(mode=0o600)
        for name in _RESOLVED:
            _copy_content(Path("/", name), self.image / name)
        for name, line in (("passwd", _USER_LINE), ("group", "ubuntu:x:0:\n")):
            path = self.image / "etc" / name
            path.write_text(
                path.read_text() + line if path.exists() else f"root:x:0:0::/root:/bin/sh\n{line}"
            )
        for folder in (
            Path("opt"),
            *(Path("usr", name) for name in _LAYER_FOLDERS),
            *_folders_of("usr/local"),
        ):
            (self.image / folder).mkdir(parents=True, exist_ok=True)
        for name in FOUND_BY_PATH:
            self._write_shim(name)
        open_folders(self.image)
        give(self.image, self.owner)

    def _write_shim(self, name: str) -> None:
        folder = "sbin" if name in ("halt", "init", "poweroff", "reboot", "shutdown", "telinit") else "bin"
        for place in (Path("usr", folder), Path(folder)):
            if not Path("/", place).is_symlink():
                path = self.image / place / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_SHIM.format(name=name), encoding="utf-8")
                path.chmod(0o755)

    def create_folders(self, tree: InstanceTree) -> None:
        """Make the folders of an instance that its root file system consists of."""
        for name in _OWN_FOLDERS:
            tree.make_folder(name)
        for name, target in _LINKS.items():
            if not tree.is_link(name):  # an image has them
                tree.link(name, target)
        for name in ("tmp", "var/tmp"):
            tree.make_folder(name, mode=0o1777)
        with contextlib.suppress(FileNotFoundError):  # of the machine
            tree.write(HOSTS, (self.image / HOSTS).read_bytes())

    def steps(self, tree: InstanceTree) -> list[Step]:
        """Return the steps that build the root of one instance."""
        root = tree.root
        steps = [*self._top_steps(tree), *_kernel_steps(), *self._hidden_steps()]
        steps += [("bind", str(root), str(root)), ("read_only", str(root))]
        steps += [("again", f"/{name}", f"{root}/{name}") for name in SAME_FOLDERS]
        steps += [("bind", f"{root}/home", path) for path in (f"{root}/home", "/home/ubuntu")]
        steps += [("bind", f"{root}/bin", "/run/dlcloud/bin"), ("read_only", "/run/dlcloud/bin")]
        cache = (str(self.cache), os.path.realpath(self.cache))
        steps += [("bind", cache[1], path) for path in dict.fromkeys(cache)]
        return steps

    def _top_steps(self, tree: InstanceTree) -> list[Step]:
        steps: list[Step] = []
        root = tree.root
        for entry in sorted(Path("/").iterdir()):
            name, path = entry.name, str(entry)
            if entry.is_symlink():
                steps.append(("link", str(entry.readlink()), path))
            elif entry.is_dir() and name not in (*_OWN, *_KERNEL, "etc"):
                is_layered = name in _LAYERED and not root.is_relative_to(entry)
                steps += self._layers(tree, name) if is_layered else _read_only(path)
        steps += self._layers(tree, "etc")
        steps += [("bind", f"{root}/{name}", f"/{name}") for name in ("root", "run", "tmp", "var")]
        for path in _PACKAGES:
            steps += _read_only(path) if Path(path).is_dir() else ()
        return steps

    def _layers(self, tree: InstanceTree, name: str) -> list[Step]:
        """Return the step that shows a folder of the machine as the instance's own."""
        upper, work = tree.root / name, tree.root / "work" / name
        for folder in (name, f"work/{name}"):
            tree.make_folder(folder)
        lower = [str(self.image / name)] if (self.image / name).exists() else []
        return [
            (
                "overlay",
                ":".join([*lower, f"/{name}"]),
                str(upper),
                str(work),
                f"/{name}",
                self.overlay_options,
            )
        ]

    def _hidden_steps(self) -> list[Step]:
        """Cover what is hidden and not left out anyway; then show what may be read of it."""
        steps: list[Step] = [("memory", str(path), "0755", "0") for path in self.hidden if not _is_own(path)]
        for path in self.shown:
            if _is_own(path) or any(path.is_relative_to(folder) for folder in self.hidden):
                steps += _read_only(str(path))
        # An image of EC2 has Python without the packages that were installed on this machine.
        steps += [("memory", str(path), "0755", "0") for path in package_folders()]
        return steps


def package_folders() -> list[Path]:
    """Return the folders with installed packages of the Pythons that an instance can run."""
    prefixes = {*interpreter_folders(), Path("/usr"), Path("/usr/local")}
    patterns = ("lib/python3*/site-packages", "lib/python3*/dist-packages")
    folders = {path for prefix in prefixes for pattern in patterns for path in prefix.glob(pattern)}
    return sorted(path for path in folders if path.is_dir() and not path.is_symlink())


def open_folders(folder: Path) -> None:
    """Let every user of an instance enter the folders in a folder; the daemon's umask is narrower."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o755)


def interpreter_folders() -> tuple[Path, ...]:
    """Return the folders of the Python that instances run."""
    return tuple({Path(os.path.realpath(prefix)) for prefix in (sys.base_prefix, sys.base_exec_prefix)})


def _is_own(path: Path) -> bool:
    """True if a path lies where its own instance has folders."""
    return len(path.parts) > 1 and path.parts[1] in _OWN


def _read_only(path: str) -> list[Step]:
    return [("bind", path, path), ("read_only", path)]


def _kernel_steps() -> list[Step]:
    steps: list[Step] = [("processes", "/proc"), *_read_only("/sys")]
    steps += [("memory", path, "0555", "4k") for path in _BLOCK_DEVICES if Path(path).is_dir()]
    size = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - shared memory
    steps += [("memory", "/dev", "0755", "64k"), ("terminals", "/dev/pts"), ("link", "pts/ptmx", "/dev/ptmx")]
    steps.append(("memory", "/dev/shm", "1777", str(size.f_frsize * size.f_blocks if size else 0)))  # noqa: S108
    nodes = [Path("/dev", name) for name in _DEVICES]
    nodes += [node for pattern in _DEVICE_PATTERNS for node in sorted(Path("/dev").glob(pattern))]
    steps += [("bind", str(node), str(node)) for node in nodes if node.exists()]
    links = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    return [*steps, *(("link", f"/proc/self/{target}", f"/dev/{name}") for name, target in links.items())]


def _folders_of(folder: str) -> Iterable[Path]:
    """Return the folders directly in a folder of the machine, relative to its root."""
    return [path.relative_to("/") for path in Path("/", folder).glob("*/") if not path.is_symlink()]


def _copy_readable(source: str, target: str) -> None:
    """Copy the folders and files of /etc that every user of the machine may read; links show through."""
    Path(target).mkdir(mode=0o755)
    for entry in os.scandir(source):
        mode = entry.stat(follow_symlinks=False).st_mode
        copy = f"{target}/{entry.name}"
        if entry.is_dir(follow_symlinks=False) and mode & _ENTER == _ENTER:
            _copy_readable(entry.path, copy)
        elif entry.is_file(follow_symlinks=False) and mode & _READ:
            with Path(entry.path).open("rb") as file, Path(copy).open("wb") as stream:
                stream.write(file.read())
                os.fchmod(stream.fileno(), mode & 0o777)


def _copy_content(source: Path, target: Path) -> None:
    """Copy a file that may be a link, such as to what systemd-resolved writes."""
    try:
        content = source.read_bytes()
    except OSError:
        return
    target.unlink(missing_ok=True)
    target.write_bytes(content)
    target.chmod(0o644)
