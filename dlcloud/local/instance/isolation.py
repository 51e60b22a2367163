"""How far instances are kept from the machine, as it allows: namespaces, their own user, or nothing."""

import asyncio
import contextlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.local.instance.container import Container
from dlcloud.local.instance.processes import UserIds, kill_user, package_sources, remove_root
from dlcloud.local.instance.rootfs import RootFs, interpreter_folders
from dlcloud.local.site_files import Level, SitePaths
from dlcloud.local.tree.beneath import give_what_is_not, open_root, share_folders
from dlcloud.model.errors import LocalCloudError

VARIABLE = "DLCLOUD_LOCAL_ISOLATION"
_PROGRAMS = ("unshare", "nsenter", "setpriv", "sleep")
# The users of the instances of a daemon that runs as root: of the ids that systemd leaves to containers; or,
# where this is itself a container with few ids, of those that it leaves to services.
# Source: systemd, "Users, Groups, UIDs and GIDs on systemd Systems".
_USERS = ((0x3B9B0000, 65536), (61184, 816))
SHARED = "/var/tmp/dlcloud"  # noqa: S108 - the owner of what is there is checked
"""The begin of the name of the folder where a user of their own can reach the instances."""
_USER_IDS = "user-ids.lock"
_TRIAL_S = 30.0
_CACHE_LEVELS = 2  # of folders, in which something that root has put there is looked for

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The isolation in force at a site.

    Args:
        level: How far it goes.
        reason: Why it does not go further; empty for namespaces.
        owner: The user id of the instances' programs, as the daemon sees it.
        ids: The number of user ids that instances have, from `owner` on.
        rootfs: What instances see of the machine; None without namespaces.
        user_ids: Those that instances have one each of; None if they share `owner`.
    """

    level: Level
    reason: str = ""
    owner: int
    ids: int = 1
    rootfs: RootFs | None = None
    user_ids: UserIds | None = None

    @property
    def users(self) -> range:
        """Return the user ids of the instances' programs, as the daemon sees them."""
        return range(self.owner, self.owner + self.ids)

    def report(self) -> dict[str, str]:
        """Return level and reason as plain values, for the status page."""
        return {"level": self.level.value, "reason": self.reason}

    def container(self, root: Path, interpreter: str, taken: Collection[int] = ()) -> Container:
        """Return what runs the programs of an instance; its namespaces do not exist yet.

        Where a user id is all that separates instances, each has one of its own; `taken` are those in use.

        Raises:
            OSError: No user id is left.
        """
        return Container(
            root=root,
            interpreter=interpreter,
            owner=self.owner if self.user_ids is None else self.user_ids.take(taken),
            ids=self.ids,
            users=self.users,
            shared_group=self.owner if self.level is Level.USER else None,
            rootfs=self.rootfs,
        )


UNISOLATED = Isolation(level=Level.NONE, owner=os.getuid())
"""For programs that separate themselves, as virtual machines do."""


async def find_isolation(paths: SitePaths, *, interpreter: str, environ: Mapping[str, str]) -> Isolation:
    """Return the highest level that works here, by trying; DLCLOUD_LOCAL_ISOLATION limits it."""
    most = environ.get(VARIABLE) or Level.NAMESPACES
    limit = f"{VARIABLE} is {most}"
    reasons = [limit]
    if most == Level.NAMESPACES:
        try:
            return await _try_namespaces(paths, interpreter, environ)
        except (OSError, subprocess.SubprocessError) as error:
            reasons = [f"no namespaces: {error}"]
    if most in (Level.NAMESPACES, Level.USER):
        try:
            owner, ids = _try_user(interpreter)
            return Isolation(level=Level.USER, reason=reasons[0], owner=owner, ids=ids)
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"no separate user: {error}")
    return Isolation(level=Level.NONE, reason="; ".join(reasons), owner=os.getuid())


async def _try_namespaces(paths: SitePaths, interpreter: str, environ: Mapping[str, str]) -> Isolation:
    """Return isolation by namespaces after a program has run in some.

    Raises:
        OSError: The system does not allow it.
    """
    if sys.platform != "linux":
        raise OSError("they need Linux")
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        raise OSError(f"{', '.join(missing)} of util-linux not found")
    is_root = os.getuid() == 0
    owner, ids = _usable_ids() if is_root else (os.getuid(), 1)
    rootfs = RootFs(
        image=paths.image,
        hidden=_hidden(paths.folder, environ),
        shown=(*interpreter_folders(), *_package_files(environ)),
        cache=paths.cache,
        owner=owner if is_root else 0,
        overlay_options="" if is_root else ",userxattr",
    )
    isolation = Isolation(level=Level.NAMESPACES, owner=owner, ids=ids, rootfs=rootfs)
    await asyncio.to_thread(rootfs.build_image)
    folder = Path(tempfile.mkdtemp(dir=paths.instances, prefix="trial-"))
    try:
        await _run_trial(isolation, folder, interpreter)
    finally:
        await asyncio.to_thread(remove_root, folder)
    return isolation


