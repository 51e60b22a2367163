"""Pinned host keys, one OpenSSH known_hosts file per cluster, looked up by instance id.

Addresses are given to other instances later, instance ids never are: a line reads
`i-0abc ssh-ed25519 AAAA...`, and the system's ssh finds it with `-o HostKeyAlias=i-0abc`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlcloud.core.errors import HostKeyError, StoreError
from dlcloud.system.files import FileLock, write_file

KEY_TYPE = "ssh-ed25519"

# What OpenSSH would read as a list, a wildcard, a hash or a comment can be no name in its file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


class KnownHosts:
    """The pinned keys of one cluster; threads and processes may use the file at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pinned(self, instance_id: str) -> str | None:
        """Return the pinned host key in base64, or None.

        Raises:
            StoreError: The file cannot be read.
        """
        for line in self._lines():
            if (pin := _parsed(line)) and pin[0] == instance_id:
                return pin[1]
        return None

    def pin(self, instance_id: str, host_key_base64: str) -> None:
        """Remember the proven key of an instance; pinning the same key again changes nothing.

        Raises:
            HostKeyError: Another key is pinned for this instance; it stays.
            StoreError: The file cannot be written.
        """
        if not _NAME.fullmatch(instance_id) or not _BASE64.fullmatch(host_key_base64):
            raise HostKeyError(f"{instance_id!r} and its host key cannot be written to {self.path}")
        with self._locked():
            old = self.pinned(instance_id)
            if old == host_key_base64:
                return
            if old is not None:
                raise HostKeyError(f"{instance_id}: another host key is pinned in {self.path}")
            self._replace([*self._lines(), f"{instance_id} {KEY_TYPE} {host_key_base64}"])

    def forget(self, instance_id: str) -> None:
        """Remove the pinned key of an instance that is gone; none pinned is no error.

        Raises:
            StoreError: The file cannot be read or written.
        """
        with self._locked():
            lines = self._lines()
            kept = [line for line in lines if (_parsed(line) or ("",))[0] != instance_id]
            if len(kept) < len(lines):
                self._replace(kept)

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as e:
            raise StoreError(f"cannot read the pinned host keys {self.path}: {e}") from e

    def _replace(self, lines: list[str]) -> None:
        """Replace the file, so that a reader sees the old one or the new one.

        It is not forced to disk: a pin that a power failure loses can be proven again with the secret, and 64
        instances pinned at once would wait for 64 syncs.
        """
        try:
            write_file(self.path, "".join(f"{line}\n" for line in lines))
        except OSError as e:
            raise StoreError(f"cannot write the pinned host keys {self.path}: {e.strerror}") from e

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other threads and processes."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(f"cannot write the pinned host keys {self.path}: {e.strerror}") from e
        with FileLock(self.path.with_name(f"{self.path.name}.lock")):
            yield


def _parsed(line: str) -> tuple[str, str] | None:
    fields = line.split()
    if len(fields) < 3 or fields[0].startswith(("#", "@")) or fields[1] != KEY_TYPE:  # noqa: PLR2004 name, type, key
        return None
    return fields[0], fields[2]
