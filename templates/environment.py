"""Build the Python environment of a workload, once per machine: environment.py KEY [VERSION] < requirements.

KEY is a digest of the requirements. If the machine's own Python is older than VERSION, uv installs a newer
one. A complete environment is reused; two builders of the same one wait for each other; an incomplete one is
rebuilt. Progress goes to stderr; the last line of stdout is JSON:
{"python": path of the interpreter, "reused": bool, "seconds": float}.
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
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dlcloud" / "environments"


def main() -> None:
    """Build or reuse the environment and print the answer."""
    started = time.monotonic()
    requirements = sys.stdin.read()
    minimum = sys.argv[2] if len(sys.argv) > 2 else "0"  # noqa: PLR2004  KEY, VERSION
    # Another interpreter or processor is another environment.
    version = platform.python_version_tuple()
    own = f"py{version[0]}.{version[1]}" if not is_older(minimum) else f"py{minimum}"
    folder = CACHE / f"{sys.argv[1]}-{own}-{platform.machine()}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reused = (folder / "complete").exists()
        if not reused:
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
    path.write_text(requirements)
    report(
        "installing " + ", ".join(line for line in requirements.split("\n") if line and line[0] != "#")[:200]
    )
    result = run(folder / "bin" / "python", "-m", "pip", "install", "--no-input", "-q", "-r", path)
    if result.returncode:
        sys.exit("pip failed: " + result.stdout[-2000:])
    (folder / "complete").touch()


def install_python(folder: pathlib.Path, tool: pathlib.Path, minimum: str) -> None:
    """Create the environment of a newer Python, which uv finds on the machine or downloads."""
    report("this image has Python " + platform.python_version() + ": uv installs " + minimum + " or newer")
    result = run(tool / "bin" / "python", "-m", "pip", "install", "--no-input", "-q", UV)
    if result.returncode:
        sys.exit("pip failed: " + result.stdout[-2000:])
    result = run(tool / "bin" / "uv", "venv", "--seed", "--no-config", "--python", ">=" + minimum, folder)
    if result.returncode:
        sys.exit("uv found no Python " + minimum + " or newer: " + result.stdout[-2000:])
    shutil.rmtree(tool, ignore_errors=True)


def create(folder: pathlib.Path) -> None:
    """Create an environment of this Python; install the venv module if it is missing."""
    if create_venv(folder).returncode:
        report("this image has no venv module yet: installing python3-venv")
        run("sudo", "apt-get", "-o", "DPkg::Lock::Timeout=300", "update", "-q")
        run("sudo", "apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-qy", "python3-venv")
        shutil.rmtree(folder, ignore_errors=True)
        result = create_venv(folder)
        if result.returncode:
            sys.exit("python3 -m venv failed: " + result.stdout[-2000:])


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
