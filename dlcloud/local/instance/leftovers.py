"""What a daemon that was killed has left: processes, and the folders of its instances."""

import asyncio
import contextlib
import logging
import shutil
import subprocess
from pathlib import Path

from dlcloud.local.instance.processes import ROOT_VARIABLE, end_all, kill_user
from dlcloud.local.instance.user_ids import UserIds
from dlcloud.local.site_files import SitePaths
from dlcloud.local.tree.images import images_folder
from dlcloud.local.tree.instance_tree import InstanceTree
from dlcloud.local.tree.removal import remove_tree

_CONTAINER_S, _REMOVALS = 60.0, 5
CONTAINERS = "home/dlcloud/container.py"
"""What dlcloud runs containers with, on an instance that has had some."""

log = logging.getLogger(__name__)


async def clear_leftovers(paths: SitePaths, users: UserIds | None = None) -> None:
    """End the processes and remove the folders of a daemon that was killed.

    Args:
        paths: Where that daemon had them.
        users: The user ids of instances that had one of their own each; None if all daemons share theirs.
    """
    roots = list(paths.instances.iterdir()) if paths.instances.is_dir() else []
    if roots:
        log.warning("clearing %d instances of an earlier daemon", len(roots))
        for root in roots:
            await asyncio.to_thread(_kill_user_of, root, users)
        await end_all(roots)
    await asyncio.gather(*(asyncio.to_thread(remove_root, root) for root in roots))
    for folder in (paths.instances, images_folder(paths)):
        await asyncio.to_thread(remove_tree, folder)
    paths.instances.mkdir(exist_ok=True)
    paths.instances.chmod(0o711)  # the instances' user passes through, if it gets as far
    images_folder(paths).mkdir(mode=0o700, exist_ok=True)
    paths.cache.mkdir(mode=0o700, exist_ok=True)


def _kill_user_of(root: Path, users: UserIds | None) -> None:
    """Kill the programs of the user that owns the home of an instance, if no other daemon has this user."""
    with contextlib.suppress(OSError):
        user = InstanceTree(root).state("home").st_uid
        if users is not None and users.reserve(user):
            kill_user(user)


def remove_root(root: Path) -> bool:
    """Remove the folder of an instance whose programs have ended; False if something is left."""
    if InstanceTree(root).exists(CONTAINERS):
        _remove_containers(root)
    return remove_tree(root)


def _remove_containers(root: Path) -> None:
    """Remove the containers of an instance: this machine's podman or docker keeps those that were killed.

    Podman fails the first time where the process that watched over a container was killed, too.
    """
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None:
        return
    fault = ""
    for _ in range(_REMOVALS):
        listed = _call(engine, "ps", "--all", "--quiet", "--filter", f"label={ROOT_VARIABLE}={root}")
        names = listed.stdout.split()
        if listed.returncode or not names:
            fault = listed.stderr if listed.returncode else ""
            break
        fault = _call(engine, "rm", "--force", *names).stderr
    if fault:
        log.warning("the containers of %s may remain: %s", root, fault.strip())


def _call(*words: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CONTAINER_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))
