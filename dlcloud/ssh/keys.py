r"""The keys of a cluster: its login key, and the host keys of its instances, proven once and then pinned.

The login key is ed25519, in OpenSSH's own format, so that `ssh -i` reads it too.

A host key is proven with a secret of the launch. User data brings the secret to the instance. At first boot
the instance writes HMAC-SHA256(secret, instance id NUL base64 of its host key). A machine in between has
another host key and does not know the secret, and a proof overheard elsewhere is bound to the key and
instance it was made for. The instance computes it with `printf '%s\0%s' "$IID" "$KEY" | openssl dgst -sha256
-mac HMAC -macopt hexkey:$SECRET`.

Pins lie in one OpenSSH known_hosts file per cluster. Addresses are reused by later instances, instance ids
never are: a line reads `i-0abc ssh-ed25519 AAAA...`, found by the system's ssh with `-o HostKeyAlias=i-0abc`.
"""

import base64
import hashlib
import hmac
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from dlcloud.model.errors import HostKeyError, StoreError
from dlcloud.system.files import FileLock, write_file

KEY_TYPE = "ssh-ed25519"
SECRET_BYTES = 32

# DLCLOUD_ROOT is unset on EC2; on the local EC2 it is the folder that stands for the instance's root.
PROOF_COMMAND = 'cat "$DLCLOUD_ROOT/var/lib/dlcloud/host-proof"'

# OpenSSH would read other names in its file as a list, a wildcard, a hash or a comment.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def new_secret() -> str:
    """Draw a secret of 32 bytes, as hexadecimal digits."""
    return secrets.token_hex(SECRET_BYTES)


def compute_proof(secret_hex: str, instance_id: str, host_key_base64: str) -> str:
    """Compute the proof, as hexadecimal digits, of the instance with this host key."""
    message = f"{instance_id}\0{host_key_base64}".encode()
    return hmac.new(bytes.fromhex(secret_hex), message, hashlib.sha256).hexdigest()


def is_proof(output: bytes, secret_hex: str, instance_id: str, host_key_base64: str) -> bool:
    """True if an instance printed its proof; compared in constant time.

    Args:
        output: Output of `PROOF_COMMAND`: the digits alone, or after openssl's `HMAC-SHA2-256(stdin)= `.
        secret_hex: The secret that user data brought to this instance.
        instance_id: The instance that was launched.
        host_key_base64: The host key of the handshake in progress.
    """
    words = output.split()
    expected = compute_proof(secret_hex, instance_id, host_key_base64)
    return bool(words) and hmac.compare_digest(words[-1].lower(), expected.encode("ascii"))


def fingerprint(host_key_base64: str) -> str:
    """Return a host key's SHA256 fingerprint as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(host_key_base64)).digest()
    return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


class KnownHosts:
    """The pinned keys of one cluster; threads and processes may use the file at the same time.

    Raises:
        StoreError: From any method, if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._content = _Content(version=None, lines=(), keys={})

    def pinned(self, instance_id: str) -> str | None:
        """Return the pinned host key in base64, or None."""
        return self._read().keys.get(instance_id)

    def pin(self, instance_id: str, host_key_base64: str) -> None:
        """Pin the proven key of an instance; pinning the same key again changes nothing.

        Raises:
            HostKeyError: Another key is pinned for this instance; it stays.
        """
        if not _NAME.fullmatch(instance_id) or not _BASE64.fullmatch(host_key_base64):
            raise HostKeyError(f"{instance_id!r} and its host key cannot be written to {self.path}")
        with self._locked():
            content = self._read()
            pinned = content.keys.get(instance_id)
            if pinned == host_key_base64:
                return
            if pinned is not None:
                raise HostKeyError(f"{instance_id}: another host key is pinned in {self.path}")
            self._replace([*content.lines, f"{instance_id} {KEY_TYPE} {host_key_base64}"])

    def _read(self) -> "_Content":
        """Return the content of the file; it is read again only if it was replaced."""
        with self._lock:
            version = self._version()
            if version is None or version != self._content.version:
                self._content = _Content.of(version, self._lines())
            return self._content

    def _version(self) -> tuple[int, int, int] | None:
        """Return what changes with the file; None if there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

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
        instances pinned together would wait for 64 syncs.
        """
        try:
            write_file(self.path, "".join(f"{line}\n" for line in lines))
        except OSError as e:
            raise StoreError(f"cannot write the pinned host keys {self.path}: {e.strerror}") from e
        added = _parse(lines[-1])
        with self._lock:
            keys = {**self._content.keys, **dict([added] if added else [])}
            self._content = _Content(version=self._version(), lines=lines, keys=keys)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other threads and processes."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(f"cannot write the pinned host keys {self.path}: {e.strerror}") from e
        with FileLock(self.path.with_name(f"{self.path.name}.lock")):
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The file as it was read: its version, its lines, and the keys by name."""

    version: tuple[int, int, int] | None
    lines: Sequence[str]
    keys: Mapping[str, str]

    @classmethod
    def of(cls, version: tuple[int, int, int] | None, lines: Sequence[str]) -> "_Content":
        """Parse lines; of two keys for one name the first counts."""
        return cls(version=version, lines=lines, keys=dict(filter(None, map(_parse, reversed(lines)))))


def _parse(line: str) -> tuple[str, str] | None:
    fields = line.split()
    if len(fields) < 3 or fields[0].startswith(("#", "@")) or fields[1] != KEY_TYPE:  # noqa: PLR2004 name, type, key
        return None
    return fields[0], fields[2]


COMMENT = "dlcloud"


def create_key(path: Path) -> str:
    """Write a new private key to `path`, readable by its owner only from the first moment.

    Returns:
        The public key as one line, `ssh-ed25519 AAAA... dlcloud`.

    Raises:
        StoreError: `path` exists already or cannot be written; an existing key is never replaced.
    """
    key = Ed25519PrivateKey.generate()
    content = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_new(path, content)
    except FileExistsError as e:
        raise StoreError(f"the login key {path} exists already") from e
    except OSError as e:
        raise StoreError(f"cannot write the login key {path}: {e.strerror}") from e
    return _public_line(key)


def public_key(path: Path) -> str:
    """Return the public key line that belongs to the private key at `path`.

    Raises:
        StoreError: `path` cannot be read or holds no ed25519 private key.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as e:
        raise StoreError(f"cannot read the login key {path}: {e.strerror}") from e
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise StoreError(f"cannot read the login key {path}: not a private key") from e
    if not isinstance(key, Ed25519PrivateKey):
        raise StoreError(f"cannot use the login key {path}: not ed25519")
    return _public_line(key)


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        path.unlink(missing_ok=True)  # half a key would keep a whole one from being written
        raise


def _public_line(key: Ed25519PrivateKey) -> str:
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return f"{public.decode('ascii')} {COMMENT}"
