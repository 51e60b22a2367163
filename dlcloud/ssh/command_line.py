"""The command line of the system's ssh for an instance, with the pinned host key of our connections."""

from pathlib import Path

from dlcloud.core.remote import Endpoint


def ssh_command(
    endpoint: Endpoint, key_path: Path, known_hosts: Path, remote_command: str | None = None
) -> list[str]:
    """Return the arguments that start `ssh` on an instance whose host key is pinned.

    The user's own ssh configuration is ignored: a control socket or proxy set there for an address that was
    another machine's before would bypass the pinned key.

    Args:
        endpoint: The instance.
        key_path: The cluster's private key.
        known_hosts: The file that `KnownHosts` writes.
        remote_command: A command of the instance's shell; None opens a terminal session.
    """
    options = {
        "HostKeyAlias": endpoint.instance_id,
        "UserKnownHostsFile": _quote(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlgorithms": "ssh-ed25519",
        "UpdateHostKeys": "no",
        "IdentityFile": _quote(key_path),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "ForwardAgent": "no",
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
    }
    command = ["ssh", "-F", "/dev/null", "-p", str(endpoint.port), "-l", endpoint.user]
    for name, value in options.items():
        command += ["-o", f"{name}={value}"]
    command += ["--", endpoint.host]
    return command if remote_command is None else [*command, remote_command]


def _quote(path: Path) -> str:
    """Quote a path for an ssh option: % begins a token, blanks end a name."""
    text = str(path.absolute()).replace("%", "%%")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
