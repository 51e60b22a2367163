"""Folders of instances as hostile programs leave them, and all that the daemon does in one."""

import contextlib
import multiprocessing
import os
import random
import shutil
import socket
import stat
import time
import warnings
from pathlib import Path

from dlcloud.local.instance.cloudinit import read_console
from dlcloud.local.instance.container import Container
from dlcloud.local.instance.isolation import Isolation, Level, share_cache
from dlcloud.local.instance.processes import remove_root
from dlcloud.local.instance.rootfs import RootFs, write_hosts
from dlcloud.local.instance.shims import write_shims
from dlcloud.local.instance.sshd import LoginFiles
from dlcloud.local.tree.copies import copy_disk, restore
from dlcloud.local.tree.instance_tree import InstanceTree

PATHS = (
    *("etc", "etc/hosts", "etc/ssh", "etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_ed25519_key.pub"),
    *("etc/ssh/ssh_host_x_key.pub", "etc/x"),
    *(
        "home",
        "home/.ssh",
        "home/.ssh/authorized_keys",
        "home/.cache",
        "home/.profile",
        "home/.bash_profile",
        "home/.bashrc",
    ),
    *("home/dlcloud", "home/x"),
    *("root", "root/.ssh", "root/.ssh/authorized_keys", "tmp", "opt", "usr", "usr/bin/x"),
    *("run", "run/nologin", "run/units", "run/units/x", "run/cloud-init", "run/lock"),
    *("var", "var/log", "var/log/cloud-init-output.log", "var/lib", "var/lib/dlcloud", "var/lib/apt-lock"),
    *(
        "var/lib/apt",
        "var/lib/apt/lists",
        "var/lib/cloud",
        "var/lib/cloud/scripts",
        "var/lib/cloud/scripts/per-boot",
    ),
    *("var/lib/cloud/scripts/per-boot/x", "var/tmp", "var/run", "var/lock", "var/cache", "var/mail"),
    *("var/opt", "var/spool", "work", "work/etc", "work/opt", "work/usr"),
    *("rootfs", "rootfs/home", "rootfs/media", "rootfs/mnt", "rootfs/srv"),
)
"""The paths that the daemon opens, makes, lists, copies or gives away in an instance's folder.

`tests/unit/local/test_hostile_trees.py` holds by strace that none is missing.
"""
LEFT_OUT = {
    "home/dlcloud/container.py": "its presence makes the daemon call podman, which takes its time",
    "bin": "no program of an instance can write there",
    "lib": "as bin",
}
_SECRET = "of the machine"
_DEEP = 300  # levels: more than are walked


class Canary:
    """What lies outside of the instance: nothing of it may be read, written, given away or added to."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "deep").mkdir(parents=True)
        for name in ("secret", "authorized_keys", "deep/program", "deep/ssh_host_x_key.pub"):
            (folder / name).write_text(_SECRET)
            (folder / name).chmod(0o600)
        (folder / "deep/program").chmod(0o4755)
        os.mkfifo(folder / "fifo")
        for path in (folder, *folder.rglob("*")):
            os.utime(path, (1, 1))
        self._before = self._states()

    def fault(self):
        """Return what has changed; empty for nothing. A read shows as a new time of access."""
        after = self._states()
        changed = [str(path) for path in {*after, *self._before} if after.get(path) != self._before.get(path)]
        return ", ".join(sorted(changed))

    def _states(self):
        states = {}
        for path in (self.folder, *sorted(self.folder.rglob("*"))):
            state = path.lstat()
            # The walk of this very function reads folders.
            read = None if path.is_dir() else state.st_atime_ns
            states[path] = (state.st_uid, state.st_gid, state.st_mode, state.st_size, state.st_mtime_ns, read)
        return states


def plant(random_, root, outside):
    """Put something at a random path of an instance's folder."""
    path = root / random_.choice(PATHS)
    kinds = (_link, _link, _link, _fifo, _socket, _sparse, _hard, _closed, _deep, _proc, _chain, _remove)
    with contextlib.suppress(OSError, RuntimeError):
        if random_.random() < 0.3 and path.parent != root:
            path = path.parent
        # A program of an instance has no rights outside; this one has, and must not use them.
        if not path.parent.resolve().is_relative_to(root.resolve()):
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        random_.choice(kinds)(random_, path, outside)


def _link(random_, path, outside):
    target = random_.choice(
        (outside, outside / "secret", outside / "deep", outside / "new", outside / "fifo")
    )
    if random_.random() < 0.5:
        target = Path(os.path.relpath(target, path.parent))
    path.symlink_to(target)


