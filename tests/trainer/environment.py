"""The environment that the trainer's pins describe, built once per set of pins."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "dlcloud" / "trainer"
ENVIRONMENTS = Path("~/.cache/dlcloud-tests").expanduser()


def environment_python():
    """Return its Python."""
    requirements = PACKAGE / "requirements" / "elastic.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = ENVIRONMENTS / f"elastic-{key}"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _build(folder, requirements)
    return folder / "bin" / "python"


def _build(folder, requirements):
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", requirements], check=True)
    (folder / "complete").touch()
