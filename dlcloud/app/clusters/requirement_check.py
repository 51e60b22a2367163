"""Whether the index of this machine has the packages of a recipe, asked by pip or uv before a launch."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from dlcloud.launch.setup import MISSING
from dlcloud.model.events import Event, Warned
from dlcloud.system.parallel import all_or_raise, fan_out

TIMEOUT_S = 30
MOST = 8
"""Packages that are looked up at a time."""
_PIP = (sys.executable, "-m", "pip")
_QUIET = ("--disable-pip-version-check", "--no-input")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


def warn_of_requirements(requirements: Sequence[str], emit: Callable[[Event], None]) -> None:
    """Warn of pinned packages that the index does not have; an index that does not answer is no fault."""
    missing = all_or_raise(fan_out(is_missing, requirements, width=MOST))
    for requirement, is_gone in zip(requirements, missing, strict=True):
        if is_gone:
            message = f"setup.requirements: {requirement} is not in this machine's package index"
            emit(Warned(message=f"{message}: the environment could not be built"))


def is_missing(requirement: str) -> bool:
    """True if the index answers, and does not have a pinned package."""
    if (uv := shutil.which("uv")) is not None:
        return _is_refused(
            (uv, "pip", "compile", "--no-deps", "--quiet", "--color", "never", "-"), requirement
        )
    if find_spec("pip") is None or _is_listed(requirement):
        return False
    options = ("--dry-run", "--no-deps", "--ignore-installed", *_QUIET)
    return _is_refused((*_PIP, "install", "--quiet", *options, "-r", "/dev/stdin"), requirement)


def _is_listed(requirement: str) -> bool:
    """True if pip lists the version of a package; only what it does not list may be spelled otherwise.

    Many a pip downloads a package whose installation it only tries: 600 MB for TensorFlow.
    """
    package, _, version = requirement.partition("==")
    done = _run((*_PIP, "index", "versions", "--pre", *_QUIET, package.partition("[")[0]))
    listed = _VERSIONS.search(done.stdout) if done is not None else None
    return listed is not None and version in listed[1].split(", ")


def _is_refused(command: Sequence[str], requirement: str) -> bool:
    """True if a tool finds that the index does not have the package on its input."""
    done = _run(command, requirement)
    if done is None or done.returncode == 0:
        return False
    return MISSING.search(" ".join(done.stderr.split())) is not None


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str] | None:
    """Run a tool; None if it cannot be run, or does not end in time."""
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
