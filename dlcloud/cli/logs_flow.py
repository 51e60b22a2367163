"""The walk of `dlcloud logs`: from the instance while a run goes on, from this machine afterwards."""

import sys
from collections.abc import Iterator

import click

from dlcloud.cli.context import Context
from dlcloud.core.cluster import Cluster, Member
from dlcloud.core.errors import RecipeError
from dlcloud.core.result import Run, RunState
from dlcloud.launch.remote_jobs import log_command
from dlcloud.report.table import envelope


def print_log(context: Context, name: str, *, follow: bool, output: str) -> None:
    """Print a run's log.

    Raises:
        RecipeError: There is no such run, or nothing is left of its log.
        UnreachableError: The instance does not answer.
    """
    run = _find(context, name)
    stored = context.paths.run_log(run.run_id)
    if run.state is RunState.RUNNING and not stored.exists():
        pieces = _from_instance(context, run, follow=follow)
    elif stored.exists():
        pieces = iter([stored.read_bytes()])
    else:
        raise RecipeError(f"no log of {run.run_id} was brought home ({run.state})", "dlcloud cost-report")
    if output == "json":
        text = b"".join(pieces).decode("utf-8", "replace")
        click.echo(envelope("logs", {"result": {"run": run.run_id, "state": str(run.state), "log": text}}))
        return
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _find(context: Context, name: str) -> Run:
    runs = context.runs.own()
    if not runs:
        raise RecipeError("nothing has run yet", "dlcloud up quickstart")
    named = [run for run in runs if not name or name in {run.run_id, run.cluster_name, run.instance_id}]
    if not named:
        raise RecipeError(f"there is no run {name}", f"the newest is {runs[-1].run_id}")
    return named[-1]


def _from_instance(context: Context, run: Run, *, follow: bool) -> Iterator[bytes]:
    cluster, member = _where(context, run)
    connection = context.dialer(cluster).dial(member.instance.endpoint(cluster.user))
    yield from connection.stream(log_command(run, follow=follow))


def _where(context: Context, run: Run) -> tuple[Cluster, Member]:
    cluster = context.clusters.find(run.cluster_id)
    members = context.clusters.members(run.cluster_id)
    member = next((each for each in members if each.instance.instance_id == run.instance_id), None)
    if cluster is None or member is None:
        raise RecipeError(f"the instance of {run.run_id} is not known here")
    return cluster, member
