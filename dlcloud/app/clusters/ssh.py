"""`dlcloud ssh` and `dlcloud tunnel`: the system's ssh on an instance, held to its pinned host key.

`run` dials the instance once itself, which proves and pins the host key, and then becomes the system's ssh.
Instances without a public address are reached by a ProxyCommand, which is `tunnel`. A detached cluster is
reached through the instance that controls it. With --config nothing is opened: an ssh_config file is written,
by which other programs find every instance under its cluster's name. The key of a cluster never leaves the
dlcloud home.
"""

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dlcloud.app.clusters.members import find_members
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.errors import RecipeError
from dlcloud.report.table import envelope
from dlcloud.ssh.command_line import config_entry, ssh_command, tunnel_command
from dlcloud.ssh.route import Stream
from dlcloud.system.files import write_file

PIECE = 1 << 16
TIMEOUT_S = 30.0


def run(
    context: Context,
    *,
    cluster: str,
    words: Sequence[str] = (),
    forwards: Sequence[str] = (),
    instance: str = "",
    config: bool = False,
    include: bool = False,
    output: str = "text",
) -> int | None:
    """Open a shell on an instance of a cluster (the only one, if none is named), or run a command there.

    Args:
        context: The collaborators.
        cluster: Its name or id.
        words: The command; none for a shell.
        forwards: Ports that are forwarded, as `ssh -L` takes them.
        instance: An instance's id, or its number from 1; by default the first.
        config: Write entries for other programs instead.
        include: With `config`, include them in ~/.ssh/config.
        output: `json` prints the command instead of running it.

    Raises:
        RecipeError: There is no such cluster or instance, or no ssh on this machine.
    """
    if include and not config:
        raise RecipeError("--include belongs to --config", "dlcloud ssh --config --include")
    if config:
        write_config(context, cluster, include=include, output=output)
        return None
    if output == "json":
        status = context.forward_command(cluster)
    elif context.controls(cluster):
        status = None
    else:
        if forwards and context.detached.find(cluster) is not None:
            message = "ports of a detached cluster cannot be forwarded"
            raise RecipeError(message, f"dlcloud down {cluster} first")
        status = context.detached.open_shell(cluster, instance, tuple(words))
    if status is not None:
        return status

    own = context.find_cluster(cluster)
    member = find_members(context, own, instance)[0]
    endpoint = member.instance.endpoint(own.user)
    # Proves and pins the host key, unless it is pinned already.
    context.machines.admitting_dialer(own).dial(endpoint)
    arguments = ssh_command(
        endpoint,
        context.paths.key(own.cluster_id),
        context.paths.known_hosts(own.cluster_id),
        # As ssh joins its words: the instance's shell reads the result.
        " ".join(words) if words else None,
        forwards=tuple(forwards),
        proxy=_proxy(context, own, endpoint.instance_id),
    )
    if output == "json":
        say(envelope("ssh", {"result": {"instance_id": endpoint.instance_id, "command": arguments}}))
        return None
    program = shutil.which(arguments[0])
    if program is None:
        raise RecipeError("this machine has no ssh", f"dlcloud exec {own.name} -- COMMAND")
    return os.execv(program, arguments)  # noqa: S606  no shell is wanted


def write_config(context: Context, name: str, *, include: bool, output: str) -> None:
    """Write the entries of the clusters that are up, or of one, and print how to use them.

    Raises:
        RecipeError: No such cluster is up, or the file cannot be included.
    """
    clusters = [context.find_cluster(name)] if name else context.clusters.active()
    if not clusters:
        raise RecipeError("no cluster is up", "dlcloud up quickstart --keep")
    hosts: list[str] = []
    entries: list[str] = []
    for cluster in clusters:
        for names, entry in _entries(context, cluster):
            hosts.append(names[0])
            entries.append(entry)
    context.paths.make_folder(context.paths.home)
    path = context.paths.ssh_config
    write_file(path, "# Written by dlcloud ssh --config; it is replaced as a whole.\n" + "\n".join(entries))
    included = _include(path) if include else _is_included(path)
    if output == "json":
        result = {"file": str(path), "hosts": hosts, "included": included}
        say(envelope("ssh", {"result": result}))
        return
    option = "" if included else f" -F {path}"
    say(f"wrote {path}: {', '.join(hosts)}")
    say(f"ssh{option} {hosts[0]}; scp{option} FILE {hosts[0]}:")
    if not included:
        say(f"for VS Code and others, dlcloud ssh --config --include adds to ~/.ssh/config: Include {path}")


def _entries(context: Context, cluster: Cluster) -> list[tuple[list[str], str]]:
    """Return the names and the entry of each instance; its host key is proven and pinned first."""
    paths, entries = context.paths, []
    members = find_members(context, cluster, "")
    dialer = context.machines.admitting_dialer(cluster)
    for number, member in enumerate(members, 1):
        endpoint = member.instance.endpoint(cluster.user)
        dialer.dial(endpoint)
        names = _names(cluster, member, number)
        key, known_hosts = paths.key(cluster.cluster_id), paths.known_hosts(cluster.cluster_id)
        proxy = _proxy(context, cluster, endpoint.instance_id)
        entries.append((names, config_entry(names, endpoint, key, known_hosts, proxy=proxy)))
    return entries


def _proxy(context: Context, cluster: Cluster, instance_id: str) -> str:
    """Return the command by which ssh reaches an instance without a public address; empty for others."""
    is_tunnelled = cluster.is_private and not context.controller_instance_id
    return tunnel_command(context.paths.home, cluster.cluster_id, instance_id) if is_tunnelled else ""


def _names(cluster: Cluster, member: Member, number: int) -> list[str]:
    name = cluster.name if number == 1 else f"{cluster.name}-{number}"
    return [name, member.instance.instance_id]


def _user_config() -> Path:
    return Path.home() / ".ssh" / "config"


def _line(path: Path) -> str:
    return f'Include "{path}"' if " " in str(path) else f"Include {path}"


def _is_included(path: Path) -> bool:
    try:
        lines: Sequence[str] = _user_config().read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return _line(path) in [line.strip() for line in lines]


def _include(path: Path) -> bool:
    """Add the file to the user's own configuration, as its first line: later ones belong to a Host."""
    if _is_included(path):
        return True
    config = _user_config()
    try:
        config.parent.mkdir(mode=0o700, exist_ok=True)
        target = config.resolve()
        text = target.read_text("utf-8") if target.exists() else ""
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        write_file(target, f"{_line(path)}\n{text}", mode=mode)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{config} cannot be changed: {error}", f"add this line to it: {_line(path)}"
        ) from error
    return True


def tunnel(context: Context, *, cluster: str, instance: str) -> None:
    """Connect to the SSH server of INSTANCE of CLUSTER the way that its network allows: a ProxyCommand."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    detached = None if context.controls(cluster) else context.detached.find(cluster)
    if detached is not None:
        stream = context.machines.route_of_detached(detached)(detached.endpoint, TIMEOUT_S)
    else:
        own_cluster = context.find_cluster(cluster)
        member = find_members(context, own_cluster, instance)[0]
        stream = context.machines.route(own_cluster)(member.instance.endpoint(own_cluster.user), TIMEOUT_S)
    stream.settimeout(None)
    _carry(stream)


def _carry(stream: Stream) -> None:
    """Carry bytes both ways until the instance ends the connection."""

    def send() -> None:
        while piece := os.read(sys.stdin.fileno(), PIECE):
            stream.sendall(piece)
        if isinstance(stream, socket.socket):
            stream.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    while piece := stream.recv(PIECE):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
