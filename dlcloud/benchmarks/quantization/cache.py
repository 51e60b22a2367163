"""Keep model files: each built once, whole or not at all, also where several programs want it at once.

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
    """A folder of models, each a file or a folder, whose names say what they hold.

    Args:
        folder: Made when it is first needed.
    """

    folder: Path

    def get(self, name: str, build: Callable[[Path], None]) -> Path:
        """Return the file or folder `name`, built first where it is missing.

        Args:
            name: Its name, the same only for the same content.
            build: Writes the content to the path that it is given: a file, or a folder of files.
        """
        target = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                self._build(target, build)
        return target

    def _build(self, target: Path, build: Callable[[Path], None]) -> None:
        """Build beside the target and rename, so that an interruption leaves no half file.

        What a killed builder left behind is removed: with the lock held, nobody else is building this.
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