def _chain(_, path, outside):
    (path.parent / "first").unlink(missing_ok=True)
    (path.parent / "first").symlink_to(outside)
    path.symlink_to("first/secret")


def _proc(random_, path, _):
    path.symlink_to(
        random_.choice(("/proc/self/root", "/proc/self/cwd", "/proc/self/fd/0", "/dev/stdin", "/"))
    )


def _fifo(_, path, __):
    os.mkfifo(path)


def _socket(_, path, __):
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
        finally:
            os.close(descriptor)


def _sparse(_, path, __):
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def _hard(_, path, outside):
    """Name a file of another user; the user of the instances has none of others where it is the daemon's."""
    if os.getuid() == 0:
        os.link(outside / "secret", path)


def _closed(random_, path, _):
    path.mkdir(mode=0o700)
    (path / "file").touch()
    path.chmod(random_.choice((0, 0o300, 0o500)))


def _deep(_, path, outside):
    path.mkdir()
    folder = os.open(path, os.O_RDONLY)
    for _level in range(_DEEP):
        os.mkdir("x", dir_fd=folder)
        below = os.open("x", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.symlink(outside, "link", dir_fd=folder)
    os.close(folder)


def _remove(*_):
    """Leave nothing there."""


class Swapper:
    """Changes the folder of an instance for as long as the daemon works in it.

    A process of its own: a thread would hold the interpreter's lock while the daemon's call is measured.
    It is a fork: an ordinary user may be unable to start root's Python.
    """

    def __init__(self):
        self._pipe, other = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_swap, args=(other,), daemon=True)
        with warnings.catch_warnings():  # that this process has threads: the other uses none of their locks
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        self._process = process

    def begin(self, *trial):
        """Change a folder by a seed: the seed, the folder, and what is outside of it."""
        self._pipe.send(trial)

    def end(self):
        """Return after the last change."""
        self._pipe.send(None)
        self._pipe.recv()

    def close(self):
        self._process.kill()
        self._process.join()


def _swap(pipe):
    while True:
        seed, root, outside = pipe.recv()
        random_ = random.Random(seed)
        while not pipe.poll(0.0002):
            plant(random_, root, outside)
        pipe.send(pipe.recv())


