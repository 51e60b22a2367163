"""No code of the local EC2 but its package of trees reaches below the folder of an instance."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "dlcloud/local"
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
