"""What a program makes before it measures: environments, model files, and facts that only a process can tell.

Environments of settings that cannot share the program's are kept by a digest of their requirements, models by
name. Concurrent programs wait for each other instead of building the same thing twice, and an interrupted
build never leaves half a result: it starts again.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import program
from .case import VariantError, WorkerVariant

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


@dataclass(frozen=True, slots=True)
class ModelCache:
    """A folder of models, each a file or a folder; a name stands for one content.

    `fcntl` locks it: filelock would be one more package in the environment of each engine.
    """

    folder: Path

    def get(self, name: str, build: Callable[[Path], object]) -> Path:
        """Return the file or folder `name`; if it is missing, `build` writes it to the given path first."""
        target = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                self._build(target, build)
        return target

    def _build(self, target: Path, build: Callable[[Path], object]) -> None:
        """Build next to the target and rename, so that an interruption leaves no half file.

        The remains of a killed builder are removed: the lock shows that no other process builds this model.
        """
        prefix = f".building-{target.name}-"
        for left in self.folder.glob(f"{prefix}*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=self.folder) as folder:
            unfinished = Path(folder) / target.name
            build(unfinished)
            for file in unfinished.rglob("*") if unfinished.is_dir() else [unfinished]:
                if file.is_dir():
                    continue
                with file.open("rb") as content:
                    os.fsync(content.fileno())
            unfinished.replace(target)


def size_of(model: Path) -> int:
    """Return the bytes of a file, or of a folder's files."""
    files = [file for file in model.rglob("*") if file.is_file()] if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)


# Small networks are trained in NumPy: OpenBLAS's threads, which poll while they wait, only slow that down
# (on a busy machine to a tenth and less), and one thread sums in one order.
_ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(slots=True, eq=False)
class FactReader:
    """Starts processes that report facts; `close` ends those that still run."""

    _running: list[WorkerVariant] = field(default_factory=list)

    def read(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        variables: Mapping[str, str],
        python: str = sys.executable,
    ) -> Mapping[str, Any]:
        """Return the facts of a factory's workload, made in a process that gives its memory back.

        Raises:
            VariantError: The workload cannot be made.
        """
        variant = WorkerVariant(
            name=factory,
            unit="",
            factory=factory,
            arguments=arguments,
            environment=program.environment({**_ONE_BLAS_THREAD, **variables}),
            python=python,
        )
        self._running.append(variant)
        try:
            return variant.start()
        finally:
            variant.close()
            self._running.remove(variant)

    def close(self) -> None:
        for variant in tuple(self._running):
            variant.close()
