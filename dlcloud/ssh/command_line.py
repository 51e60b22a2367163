"""The command line of the system's ssh for an instance, and its entries for an ssh_config file.

Both hold the pinned host key of our connections.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dlcloud.model.remote import Endpoint


def ssh_options(
    endpoint: Endpoint, key_path: Path, known_hosts: Path, *, proxy: str = ""
) -> Mapping[str, str]:
    """Return the options of ssh that hold a connection to an instance's pinned host key.

    Args:
        endpoint: The instance.
        key_path: The cluster's private key.
        known_hosts: The file that `KnownHosts` writes.
        proxy: A command that carries bytes to the instance's SSH server; empty for a direct connection.
    """
    return {
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
        **({"ProxyCommand": proxy.replace("%", "%%")} if proxy else {}),
    }


def ssh_command(
    endpoint: Endpoint,
    key_path: Path,
    known_hosts: Path,
    remote_command: str | None = None,
    *,
    forwards: Sequence[str] = (),
    proxy: str = "",
) -> list[str]:
    """Return the arguments that start `ssh` on an instance whose host key is pinned.

    The user's own ssh configuration is ignored: a control socket or proxy set there for an address that was
    another machine's before would bypass the pinned key.

    Args:
        endpoint: The instance.
        key_path: The cluster's private key.
        known_hosts: The file that `KnownHosts` writes.
        remote_command: A command of the instance's shell; None opens a terminal session.
        forwards: Local ports to forward, as ssh's -L takes them.
        proxy: As of `ssh_options`.
    """
    command = ["ssh", "-F", "/dev/null", "-p", str(endpoint.port), "-l", endpoint.user]
    for name, value in ssh_options(endpoint, key_path, known_hosts, proxy=proxy).items():
        command += ["-o", f"{name}={value}"]
    for forward in forwards:
        command += ["-L", forward]
    if forwards:
        command += ["-o", "ExitOnForwardFailure=yes"]
    command += ["--", endpoint.host]
    return command if remote_command is None else [*command, remote_command]


def config_entry(
    names: Sequence[str], endpoint: Endpoint, key_path: Path, known_hosts: Path, *, proxy: str = ""
) -> str:
    """Return the entry of an ssh_config file that reaches an instance by any of the names."""
    options = {
        "HostName": endpoint.host,
        "Port": str(endpoint.port),
        "User": endpoint.user,
        # A socket or a proxy of another entry would bypass the pinned key.
        "ControlPath": "none",
        "ProxyCommand": "none",
        **ssh_options(endpoint, key_path, known_hosts, proxy=proxy),
    }
    lines = [f"Host {' '.join(names)}", *(f"    {name} {value}" for name, value in options.items())]
    return "\n".join(lines) + "\n"


def tunnel_command(home: Path, cluster_id: str, instance_id: str) -> str:
    """Return the ProxyCommand that connects to an instance the way that its network allows.

    It names dlcloud's home, since programs that read ssh_config may not have the caller's environment.

    ssh puts `exec` before it. Source: ssh_config(5), ProxyCommand.
    """
    program = "from dlcloud.cli.entry import main; main()"
    variables = ["env", f"DLCLOUD_HOME={home.absolute()}"]
    return shlex.join([*variables, sys.executable, "-P", "-c", program, "tunnel", cluster_id, instance_id])


def _quote(path: Path) -> str:
    """Quote a path for an ssh option: % begins a token, blanks end a name."""
    text = str(path.absolute()).replace("%", "%%")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
