"""The programs that the tests call beyond Python, sh and coreutils: the one list of them.

A test that calls one is marked with `needs`, and is skipped with its name where it is missing.
`tests/unit/test_programs.py` holds that no test calls another; with DLCLOUD_TEST_PROGRAMS=listed the tests'
process starts no other. Run as a program, it prints a line for each that `.ci/run` installs: program, Debian
package, what it is for. It needs the standard library only.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

COREUTILS = frozenset(
    {"cat", "cp", "echo", "env", "false", "head", "printf", "rm", "sleep", "tee", "true", "uname"}
)
"""Programs of coreutils that tests call; xdist asks uname for the processor."""
OF_PYTHON = frozenset({"gcc", "ld", "ldconfig", "objdump"})
"""Programs by which Python's `ctypes.util.find_library` looks for a library; it does without them."""
OF_THE_PRODUCT = frozenset(
    {
        "dlcloud",
        "lsblk",
        "mount-s3",
        "mpirun",
        "nvidia-smi",
        "prlimit",
        "python",
        "python3",
        "sh",
        "sudo",
        "uv",
    }
    | {Path(sys.executable).name}
)
"""Python's own, the shell, and what dlcloud asks for where it is there, in the tests' process."""
PLACES = ("/usr/sbin", "/usr/local/sbin", "/sbin")
"""Where programs are that an ordinary user's PATH does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program.

    Attributes:
        is_heavy: CI alone installs it, on a machine of its own.
        is_chosen: It is never installed for the tests: they run only where a variable chooses an image, or do
            without it.
    """

    name: str
    package: str
    use: str
    is_heavy: bool = False
    is_chosen: bool = False


PROGRAMS = (
    Program(name="bash", package="bash", use="CI's own program, completion, the browser's descriptors"),
    Program(name="cc", package="gcc", use="clocks that are stepped"),
    Program(name="chromium", package="chromium", use="HTML reports in a browser"),
    Program(name="cloud-init", package="cloud-init", use="user data by its own schema", is_heavy=True),
    Program(name="curl", package="curl", use="metadata across instances"),
    Program(name="find", package="findutils", use="files of instances"),
    Program(name="g++", package="g++", use="what PyTorch compiles"),
    Program(name="git", package="git", use="what git would send"),
    Program(name="ip", package="iproute2", use="networks that fail"),
    Program(name="java", package="default-jre-headless", use="BigDL on Spark", is_heavy=True),
    Program(name="mlflow", package="mlflow, of PyPI", use="a real MLflow server", is_chosen=True),
    Program(name="mount", package="mount", use="read-only and full disks"),
    Program(name="openssl", package="openssl", use="keys of other forms"),
    Program(name="podman", package="podman", use="containers", is_chosen=True),
    Program(name="ps", package="procps", use="secrets in process lists"),
    Program(name="rsync", package="rsync", use="rsync through a tunnel"),
    Program(name="scp", package="openssh-client", use="copies by the ssh configuration"),
    Program(name="setpriv", package="util-linux", use="programs of other users"),
    Program(name="setsid", package="util-linux", use="programs that outlive their session"),
    Program(name="ssh", package="openssh-client", use="OpenSSH's client"),
    Program(name="sshd", package="openssh-server", use="OpenSSH's server", is_heavy=True),
    Program(name="strace", package="strace", use="what the local EC2 touches of an instance"),
    Program(name="tar", package="tar", use="copies to and from instances"),
    Program(name="umount", package="mount", use="read-only and full disks"),
    Program(name="unshare", package="util-linux", use="daemons of other users"),
    Program(name="uv", package="uv", use="a wheel that is installed in seconds", is_chosen=True),
)


def find(name: str) -> str | None:
    """Return the path of a program; None if it is missing."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


def missing(*names: str) -> str:
    """Return why a test cannot run: the first program that is missing, with its package; empty if none is."""
    by_name = {program.name: program for program in PROGRAMS}
    for name in names:
        if find(name) is None:
            return f"there is no {name} (apt-get install {by_name[name].package})"
    return ""


if __name__ == "__main__":
    for program in PROGRAMS:
        if not program.is_chosen and (os.environ.get("CI") or not program.is_heavy):
            print(program.name, program.package, program.use)  # noqa: T201  for .ci/run
