"""The content of images that were made here: copies of the folders of instances."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from dlcloud.local.site_files import SitePaths

# Of an instance's folder: the programs of the local EC2, and what a machine has in memory.
_NOT_ON_DISK = ("bin", "lib", "run", "tmp", "work")


def images_folder(paths: SitePaths) -> Path:
    """Return the folder with one folder per image that was made here."""
    return paths.folder / "images"


async def make_image(image: Any, root: Path, folder: Path, *, delay_s: float) -> None:  # noqa: ANN401 - moto's object
    """Copy an instance's folder, for at least the delay; the image is then `available`, or `failed`."""
    try:
        await asyncio.gather(asyncio.sleep(delay_s), asyncio.to_thread(_copy_disk, root, folder))
    except Exception:
        image.state = "failed"
        raise
    image.state = "available"


def restore(folder: Path, root: Path) -> None:
    """Copy an image to the folder of a new instance.

    Raises:
        subprocess.CalledProcessError: It cannot be copied.
    """
    _copy(list(folder.iterdir()), root)


def _copy_disk(root: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    _copy([entry for entry in root.iterdir() if entry.name not in _NOT_ON_DISK], folder)
    if (folder / "home/.cache").is_symlink():
        (folder / "home/.cache").unlink()


def _copy(entries: list[Path], target: Path) -> None:
    # Unlike shutil, it keeps links, holes and times as they are.
    subprocess.run(["cp", "-a", "--", *entries, target], check=True)
