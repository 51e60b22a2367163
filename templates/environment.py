"""Build the Python environment of a workload, once per machine: environment.py KEY [VERSION] < requirements.

KEY is a digest of the requirements. Where the machine's own Python is older than VERSION, uv brings a newer
one along. An environment that is complete is used again; two builders of the same one wait for each other; a
torn one is built anew. Progress goes to stderr; the last line of stdout is JSON:
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
"""Only for a machine whose own Python is too old: 20 MB, Astral's builds of Python come with it."""
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dlcloud" / "environments"


def main() -> None:
    """Print where the environment's interpreter is."""
    started = time.monotonic()
    requirements = sys.stdin.read()
    least = sys.argv[2] if len(sys.argv) > 2 else "0"  # noqa: PLR2004  KEY, VERSION
    # Another interpreter or processor is another environment.
    version = platform.python_version_tuple()
    own = f"py{version[0]}.{version[1]}" if not older(least) else f"py{least}"
    folder = CACHE / f"{sys.argv[1]}-{own}-{platform.machine()}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reused = (folder / "complete").exists()
        if not reused:
            build(folder, requirements, least)
    answer(str(folder / "bin" / "python"), reused=reused, started=started)


def older(least: str) -> bool:
    """Tell whether this Python is older than a version."""
    return sys.version_info[:3] < tuple(int(part) for part in least.split("."))


def build(folder: pathlib.Path, requirements: str, least: str) -> None:
    """Make the environment and mark it complete."""
    shutil.rmtree(folder, ignore_errors=True)
    tool = folder.with_name(folder.name + "-uv")
    make(tool if older(least) else folder)
    if older(least):
        bring_python(folder, tool, least)
    listed = folder / "requirements.txt"
    listed.write_text(requirements)
    tell(
        "installing " + ", ".join(line for line in requirements.split("\n") if line and line[0] != "#")[:200]
    )
    installed = quiet(folder / "bin" / "python", "-m", "pip", "install", "--no-input", "-q", "-r", listed)
    if installed.returncode:
        sys.exit("pip failed: " + installed.stdout[-2000:])
    (folder / "complete").touch()


def bring_python(folder: pathlib.Path, tool: pathlib.Path, least: str) -> None:
    """Make the environment of a newer Python, which uv finds on the machine or fetches."""
    tell("this image has Python " + platform.python_version() + ": uv brings " + least + " or newer")
    installed = quiet(tool / "bin" / "python", "-m", "pip", "install", "--no-input", "-q", UV)
    if installed.returncode:
        sys.exit("pip failed: " + installed.stdout[-2000:])
    made = quiet(tool / "bin" / "uv", "venv", "--seed", "--no-config", "--python", ">=" + least, folder)
    if made.returncode:
        sys.exit("uv found no Python " + least + " or newer: " + made.stdout[-2000:])
    shutil.rmtree(tool, ignore_errors=True)


def make(folder: pathlib.Path) -> None:
    """Make an environment of this Python."""
    if make_environment(folder).returncode:
        tell("this image has no venv module yet: installing python3-venv")
        quiet("sudo", "apt-get", "-o", "DPkg::Lock::Timeout=300", "update", "-q")
        quiet("sudo", "apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-qy", "python3-venv")
        shutil.rmtree(folder, ignore_errors=True)
        made = make_environment(folder)
        if made.returncode:
            sys.exit("python3 -m venv failed: " + made.stdout[-2000:])


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
