"""The content of images that were made here: copies of the folders of instances."""

import asyncio
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dlcloud.local.site_files import SitePaths
from dlcloud.local.tree.copies import TreeCopy
from dlcloud.local.tree.instance_tree import InstanceTree

# Of an instance's folder: the programs of the local EC2, and what a machine has in memory.
_NOT_ON_DISK = ("bin", "lib", "run", "tmp", "work")
# Of their own: instances with much to copy must not keep others from booting.
_COPYING = ThreadPoolExecutor(2, thread_name_prefix="image")


def images_folder(paths: SitePaths) -> Path:
    """Return the folder with one folder per image that was made here."""
    return paths.folder / "images"


async def make_image(image: Any, tree: InstanceTree, folder: Path, *, delay_s: float) -> None:  # noqa: ANN401 - moto's object
    """Copy an instance's folder, for at least the delay; the image is then `available`, or `failed`."""
    copying = asyncio.get_running_loop().run_in_executor(_COPYING, copy_disk, tree, folder)
    try:
        await asyncio.gather(asyncio.sleep(delay_s), copying)
    except Exception:
        image.state = "failed"
        raise
    image.state = "available"


def copy_disk(tree: InstanceTree, folder: Path) -> None:
    """Copy what an instance has on its disk to a new folder.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(mode=0o700)
    cache = "home/.cache"  # a link to the one that instances share is none of the image's
    leaves_out = (*_NOT_ON_DISK, *((cache,) if tree.is_link(cache) else ()))
    TreeCopy(source=tree.root, target=folder, leaves_out=leaves_out, owners=tree.owners).run()


def restore(folder: Path, root: Path) -> None:
    """Copy an image to the folder of a new instance, in which no program runs yet.

    Raises:
        subprocess.CalledProcessError: It cannot be copied.
    """
    # Unlike shutil, it keeps links, holes and times as they are; it follows no link.
    subprocess.run(["cp", "-a", "--", *folder.iterdir(), root], check=True)
