"""The console output of an instance: its boot as cloud-init logs it."""

import base64
import fnmatch
import hashlib
from datetime import datetime

from dlcloud.local.tree.instance_tree import InstanceTree

# Source: EC2 API reference, GetConsoleOutput: the most recent 64 KB.
_LIMIT = 64 * 1024
_KEYS, _MOST_KEYS, _MOST_KEY_BYTES = "etc/ssh", 16, 16 * 1024
_RESULT = "lib/cloud-init-result"


def read_console(tree: InstanceTree, *, hostname: str, booted_at: datetime | None) -> str:
    """Return the console output of an instance's first boot so far; empty before it begins.

    Args:
        tree: The files of the instance.
        hostname: Shown at the log-in prompt.
        booted_at: When the SSH server opened; None before.
    """
    try:
        output = tree.read_end("var/log/cloud-init-output.log", _LIMIT).decode(errors="replace")
        parts = [f"cloud-init: boot of {tree.root.name}\n", output]
        if booted_at is not None:
            parts += [_host_keys(tree), f"\n{hostname} login: \n"]
        if tree.exists(_RESULT):
            status = tree.read(_RESULT).decode(errors="replace")
            parts.append(f"cloud-init: finished, status: {status}\n")
    except OSError:
        return ""
    return "".join(parts)[-_LIMIT:]


def _host_keys(tree: InstanceTree) -> str:
    """Return the host keys in cloud-init's form, which clients read to know them before they log in.

    Programs of the instance may have put anything in their place: what is no public key is left out.
    """
    lines, fingerprints = [], []
    for name in fnmatch.filter(tree.names(_KEYS), "ssh_host_*_key.pub")[:_MOST_KEYS]:
        try:
            line = tree.read(f"{_KEYS}/{name}", most=_MOST_KEY_BYTES).decode().strip()
            fingerprints.append(f"256 SHA256:{_fingerprint(line)} root@local (ED25519)")
        except (OSError, ValueError, IndexError):
            continue
        lines.append(line)
    return "\n".join(
        [
            "-----BEGIN SSH HOST KEY FINGERPRINTS-----",
            *fingerprints,
            "-----END SSH HOST KEY FINGERPRINTS-----",
            "-----BEGIN SSH HOST KEY KEYS-----",
            *lines,
            "-----END SSH HOST KEY KEYS-----",
            "",
        ]
    )


def _fingerprint(line: str) -> str:
    key = base64.b64decode(line.split()[1])
    return base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
