"""Build the root file systems of containers, barer than images of EC2: no venv, no compiler, no git.

`python -m tests.containers.image SUITE` builds one, if there is none yet, and prints its folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = ("mmdebstrap", "unshare", "setpriv", "mount")
PACKAGES = (
    "cloud-init openssh-server sudo python3 ca-certificates systemd-sysv libpam-systemd dbus netbase "
    "iproute2 unattended-upgrades"
)
DEBIAN = ("main", "http://deb.debian.org/debian {}", "http://deb.debian.org/debian {}-updates")
UBUNTU = (
    "main universe",
    "http://archive.ubuntu.com/ubuntu {}",
    "http://archive.ubuntu.com/ubuntu {}-updates",
    "http://security.ubuntu.com/ubuntu {}-security",
)
SOURCES = {"bookworm": DEBIAN, "noble": UBUNTU}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dlcloud-tests" / "containers"
LIMIT_S = 1500


def why_not() -> str:
    """Return what containers lack here; nothing if they can be made."""
    if os.geteuid() != 0:
        return "containers need root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def build_root(suite: str) -> Path:
    """Return the root file system of a release; build it unless it was built before. It takes minutes."""
    components, *addresses = SOURCES[suite]
    # The machine may lack the other distribution's keys; apt in the container has them, and checks.
    sources = [f"deb [trusted=yes] {address.format(suite)} {components}" for address in addresses]
    digest = hashlib.sha256(repr((PACKAGES, sources)).encode()).hexdigest()[:16]
    folder = CACHE / f"{suite}-{digest}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            root = Path(name) / "root"
            _bootstrap(suite, root, sources)
            (root / "etc/apt/sources.list").write_text(
                "".join(f"{line.replace('[trusted=yes] ', '')}\n" for line in sources)
            )
            root.rename(folder)
    return folder


def _bootstrap(suite: str, root: Path, sources: list[str]) -> None:
    packages = PACKAGES.replace(" ", ",")
    command = ["mmdebstrap", "--variant=important", "--skip=check/qemu", f"--include={packages}", suite]
    done = subprocess.run(
        [*command, str(root), *sources], check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise RuntimeError(f"mmdebstrap failed:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    print(build_root(sys.argv[1]))
