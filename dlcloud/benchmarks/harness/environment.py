"""Build the environment of a setting that cannot share the program's, once per machine.

Environments are kept by a digest of their requirements. Concurrent builds of the same one wait for
each other, and an interrupted build starts anew.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .variant import VariantError

TAIL = 500


def build_environment(requirements: Path, *, version: str, report: Callable[[str], None]) -> str:
    """Return the interpreter of an environment with these packages, built if it is missing.

    `version` is the only Python that has all of them, such as `3.11`; `report` receives a message if the
    packages must be installed.

    Raises:
        VariantError: There is no such Python, or the packages cannot be installed.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dlcloud" / "environments"
    folder = cache / f"{requirements.stem}-{digest}-py{version}-{platform.machine()}"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            report(f"installing the packages of {requirements.stem}, once on this machine")
            _build(folder, requirements, version)
    return str(folder / "bin" / "python")


def _build(folder: Path, requirements: Path, version: str) -> None:
    base = _find_python(version)
    shutil.rmtree(folder, ignore_errors=True)
    _run([base, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input", "-q", "--no-compile"]
    _run([*pip, "--disable-pip-version-check", "-r", str(requirements)])
    (folder / "complete").touch()


def _find_python(version: str) -> str:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    if (python := shutil.which(f"python{version}")) is None:
        hint = f"apt-get install python{version}-venv"
        raise VariantError(f"it needs Python {version}, which is not installed: {hint}")
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = " ".join((done.stdout + done.stderr).split())[-TAIL:]
        raise VariantError(f"its environment cannot be built: {output}")
