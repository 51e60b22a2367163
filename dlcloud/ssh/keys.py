"""Create and read a cluster's login key: ed25519, in OpenSSH's own format, so that `ssh -i` reads it too."""

import os
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

from dlcloud.model.errors import StoreError

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
