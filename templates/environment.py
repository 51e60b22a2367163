"""Build the Python environment of a workload, once per machine: environment.py KEY [VERSION] < requirements.

KEY is a digest of the requirements. If the machine's own Python is older than VERSION, uv installs a newer
one. A complete environment is reused, also one that was copied from another folder; two builders of one wait
for each other; an incomplete one is rebuilt. Progress goes to stderr; the last line of stdout is JSON:
{"python": path of the interpreter, "reused": bool, "seconds": float}.

environment.py --find KEY [VERSION] builds nothing; its JSON is
{"name": of its folder, "system": the C library, "complete": bool}.
"""

import fcntl
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

UV = "uv==0.13.9"
"""Only for a machine whose own Python is too old: 20 MB, and a build of Python by Astral."""
LARGEST_SCRIPT = 1 << 20
EXTRA_INDEX = "--extra-index-url "
# Without links: behind links of two homes, it is one folder with one path.
CACHE = (
    pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser().resolve() / "dlcloud/environments"
)


def main() -> None:
    """Build, reuse or find the environment and print the answer."""
    started = time.monotonic()
    key, minimum = [*(word for word in sys.argv[1:] if word != "--find"), "0"][:2]
    # Another interpreter or processor is another environment.
    version = platform.python_version_tuple()
    own = f"py{version[0]}.{version[1]}" if not is_older(minimum) else f"py{minimum}"
    folder = CACHE / f"{key}-{own}-{platform.machine()}"
    if "--find" in sys.argv:
        complete, system = (folder / "complete").exists(), "-".join(platform.libc_ver())
        print(json.dumps({"name": folder.name, "system": system, "complete": complete}))
        return
    requirements = sys.stdin.read()
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reused = (folder / "complete").exists()
        if reused:
            relocate(folder)
            (folder / "complete").touch()  # what was not used for longest goes first
        else:
            build(folder, requirements, minimum)
    print_answer(str(folder / "bin" / "python"), reused=reused, started=started)


def is_older(minimum: str) -> bool:
    """True if this Python is older than a version."""
    return sys.version_info[:3] < tuple(int(part) for part in minimum.split("."))


def build(folder: pathlib.Path, requirements: str, minimum: str) -> None:
    """Create the environment and mark it complete."""
    shutil.rmtree(folder, ignore_errors=True)
    tool = folder.with_name(folder.name + "-uv")
    create(tool if is_older(minimum) else folder)
    if is_older(minimum):
        install_python(folder, tool, minimum)
    path = folder / "requirements.txt"
    if EXTRA_INDEX in requirements and has_own_index(folder / "bin" / "python"):
        requirements = "\n".join(line for line in requirements.split("\n") if EXTRA_INDEX not in line)
    path.write_text(requirements)
    packages = [line for line in requirements.split("\n") if line and line[0] not in "#-"]
    report("installing " + ", ".join(packages)[:200])
    # Python compiles the modules that are imported; pip would compile all, one after the other.
    result = run(*pip_install(folder), "--no-compile", "-r", path)
    if result.returncode:
        sys.exit("pip failed: " + result.stdout[-2000:])
    (folder / "complete").write_text(str(folder))


def pip_install(folder: pathlib.Path) -> "list[str | pathlib.Path]":
    """Return the command that installs into an environment."""
    return [folder / "bin" / "python", "-m", "pip", "install", "--no-input", "-q"]


def has_own_index(python: pathlib.Path) -> bool:
    """True if pip is configured for an index other than PyPI, which then is the only one it may ask."""
    return ".index-url=" in run(python, "-m", "pip", "config", "list").stdout


def relocate(folder: pathlib.Path) -> None:
    """Rewrite the paths in an environment that was copied from another folder: of another user, say.

    The paths are in the first lines of its programs, in pyvenv.cfg, and in the links to a Python of uv's.
    Bytecode goes by the times of its sources, which a copy keeps.
    """
    origin = (folder / "complete").read_text()
    if origin in {"", str(folder)}:
        return
    for path in [folder / "pyvenv.cfg", *(folder / "bin").iterdir()]:
        if path.is_symlink():
            target = os.readlink(path)  # noqa: PTH115  pathlib's is of Python 3.9
            if target.startswith(origin):
                path.unlink()
                path.symlink_to(target.replace(origin, str(folder), 1))
        elif path.is_file() and path.stat().st_size < LARGEST_SCRIPT and origin.encode() in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(origin.encode(), str(folder).encode()))
    (folder / "complete").write_text(str(folder))


def install_python(folder: pathlib.Path, tool: pathlib.Path, minimum: str) -> None:
    """Create the environment of a newer Python, which uv finds on the machine or downloads beside it."""
    report("this image has Python " + platform.python_version() + ": uv installs " + minimum + " or newer")
    result = run(*pip_install(tool), UV)
    if result.returncode:
        sys.exit("pip failed: " + result.stdout[-2000:])
    os.environ["UV_PYTHON_INSTALL_DIR"] = str(folder.with_name(folder.name + "-python"))
    result = run(tool / "bin" / "uv", "venv", "--seed", "--no-config", "--python", ">=" + minimum, folder)
    if result.returncode:
        sys.exit("uv found no Python " + minimum + " or newer: " + result.stdout[-2000:])
    shutil.rmtree(tool, ignore_errors=True)


def create(folder: pathlib.Path) -> None:
    """Create an environment of this Python; install the venv module if it is missing."""
    if create_venv(folder).returncode:
        report("this image has no venv module yet: installing python3-venv")
        output = run("sh", pathlib.Path(__file__).with_name("apt.sh")).stdout
        output += run("sudo", "apt-get", "install", "-qy", "python3-venv").stdout
        shutil.rmtree(folder, ignore_errors=True)
        result = create_venv(folder)
        if result.returncode:
            sys.exit("python3 -m venv failed: " + (output + result.stdout)[-2000:])


def create_venv(folder: pathlib.Path) -> "subprocess.CompletedProcess[str]":
    """Run python3 -m venv."""
    return run(sys.executable, "-m", "venv", folder)


def run(*command: object) -> "subprocess.CompletedProcess[str]":
    """Run a command and capture its output, for the message if it fails."""
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def report(message: str) -> None:
    """Print progress."""
    print(message, file=sys.stderr, flush=True)


def print_answer(python: str, *, reused: bool, started: float) -> None:
    """Print the answer."""
    print(json.dumps({"python": python, "reused": reused, "seconds": round(time.monotonic() - started, 3)}))


main()
