"""The command line of the system's ssh for an instance, held to the same pinned key as our connections."""

from pathlib import Path

from dlcloud.core.remote import Endpoint


def ssh_command(
    endpoint: Endpoint, key_path: Path, known_hosts: Path, remote_command: str | None = None
) -> list[str]:
    """Return the arguments that start `ssh` on an instance whose host key is pinned.

    The user's own ssh configuration is left out: a control socket or proxy set there for an address that
    was another machine's before would go around the pinned key.

    Args:
        endpoint: The instance.
        key_path: The cluster's private key.
        known_hosts: The file that `KnownHosts` writes.
        remote_command: What the instance's shell runs; None opens a terminal session.
    """
    options = {
        "HostKeyAlias": endpoint.instance_id,
        "UserKnownHostsFile": _quoted(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlgorithms": "ssh-ed25519",
        "UpdateHostKeys": "no",
        "IdentityFile": _quoted(key_path),
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


def _quoted(path: Path) -> str:
    """Write a path as ssh reads it in an option: % begins a token, blanks end a name."""
    text = str(path.absolute()).replace("%", "%%")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
