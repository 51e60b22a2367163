"""The walks of `dlcloud ssh` and `dlcloud exec`: to the instances of a cluster that is up."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence

import click

from dlcloud.cli.context import Context
from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import DlcloudError, PartialError, RecipeError, RemoteCommandError
from dlcloud.core.remote import Completed
from dlcloud.launch.setup import FOLDER
from dlcloud.report.table import Format, Report, Section, envelope, render
from dlcloud.ssh.command_line import ssh_command
from dlcloud.ssh.fanout import Outcome, fan_out


def open_shell(context: Context, name: str, instance: str, *, only_say: bool) -> None:
    """Become the system's ssh, held to the pinned host key.

    Raises:
        RecipeError: There is no such cluster or instance, or no ssh on this machine.
    """
    cluster = context.find_cluster(name)
    member = _chosen(cluster, context.clusters.members(cluster.cluster_id), instance)[0]
    endpoint = member.instance.endpoint(cluster.user)
    context.dialer(cluster).dial(endpoint)  # proves and pins the host key, if that was not done yet
    paths = context.paths
    command = ssh_command(endpoint, paths.key(cluster.cluster_id), paths.known_hosts(cluster.cluster_id))
    if only_say:
        click.echo(envelope("ssh", {"result": {"instance_id": endpoint.instance_id, "command": command}}))
        return
    program = shutil.which(command[0])
    if program is None:
        raise RecipeError(
            "there is no ssh on this machine", f"dlcloud exec {cluster.name} -- COMMAND needs none"
        )
    os.execv(program, command)  # noqa: S606  no shell is wanted


def run_everywhere(context: Context, name: str, words: Sequence[str], instance: str, *, output: str) -> None:
    """Run a command on instances at once and print what each answered.

    Raises:
        RemoteCommandError: It failed everywhere.
        PartialError: It failed somewhere.
    """
    cluster = context.find_cluster(name)
    members = _chosen(cluster, context.clusters.members(cluster.cluster_id), instance)
    dialer = context.dialer(cluster)
    command = words[0] if len(words) == 1 else shlex.join(words)

    def run(member: Member) -> Completed:
        # Whoever comes by counts as work: see templates/watchdog.py.
        return dialer.dial(member.instance.endpoint(cluster.user)).run(
            f"touch {FOLDER}/used 2>/dev/null; {command}"
        )

    outcomes = fan_out(run, members)
    if output == Format.TABLE:
        _print_text(outcomes)
    else:
        click.echo(render(_report(outcomes), Format(output)))
    _raise_for(outcomes)


def _chosen(cluster: Cluster, members: Sequence[Member], instance: str) -> list[Member]:
    """Return the living instances, or the one that is meant by an id or a number from 1."""
    living = [member for member in members if member.ended_at is None and member.instance.host]
    if not instance and living:
        return living
    named = [
        member
        for number, member in enumerate(living, start=1)
        if instance in {str(number), member.instance.instance_id}
    ]
    if not named:
        known = ", ".join(member.instance.instance_id for member in living) or "it has none"
        raise RecipeError(f"{cluster.name} has no instance {instance}".rstrip(), f"instances: {known}")
    return named


def _print_text(outcomes: Sequence[Outcome[Member, Completed]]) -> None:
    for outcome in outcomes:
        prefix = f"{outcome.item.instance.instance_id}: " if len(outcomes) > 1 else ""
        if outcome.value is None:
            continue
        for text, stream in ((outcome.value.stdout, sys.stdout), (outcome.value.stderr, sys.stderr)):
            for line in text.decode("utf-8", "replace").splitlines():
                print(f"{prefix}{line}", file=stream)


def _report(outcomes: Sequence[Outcome[Member, Completed]]) -> Report:
    records = [
        {
            "instance_id": outcome.item.instance.instance_id,
            "exit_status": outcome.value.exit_status if outcome.value else None,
            "stdout": outcome.value.stdout.decode("utf-8", "replace") if outcome.value else "",
            "stderr": outcome.value.stderr.decode("utf-8", "replace") if outcome.value else "",
            "error": str(outcome.error) if outcome.error else None,
        }
        for outcome in outcomes
    ]
    rows = [[str(value).strip() for value in record.values()] for record in records]
    section = Section(heading="", titles=("instance", "status", "stdout", "stderr", "error"), rows=rows)
    return Report(command="exec", records=records, sections=[section], empty="")


def _raise_for(outcomes: Sequence[Outcome[Member, Completed]]) -> None:
    failed = [each for each in outcomes if each.value is None or each.value.exit_status]
    if not failed:
        return
    for outcome in failed:
        if outcome.error is not None and not isinstance(outcome.error, DlcloudError):
            raise outcome.error
    told = "\n".join(
        f"{each.item.instance.instance_id}: {each.error or f'status {each.value and each.value.exit_status}'}"
        for each in failed
    )
    kind = RemoteCommandError if len(failed) == len(outcomes) else PartialError
    error = kind(f"the command failed on {len(failed)} of {len(outcomes)} instance(s)\n{told}")
    error.result_shown = True
    raise error
