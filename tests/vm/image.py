"""Build a machine image with cloud-init, to boot without a boot loader: disk, kernel, initrd.

`python -m tests.vm.image` builds the image, if there is none yet, and prints its folder.
DLCLOUD_TEST_VM_SUITE names the suite: Debian's bookworm, trixie or forky (systemd 252, 257, 262), or Ubuntu's
resolute. Where Ubuntu's archive is out of reach, forky comes closest to resolute's versions.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.unit.resources.test_environment import write_wheel

PROGRAMS = ("mmdebstrap", "mke2fs", "dpkg-deb", "qemu-system-x86_64", "qemu-img", "nc")
PACKAGES = (
    "linux-image-cloud-amd64 systemd-sysv cloud-init cloud-guest-utils openssh-server python3 python3-venv "
    "sudo iproute2 ca-certificates dbus initramfs-tools e2fsprogs unattended-upgrades netbase"
)
SUITE = os.environ.get("DLCLOUD_TEST_VM_SUITE", "bookworm")
"""From systemd 257 on, block inhibitors bind root, too."""
IS_UBUNTU = SUITE == "resolute"
LOGIN = "ubuntu" if IS_UBUNTU else "debian"
"""The user of the images of the suite, whom cloud-init makes."""
KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
"""The keys that sign Ubuntu's archive, from Debian's own package ubuntu-keyring (in Debian 13)."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dlcloud-tests" / "vm"
LIMIT_S = 3600

# Holds the lock of apt's lists, as a job of an image may at boot: one that can be stopped, one that cannot.
HOLD = """#!/usr/bin/python3
import fcntl, sys, time
with open("/var/lib/apt/lists/lock", "w") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    time.sleep(float(sys.argv[1]))
"""
FILES = {
    "usr/local/bin/hold-lists": HOLD,
    "etc/systemd/system/apt-daily.service.d/hold.conf": (
        "[Service]\nExecStartPre=\nExecStart=\nExecStart=/usr/local/bin/hold-lists 3600\n"
    ),
    "etc/systemd/system/hold-lists.service": (
        "[Unit]\nWants=apt-daily.service\nAfter=cloud-final.service\n"
        "[Service]\nExecStart=/usr/local/bin/hold-lists 30\n[Install]\nWantedBy=cloud-init.target\n"
    ),
    "etc/apt/sources.list": "deb [trusted=yes] file:/srv/packages ./\n",
}
PACKAGE = (
    "Package: dlcloud-sample\nVersion: 1.0\nArchitecture: all\nMaintainer: dlcloud\nDescription: sample\n"
)


def missing_programs() -> list[str]:
    """Return the programs and keys that are needed and not there."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/sbin") is None]
    return [*missing, str(KEYRING)] if IS_UBUNTU and not KEYRING.exists() else missing


def build_image() -> Path:
    """Return the folder of the image; build it unless it was built before. It takes minutes, and root."""
    contents = repr((SUITE, PACKAGES, FILES, PACKAGE))
    folder = CACHE / hashlib.sha256(contents.encode()).hexdigest()[:16]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            unfinished = Path(name)
            unfinished.chmod(0o755)
            _build(unfinished / "root", unfinished / "image")
            (unfinished / "image").rename(folder)
    return folder


def _build(root: Path, image: Path) -> None:
    _install(root)
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "usr/local/bin/hold-lists").chmod(0o755)
    wants = root / "etc/systemd/system/cloud-init.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (wants / "hold-lists.service").symlink_to("/etc/systemd/system/hold-lists.service")
    _add_package(root / "srv/packages")
    (root / "srv/wheels").mkdir()
    write_wheel(root / "srv/wheels")
    image.mkdir()
    for kind in ("vmlinuz", "initrd.img"):
        shutil.copy(max((root / "boot").glob(f"{kind}-*")), image / kind)
    with (image / "disk.img").open("wb") as disk:
        disk.truncate(3 << 30)
    _run("mke2fs", "-q", "-t", "ext4", "-L", "cloudimg-rootfs", "-d", root, image / "disk.img")


def _install(root: Path) -> None:
    """Install the suite; apt checks the signature of its archive, not its age: a mirror may stand still."""
    options, mirror, names = ["--aptopt=Acquire::Check-Valid-Until false"], [], PACKAGES
    if IS_UBUNTU:
        names = names.replace("linux-image-cloud-amd64", "linux-image-virtual netplan.io")
        options += [f"--keyring={KEYRING}", "--components=main,universe"]
        mirror = ["http://archive.ubuntu.com/ubuntu"]
    packages = names.replace(" ", ",")
    _run("mmdebstrap", "--variant=important", f"--include={packages}", *options, SUITE, root, *mirror)


def _add_package(folder: Path) -> None:
    """Write a repository with one package, so that no mirror is asked by the machine."""
    content = folder / "sample"
    (content / "DEBIAN").mkdir(parents=True)
    (content / "DEBIAN/control").write_text(PACKAGE)
    program = content / "usr/bin/dlcloud-sample"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho sample\n")
    program.chmod(0o755)
    package = folder / "sample.deb"
    _run("dpkg-deb", "--root-owner-group", "--build", content, package)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    index = f"{PACKAGE}Filename: ./sample.deb\nSize: {package.stat().st_size}\nSHA256: {digest}\n"
    (folder / "Packages").write_text(index)


def _run(*words: object) -> None:
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    command = [str(word) for word in words]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PATH": path},
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


if __name__ == "__main__":
    print(build_image())