async def _run_trial(isolation: Isolation, root: Path, interpreter: str) -> None:
    """Run the interpreter in namespaces.

    Raises:
        OSError: It fails.
    """
    container = isolation.container(root, interpreter)
    for name in ("bin", "home", "lib"):
        container.tree.make_folder(name)
    container.create_folders()
    container.give_folders()
    try:
        await asyncio.wait_for(container.start("trial"), _TRIAL_S)
        program = [interpreter, "-I", "-S", "-c", "open('/etc/trial', 'w'); open('/usr/bin/trial', 'w')"]
        process = await container.spawn(program, env={}, stderr=subprocess.PIPE)
        _, error = await asyncio.wait_for(process.communicate(), _TRIAL_S)
        if process.returncode:
            raise OSError(error.decode(errors="replace").strip() or f"status {process.returncode}")
    except TimeoutError as error:
        raise OSError(f"no answer within {_TRIAL_S:.0f} s") from error
    finally:
        await container.stop()


def _usable_ids() -> tuple[int, int]:
    """Return the user of instances and the number of its ids."""
    for owner, ids in _USERS[:-1]:
        try:
            subprocess.run(["/bin/true"], user=owner, group=owner, extra_groups=[], check=True, cwd="/")
        except (OSError, subprocess.SubprocessError):
            log.info("user id %d cannot be used here", owner)
        else:
            return owner, ids
    return _USERS[-1]


def _try_user(interpreter: str) -> tuple[int, int]:
    """Return the first user of instances, after it has run the interpreter, and the number of users.

    Raises:
        OSError: Only root may do so.
        subprocess.SubprocessError: It cannot.
    """
    if os.getuid() != 0:
        raise OSError("the daemon does not run as root")
    owner, ids = _usable_ids()
    program = [interpreter, "-I", "-S", "-c", ""]
    subprocess.run(program, user=owner, group=owner, extra_groups=[], check=True, cwd="/", timeout=_TRIAL_S)
    return owner, ids


def _hidden(folder: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders of the machine that no instance may see: dlcloud's own, and homes."""
    homes = [folder.parent, folder, Path(environ.get("HOME", "/")), Path("~").expanduser()]
    return tuple(
        dict.fromkeys(home for home in homes if home.is_absolute() and home != Path("/") and home.is_dir())
    )


def _package_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files and folders that the settings of pip name."""
    words = " ".join(package_sources(environ).values()).split()
    return tuple(Path(word) for word in words if word.startswith("/") and Path(word).exists())


def place_instances(paths: SitePaths, isolation: Isolation) -> tuple[SitePaths, Isolation]:
    """Let instances and cache be where a user of their own can reach them, and give each instance one.

    Raises:
        LocalCloudError: Something else is in the folder's place.
    """
    folder = Path(f"{SHARED}-{isolation.owner}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o711)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        raise LocalCloudError(
            f"{folder}, where instances would be, is not this user's folder",
            f"remove {folder}, or set {VARIABLE}={Level.NONE}",
        )
    folder.chmod(0o711)
    # The first is the owner of what they share.
    own = UserIds(folder / _USER_IDS, isolation.users[1:]) if isolation.ids > 1 else None
    return replace(paths, shared=folder), replace(isolation, user_ids=own)


def kill_users(isolation: Isolation, users: Iterable[int]) -> None:
    """Kill every program of some users of instances; those in namespaces end with the daemon."""
    for user in users if isolation.level is Level.USER else ():
        kill_user(user)


def share_cache(cache: Path, isolation: Isolation) -> None:
    """Let instances write what root has put into their cache; called while none runs.

    One that runs may put names of others' files there.
    """
    if isolation.level is Level.NONE or os.getuid() != 0:
        return
    # The site may have linked the folder itself, which no instance can.
    root = open_root(cache.resolve())
    try:
        give_what_is_not(root, isolation.users, isolation.owner, levels=_CACHE_LEVELS)
        if isolation.level is Level.USER:
            share_folders(root, isolation.owner, levels=_CACHE_LEVELS)
    finally:
        os.close(root)
