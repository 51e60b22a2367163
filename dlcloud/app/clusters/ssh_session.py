"""The system's ssh on an instance, held to its pinned host key, and an ssh_config file for other programs."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.members import find_members
from dlcloud.app.terminal.screen import say
from dlcloud.model.cluster import Cluster, Member
from dlcloud.model.errors import RecipeError
from dlcloud.report.table import envelope
from dlcloud.ssh.command_line import config_entry, ssh_command, tunnel_command
from dlcloud.system.files import write_file

CONFIG = "ssh_config"
"""Below the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSession:
    """What is opened: a command (none: a shell), with forwarded ports, on one instance of a cluster."""

    words: tuple[str, ...] = ()
    forwards: tuple[str, ...] = ()
    instance: str = ""

    @property
    def remote_command(self) -> str | None:
        """The command, joined as ssh joins its words: the instance's shell reads it."""
        return " ".join(self.words) if self.words else None

    def open_detached(self, context: Context, name: str) -> int | None:
        """Open it through the instance that controls a cluster; None where it is controlled from here.

        Raises:
            RecipeError: Ports are to be forwarded.
        """
        if context.controls(name):
            return None
        if self.forwards and context.detached.find(name) is not None:
            raise RecipeError("ports of a detached cluster cannot be forwarded", f"dlcloud down {name} first")
        return context.detached.open_shell(name, self.instance, self.words)


def open_session(context: Context, name: str, session: SshSession, *, print_only: bool) -> None:
    """Become the system's ssh, held to the pinned host key.

    Raises:
        RecipeError: There is no such cluster or instance, or no ssh on this machine.
    """
    cluster = context.find_cluster(name)
    member = find_members(context, cluster, session.instance)[0]
    endpoint = member.instance.endpoint(cluster.user)
    # Proves and pins the host key, unless it is pinned already.
    context.machines.admitting_dialer(cluster).dial(endpoint)
    words = ssh_command(
        endpoint,
        context.paths.key(cluster.cluster_id),
        context.paths.known_hosts(cluster.cluster_id),
        session.remote_command,
        forwards=session.forwards,
        proxy=_proxy(context, cluster, endpoint.instance_id),
    )
    if print_only:
        say(envelope("ssh", {"result": {"instance_id": endpoint.instance_id, "command": words}}))
        return
    program = shutil.which(words[0])
    if program is None:
        raise RecipeError("this machine has no ssh", f"dlcloud exec {cluster.name} -- COMMAND")
    os.execv(program, words)  # noqa: S606  no shell is wanted


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
    path = context.paths.make_folder(context.paths.home) / CONFIG
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
