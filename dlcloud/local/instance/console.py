"""The console output of an instance: its boot as cloud-init logs it."""

import base64
import hashlib
from datetime import datetime
from pathlib import Path

# Source: EC2 API reference, GetConsoleOutput: the most recent 64 KB.
_LIMIT = 64 * 1024


def read_console(root: Path, *, hostname: str, booted_at: datetime | None) -> str:
    """Return the console output of an instance's first boot so far; empty before it begins.

    Args:
        root: The folder of the instance.
        hostname: Shown at the log-in prompt.
        booted_at: When the SSH server opened; None before.
    """
    log = root / "var/log/cloud-init-output.log"
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LIMIT))
            output = stream.read().decode(errors="replace")
        parts = [f"cloud-init: boot of {root.name}\n", output]
        if booted_at is not None:
            parts += [_host_keys(root / "etc/ssh"), f"\n{hostname} login: \n"]
        result = root / "lib/cloud-init-result"
        if result.exists():
            parts.append(f"cloud-init: finished, status: {result.read_text(encoding='utf-8')}\n")
    except OSError:
        return ""
    return "".join(parts)[-_LIMIT:]


def _host_keys(folder: Path) -> str:
    """Return the host keys in cloud-init's form, which clients read to know them before they log in."""
    lines = [path.read_text(encoding="utf-8").strip() for path in sorted(folder.glob("ssh_host_*_key.pub"))]
    fingerprints = [f"256 SHA256:{_fingerprint(line)} root@local (ED25519)" for line in lines]
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
