"""Notifications: a command of the user's, or a webhook."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

FILE = "notify"
"""Below the home; its first line is the target."""
TIMEOUT_S = 20
WEB = ("https://", "http://")


def stored_target(home: Path) -> str:
    """Return the target that the home names; empty without one."""
    try:
        return (home / FILE).read_text("utf-8").strip().partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def notify(target: str, message: str, status: str) -> str:
    """Notify; return why that failed, without the target, which may be a secret; empty if it did not."""
    try:
        if target.startswith(WEB):
            _post(target, {"text": message, "status": status})
        else:
            environment = os.environ | {"DLCLOUD_MESSAGE": message, "DLCLOUD_STATUS": status}
            subprocess.run(  # noqa: S602  the user's own command line
                target,
                shell=True,
                env=environment,
                check=True,
                timeout=TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
    except subprocess.CalledProcessError as error:
        return f"status {error.returncode}"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return type(error).__name__
    return ""


def _post(url: str, content: dict[str, str]) -> None:
    request = urllib.request.Request(  # noqa: S310  http and https only
        url, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
        pass
