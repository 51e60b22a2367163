"""User ids of instances at level `user`: one instance at a time has one, of all daemons of this machine."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Collection
from pathlib import Path


class UserIds:
    """The user ids that the daemons of one user of this machine share out among their instances.

    A daemon holds a lock on one byte of a file for each of its instances, which the kernel drops when the
    daemon dies. No other code of the process may open the file: closing it would drop the locks.

    Args:
        path: The file.
        ids: The user ids.
    """

    def __init__(self, path: Path, ids: range) -> None:
        self._ids = ids
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._reserved: set[int] = set()

    def take(self, living: Collection[int]) -> int:
        """Return an id that no instance has, nor any program that is left of one.

        Args:
            living: The ids of this daemon's instances; all others that it has reserved are free again.

        Raises:
            OSError: There is none.
        """
        self._release(self._reserved.difference(living))
        candidates = list(set(self._ids) - self._reserved - _users_of_programs())
        while candidates:
            user = candidates.pop(secrets.randbelow(len(candidates)))
            if self.reserve(user):
                return user
        raise OSError("no user id is left for an instance")

    def reserve(self, user: int) -> bool:
        """Hold an id until `take` finds it unused; False if it is none of `ids`, or another daemon has it."""
        if user not in self._ids:
            return False
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, user)
        except OSError:
            return False
        self._reserved.add(user)
        return True

    def _release(self, users: set[int]) -> None:
        for user in users:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, user)
        self._reserved -= users


def _users_of_programs() -> set[int]:
    """Return the user ids of all processes; none where the system does not list them."""
    users: set[int] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                users.add(entry.stat().st_uid)
    return users
