"""`dlcloud exec`: a command on every instance."""

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import output_option, verbose_option
from dlcloud.core.cluster import Member, select_members
from dlcloud.core.errors import DlcloudError, PartialError, RemoteCommandError
from dlcloud.core.remote import Completed

if TYPE_CHECKING:
    from dlcloud.cli.context import Context
    from dlcloud.report.table import Report
    from dlcloud.system.parallel import Outcome


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("cluster")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("-i", "--instance", default="", help="Only this instance: its id, or its number from 1.")
@output_option
@verbose_option
def command(*, cluster: str, words: tuple[str, ...], instance: str, output: str, verbose: bool) -> int | None:
    """Run COMMAND on every instance of CLUSTER at once and print its output, instance by instance.

    Ends with 4 if it failed everywhere, 5 if it failed somewhere.
    """
    from dlcloud.cli.context import Context

    with Context("exec", verbose=verbose) as context:
        status = context.forward_command(cluster)
        if status is None:
            run_everywhere(context, cluster, words, instance, output=output)
    return status


def run_everywhere(
    context: "Context", name: str, words: Sequence[str], instance: str, *, output: str
) -> None:
    """Run a command on instances at once and print the answers.

    Raises:
        RemoteCommandError: It failed everywhere.
        PartialError: It failed somewhere.
    """
    from dlcloud.launch.setup import FOLDER
    from dlcloud.report.table import Format, render
    from dlcloud.system.parallel import fan_out

    cluster = context.find_cluster(name)
    members = select_members(cluster, context.clusters.members(cluster.cluster_id), instance)
    dialer = context.dialer(cluster)
    line = words[0] if len(words) == 1 else shlex.join(words)

    def run(member: Member) -> Completed:
        # A command counts as work: the idle timer starts anew (templates/watchdog.py).
        connection = dialer.dial(member.instance.endpoint(cluster.user))
        return connection.run(f"touch {FOLDER}/used 2>/dev/null; {line}")

    outcomes = fan_out(run, members)
    if output == Format.TABLE:
        _print_text(outcomes)
    else:
        click.echo(render(_report(outcomes), Format(output)))
    _raise_for(outcomes)


def _print_text(outcomes: "Sequence[Outcome[Member, Completed]]") -> None:
    for outcome in outcomes:
        prefix = f"{outcome.item.instance.instance_id}: " if len(outcomes) > 1 else ""
        if outcome.value is None:
            continue
        for text, stream in ((outcome.value.stdout, sys.stdout), (outcome.value.stderr, sys.stderr)):
            for line in text.decode("utf-8", "replace").splitlines():
                print(f"{prefix}{line}", file=stream)


def _report(outcomes: "Sequence[Outcome[Member, Completed]]") -> "Report":
    from dlcloud.report.table import Report, Section

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


def _raise_for(outcomes: "Sequence[Outcome[Member, Completed]]") -> None:
    failed = [outcome for outcome in outcomes if outcome.value is None or outcome.value.exit_status]
    if not failed:
        return
    for outcome in failed:
        if outcome.error is not None and not isinstance(outcome.error, DlcloudError):
            raise outcome.error
    lines = [f"{outcome.item.instance.instance_id}: {_reason(outcome)}" for outcome in failed]
    kind = RemoteCommandError if len(failed) == len(outcomes) else PartialError
    summary = f"the command failed on {len(failed)} of {len(outcomes)} instance(s)"
    raise kind("\n".join([summary, *lines]), result_shown=True)


def _reason(outcome: "Outcome[Member, Completed]") -> str:
    return f"status {outcome.value.exit_status}" if outcome.value else str(outcome.error)
