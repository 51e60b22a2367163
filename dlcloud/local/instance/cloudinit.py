"""The first boot of an instance as cloud-init does it: the user data that it carries out, and the log of it.

`LocalInstance.boot` reads the user data once by `read_user_data`, which never fails: what cannot be read,
or would take more memory than user data may, becomes a warning in the log. `read_console` shows that log as
GetConsoleOutput. Source: cloud-init documentation, "User data formats" and the modules write-files,
bootcmd, runcmd, ssh.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dlcloud.local.tree.instance_tree import InstanceTree

_DEEPEST = 50  # of lists in lists
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_DEFAULT_MODE, _LONGEST_WARNING = 0o644, 300


# Writes files below the folder that stands for the root; a path that leaves it is skipped.
WRITE_FILES = """import json, os, sys
request = json.load(sys.stdin)
base = os.path.realpath(request["base"])
for file in request["files"]:
    path = os.path.realpath(os.path.join(base, file["path"].lstrip("/")))
    if os.path.commonpath([base, path]) != base:
        print("user data asks for a file outside of the instance; left out")
        continue
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as stream:
        stream.write(file["content"])
    os.chmod(path, file["mode"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that the user data asks for; the path lies below the instance's root."""

    path: str
    content: str
    mode: int = _DEFAULT_MODE


@dataclass(frozen=True, slots=True, kw_only=True)
class UserData:
    """The work of the first boot; commands are shell text, `script` is run as a program."""

    authorized_keys: tuple[str, ...] = ()
    files: tuple[WrittenFile, ...] = ()
    boot_commands: tuple[str, ...] = ()
    run_commands: tuple[str, ...] = ()
    script: bytes = b""
    warnings: tuple[str, ...] = ()


def read_user_data(content: bytes) -> UserData:
    """Read user data: `#cloud-config` YAML, a `#!` script, or nothing.

    Unreadable user data becomes a warning, as on EC2: the instance boots all the same.
    """
    try:
        if content.startswith(b"#!"):
            return UserData(script=content)
        if content.startswith(b"#cloud-config"):
            return _read_config(yaml.load(content, _PlainLoader) or {})  # noqa: S506 - a SafeLoader
    except _UNREADABLE as error:
        return UserData(
            warnings=(f"user data cannot be read: {type(error).__name__}: {error}"[:_LONGEST_WARNING],)
        )
    return UserData(warnings=("user data in an unknown format is ignored",) if content.strip() else ())


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, with which 400 bytes can name as many words as no memory has room for."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.YAMLError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def root_key(public_key: str, user: str) -> str:
    """Return the line by which a key logs in as root: it only names the image's own user.

    Source: cloud-init, cc_ssh with `disable_root`, the default of Ubuntu's, Debian's and Amazon's images.
    """
    command = f'echo \'Please login as the user \\"{user}\\" rather than the user \\"root\\".\';echo;sleep 10'
    options = f'no-port-forwarding,no-agent-forwarding,no-X11-forwarding,command="{command};exit 142"'
    return f"{options} {public_key}"


def _read_config(config: dict[str, Any]) -> UserData:
    supported = {"ssh_authorized_keys", "users", "write_files", "bootcmd", "runcmd"}
    accepted = supported | {"package_update", "package_upgrade", "packages", "ssh_pwauth", "disable_root"}
    warnings = [f"{key} is ignored on the local cloud" for key in config if key not in accepted]
    keys = list(config.get("ssh_authorized_keys") or ())
    for user in config.get("users") or ():
        if isinstance(user, dict):
            keys += user.get("ssh_authorized_keys") or ()
    return UserData(
        authorized_keys=tuple(str(key) for key in keys),
        files=tuple(_read_file(entry) for entry in config.get("write_files") or ()),
        boot_commands=tuple(_command(entry) for entry in config.get("bootcmd") or ()),
        run_commands=tuple(_command(entry) for entry in config.get("runcmd") or ()),
        warnings=tuple(warnings),
    )


def _read_file(entry: dict[str, Any]) -> WrittenFile:
    if unknown := set(entry) - {"path", "content", "permissions"}:
        raise ValueError(f"write_files: {', '.join(sorted(unknown))} is not supported")
    return WrittenFile(
        path=str(entry["path"]),
        content=str(entry.get("content", "")),
        mode=_mode(entry.get("permissions", _DEFAULT_MODE)),
    )


def _mode(value: int | str) -> int:
    """Return the mode; text is octal, an integer is one that YAML has already read as octal."""
    return int(value, 8) if isinstance(value, str) else int(value)


def _command(entry: object) -> str:
    if isinstance(entry, list):
        return shlex.join(str(word) for word in entry)
    return str(entry)


def describe_files(files: tuple[WrittenFile, ...], base: Path) -> bytes:
    """Return the input of the program that writes files below the folder that stands for the root."""
    entries = [{"path": file.path, "content": file.content, "mode": file.mode} for file in files]
    return json.dumps({"base": str(base), "files": entries}).encode()


# Source: EC2 API reference, GetConsoleOutput: the most recent 64 KB.
_LIMIT = 64 * 1024
_RESULT = "lib/cloud-init-result"


def read_console(tree: InstanceTree) -> str:
    """Return the console output of an instance's first boot so far; empty before it begins."""
    try:
        output = tree.read_end("var/log/cloud-init-output.log", _LIMIT).decode(errors="replace")
        parts = [f"cloud-init: boot of {tree.root.name}\n", output]
        if tree.exists(_RESULT):
            status = tree.read(_RESULT).decode(errors="replace")
            parts.append(f"cloud-init: finished, status: {status}\n")
    except OSError:
        return ""
    return "".join(parts)[-_LIMIT:]
