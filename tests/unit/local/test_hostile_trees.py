"""What the daemon does in folders of instances touches nothing outside, whatever programs have put there.

Thousands of hostile folders are tried; strace shows that they poison every path that the daemon touches; and
syntax trees show that no other code of the local EC2 reaches below an instance's folder.

DLCLOUD_TEST_TREES sets the number of folders (10,000 for a release), DLCLOUD_TEST_TREES_SEED the first seed,
and DLCLOUD_TEST_TREES_SLOWEST_S, 2 on a quiet machine, the longest that a call may take.
"""

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dlcloud.local.instance.isolation import Level
from dlcloud.local.instance.processes import package_sources
from dlcloud.local.instance.rootfs import RootFs
from dlcloud.local.site import LocalSite
from dlcloud.local.tree import beneath
from dlcloud.local.tree.instance_tree import InstanceTree
from tests.fakes.local_ec2 import WAIT_S, Rig, wait_for
from tests.fuzz.trees import LEFT_OUT, PATHS, Swapper, try_tree
from tests.needs import needs

ROOT = Path(__file__).resolve().parents[3]
TREES = int(os.environ.get("DLCLOUD_TEST_TREES", "20"))
FIRST_SEED = int(os.environ.get("DLCLOUD_TEST_TREES_SEED", "1"))
SLOWEST_S = float(os.environ.get("DLCLOUD_TEST_TREES_SLOWEST_S", "300"))
INSTANCES = 1000013824
ORDINARY = 4242


def try_trees(folder, first, count):
    """Try trees by the seeds from `first` on, and print how many there were and the slowest call."""
    owner = INSTANCES if os.getuid() == 0 else os.getuid()
    slowest, begin = ("", 0.0), time.monotonic()
    with contextlib.closing(Swapper()) as swapper:
        for seed in range(first, first + count):
            fault, taken = try_tree(seed, folder / f"tree-{seed}", owner, SLOWEST_S, swapper)
            assert not fault, f"seed {seed}: {fault}"
            slowest = max(slowest, taken, key=lambda entry: entry[1])
    took = f"{count} trees in {time.monotonic() - begin:.0f} s"
    print(f"{took}; slowest: {slowest[0]}, {slowest[1]:.3f} s")  # noqa: T201 - the figure


def test_nothing_outside_of_an_instance_is_touched(tmp_path):
    try_trees(tmp_path, FIRST_SEED, TREES)


