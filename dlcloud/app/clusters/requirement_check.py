"""Whether the index of this machine has the packages of a recipe, asked by pip or uv before a launch."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from dlcloud.launch.build_failures import MISSING
from dlcloud.model.events import Event, Warned

TIMEOUT_S = 30


def warn_of_requirements(requirements: Sequence[str], emit: Callable[[Event], None]) -> None:
    """Warn of pinned packages that the index does not have; an index that does not answer is no fault."""
    for requirement in requirements:
        if is_missing(requirement):
            message = f"setup.requirements: {requirement} is not in this machine's package index"
            emit(Warned(message=f"{message}: the environment could not be built"))


def is_missing(requirement: str) -> bool:
    """True if the index answers, and does not have a pinned package."""
    command = _command()
    if command is None:
        return False
    try:
        done = subprocess.run(
            command, input=requirement, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode != 0 and MISSING.search(" ".join(done.stderr.split())) is not None


def _command() -> Sequence[str] | None:
    """Return what resolves a requirement on stdin, without installing it; None if neither tool is there."""
    if (uv := shutil.which("uv")) is not None:
        return (uv, "pip", "compile", "--no-deps", "--quiet", "--color", "never", "-")
    if find_spec("pip") is None:
        return None
    options = ("--dry-run", "--no-deps", "--ignore-installed", "--disable-pip-version-check", "--no-input")
    return (sys.executable, "-m", "pip", "install", "--quiet", *options, "-r", "/dev/stdin")
