"""Build the Python environment of a workload, once per machine: python3 environment.py KEY < requirements.

KEY is a digest of the requirements. An environment that is complete is used again; two builders of the same
one wait for each other; a torn one is built anew. Progress goes to stderr; the last line of stdout is JSON:
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

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dlcloud" / "environments"


def main() -> None:
    """Print where the environment's interpreter is."""
    started = time.monotonic()
    requirements = sys.stdin.read()
    # Another interpreter or processor is another environment.
    version = platform.python_version_tuple()
    folder = CACHE / f"{sys.argv[1]}-py{version[0]}.{version[1]}-{platform.machine()}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reused = (folder / "complete").exists()
        if not reused:
            build(folder, requirements)
    answer(str(folder / "bin" / "python"), reused=reused, started=started)


def build(folder: pathlib.Path, requirements: str) -> None:
    """Make the environment and mark it complete."""
    shutil.rmtree(folder, ignore_errors=True)
    if make_environment(folder).returncode:
        tell("this image has no venv module yet: installing python3-venv")
        quiet("sudo", "apt-get", "-o", "DPkg::Lock::Timeout=300", "update", "-q")
        quiet("sudo", "apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-qy", "python3-venv")
        shutil.rmtree(folder, ignore_errors=True)
        made = make_environment(folder)
        if made.returncode:
            sys.exit("python3 -m venv failed: " + made.stdout[-2000:])
    listed = folder / "requirements.txt"
    listed.write_text(requirements)
    tell(
        "installing " + ", ".join(line for line in requirements.split("\n") if line and line[0] != "#")[:200]
    )
    installed = quiet(folder / "bin" / "python", "-m", "pip", "install", "--no-input", "-q", "-r", listed)
    if installed.returncode:
        sys.exit("pip failed: " + installed.stdout[-2000:])
    (folder / "complete").touch()


def make_environment(folder: pathlib.Path) -> "subprocess.CompletedProcess[str]":
    """Run python3 -m venv."""
    return quiet(sys.executable, "-m", "venv", folder)


def quiet(*command: object) -> "subprocess.CompletedProcess[str]":
    """Run a command, keeping what it prints for the case that it fails."""
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def tell(message: str) -> None:
    """Say what is going on."""
    print(message, file=sys.stderr, flush=True)


def answer(python: str, *, reused: bool, started: float) -> None:
    """Print the answer."""
    print(json.dumps({"python": python, "reused": reused, "seconds": round(time.monotonic() - started, 3)}))


main()
