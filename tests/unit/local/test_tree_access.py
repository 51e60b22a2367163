"""No code of the local EC2 but its package of trees reaches below the folder of an instance."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "dlcloud/local"
INSIDE = ("instance/container_init.py", "instance/sftp_server.py")
"""Programs of an instance: they run with its rights, in its namespaces."""

FUNCTIONS = {
    *("os.open", "os.openat", "os.mkdir", "os.makedirs", "os.chown", "os.lchown", "os.chmod", "os.link"),
    *(
        "os.symlink",
        "os.readlink",
        "os.unlink",
        "os.remove",
        "os.rename",
        "os.replace",
        "os.rmdir",
        "os.mknod",
    ),
    *("os.mkfifo", "os.stat", "os.lstat", "os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.truncate"),
    *("os.utime", "os.path.exists", "os.path.realpath", "open", "io.open", "os.path.isdir", "os.path.isfile"),
    *("write_file", "FileLock"),
}
METHODS = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkdir", "chmod", "lchmod"),
    *("unlink", "rename", "rmdir", "symlink_to", "hardlink_to", "readlink", "exists", "is_file", "is_dir"),
    *("is_symlink", "is_fifo", "stat", "lstat", "glob", "rglob", "iterdir", "resolve", "samefile", "owner"),
}
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


def calls_of(path):
    """Yield the line and the name of each call that opens, changes or lists something by a name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        own = ast.unparse(node.func.value) if method else ""
        is_of_tree = own.endswith("tree") or own in ("self", "InstanceTree(root)")
        if name in FUNCTIONS or name.startswith(MODULES) or (method in METHODS and not is_of_tree):
            yield node.lineno, name, ast.unparse(node)
        for word in node.args[0].elts[:1] if node.args and isinstance(node.args[0], ast.List) else ():
            if isinstance(word, ast.Constant) and word.value in PROGRAMS:
                yield node.lineno, str(word.value), ast.unparse(node)


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("tree/") and name not in INSIDE:
            yield path, name.removesuffix(".py")


def test_only_modules_with_a_reason_reach_files():
    reaching = {name for path, name in modules() for _ in calls_of(path)}
    assert reaching == set(ALLOWED)


ROOT_WORDS = ("root", "self.root", "container.root", "self.container.root", "instance.root", "tree.root")


def is_below_a_root(node):
    """True if an expression is a path below the folder of an instance."""
    text = ast.unparse(node)
    return any(text == word or text.startswith((f"{word} /", f"({word} /")) for word in ROOT_WORDS)


@pytest.mark.parametrize(("path", "name"), list(modules()), ids=lambda value: str(value).rpartition("/")[2])
def test_no_call_is_made_at_a_path_below_an_instance(path, name):
    """Whatever a module may reach, it is not this."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        at = [node.func.value] if method in METHODS else []
        if function in FUNCTIONS or function.startswith(MODULES):
            at += node.args[:2]
        wrong = [ast.unparse(node) for place in at if is_below_a_root(place)]
        assert not wrong, f"{name}:{node.lineno} {wrong}"


def test_what_is_forbidden_is_seen(tmp_path):
    program = tmp_path / "module.py"
    program.write_text(
        "(root / 'home').mkdir()\nshutil.rmtree(root)\nopen(self.root / 'x')\n"
        "subprocess.run(['cp', '-a', root, target])\nself.tree.read('x')\n"
    )
    assert [line for line, *_ in calls_of(program)] == [1, 2, 3, 4]