class Daemon:
    """What the daemon does in the folder of one instance, call by call, with the time that each has taken.

    With `layers`, a folder, it is one of level `namespaces`.
    """

    def __init__(self, root, cache, images, owner, layers=None):
        self.root, self.layers = root, layers
        rootfs = layers and RootFs(
            image=layers, hidden=(), shown=(), cache=cache, owner=owner, overlay_options=""
        )
        self.container = Container(root=root, interpreter="python3", owner=owner, rootfs=rootfs)
        self.tree = InstanceTree(root, self.container.owners)
        self.cache, self.images, self.owner = cache, images, owner
        self.slowest = ("", 0.0)
        self.shown = b""

    def create(self):
        """Make the folder, as at a launch."""
        self.tree.create()
        self.write()

    def write(self):
        """Write what a launch writes, over what an image has."""
        tree = self.tree
        for name in ("home/.ssh", "root/.ssh", "bin", "etc/ssh", "lib", "run/cloud-init", "var/log", "tmp"):
            self.call(tree.make_folder, name)
        self.call(tree.link, "home/.cache", str(self.cache))
        self.call(tree.write, "home/.profile", "x")
        for name in tree.names("etc/ssh"):
            self.call(tree.remove, f"etc/ssh/{name}")
        self.call(tree.write, "etc/ssh/ssh_host_ed25519_key", b"key", mode=0o600)
        for home in ("home", "root"):
            path, kept = f"{home}/.ssh/authorized_keys", b""
            kept = self.call(tree.read, path) or b""
            self.shown += kept
            self.call(tree.write, path, kept + b"key\n", mode=0o600)
        address = ("127.0.0.1", 1338)
        self.call(write_shims, tree, interpreter="python3", address=address, secret="x", owner=self.owner)
        self.call(tree.write, "var/lib/apt-lock", "0")
        self.call(tree.write, "var/log/cloud-init-output.log", "")
        self.call(tree.write, "etc/hosts", b"127.0.0.1 localhost\n")
        self.call(self.container.create_folders)
        self.call(self.container.write_hosts, ["127.0.0.9 ip\n"])
        self.call(self.container.give_folders)
        if self.container.rootfs is not None:
            self.call(self.container.rootfs.steps, tree)

    def serve(self):
        """Do what an instance that runs is served with."""
        tree = self.tree
        files = LoginFiles(
            tree=tree, authorized_keys={"ubuntu": "home/.ssh/authorized_keys"}, nologin="run/nologin"
        )
        self.call(files.may_log_in, "ubuntu")
        with contextlib.suppress(ValueError):
            self.call(files.read_keys, "ubuntu")
        self.shown += self.call(tree.read, files.authorized_keys["ubuntu"]) or b""
        console = self.call(read_console, tree)
        self.shown += (console or "").encode()
        self.call(write_hosts, tree, ["127.0.0.9 ip\n"])
        self.call(tree.write, "run/nologin", b"")
        self.call(tree.remove, "run/nologin")
        self.call(tree.remove, "run/units")
        for name in self.call(tree.names, "var/lib/cloud/scripts/per-boot") or ():
            self.call(tree.state, f"var/lib/cloud/scripts/per-boot/{name}")
        self.call(tree.write, "lib/cloud-init-result", "done")
        isolation = Isolation(level=Level.USER, owner=self.owner)
        self.call(share_cache, self.cache, isolation)

    def copy(self, number):
        """Make an image of the instance, and an instance of the image."""
        image, copy = self.images / f"image-{number}", self.images / f"i-{number}"
        self.call(copy_disk, self.tree, image)
        twin = Daemon(copy, self.cache, self.images, self.owner, self.layers)
        twin.tree.create()
        if any(image.iterdir()):
            twin.call(restore, image, copy)
        twin.write()
        self.shown += twin.shown + _contents(copy)
        self.slowest = max(self.slowest, twin.slowest, key=lambda entry: entry[1])
        self.call(remove_root, copy)
        self.call(remove_root, image)

    def remove(self):
        """Remove the folder, as at the end; returns whether it has gone."""
        return self.call(remove_root, self.root)

    def call(self, work, *arguments, **options):
        """Do something, however it ends, and measure it."""
        begin = _own_time()
        try:
            return work(*arguments, **options)
        except OSError:
            return None
        finally:
            taken = (getattr(work, "__name__", str(work)), _own_time() - begin)
            self.slowest = max(self.slowest, taken, key=lambda entry: entry[1])


def _own_time():
    """Return a time in seconds that stands still while this thread waits for a processor."""
    return time.monotonic() - _queued_ns() / 1e9


def _queued_ns():
    try:
        statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statistics, 256).split()[1])
    finally:
        os.close(statistics)


def _contents(folder):
    """Return what small plain files below a folder hold; no link is followed."""
    parts = []
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                path = Path(place, name)
                state = path.lstat()
                if stat.S_ISREG(state.st_mode) and state.st_size < 4096:
                    parts.append(path.read_bytes())
    return b"".join(parts)


def try_tree(seed, folder, owner, slowest_s, swapper):
    """Make one tree, do everything in it, and return what went wrong, and the slowest call."""
    random_ = random.Random(seed)
    for name in ("cache", "images", "instances"):
        (folder / name).mkdir(parents=True)
    canary = Canary(folder / "outside")
    layers = folder / "layers" if random_.random() < 0.5 else None  # half of each level
    if layers is not None:
        (layers / "etc").mkdir(parents=True)
        (layers / "etc/hosts").write_text("127.0.0.1 localhost\n")
    daemon = Daemon(folder / "instances/i-1", folder / "cache", folder / "images", owner, layers)
    daemon.create()
    for _ in range(random_.randint(1, 12)):
        plant(random_, daemon.root, canary.folder)
    if random_.random() < 0.5:
        plant(random_, folder / "cache", canary.folder)
    is_swapped = random_.random() < 0.5
    if is_swapped:
        swapper.begin(seed, daemon.root, canary.folder)
    try:
        daemon.serve()
        daemon.copy(1)
        daemon.serve()
    finally:
        if is_swapped:
            swapper.end()
    is_removed = daemon.remove()
    faults = [canary.fault()]
    if _SECRET.encode() in daemon.shown:
        faults.append("what is outside was shown")
    if not is_removed:
        faults.append("the folder was not removed")
    if daemon.slowest[1] > slowest_s:
        faults.append(f"{daemon.slowest[0]} took {daemon.slowest[1]:.1f} s")
    shutil.rmtree(folder, ignore_errors=True)
    return ", ".join(fault for fault in faults if fault), daemon.slowest