def test_nothing_is_touched_without_openat2(tmp_path, monkeypatch):
    monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    try_trees(tmp_path, FIRST_SEED + TREES, max(1, TREES // 4))


@needs("setpriv")
def test_nothing_is_touched_by_the_daemon_of_an_ordinary_user():
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, by setpriv")
    folder = Path(tempfile.mkdtemp(prefix="dlcloud-trees-"))
    os.chown(folder, ORDINARY, ORDINARY)
    words = ["setpriv", "--reuid", str(ORDINARY), "--regid", str(ORDINARY), "--clear-groups", sys.executable]
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    program = [__file__, str(folder), str(FIRST_SEED), str(TREES)]
    try:
        trial = subprocess.run([*words, "-c", ""], capture_output=True, check=False, cwd="/")
        if trial.returncode:
            pytest.skip("another user cannot run this Python, whose folder is closed to others")
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        environ["DLCLOUD_TEST_TREES_SLOWEST_S"] = str(SLOWEST_S)
        tried = subprocess.run(
            [*words, *program], capture_output=True, text=True, env=environ, check=False, cwd="/"
        )
        print(tried.stdout)  # noqa: T201 - as above
        assert tried.returncode == 0, tried.stderr
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


TRACE = ("-f", "-qq", "-y", "-s", "4096", "-e", "trace=%file,clone,clone3")
SCRIPT = "$DLCLOUD_ROOT/var/lib/cloud/scripts/per-boot"
USE = f"""
mkdir -p {SCRIPT} && printf '#!/bin/sh\\n' >{SCRIPT}/x && chmod +x {SCRIPT}/x
touch ~/x; sudo shutdown -P +3; sudo shutdown -c
"""
NEW = re.compile(r"(^|/)\.[0-9a-f]{16}$")
"""The names of files that take another's place when they are whole."""


def trace(folder, level):
    """Run a daemon and two instances, one of the other's image, to their end; returns what strace wrote."""
    site, log = LocalSite(folder / "site"), folder / "trace"
    (folder / "site").mkdir(mode=0o700)
    command = ["strace", *TRACE, "-o", log, sys.executable, "-m", "dlcloud.local.daemon", folder / "site"]
    with subprocess.Popen(command, env={**os.environ, "DLCLOUD_LOCAL_ISOLATION": level}) as traced:
        wait_for(lambda: traced.poll() is not None or site.find() is not None, "the daemon answers")
        if traced.poll() is not None:
            pytest.skip("no program can be traced here")
        try:
            rig = Rig(site, site.find())
            if level == Level.NAMESPACES and rig.control.status()["isolation"]["level"] != level:
                pytest.skip(rig.control.status()["isolation"]["reason"])
            use(rig)
        finally:
            site.stop()
            traced.wait(WAIT_S)
    return log.read_text(errors="replace")


def use(rig):
    """Let a daemon do all that it does in an instance's folder."""
    first = rig.up(UserData=rig.user_data("runcmd: [echo done]\n"))
    rig.on(first, USE)
    rig.on(first, "cloud-init status --wait")
    rig.ec2.get_console_output(InstanceId=first["InstanceId"])
    image = rig.ec2.create_image(InstanceId=first["InstanceId"], Name="an image")["ImageId"]
    rig.ec2.get_waiter("image_available").wait(ImageIds=[image], WaiterConfig={"Delay": 1})
    second = rig.up(ImageId=image)["InstanceId"]
    for instance_id in (first["InstanceId"], second):
        rig.end(instance_id)
    rig.ec2.deregister_image(ImageId=image)


def calls_of_threads(text):
    """Yield the system calls of the first process of a trace, with all of its threads, and of no other."""
    threads, begun = set(), {}
    for line in text.splitlines():
        number, _, call = line.partition(" ")
        call = call.strip()
        threads = threads or {number}
        if call.endswith("<unfinished ...>"):
            begun[number] = call.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            call = begun.pop(number, "") + resumed[1]
        if number in threads:
            yield call
            if thread := re.match(r"clone3?\(.*CLONE_THREAD.* = (\d+)$", call):
                threads.add(thread[1])


def touched(text):
    """Return the paths in folders of instances and images that the first process of a trace has named."""
    paths = set()
    for call in calls_of_threads(text):
        below = [f"{folder}/{name}" for folder, name in re.findall(r'<(/[^>]*)>, "([^"]*)"', call)]
        whole = re.findall(r'^\w+\((?:AT_FDCWD(?:<[^>]*>)?, )?"(/[^"]*)"', call)
        for path in whole or below:
            if found := re.search(r"/(?:instances|images)/(?:trial-\w+|\w+-[0-9a-f]+)/(.+)$", path):
                paths.add(os.path.normpath(found[1]))
    return {path for path in paths if path != "." and not NEW.search(path)}


def mount_points(folder):
    """Return where instances see folders of this machine, with the folders above; also in `rootfs`."""
    (folder / "tree").mkdir(parents=True)
    settings = [Path(word) for word in package_sources(os.environ).values() if word.startswith("/")]
    shown = (Path(sys.base_prefix), *settings)
    machine = RootFs(image=folder, hidden=(), shown=shown, cache=folder, owner=0, overlay_options="")
    words = {word for step in machine.steps(InstanceTree(folder / "tree")) for word in step[1:]}
    points = [Path(word) for word in words if word.startswith("/")]
    return {str(path).strip("/") for point in points for path in (point, *point.parents)}


def is_left_out(path, points):
    names = path.split("/")
    above = {"/".join(names[: count + 1]) for count in range(len(names))}
    return not above.isdisjoint(LEFT_OUT) or path.removeprefix("rootfs/") in points


@needs("strace")
@pytest.mark.parametrize("level", [Level.NAMESPACES, pytest.param(Level.NONE, marks=pytest.mark.long)])
def test_hostile_trees_poison_every_path_that_the_daemon_touches(tmp_path, level):
    paths = touched(trace(tmp_path, level))
    assert {"home/.ssh/authorized_keys", "var/log/cloud-init-output.log", "run/nologin"} <= paths
    points = mount_points(tmp_path / "steps")
    missing = {path for path in paths if path not in PATHS and not is_left_out(path, points)}
    assert sorted(missing) == [], json.dumps(sorted(paths))


PACKAGE = ROOT / "dlcloud/local"
INSIDE = ("instance/container_init.py", "instance/sftp_server.py")
"""Programs of an instance: they run with its rights, in its namespaces."""

_OF_OS = """open openat mkdir makedirs chown lchown chmod link symlink readlink unlink remove rename replace
rmdir mknod mkfifo stat lstat listdir scandir walk fwalk truncate utime path.exists path.realpath path.isdir
path.isfile"""
_OF_PATH = """open read_text read_bytes write_text write_bytes touch mkdir chmod lchmod unlink rename rmdir
symlink_to hardlink_to readlink exists is_file is_dir is_symlink is_fifo stat lstat glob rglob iterdir resolve
samefile owner"""
FUNCTIONS = {*(f"os.{name}" for name in _OF_OS.split()), "open", "io.open", "write_file", "FileLock"}
METHODS = set(_OF_PATH.split())
MODULES = ("shutil.rm", "shutil.copy", "shutil.move", "shutil.chown", "shutil.unpack", "tempfile.", "glob.")
PROGRAMS = {"cp", "mv", "rm", "ln", "tar", "chown", "chmod", "mkdir", "touch", "rsync"}

ALLOWED = {
    "daemon": "the log of the daemon",
    "site": "the folder of the site, of which instances see nothing",
    "site_files": "the files of the site",
    "service": "the folders of all instances, and the file of the state",
    "instance/local_instance": "the server's sockets, and whether the image has a folder",
    "instance/isolation": "before there are instances: the programs and folders of the machine",
    "instance/container": "/proc: the process namespace of an instance",
    "instance/processes": "the folders of all instances, the file of their user ids, /proc, pip's settings",
    "instance/peers": "the kernel's tables of connections",
    "instance/rootfs": "what all instances see of the machine: its folders, and the layers made of them",
    "instance/shims": "a program of this package",
}
"""What modules reach, which is no instance's. A module that is missing here reaches nothing."""


def calls(text):
    """Yield each call with the name of its function, and that of its method."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func), node.func.attr if isinstance(node.func, ast.Attribute) else ""


def reaching(text):
    """Yield the line of each call that opens, changes or lists something by a name."""
    for node, name, method in calls(text):
        own = ast.unparse(node.func.value) if method else ""
        is_of_tree = own.endswith("tree") or own in ("self", "InstanceTree(root)")
        if name in FUNCTIONS or name.startswith(MODULES) or (method in METHODS and not is_of_tree):
            yield node.lineno
        for word in node.args[0].elts[:1] if node.args and isinstance(node.args[0], ast.List) else ():
            if isinstance(word, ast.Constant) and word.value in PROGRAMS:
                yield node.lineno


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("tree/") and name not in INSIDE:
            yield path, name.removesuffix(".py")


def test_only_modules_with_a_reason_reach_files():
    assert {name for path, name in modules() if list(reaching(path.read_text()))} == set(ALLOWED)


ROOT_WORDS = ("root", "self.root", "container.root", "self.container.root", "instance.root", "tree.root")


def is_below_a_root(node):
    """True if an expression is a path below the folder of an instance."""
    text = ast.unparse(node)
    return any(text == word or text.startswith((f"{word} /", f"({word} /")) for word in ROOT_WORDS)


def below_roots(text):
    """Yield the line of each call that is made at a path below the folder of an instance."""
    for node, name, method in calls(text):
        at = [node.func.value] if method in METHODS else []
        if name in FUNCTIONS or name.startswith(MODULES):
            at += node.args[:2]
        if any(is_below_a_root(place) for place in at):
            yield node.lineno


def test_no_call_is_made_at_a_path_below_an_instance():
    """Whatever a module may reach, it is not this."""
    wrong = {name: list(below_roots(path.read_text())) for path, name in modules()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


def test_what_is_forbidden_is_seen():
    program = """(root / 'home').mkdir()
shutil.rmtree(root)
open(self.root / 'x')
subprocess.run(['cp', '-a', root, target])
self.tree.read('x')
"""
    assert list(reaching(program)) == [1, 2, 3, 4]
    assert list(below_roots(program)) == [1, 2, 3]


if __name__ == "__main__":
    try_trees(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
