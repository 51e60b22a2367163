"""Cache model files: each is built once, completely or not at all, also by several programs at once.

A model may be a folder of files.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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
        """Build beside the target and rename, so that an interruption leaves no half file.

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
